//! What the sources see at one moment.

use std::collections::{BTreeMap, BTreeSet};

/// What is known of the queues of a virtual host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// The queues that were seen, by name.
    pub queues: BTreeMap<String, QueueView>,
    /// Queues that were asked for by name and are not there.
    pub gone: BTreeSet<String>,
    /// Every queue there is was seen: what is missing does not exist.
    pub complete: bool,
}

/// What is known of one queue. What a source does not say is [`None`], and leads to no conclusion.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueView {
    /// Messages that wait.
    pub ready: Option<u64>,
    /// Messages that consumers hold.
    pub unacknowledged: Option<u64>,
    /// Consumers.
    pub consumers: Option<u64>,
    /// A number that changes whenever a message is acknowledged.
    pub acknowledged: Option<u64>,
    /// Whether an exchange other than the default one is bound to it.
    pub bound: Option<bool>,
    /// It goes with its consumer or connection, or is a stream: nobody has to look after it.
    pub temporary: bool,
}

impl Snapshot {
    /// Whether a queue does not exist; [`None`] when that is not known.
    pub(super) fn is_gone(&self, queue: &str) -> Option<bool> {
        if self.queues.contains_key(queue) {
            return Some(false);
        }
        (self.complete || self.gone.contains(queue)).then_some(true)
    }
}

impl QueueView {
    /// What two sources know together; the first is asked first.
    pub(super) fn or(self, other: Self) -> Self {
        Self {
            ready: self.ready.or(other.ready),
            unacknowledged: self.unacknowledged.or(other.unacknowledged),
            consumers: self.consumers.or(other.consumers),
            acknowledged: self.acknowledged.or(other.acknowledged),
            bound: self.bound.or(other.bound),
            temporary: self.temporary || other.temporary,
        }
    }
}
