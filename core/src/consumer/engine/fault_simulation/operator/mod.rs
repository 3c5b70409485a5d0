//! Operators who walk through the parking queue, several at a time: they look, replay and drop, and may be killed at any moment.

mod source;
mod walk;
mod walk_io;

use std::{
    pin::Pin,
    task::{Context, Poll, Waker},
    time::Duration,
};

use retryrmq_model::{Broker, ConnectionId, QueueType};

use self::{
    walk::{OperatorTask, Walk},
    walk_io::{Interrupted, LedgerNote, WalkIo},
};
use super::{PARKED, Simulation, replica::ReplicaStep, replica::Side};

type RunningWalk = Pin<Box<dyn Future<Output = Result<(), Interrupted>>>>;

/// One walk of an operator.
struct OperatorWalk {
    walk_io: WalkIo,
    walking: ConnectionId,
    publishing: ConnectionId,
    /// After how many frames its process is killed.
    dies_after: Option<u32>,
    /// `None` after the walk has ended, while its last frames are on their way.
    walk: Option<RunningWalk>,
}

impl OperatorWalk {
    fn connection(&self, side: Side) -> ConnectionId {
        match side {
            Side::Consuming => self.walking,
            Side::Publishing => self.publishing,
        }
    }
}

/// An operator, who walks again and again.
#[derive(Default)]
pub(super) struct Operator {
    operator_walk: Option<OperatorWalk>,
    next_walk: Duration,
}

impl Operator {
    pub(super) fn is_away(&self) -> bool {
        self.operator_walk.is_none()
    }

    pub(super) fn choices(&self, broker: &Broker, at: usize, choices: &mut Vec<ReplicaStep>) {
        let Some(operator_walk) = &self.operator_walk else {
            return;
        };
        for side in [Side::Consuming, Side::Publishing] {
            if operator_walk.walk_io.has_written(side) {
                choices.push(ReplicaStep::OperatorWrites(at, side));
            }
            if operator_walk.walk.is_some() && broker.outbound(operator_walk.connection(side)) > 0 {
                choices.push(ReplicaStep::OperatorReads(at, side));
            }
        }
    }

    pub(super) fn wakes_at(&self, harm_until: Duration) -> Option<Duration> {
        match &self.operator_walk {
            Some(operator_walk) => operator_walk.walk_io.wakes_at(),
            None => (self.next_walk < harm_until).then_some(self.next_walk),
        }
    }
}

impl Simulation {
    pub(super) fn operator_writes(&mut self, at: usize, side: Side) -> Result<(), String> {
        if let Some(operator_walk) = &self.operators[at].operator_walk
            && let Some((channel, method)) = operator_walk.walk_io.take_written(side)
        {
            self.broker
                .send(operator_walk.connection(side), channel, method);
        }
        self.operator_goes_on(at)
    }

    pub(super) fn operator_reads(&mut self, at: usize, side: Side) -> Result<(), String> {
        if let Some(operator_walk) = &self.operators[at].operator_walk
            && let Some((_, frame)) = self.broker.receive(operator_walk.connection(side))
        {
            if let retryrmq_model::Frame::CloseChannel(why) = &frame
                && why.text.contains("unknown delivery tag")
            {
                return Err(format!("operator {at} settled what it did not hold"));
            }
            operator_walk.walk_io.hears(frame);
        }
        self.operator_goes_on(at)
    }

    pub(super) fn operator_clock(&mut self, at: usize) -> Result<(), String> {
        let wakes_at = self.operators[at].wakes_at(self.faults_until);
        if wakes_at.is_none_or(|wakes_at| wakes_at > self.now) {
            return Ok(());
        }
        if self.operators[at].operator_walk.is_none() {
            self.come(at);
        }
        self.operator_goes_on(at)
    }

    fn come(&mut self, at: usize) {
        self.operators[at].next_walk =
            self.now + Duration::from_millis(self.random.u64(500..15_000));
        let Some(view) = self.broker.queue_view(PARKED) else {
            return;
        };
        let (Some(walking), Some(publishing)) = (self.broker.connect(), self.broker.connect())
        else {
            return;
        };
        let operator_task = match self.random.u8(0..7) {
            0 => OperatorTask::Replay { every: 1 },
            1 => OperatorTask::Replay { every: 3 },
            2 => {
                let published = self.published.max(1);
                let mut one = || self.random.u32(1..=published);
                OperatorTask::Drop([one(), one()].into())
            }
            3 => OperatorTask::Rewrite,
            _ => OperatorTask::Look,
        };
        let enough = match self.random.u8(0..3) {
            0 => self.random.usize(0..20),
            _ => usize::MAX,
        };
        self.note(|| format!("operator {at} comes: {operator_task:?}, at most {enough}"));
        let dies_after = (self.random.u8(0..3) == 0).then(|| self.random.u32(1..120));
        let walk_io = WalkIo::at(self.now);
        let classic = view.kind == QueueType::Classic;
        let number = self.random.u64(..);
        let kept = (self.random.u8(0..3) == 0).then(|| self.random.usize(0..6));
        let walk = Walk::go(
            walk_io.clone(),
            operator_task,
            (enough, kept),
            number,
            classic,
        );
        self.operators[at].operator_walk = Some(OperatorWalk {
            walk_io,
            walking,
            publishing,
            dies_after,
            walk: Some(Box::pin(walk)),
        });
    }

    fn operator_goes_on(&mut self, at: usize) -> Result<(), String> {
        let now = self.now;
        let dies = self.operators[at]
            .operator_walk
            .as_mut()
            .is_some_and(|operator_walk| {
                let left = operator_walk.dies_after.map(|left| left.saturating_sub(1));
                operator_walk.dies_after = left;
                left == Some(0)
            });
        if dies && self.may_interrupt() {
            self.interruptions += 1;
            self.interrupt(at);
        }
        let Some(operator_walk) = &mut self.operators[at].operator_walk else {
            return Ok(());
        };
        operator_walk.walk_io.passes(now);
        let mut end = None;
        if let Some(walk) = &mut operator_walk.walk
            && let Poll::Ready(done) = walk.as_mut().poll(&mut Context::from_waker(Waker::noop()))
        {
            operator_walk.walk = None;
            end = Some(done.is_ok());
        }
        let written = |side| operator_walk.walk_io.has_written(side);
        let is_gone = operator_walk.walk.is_none()
            && (end == Some(false) || !(written(Side::Consuming) || written(Side::Publishing)));
        for told in operator_walk.walk_io.take_told() {
            match told {
                LedgerNote::Drops(number) => {
                    self.note(|| format!("operator {at} drops {number}"));
                    self.ledger.dropped(number);
                }
                LedgerNote::Replays(number) => {
                    self.note(|| format!("operator {at} replays {number}"))
                }
            }
        }
        if let Some(end) = end {
            self.note(|| {
                format!(
                    "operator {at} is {}",
                    if end { "done" } else { "cut short" }
                )
            });
        }
        if is_gone {
            self.hang_up(at);
        }
        Ok(())
    }

    /// The operator is killed or disconnected: frames that have not arrived never do.
    pub(super) fn interrupt(&mut self, at: usize) {
        if !self.operators[at].is_away() {
            self.note(|| format!("operator {at} is killed"));
            self.hang_up(at);
        }
    }

    fn hang_up(&mut self, at: usize) {
        if let Some(operator_walk) = self.operators[at].operator_walk.take() {
            self.broker.cut(operator_walk.publishing);
            self.broker.cut(operator_walk.walking);
        }
    }
}
