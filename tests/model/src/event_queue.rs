//! What will happen by itself, in order of time.

use crate::ConnectionId;
use crate::message::Message;
use crate::queue::QueueId;
use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::sync::Arc;
use std::time::Duration;

/// Something that happens by itself.
#[derive(Debug)]
pub(crate) enum Event {
    /// A publish is confirmed or refused.
    Confirm {
        connection: ConnectionId,
        channel: u16,
        channel_key: u64,
        publish: u64,
        stored: bool,
    },
    /// A dead letter arrives.
    Arrive {
        targets: Vec<QueueId>,
        message: Arc<Message>,
        /// Whose worker waits to hear of it.
        worker: Option<(QueueId, u64)>,
    },
    /// A queue looks for what has expired or is due.
    Look { queue: QueueId },
    /// A queue that nobody uses may go.
    Lease { queue: QueueId },
    /// A worker tries again what is stuck.
    Retry { queue: QueueId },
    /// A channel looks for deliveries that were unsettled for too long.
    Patience {
        connection: ConnectionId,
        channel: u16,
        channel_key: u64,
    },
}

#[derive(Debug)]
struct Item {
    at: Duration,
    number: u64,
    event: Event,
}

/// Events by time; those of one moment in the order in which they were put in.
#[derive(Debug, Default)]
pub(crate) struct EventQueue {
    items: BinaryHeap<Item>,
    next: u64,
}

impl EventQueue {
    pub(crate) fn add(&mut self, at: Duration, event: Event) {
        let number = self.next;
        self.next += 1;
        self.items.push(Item { at, number, event });
    }

    pub(crate) fn next_at(&self) -> Option<Duration> {
        self.items.peek().map(|item| item.at)
    }

    /// The next event that is due by then, with its time.
    pub(crate) fn due(&mut self, by: Duration) -> Option<(Duration, Event)> {
        if self.next_at()? > by {
            return None;
        }
        self.items.pop().map(|item| (item.at, item.event))
    }

    pub(crate) fn has_dead_letter(&self) -> bool {
        let under_way = |item: &Item| matches!(item.event, Event::Arrive { .. });
        self.items.iter().any(under_way)
    }

    /// Everything, in order, for a broker that dies.
    pub(crate) fn drain(&mut self) -> Vec<(Duration, Event)> {
        let mut all = Vec::with_capacity(self.items.len());
        while let Some(item) = self.items.pop() {
            all.push((item.at, item.event));
        }
        all
    }
}

impl Ord for Item {
    fn cmp(&self, other: &Self) -> Ordering {
        (other.at, other.number).cmp(&(self.at, self.number))
    }
}

impl PartialOrd for Item {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Item {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Item {}
