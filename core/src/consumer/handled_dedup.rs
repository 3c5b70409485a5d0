//! Messages that were handled and may come back anyway: the connection may be lost between a handler's success and its acknowledgement, and
//! acknowledgements are never confirmed.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    hash::{BuildHasher, Hash, Hasher, RandomState},
    time::Duration,
};

use super::{Received, engine_time::EngineTime};
use crate::{
    mutants::{self, Mutant},
    retry::headers,
};

/// How long a message may take to come back. A broker notices a lost connection after two heartbeats.
const LONGEST: Duration = Duration::from_secs(300);

/// Identifies one attempt of one message: a hash with a secret key.
pub(super) type AttemptHash = u64;

/// Many small pieces in one, because a keyed hash takes longer for each piece than for its bytes.
struct HashBuffer(Vec<u8>);

impl Hasher for HashBuffer {
    fn write(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    fn finish(&self) -> u64 {
        unreachable!("what was gathered is hashed by another hasher")
    }
}

/// What a lost channel may have left unacknowledged: marks of the last acknowledged messages that have an id.
///
/// Marks are looked up only after a channel was lost. While it lives, a redelivered message was never acknowledged. A mark is used once: a
/// second message with the same mark is another message.
#[derive(Debug)]
pub(super) struct HandledDedup {
    keys: RandomState,
    /// Acknowledged on this channel, oldest first.
    acknowledged: VecDeque<AttemptHash>,
    /// Messages that are expected back, and until when.
    expected: HashMap<AttemptHash, EngineTime>,
    capacity: usize,
}

impl HandledDedup {
    /// Remembers twice as many as can be unacknowledged at a time. With a prefetch of 0 it remembers nothing.
    pub(super) fn new(prefetch: u16) -> Self {
        let capacity = usize::from(prefetch) * 2;
        Self {
            keys: RandomState::new(),
            acknowledged: VecDeque::new(),
            expected: HashMap::new(),
            capacity,
        }
    }

    /// A mark of everything that distinguishes this attempt of this message. The id alone is not enough: publishers reuse ids, and
    /// acknowledging another message unseen would lose it.
    pub(super) fn mark(&self, message: &Received) -> Option<AttemptHash> {
        if self.capacity == 0 {
            return None;
        }
        let id = message.properties.message_id().as_ref();
        let id = id.map(|id| id.as_str());
        if id.is_none() && !mutants::has(Mutant::BelievesRedeliveryHash) {
            return None;
        }
        if mutants::has(Mutant::BelievesIds) {
            return Some(self.keys.hash_one(id));
        }
        Some(self.redelivery_hash(message))
    }

    /// Whether one message is the redelivery of the other. Never without an id, and never if every retry is a redelivery.
    pub(super) fn are_alike(&self, one: &Received, other: &Received) -> bool {
        // What costs little comes first.
        one.properties.message_id() == other.properties.message_id()
            && one.body == other.body
            && self
                .mark(one)
                .is_some_and(|mark| Some(mark) == self.mark(other))
    }

    /// A mark of everything that a redelivery of the message has as well, whether it has an id or not.
    pub(super) fn redelivery_hash(&self, message: &Received) -> AttemptHash {
        let id = message.properties.message_id().as_ref();
        let table = message.properties.headers().as_ref();
        let mut hasher = HashBuffer(Vec::with_capacity(1024));
        id.map(|id| id.as_str()).hash(&mut hasher);
        message.exchange.as_str().hash(&mut hasher);
        message.routing_key.as_str().hash(&mut hasher);
        let properties = &message.properties;
        macro_rules! each {
            ($($get:ident),*) => {$(
                properties.$get().as_ref().map(|text| text.as_str()).hash(&mut hasher);
            )*};
        }
        each!(
            content_type,
            content_encoding,
            correlation_id,
            reply_to,
            expiration,
            kind,
            user_id,
            app_id,
            cluster_id
        );
        properties.delivery_mode().hash(&mut hasher);
        properties.priority().hash(&mut hasher);
        properties.timestamp().hash(&mut hasher);
        for (name, value) in table.into_iter().flatten() {
            // The counts of a redelivery differ.
            if !headers::is_count(name.as_str()) {
                name.as_str().hash(&mut hasher);
                headers::hash(value, &mut hasher);
            }
        }
        self.keys.hash_one((hasher.0, &message.body))
    }

    /// The message was acknowledged on the current channel, after its handler succeeded or its copy was stored.
    pub(super) fn acknowledged(&mut self, message: &Received) {
        if let Some(mark) = self.mark(message) {
            if self.acknowledged.len() == self.capacity {
                self.acknowledged.pop_front();
            }
            self.acknowledged.push_back(mark);
        }
    }

    /// The channel is gone. What was acknowledged on it may come back, and `unsettled` will. If two messages are completely equal, one
    /// acknowledged and one not, nobody can tell which comes back; such a mark is dropped. A message without its body has its mark with it.
    pub(super) fn lose<'a>(
        &mut self,
        unsettled: impl Iterator<Item = (Option<AttemptHash>, &'a Received)>,
        now: EngineTime,
    ) {
        if self.acknowledged.is_empty() && self.expected.is_empty() {
            return;
        }
        let alike: HashSet<AttemptHash> = unsettled
            .filter_map(|(mark, message)| mark.or_else(|| self.mark(message)))
            .collect();
        self.expected
            .retain(|mark, until| *until > now && !alike.contains(mark));
        let until = now + LONGEST;
        for mark in self.acknowledged.drain(..) {
            if !alike.contains(&mark) {
                self.expected.insert(mark, until);
            }
        }
    }

    /// The message was handled, or its copy stored, after its channel was lost: it will come back.
    pub(super) fn expect(&mut self, message: &Received, now: EngineTime) {
        if let Some(mark) = self.mark(message) {
            self.expected.retain(|_, until| *until > now);
            if self.expected.len() < self.capacity * 2 {
                self.expected.insert(mark, now + LONGEST);
            }
        }
    }

    /// Whether this is the redelivery of a message that is already done. True only once per message.
    pub(super) fn recalls(&mut self, message: &Received, now: EngineTime) -> bool {
        if !message.redelivered || self.expected.is_empty() {
            return false;
        }
        let mark = self.mark(message);
        mark.and_then(|mark| self.expected.remove(&mark))
            .is_some_and(|until| until > now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        BasicProperties,
        types::{AMQPValue, FieldTable},
    };

    const NOW: EngineTime = EngineTime::ZERO;

    fn message(id: Option<&str>, body: &str, redelivered: bool) -> Received {
        let mut message = Received::for_tests("orders", body);
        message.redelivered = redelivered;
        if let Some(id) = id {
            message.properties = BasicProperties::default().with_message_id(id.into());
        }
        message
    }

    fn with_header(mut message: Received, name: &str, number: i64) -> Received {
        let mut table = FieldTable::default();
        table.insert(name.into(), AMQPValue::LongLongInt(number));
        message.properties = message.properties.with_headers(table);
        message
    }

    fn lost(acknowledged: &[Received], unsettled: &[Received]) -> HandledDedup {
        let mut memory = HandledDedup::new(8);
        for message in acknowledged {
            memory.acknowledged(message);
        }
        memory.lose(unsettled.iter().map(|message| (None, message)), NOW);
        memory
    }

    #[test]
    fn knows_the_redelivery_once_and_nothing_else() {
        let acknowledged = [message(Some("1"), "a", false), message(None, "b", false)];
        let mut memory = lost(&acknowledged, &[]);
        let not_alike = [
            (message(Some("1"), "a", false), "not redelivered"),
            (message(Some("1"), "b", true), "another body"),
            (message(None, "b", true), "no id"),
            (
                with_header(message(Some("1"), "a", true), "x-retry-count", 1),
                "another attempt",
            ),
        ];
        for (message, why) in &not_alike {
            assert!(!memory.recalls(message, NOW), "{why}");
        }
        let again = with_header(message(Some("1"), "a", true), "x-delivery-count", 1);
        assert!(memory.recalls(&again, NOW));
        assert!(!memory.recalls(&again, NOW), "that is another message");
    }

    #[test]
    fn while_the_channel_lives_nothing_comes_back() {
        let mut memory = HandledDedup::new(2);
        memory.acknowledged(&message(Some("1"), "a", false));
        assert!(!memory.recalls(&message(Some("1"), "a", true), NOW));
    }

    #[test]
    fn of_two_alike_none_is_taken_for_the_other() {
        let alike = || message(Some("1"), "a", false);
        let mut memory = lost(&[alike()], &[alike()]);
        assert!(!memory.recalls(&message(Some("1"), "a", true), NOW));
    }

    #[test]
    fn what_was_expected_from_an_earlier_channel_is_not_taken_for_another_either() {
        let alike = || message(Some("1"), "a", false);
        let mut memory = lost(&[alike()], &[]);
        memory.lose([alike()].iter().map(|message| (None, message)), NOW);
        assert!(!memory.recalls(&message(Some("1"), "a", true), NOW));
    }

    #[test]
    fn is_bounded_in_number_and_time() {
        let numbered = |id: u32, redelivered| message(Some(&id.to_string()), "", redelivered);
        let mut memory = HandledDedup::new(2);
        for id in 0..100 {
            memory.acknowledged(&numbered(id, false));
        }
        memory.lose(std::iter::empty(), NOW);
        assert_eq!(memory.expected.len(), 4);
        assert!(
            memory.recalls(&numbered(99, true), NOW) && !memory.recalls(&numbered(0, true), NOW)
        );
        assert!(!memory.recalls(&numbered(98, true), NOW + LONGEST));
        for id in 0..100 {
            memory.expect(&numbered(id, false), NOW);
        }
        assert!(memory.expected.len() <= 8);
    }

    #[test]
    fn may_be_switched_off() {
        let mut memory = HandledDedup::new(0);
        memory.acknowledged(&message(Some("1"), "a", false));
        memory.lose(std::iter::empty(), NOW);
        memory.expect(&message(Some("1"), "a", false), NOW);
        assert!(!memory.recalls(&message(Some("1"), "a", true), NOW));
    }
}
