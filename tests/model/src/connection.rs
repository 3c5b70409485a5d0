//! Connections and channels, as the broker sees them.

use crate::queue::{ConsumerKey, QueueId};
use crate::{Frame, Method, Name};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// A connection that was made with [`Broker::connect`](crate::Broker::connect). Numbers are never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionId(pub u32);

#[derive(Debug, Default)]
pub(crate) struct Connection {
    pub(crate) channels: BTreeMap<u16, Channel>,
    /// What the broker has sent and the client has not received.
    pub(crate) outbound: VecDeque<(u16, Frame)>,
    /// What the client has sent while the broker did not read.
    pub(crate) unread: VecDeque<(u16, Method)>,
    pub(crate) blocked: bool,
    pub(crate) closed: bool,
    /// Whether it can get what AMQP 0-9-1 has no type for.
    pub(crate) amqp10: bool,
}

#[derive(Debug)]
pub(crate) struct Channel {
    /// Which life of this channel number; events for an earlier one mean nothing.
    pub(crate) key: u64,
    pub(crate) prefetch: u16,
    pub(crate) next_tag: u64,
    pub(crate) unsettled: VecDeque<Unsettled>,
    pub(crate) consumers: BTreeMap<Name, (QueueId, ConsumerKey)>,
    /// The number of the last publish, when publishes are confirmed.
    pub(crate) publishes: Option<u64>,
    /// For when the broker has been asked to look whether something is unsettled for too long.
    pub(crate) patience: Option<Duration>,
    /// In which queues it has something to give back or to be forgotten, for the end.
    pub(crate) queues: Vec<QueueId>,
}

/// A delivery that its client has not settled.
#[derive(Clone, Debug)]
pub(crate) struct Unsettled {
    pub(crate) tag: u64,
    pub(crate) queue: QueueId,
    pub(crate) consumer: ConsumerKey,
    /// The consumer tag; for a `basic.get` its number.
    pub(crate) consumer_tag: Name,
    pub(crate) handout: u64,
    pub(crate) since: Duration,
}

impl Channel {
    pub(crate) fn new(key: u64) -> Self {
        Channel {
            key,
            prefetch: 0,
            next_tag: 1,
            unsettled: VecDeque::new(),
            consumers: BTreeMap::new(),
            publishes: None,
            patience: None,
            queues: Vec::new(),
        }
    }

    /// Remembers that this queue knows the channel.
    pub(crate) fn touch(&mut self, queue: QueueId) {
        if !self.queues.contains(&queue) {
            self.queues.push(queue);
        }
    }

    /// Takes out what a settlement is about; `None` when the tag is not known.
    pub(crate) fn collect(&mut self, tag: u64, multiple: bool) -> Option<Vec<Unsettled>> {
        if multiple && tag == 0 {
            return Some(self.unsettled.drain(..).collect());
        }
        let place = self
            .unsettled
            .binary_search_by_key(&tag, |unsettled| unsettled.tag)
            .ok()?;
        if multiple {
            Some(self.unsettled.drain(..=place).collect())
        } else if place == 0 {
            self.unsettled.pop_front().map(|one| vec![one])
        } else {
            self.unsettled.remove(place).map(|one| vec![one])
        }
    }
}
