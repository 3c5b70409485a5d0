//! What operators and accidents do.

use super::queues::count;
use super::{Broker, Exchange};
use crate::connection::Connection;
use crate::declaration::check;
use crate::event_queue::Event;
use crate::frame::Refusal;
use crate::method::Declare;
use crate::nondeterminism::UnknownOutcome;
use crate::queue::QueueId;
use crate::settings::{Policy, QueueType, Settings};
use crate::{ConnectionId, Frame, MessageId, Name};
use std::collections::BTreeMap;
use std::time::Duration;

/// What an operator sees of a queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueView {
    /// Its type.
    pub kind: QueueType,
    /// How many messages are ready.
    pub ready: usize,
    /// How many are with consumers.
    pub unsettled: usize,
    /// How many wait for the end of a delayed retry.
    pub delayed: usize,
    /// How many have died and wait to be carried away at least once.
    pub dead: usize,
    /// How many consumers it has.
    pub consumers: usize,
    /// When it was declared.
    pub created: Duration,
}

impl Broker {
    /// Looks at a queue, `None` when it does not exist. It spends no delivery.
    pub fn queue_view(&self, name: &str) -> Option<QueueView> {
        let queue = self.named(name)?;
        Some(QueueView {
            kind: queue.kind,
            ready: queue.ready(),
            unsettled: queue.held.len(),
            delayed: queue.delayed(),
            dead: queue.worker.len(),
            consumers: queue.consumer_count(),
            created: queue.created,
        })
    }

    /// The names of all queues, in order.
    pub fn queue_names(&self) -> impl Iterator<Item = &Name> {
        self.names.keys()
    }

    /// All messages in a queue, the ready ones first and in order, then those that are delayed, with consumers, or
    /// dead and not yet carried away; nothing when there is no such queue.
    pub fn messages(&self, queue: &str) -> impl Iterator<Item = MessageId> {
        let queue = self.named(queue);
        let messages = queue.into_iter().flat_map(|queue| queue.messages());
        messages.map(|message| message.id)
    }

    /// All messages anywhere in the broker, those on their way between queues excepted: see
    /// [`Broker::is_in_transit`].
    pub fn all_messages(&self) -> impl Iterator<Item = MessageId> {
        let queues = self.queues.iter().flatten();
        queues.flat_map(|queue| queue.messages().map(|message| message.id))
    }

    /// Whether any dead letter is on its way that no queue has.
    pub fn is_in_transit(&self) -> bool {
        self.event_queue.has_dead_letter()
    }

    /// Makes a queue as an operator does. A queue of that name is left as it is.
    ///
    /// # Errors
    /// What the broker refuses it with.
    pub fn make_queue(&mut self, declare: &Declare) -> Result<(), Refusal> {
        let kind = check(&self.profile, declare)?;
        if !self.names.contains_key(&declare.queue) {
            self.create(declare, kind, None);
        }
        Ok(())
    }

    /// Deletes a queue with what is in it, and tells its consumers. Whether there was one.
    pub fn delete_queue(&mut self, name: &str) -> bool {
        let id = self.names.get(name).copied();
        if let Some(id) = id {
            self.remove_queue(id);
            self.happen(self.now);
        }
        id.is_some()
    }

    /// Lets go of what is ready in a queue, and says how many messages that were.
    pub fn purge_queue(&mut self, name: &str) -> usize {
        let Some(id) = self.names.get(name).copied() else {
            return 0;
        };
        let purged = self.with_queue(id, |queue, context| queue.purge(context));
        self.apply();
        purged.unwrap_or(0)
    }

    /// Makes an exchange: direct, or fanout. One of that name is left as it is.
    pub fn make_exchange(&mut self, name: &str, fanout: bool) {
        let exchange = || Exchange {
            fanout,
            bindings: Vec::new(),
        };
        self.exchanges
            .entry(Name::from(name))
            .or_insert_with(exchange);
    }

    /// Sets the policy of the queues of that name, or with a name that ends in `*`, of all that begin so; also of those that
    /// do not exist yet. `None` takes it away. Of several that match a queue the longest counts, as if it had the highest
    /// priority.
    pub fn set_policy(&mut self, pattern: &str, policy: Option<Policy>) {
        match policy {
            Some(policy) => self.policies.insert(Name::from(pattern), policy),
            None => self.policies.remove(pattern),
        };
        self.apply_policies(pattern);
    }

    /// The same with an operator policy, which is merged with the policy of the same queue.
    ///
    /// # Errors
    /// Why the broker takes it for no operator policy (400).
    pub fn set_operator_policy(
        &mut self,
        pattern: &str,
        policy: Option<Policy>,
    ) -> Result<(), Refusal> {
        match policy {
            Some(policy) => {
                if let Some(text) = policy.operators_refusal(self.profile.version) {
                    let text = text.to_owned();
                    return Err(Refusal { code: 400, text });
                }
                self.operator_policies.insert(Name::from(pattern), policy)
            }
            None => self.operator_policies.remove(pattern),
        };
        self.apply_policies(pattern);
        Ok(())
    }

    /// Enables the feature flag `stream_queue`. Queues that exist dead-letter as before, until a policy is set on them.
    pub fn enable_stream_queue(&mut self) {
        self.profile.stream_queue = true;
    }

    /// What the policies that match a queue amount to.
    pub(super) fn policy_of(&self, queue: &str) -> Option<Policy> {
        let of = |policies: &BTreeMap<Name, Policy>| {
            let matching = policies.iter().filter(|(name, _)| matches(name, queue));
            let longest = matching.max_by_key(|(pattern, _)| pattern.len());
            longest.map(|(_, policy)| policy.clone())
        };
        match (of(&self.policies), of(&self.operator_policies)) {
            (Some(user), Some(operator)) => Some(user.with_operator(&operator)),
            (user, operator) => user.or(operator),
        }
    }

    fn apply_policies(&mut self, pattern: &str) {
        let matching = self.names.iter().filter(|(name, _)| matches(pattern, name));
        let matching: Vec<(Name, QueueId)> =
            matching.map(|(name, id)| (name.clone(), *id)).collect();
        for (name, id) in matching {
            let policy = self.policy_of(&name);
            let Some(Some(found)) = self.queues.get_mut(id.0 as usize) else {
                continue;
            };
            found.settings =
                Settings::of(&self.profile, found.kind, &found.arguments, policy.as_ref());
            if let Some(lease) = found.settings.expires {
                let at = self.now + lease;
                found.last_used = self.now;
                self.event_queue.add(at, Event::Lease { queue: id });
            }
            self.with_queue(id, |queue, context| queue.policy_changed(context));
        }
        self.apply();
        self.happen(self.now);
    }

    /// Closes a connection, which is told so (320).
    pub fn close_connection(&mut self, connection: ConnectionId) {
        if !self.is_open(connection) {
            return;
        }
        self.end_connection(connection);
        let refusal = Refusal {
            code: 320,
            text: "CONNECTION_FORCED - Closed via management plugin".into(),
        };
        self.push(connection, 0, Frame::CloseConnection(refusal));
        self.happen(self.now);
    }

    /// Closes a channel with a code of one's choice, as a broker does for its own reasons.
    pub fn close_channel(&mut self, connection: ConnectionId, channel: u16, code: u16) {
        self.close_channel_with(connection, channel, code, format!("closed with {code}"));
        self.happen(self.now);
    }

    pub(super) fn close_channel_with(
        &mut self,
        connection: ConnectionId,
        channel: u16,
        code: u16,
        text: String,
    ) {
        if self.channel(connection, channel).is_none() {
            return;
        }
        self.end_channel(connection, channel);
        self.push(
            connection,
            channel,
            Frame::CloseChannel(Refusal { code, text }),
        );
    }

    /// A memory or disk alarm begins or ends. While it lasts, a connection that publishes is not read: from the publish
    /// on, whatever it sends waits, acknowledgements included.
    pub fn set_alarm(&mut self, on: bool) {
        self.alarm = on;
        if on {
            return;
        }
        let blocked: Vec<ConnectionId> = (0..count(self.connections.len()))
            .map(ConnectionId)
            .filter(|id| self.connection(*id).is_some_and(|known| known.blocked))
            .collect();
        for id in blocked {
            let Some(known) = self.connection_mut(id) else {
                continue;
            };
            known.blocked = false;
            let unread = std::mem::take(&mut known.unread);
            self.push(id, 0, Frame::Unblocked);
            for (channel, method) in unread {
                self.send(id, channel, method);
            }
        }
    }

    /// How long a delivery may stay unsettled from now on; `None` is for ever.
    pub fn set_consumer_timeout(&mut self, timeout: Option<Duration>) {
        self.profile.consumer_timeout = timeout;
    }

    /// Whether it runs.
    pub fn is_running(&self) -> bool {
        self.running
    }

    /// The broker dies without a word. Connections are gone with what was not received. What was not confirmed or not
    /// yet written may be lost, as the [`Nondeterminism`](crate::Nondeterminism) says; young quorum queues come back empty.
    pub fn kill(&mut self) {
        if self.running {
            self.stop_all(true);
        }
    }

    /// The broker stops cleanly: connections are closed (320), and everything durable is kept.
    pub fn stop(&mut self) {
        if self.running {
            self.stop_all(false);
        }
    }

    /// A broker that is down comes up again. Time went on for what is in its queues.
    pub fn start(&mut self) {
        self.running = true;
        let ids: Vec<QueueId> = self.names.values().copied().collect();
        for id in ids {
            self.with_queue(id, |queue, context| {
                queue.alarm = None;
                queue.run(context);
            });
            self.carry(id);
            let lease = self.queue(id).and_then(|queue| queue.settings.expires);
            if let Some(lease) = lease {
                self.event_queue
                    .add(self.now + lease, Event::Lease { queue: id });
            }
        }
        self.apply();
        self.happen(self.now);
    }

    /// [`Broker::kill`] and [`Broker::start`] in one moment.
    pub fn restart_killed(&mut self) {
        self.kill();
        self.start();
    }

    fn stop_all(&mut self, killed: bool) {
        let refusal = Refusal {
            code: 320,
            text: "CONNECTION_FORCED - broker forced connection closure with reason 'shutdown'"
                .into(),
        };
        for slot in &mut self.connections {
            let Some(connection) = slot.as_mut().filter(|connection| !connection.closed) else {
                continue;
            };
            if killed {
                *slot = None;
                continue;
            }
            let mut closed = Connection {
                closed: true,
                outbound: std::mem::take(&mut connection.outbound),
                ..Connection::default()
            };
            let frame = Frame::CloseConnection(refusal.clone());
            closed.outbound.push_back((0, frame));
            *slot = Some(closed);
        }
        let under_way = self.event_queue.drain();
        let ids: Vec<QueueId> = self.names.values().copied().collect();
        for id in ids {
            self.restart_queue(id, killed);
        }
        self.effects.clear();
        for (_, event) in under_way {
            if let Event::Arrive {
                targets,
                message,
                worker: None,
            } = event
                && !(killed && self.nondeterminism.happens(UnknownOutcome::DeadLetterLost))
            {
                self.arrive(&targets, &message, None);
            }
        }
        self.effects.clear();
        self.event_queue.drain();
        self.running = false;
    }

    fn restart_queue(&mut self, id: QueueId, killed: bool) {
        let (now, young) = (self.now, self.profile.young);
        let Some(queue) = self.queue(id) else {
            return;
        };
        let gone = !queue.durable || queue.exclusive.is_some();
        let may_be_gone = killed
            && queue.kind == QueueType::Classic
            && self.profile.version < crate::Version::V4_3
            && now < queue.created + young;
        if gone || (may_be_gone && self.nondeterminism.happens(UnknownOutcome::YoungQueueLost)) {
            self.remove_queue(id);
            return;
        }
        // The queue asks while it is borrowed; so the answers come from a chance that is taken out meanwhile.
        let mut nondeterminism = std::mem::replace(
            &mut self.nondeterminism,
            Box::new(crate::nondeterminism::Prompt),
        );
        let doubts = std::cell::RefCell::new(&mut nondeterminism);
        let lost = || doubts.borrow_mut().happens(UnknownOutcome::UnconfirmedLost);
        let undone = || doubts.borrow_mut().happens(UnknownOutcome::SettlementLost);
        self.with_queue(id, |queue, context| {
            queue.restart(context, killed, lost, undone);
        });
        self.nondeterminism = nondeterminism;
    }
}

/// Whether a policy of this pattern is for a queue.
fn matches(pattern: &str, queue: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(start) => queue.starts_with(start),
        None => pattern == queue,
    }
}
