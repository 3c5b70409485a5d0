//! The work queue of a simulation: a quorum queue of RabbitMQ 4.3 that loses nothing, is never late and has no limit.

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use super::super::engine::{Copy, IncomingDelivery, Return};
use crate::{
    BasicProperties,
    retry::headers,
    types::{AMQPValue, ShortString},
};

/// A message, and how often it was requeued.
struct Queued {
    message: IncomingDelivery,
    /// Requeues of any kind.
    acquired: i64,
    /// Requeues that count.
    deliveries: i64,
}

/// A consumer.
struct SimulatedConsumer {
    consumer: u64,
    prefetch: usize,
}

/// Messages in the queue, on their way to it, and held by consumers.
#[derive(Default)]
pub(super) struct Queue {
    /// Keyed by arrival time, then in the order in which they were sent.
    coming: BTreeMap<(Duration, u64), Queued>,
    sent: u64,
    /// Requeued messages; they come first.
    returned: VecDeque<Queued>,
    /// By delivery tag, with its consumer.
    held: BTreeMap<u64, (u64, Queued)>,
    tags: u64,
    served: Vec<SimulatedConsumer>,
}

impl Queue {
    /// Adds a message that arrives at this time.
    pub(super) fn send(&mut self, due: Duration, message: IncomingDelivery) {
        self.sent += 1;
        let queued = Queued {
            message,
            acquired: 0,
            deliveries: 0,
        };
        self.coming.insert((due, self.sent), queued);
    }

    /// How many messages no consumer holds.
    pub(super) fn len(&self) -> usize {
        self.coming.len() + self.returned.len()
    }

    pub(super) fn serve(&mut self, consumer: u64, prefetch: u16) {
        self.served.push(SimulatedConsumer {
            consumer,
            prefetch: prefetch.into(),
        });
    }

    /// A consumer gets no more messages, and keeps what it has.
    pub(super) fn cancel(&mut self, consumer: u64) {
        self.served.retain(|served| served.consumer != consumer);
    }

    /// When the next message can be delivered; `None` if there is none, or no consumer may take another one.
    pub(super) fn next_at(&self) -> Option<Duration> {
        self.whose_turn()?;
        if self.returned.is_empty() {
            self.coming.first_key_value().map(|((due, _), _)| *due)
        } else {
            Some(Duration::ZERO)
        }
    }

    /// Whether a ready message only waits for a consumer with room.
    pub(super) fn is_held_up(&self, now: Duration) -> bool {
        let there = self.coming.first_key_value().map(|((due, _), _)| *due);
        let waits = !self.returned.is_empty() || there.is_some_and(|due| due <= now);
        waits && self.whose_turn().is_none()
    }

    /// Delivers the next message, and returns its consumer.
    pub(super) fn hand_out(&mut self) -> Option<(u64, IncomingDelivery)> {
        let consumer = self.whose_turn()?;
        let queued = match self.returned.pop_front() {
            Some(queued) => queued,
            None => self.coming.pop_first()?.1,
        };
        self.tags += 1;
        let arrival = queued.as_delivered(self.tags);
        self.held.insert(self.tags, (consumer, queued));
        Some((consumer, arrival))
    }

    /// The newest consumer with room: it replaces the others.
    fn whose_turn(&self) -> Option<u64> {
        let held = |consumer| {
            let all = self.held.values();
            all.filter(|(holder, _)| *holder == consumer).count()
        };
        self.served
            .iter()
            .rev()
            .find(|served| held(served.consumer) < served.prefetch)
            .map(|served| served.consumer)
    }

    pub(super) fn acknowledge(&mut self, tag: u64, multiple: bool) {
        if multiple {
            self.held = self.held.split_off(&(tag + 1));
        } else {
            self.held.remove(&tag);
        }
    }

    /// A consumer requeues a message, or rejects it for good.
    pub(super) fn give_back(&mut self, tag: u64, how: Return) {
        let Some((_, mut queued)) = self.held.remove(&tag) else {
            return;
        };
        match how {
            Return::Unstarted => {}
            Return::Requeue => queued.deliveries += 1,
            Return::Reject | Return::DeadLetter => return,
        }
        queued.acquired += 1;
        self.returned.push_back(queued);
    }
}

impl Queued {
    fn as_delivered(&self, tag: u64) -> IncomingDelivery {
        let mut arrival = self.message.clone();
        arrival.tag = tag;
        arrival.redelivered = self.acquired > 0;
        let counts = [
            (headers::DELIVERY_COUNT, self.deliveries),
            (headers::ACQUIRED_COUNT, self.acquired),
        ];
        for (name, count) in counts.into_iter().filter(|(_, count)| *count > 0) {
            arrival.properties = with(arrival.properties, name, count);
        }
        arrival
    }
}

fn with(properties: BasicProperties, name: &str, count: i64) -> BasicProperties {
    let mut table = properties.headers().clone().unwrap_or_default();
    table.insert(ShortString::from(name), AMQPValue::LongLongInt(count));
    properties.with_headers(table)
}

/// How long a copy waits: as long as its queue or its own expiration says, whichever is shorter.
pub(super) fn waiting_time(queue: &str, copy: &Copy) -> Duration {
    let own = copy.properties.expiration().as_ref();
    let own = own.and_then(|ms| ms.as_str().parse().ok());
    let of_queue = copy
        .routing_key
        .strip_prefix(queue)
        .and_then(|rest| rest.strip_prefix(".retry."))
        .and_then(|ms| ms.parse().ok());
    let ms: Option<u64> = [own, of_queue].into_iter().flatten().min();
    Duration::from_millis(ms.unwrap_or(0))
}
