//! How a consumer finds out whether its waiting queues will dead-letter at least once. It asks the same questions as a real one. It takes some
//! tens of milliseconds, in which nothing else is done.

use std::time::Duration;

use retryrmq_model::{ConnectionId, Declare, Frame, Method, Publish};

use super::super::Simulation;
use super::plan::{consumer, declared};
use crate::topology::{
    PROBE_QUEUES, Probe, ProbeStep, TRIES, asks_at_least_once, probe_arguments, probe_queue,
};

/// How long it may take.
const TIME_LIMIT: Duration = Duration::from_secs(3);

impl Simulation {
    /// Whether a replica may consume: the broker holds what it cannot dead-letter, or that was not found out.
    pub(super) fn may_rely_on_the_broker(&mut self, at: usize) -> bool {
        let plan = consumer(&self.setting).plan();
        let plan = plan.expect("the strategy serves the policy");
        let Some(queue) = asks_at_least_once(&plan) else {
            return true;
        };
        if self.replicas[at].has_probed {
            return true;
        }
        let is_dropped = |world: &mut Self| world.holds(queue) == Some(false);
        if (0..TRIES).all(|_| is_dropped(self)) {
            self.note(|| format!("replica {at} refuses to consume: waiting messages are dropped"));
            return false;
        }
        self.replicas[at].has_probed = true;
        true
    }

    fn holds(&mut self, queue: &str) -> Option<bool> {
        let connection = self.broker.connect()?;
        let until = self.now + TIME_LIMIT;
        // Whoever uses a name at the same time has arguments of their own, so that others take another one.
        let first = self.random.u64(..PROBE_QUEUES);
        let mut names = (first..first + PROBE_QUEUES).map(|number| probe_queue(queue, number));
        let probe = names.find(|name| self.broker.queue_view(name).is_none())?;
        let arguments = probe_arguments(self.random.u64(..));
        self.broker.send(connection, 1, Method::OpenChannel);
        let declare = Method::Declare(Box::new(declared(&probe, arguments)));
        self.broker.send(connection, 1, declare);
        let (mut questions, mut next, mut channel) = (Probe::default(), ProbeStep::Publish, 1);
        let answer = loop {
            next = match next {
                ProbeStep::Publish => {
                    channel += 1;
                    match self.accepts(connection, channel, &probe, until) {
                        Some(is_taken) => questions.published(is_taken),
                        None => break None,
                    }
                }
                ProbeStep::Look => match self.ready_in(connection, &probe) {
                    Some(ready) => questions.step_after_count(ready),
                    None => break None,
                },
                ProbeStep::Done(answer) => break answer,
            };
            if next == ProbeStep::Look && !self.pass_a_moment(until) {
                break None;
            }
        };
        let queue = probe.as_str().into();
        self.broker.send(connection, 1, Method::Delete { queue });
        self.broker.cut(connection);
        answer
    }

    fn accepts(
        &mut self,
        connection: ConnectionId,
        channel: u16,
        queue: &str,
        until: Duration,
    ) -> Option<bool> {
        let publish = Method::Publish(Box::new(Publish::to_queue(queue, *b"")));
        for method in [Method::OpenChannel, Method::SelectConfirms, publish] {
            self.broker.send(connection, channel, method);
        }
        loop {
            while let Some((_, frame)) = self.broker.receive(connection) {
                if let Frame::Confirm { stored, .. } = frame {
                    self.broker.send(connection, channel, Method::CloseChannel);
                    return Some(stored);
                }
            }
            if !self.pass_a_moment(until) {
                return None;
            }
        }
    }

    fn ready_in(&mut self, connection: ConnectionId, queue: &str) -> Option<u32> {
        let scan = Method::Declare(Box::new(Declare::passive(queue)));
        self.broker.send(connection, 1, scan);
        let frames = std::iter::from_fn(|| self.broker.receive(connection));
        let counts = frames.filter_map(|(_, frame)| match frame {
            Frame::Declared { messages, .. } => Some(messages),
            _ => None,
        });
        counts.last()
    }

    fn pass_a_moment(&mut self, until: Duration) -> bool {
        self.now += Duration::from_millis(2);
        self.broker.advance(self.now);
        self.now < until
    }
}
