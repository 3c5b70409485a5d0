//! Messages that were handled and may come back all the same: the connection dropped between the handler's success and
//! its acknowledgement, and an acknowledgement is never confirmed.

use std::{
    collections::{HashSet, VecDeque},
    hash::{BuildHasher, Hash, Hasher, RandomState},
};

use super::Received;

/// A mark of the last handled messages that have an id.
#[derive(Debug)]
pub(super) struct Memory {
    keys: RandomState,
    marks: HashSet<(u64, u64)>,
    order: VecDeque<(u64, u64)>,
    capacity: usize,
}

/// How much of a body is looked at, from each end.
const LOOK: usize = 4_096;

impl Memory {
    /// Remembers as many as can be unacknowledged at a time, twice over.
    pub(super) fn new(prefetch: u16) -> Self {
        let capacity = usize::from(prefetch) * 2;
        Self {
            keys: RandomState::new(),
            marks: HashSet::new(),
            order: VecDeque::new(),
            capacity,
        }
    }

    /// A mark of everything that tells this attempt of this message from others. The id alone would not do: publishers
    /// reuse them, and acknowledging another message unseen would lose it.
    fn mark(&self, message: &Received) -> Option<(u64, u64)> {
        let id = message.properties.message_id().as_ref()?;
        let half = |salt: u8| {
            let mut hasher = self.keys.build_hasher();
            salt.hash(&mut hasher);
            id.as_str().hash(&mut hasher);
            message.routing_key.as_str().hash(&mut hasher);
            (
                message.state.retries,
                message.state.deferrals,
                message.state.replays,
            )
                .hash(&mut hasher);
            let body = &message.body;
            body.len().hash(&mut hasher);
            body[..body.len().min(LOOK)].hash(&mut hasher);
            body[body.len().saturating_sub(LOOK)..].hash(&mut hasher);
            hasher.finish()
        };
        Some((half(0), half(1)))
    }

    /// The message is done: handled, or its copy is stored.
    pub(super) fn remember(&mut self, message: &Received) {
        if let Some(mark) = self.mark(message)
            && self.marks.insert(mark)
        {
            self.order.push_back(mark);
            if self.order.len() > self.capacity
                && let Some(oldest) = self.order.pop_front()
            {
                self.marks.remove(&oldest);
            }
        }
    }

    /// Whether a redelivered message is done already.
    pub(super) fn knows(&self, message: &Received) -> bool {
        message.redelivered
            && !self.marks.is_empty()
            && self
                .mark(message)
                .is_some_and(|mark| self.marks.contains(&mark))
    }
}

#[cfg(test)]
mod tests {
    use lapin::BasicProperties;

    use super::*;

    fn message(id: Option<&str>, body: &str, redelivered: bool) -> Received {
        let mut message = Received::for_tests("orders", body);
        message.redelivered = redelivered;
        if let Some(id) = id {
            message.properties = BasicProperties::default().with_message_id(id.into());
        }
        message
    }

    #[test]
    fn knows_the_redelivery_and_nothing_else() {
        let mut memory = Memory::new(2);
        memory.remember(&message(Some("1"), "a", false));
        memory.remember(&message(None, "b", false));
        assert!(memory.knows(&message(Some("1"), "a", true)));
        assert!(
            !memory.knows(&message(Some("1"), "a", false)),
            "a second message with the same id and body"
        );
        assert!(
            !memory.knows(&message(Some("1"), "b", true)),
            "the same id, another message"
        );
        assert!(!memory.knows(&message(None, "b", true)), "no id");
    }

    #[test]
    fn is_bounded() {
        let mut memory = Memory::new(2);
        for id in 0..100 {
            memory.remember(&message(Some(&id.to_string()), "", false));
        }
        assert_eq!((memory.marks.len(), memory.order.len()), (4, 4));
        assert!(
            memory.knows(&message(Some("99"), "", true))
                && !memory.knows(&message(Some("0"), "", true))
        );
    }
}
