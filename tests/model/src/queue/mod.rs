//! A queue: what is ready in it, what consumers hold, and what leaves it.
//!
//! ```text
//!   enqueue ──► waiting ─┐                    ┌─► settled
//!                        ├─► held ────────────┼─► returned (quorum) or its old place (classic)
//!               returned ┘   by a consumer    ├─► delayed (quorum of 4.3, delayed retry)
//!                                             └─► dead ──► at most once: an effect; at least once: the worker
//! ```
//!
//! Nothing here knows of connections: a queue says what is to be done as [`Effect`]s.

mod consumer;
mod handout;
mod length;
mod returning;
mod worker;

pub(crate) use consumer::{Consumer, ConsumerKey, Holder, Status};
pub(crate) use returning::Return;
pub(crate) use worker::{Dead, Worker};

use crate::death::Reason;
use crate::message::Message;
use crate::settings::{QueueType, Settings};
use crate::{ConnectionId, Name, Profile, Version};
use lapin::types::FieldTable;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

/// Which queue; a queue that is made anew gets a new number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct QueueId(pub(crate) u32);

/// Who publishes into a queue, for the bookkeeping of quorum queues about whom they have told to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Publisher {
    /// A channel.
    Channel(u64),
    /// The worker that carries dead letters out of a quorum queue at least once.
    Worker(QueueId),
    /// A dead letter that is sent and forgotten.
    Nobody,
}

/// A message in a queue.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    /// Its place; classic queues give back to it.
    pub(crate) position: u64,
    pub(crate) message: Arc<Message>,
    pub(crate) expiry: Option<Duration>,
    /// Classic queues: whether it may have been delivered before.
    pub(crate) redelivered: bool,
    /// Quorum queues: how often it was handed out and came back.
    pub(crate) acquired: Option<i64>,
    /// How often that counted.
    pub(crate) deliveries: Option<i64>,
    /// From when on a kill cannot take it away.
    pub(crate) safe_at: Duration,
}

/// A message that a consumer has.
#[derive(Clone, Debug)]
pub(crate) struct Held {
    pub(crate) entry: Entry,
    pub(crate) consumer: ConsumerKey,
}

/// What a queue wants done.
#[derive(Debug)]
pub(crate) enum Effect {
    Deliver {
        queue: QueueId,
        to: Holder,
        consumer: ConsumerKey,
        handout: u64,
        message: Arc<Message>,
        redelivered: bool,
        delivery_count: Option<i64>,
        acquired: Option<i64>,
    },
    /// To the dead-letter exchange, at most once.
    Bury {
        queue: QueueId,
        message: Arc<Message>,
        reason: Reason,
        delivery_count: Option<i64>,
    },
    /// The worker has something to carry.
    Carry { queue: QueueId },
    /// The consumer is at an end, and its channel is told.
    End { to: Holder },
}

/// What a queue looks at when it acts.
pub(crate) struct Context<'a> {
    pub(crate) profile: &'a Profile,
    pub(crate) now: Duration,
    pub(crate) effects: &'a mut Vec<Effect>,
}

#[derive(Debug)]
pub(crate) struct Queue {
    pub(crate) id: QueueId,
    pub(crate) name: Name,
    pub(crate) kind: QueueType,
    pub(crate) durable: bool,
    pub(crate) auto_delete: bool,
    pub(crate) exclusive: Option<ConnectionId>,
    pub(crate) arguments: FieldTable,
    pub(crate) settings: Settings,
    pub(crate) created: Duration,
    pub(crate) last_used: Duration,
    pub(crate) had_consumers: bool,
    /// Whether its consumer wants to be the only one.
    pub(crate) exclusive_consumer: bool,
    pub(crate) consumers: BTreeMap<ConsumerKey, Consumer>,
    /// The one that is served, where only one is.
    pub(crate) active: Option<ConsumerKey>,
    /// Those that wait to become it (quorum queues), in the order in which they will.
    pub(crate) standby: Vec<ConsumerKey>,
    pub(crate) held: BTreeMap<u64, Held>,
    pub(crate) worker: Worker,
    /// What was settled so recently that a kill may bring it back.
    pub(crate) forgotten: VecDeque<(Duration, Entry)>,
    /// For which moment the broker has been asked to look for expired messages.
    pub(crate) alarm: Option<Duration>,
    service: VecDeque<ConsumerKey>,
    /// Who was given what needs no settlement.
    self_settled: Vec<ConsumerKey>,
    waiting: VecDeque<Entry>,
    returned: VecDeque<Entry>,
    delayed: BTreeMap<(Duration, u64), Entry>,
    publishers: BTreeMap<Publisher, bool>,
    was_low: bool,
    /// No dead letter of this queue overtakes another.
    pub(crate) last_burial: Duration,
    next_position: u64,
    next_handout: u64,
}

/// How a queue was declared.
pub(crate) struct Declaration {
    pub(crate) id: QueueId,
    pub(crate) name: Name,
    pub(crate) kind: QueueType,
    pub(crate) durable: bool,
    pub(crate) auto_delete: bool,
    pub(crate) exclusive: Option<ConnectionId>,
    pub(crate) arguments: FieldTable,
    pub(crate) settings: Settings,
}

impl Queue {
    pub(crate) fn new(birth: Declaration, now: Duration) -> Self {
        Queue {
            id: birth.id,
            name: birth.name,
            kind: birth.kind,
            durable: birth.durable,
            auto_delete: birth.auto_delete,
            exclusive: birth.exclusive,
            arguments: birth.arguments,
            settings: birth.settings,
            created: now,
            last_used: now,
            had_consumers: false,
            exclusive_consumer: false,
            consumers: BTreeMap::new(),
            active: None,
            standby: Vec::new(),
            held: BTreeMap::new(),
            worker: Worker::default(),
            forgotten: VecDeque::new(),
            alarm: None,
            service: VecDeque::new(),
            self_settled: Vec::new(),
            waiting: VecDeque::new(),
            returned: VecDeque::new(),
            delayed: BTreeMap::new(),
            publishers: BTreeMap::new(),
            was_low: true,
            last_burial: Duration::ZERO,
            next_position: 0,
            next_handout: 0,
        }
    }

    pub(crate) fn is_quorum(&self) -> bool {
        self.kind == QueueType::Quorum
    }

    /// How many messages are ready.
    pub(crate) fn ready(&self) -> usize {
        self.waiting.len() + self.returned.len()
    }

    /// How many wait for the end of a delayed retry.
    pub(crate) fn delayed(&self) -> usize {
        self.delayed.len()
    }

    /// All messages in it: the ready ones in order, the delayed, the held and the dead ones that wait to be carried away.
    pub(crate) fn messages(&self) -> impl Iterator<Item = &Arc<Message>> {
        self.ready_entries()
            .chain(self.delayed.values())
            .chain(self.held.values().map(|held| &held.entry))
            .map(|entry| &entry.message)
            .chain(self.worker.messages())
    }

    /// The ready messages in the order in which they will be handed out.
    pub(crate) fn ready_entries(&self) -> impl Iterator<Item = &Entry> {
        self.returned.iter().chain(&self.waiting)
    }

    /// Takes in a message, or refuses it because the queue is full. A quorum queue refuses whom it has told to stop, and
    /// tells only those it knows; so one more than fits gets in.
    pub(crate) fn enqueue(
        &mut self,
        context: &mut Context<'_>,
        publisher: Publisher,
        message: Arc<Message>,
        safe_at: Duration,
    ) -> bool {
        if self.refuses(publisher) {
            return false;
        }
        let queue_time = self.settings.message_ttl;
        let own_time = message.expiration.map(Duration::from_millis);
        let time = match (queue_time, own_time) {
            (Some(one), Some(other)) => Some(one.min(other)),
            (one, other) => one.or(other),
        };
        let least = if self.is_quorum() { 1 } else { 0 };
        let entry = Entry {
            position: self.next_position,
            expiry: time.map(|time| context.now + time.max(Duration::from_millis(least))),
            redelivered: false,
            acquired: None,
            deliveries: message.delivery_count,
            message,
            safe_at,
        };
        self.next_position += 1;
        if self.is_quorum() {
            self.line_up(context.profile.version, entry);
            self.run(context);
        } else if let Some(mut entry) = self.hand_over(context, entry) {
            // A classic queue of 4.3 calls a dead letter redelivered that had been delivered in vain, unless it hands it
            // out at once.
            entry.redelivered =
                entry.deliveries.is_some() && context.profile.version >= Version::V4_3;
            self.waiting.push_back(entry);
            self.look(context);
        }
        self.keep_length(context);
        true
    }

    /// A quorum queue of 4.x has a line in front of the other for what has a priority of 5 or more.
    fn line_up(&mut self, version: Version, entry: Entry) {
        let first = |entry: &Entry| entry.message.properties.priority().unwrap_or(0) > 4;
        if version >= Version::V4_0 && first(&entry) {
            let place = self.waiting.iter().position(|other| !first(other));
            let place = place.unwrap_or(self.waiting.len());
            self.waiting.insert(place, entry);
        } else {
            self.waiting.push_back(entry);
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.returned.is_empty()
    }

    /// Lets go of the ready messages and says how many they were. A quorum queue of 4.3 lets go of those that are
    /// delayed and of its dead letters as well.
    pub(crate) fn purge(&mut self, context: &mut Context<'_>) -> usize {
        let mut count = self.ready();
        self.waiting.clear();
        self.returned.clear();
        if context.profile.version >= Version::V4_3 {
            count += self.delayed.len() + self.worker.len();
            self.delayed.clear();
            self.worker.clear();
        }
        self.keep_length(context);
        count
    }

    /// Its settings are others.
    pub(crate) fn policy_changed(&mut self, context: &mut Context<'_>) {
        self.look(context);
        self.keep_length(context);
    }

    /// A dead letter has arrived where it was carried to.
    pub(crate) fn carried(&mut self, context: &mut Context<'_>, number: u64) {
        self.worker.finish(number);
        self.keep_length(context);
    }

    /// When the next message at the head runs out of time, or the next delay ends.
    pub(crate) fn next_due(&self, version: Version) -> Option<Duration> {
        let end = |entry: Option<&Entry>| entry.and_then(|entry| entry.expiry);
        let (first, second) = (self.returned.front(), self.waiting.front());
        let expiry = if version >= Version::V4_3 {
            [end(first), end(second)].into_iter().flatten().min()
        } else {
            end(first.or(second))
        };
        let delay = self.delayed.keys().next().map(|(due, _)| *due);
        [expiry, delay].into_iter().flatten().min()
    }

    /// What a kill and a restart leave. `lost` says of each message that is not safe whether it is gone, `undone` of each
    /// settlement that is not safe whether it never was.
    pub(crate) fn restart(
        &mut self,
        context: &mut Context<'_>,
        killed: bool,
        mut lost: impl FnMut() -> bool,
        mut undone: impl FnMut() -> bool,
    ) {
        let now = context.now;
        self.close_all(context);
        let quorum = self.is_quorum();
        if quorum && killed && now < self.created + context.profile.young {
            self.waiting.clear();
            self.returned.clear();
            self.delayed.clear();
            self.worker.clear();
            self.forgotten.clear();
        }
        if killed {
            for (until, mut entry) in std::mem::take(&mut self.forgotten) {
                if until > now && undone() {
                    entry.redelivered = true;
                    entry.acquired = Some(entry.acquired.unwrap_or(0) + 1);
                    entry.deliveries = Some(entry.deliveries.unwrap_or(0) + 1);
                    self.put_back(entry);
                }
            }
        }
        let mut keeps = |entry: &Entry| {
            let stored = quorum || entry.message.persistent;
            stored && !(killed && entry.safe_at > now && lost())
        };
        self.waiting.retain(&mut keeps);
        self.returned.retain(&mut keeps);
        if !quorum && killed {
            for entry in &mut self.waiting {
                entry.redelivered = true;
                if context.profile.version >= Version::V4_3 {
                    entry.deliveries.get_or_insert(1);
                }
            }
        }
        self.publishers.clear();
        self.worker.restart();
        if self.worker.len() > 0 {
            context.effects.push(Effect::Carry { queue: self.id });
        }
        self.alarm = None;
        self.last_used = now;
        self.run(context);
    }

    /// No consumer is left, and what they held is back.
    fn close_all(&mut self, context: &mut Context<'_>) {
        let holders = self.consumers.values().map(|consumer| &consumer.holder);
        let channels: BTreeSet<u64> = holders.map(|holder| holder.channel_key).collect();
        for channel in &channels {
            self.retire_channel(*channel);
        }
        for channel in channels {
            self.close_channel(context, channel);
        }
    }
}
