//! What a walk has shown and holds until its end.

use std::{collections::BTreeMap, sync::Arc};

use crate::{consumer::Received, retry::encoded_size};

/// The most bytes kept for messages that must be renewed at the end. Above it, messages that were requeued before are renewed before they
/// are shown, and held without their bodies.
pub(super) const KEPT: usize = 64 * 1024 * 1024;
/// The memory that a message takes besides its body and headers.
const EACH: usize = 1_024;

/// Keyed by delivery tag. Messages that must be renewed are kept whole.
#[derive(Debug, Default)]
pub(super) struct HeldMessages {
    messages: BTreeMap<u64, Option<Arc<Received>>>,
    bytes: usize,
}

impl HeldMessages {
    pub(super) fn insert(&mut self, tag: u64, stale: Option<Arc<Received>>) {
        self.remove(tag);
        self.bytes += stale.as_deref().map_or(0, weight);
        self.messages.insert(tag, stale);
    }

    pub(super) fn remove(&mut self, tag: u64) {
        let stale = self.messages.remove(&tag).flatten();
        self.bytes -= stale.as_deref().map_or(0, weight);
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    pub(super) fn contains(&self, tag: u64) -> bool {
        self.messages.contains_key(&tag)
    }

    pub(super) fn len(&self) -> usize {
        self.messages.len()
    }

    /// The messages that must be renewed, in the order in which they came.
    pub(super) fn stale(&self) -> Vec<u64> {
        let stale = self.messages.iter().filter(|(_, stale)| stale.is_some());
        stale.map(|(tag, _)| *tag).collect()
    }

    /// The message, if it must be renewed.
    pub(super) fn must_go(&self, tag: u64) -> Option<&Arc<Received>> {
        self.messages.get(&tag)?.as_ref()
    }

    /// Whether no more messages may be kept that must be renewed.
    pub(super) fn is_full(&self) -> bool {
        self.bytes >= KEPT
    }
}

fn weight(received: &Received) -> usize {
    let headers = received.properties.headers().as_ref();
    EACH + received.body.len() + headers.map_or(0, encoded_size)
}

#[cfg(test)]
mod tests {
    use lapin::BasicProperties;

    use super::*;
    use crate::parking::Record;

    fn received(size: usize) -> Arc<Received> {
        let properties = BasicProperties::default();
        let body = vec![0; size];
        let (exchange, key) = Default::default();
        Record::read(
            (0, 0),
            &Arc::from("orders"),
            body,
            properties,
            exchange,
            key,
        )
        .received
    }

    #[test]
    fn what_is_kept_is_weighed_and_what_is_let_go_is_not() {
        let mut held = HeldMessages::default();
        for tag in 1..=63 {
            held.insert(tag, Some(received(1024 * 1024)));
            held.insert(1_000 + tag, None);
        }
        assert!(!held.is_full());
        held.insert(64, Some(received(1024 * 1024)));
        assert!(held.is_full());
        held.insert(64, None);
        assert!(!held.is_full());
        assert_eq!((held.stale().len(), held.len()), (63, 127));
        for tag in 1..=64 {
            held.remove(tag);
            held.remove(tag);
        }
        assert_eq!((held.bytes, held.len()), (0, 63));
        assert!(held.contains(1_001) && !held.contains(1));
    }
}
