//! The occupied places in a consumer's prefetch. Together with looks at its queue they say when it [may be cancelled](crate::connection::SafeCancel).

use std::{collections::VecDeque, time::Duration};

use tokio::time::Instant;

use crate::connection::SafeCancel;

#[derive(Debug)]
pub(super) struct PrefetchSlots {
    prefetch: usize,
    /// Delivery tags, oldest first.
    taken: VecDeque<u64>,
    was_served: bool,
    cancelling: Option<SafeCancel>,
}

impl PrefetchSlots {
    pub(super) fn new(prefetch: u16) -> Self {
        Self {
            prefetch: prefetch.into(),
            taken: VecDeque::new(),
            was_served: false,
            cancelling: None,
        }
    }

    pub(super) fn arrived(&mut self, tag: u64) {
        self.taken.push_back(tag);
        self.was_served = true;
        if let Some(cancelling) = &mut self.cancelling {
            cancelling.arrived();
        }
    }

    /// A settlement was sent, perhaps of another consumer's message.
    pub(super) fn settled(&mut self, tag: u64, multiple: bool) {
        if multiple {
            while self.taken.front().is_some_and(|taken| *taken <= tag) {
                self.taken.pop_front();
            }
        } else if let Ok(at) = self.taken.binary_search(&tag) {
            self.taken.remove(at);
        }
    }

    /// The consumer is to be cancelled as soon as it [may](Self::may_go).
    pub(super) fn part(&mut self, now: Instant) {
        let was_served = self.was_served;
        self.cancelling
            .get_or_insert_with(|| SafeCancel::begin(now, was_served));
    }

    /// Whether it is to be cancelled.
    pub(super) fn is_cancelling(&self) -> bool {
        self.cancelling.is_some()
    }

    /// How many messages the broker says are ready in the queue.
    pub(super) fn note_ready(&mut self, ready: u32) {
        if let Some(cancelling) = &mut self.cancelling {
            cancelling.note_ready(ready);
        }
    }

    /// How long to wait before the next look.
    pub(super) fn pause(&self) -> Duration {
        self.cancelling
            .as_ref()
            .map(SafeCancel::pause)
            .unwrap_or_default()
    }

    /// Whether it is to be cancelled, and nothing can be on its way to it.
    pub(super) fn may_go(&self, now: Instant) -> bool {
        let full = self.taken.len() >= self.prefetch;
        self.cancelling
            .as_ref()
            .is_some_and(|cancelling| cancelling.may_go(full, now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connection::{CANCEL_QUIET as QUIET, CANCEL_TIMEOUT as TIME_LIMIT};

    fn cancelling(prefetch: u16, arrived: u64) -> (PrefetchSlots, Instant) {
        let (mut slots, now) = (PrefetchSlots::new(prefetch), Instant::now());
        (1..=arrived).for_each(|tag| slots.arrived(tag));
        assert!(!slots.may_go(now), "nobody asked");
        slots.part(now);
        (slots, now)
    }

    #[test]
    fn a_consumer_whose_places_are_all_taken_may_go_at_once() {
        let (slots, now) = cancelling(3, 3);
        assert!(slots.may_go(now));
        let (mut slots, now) = cancelling(3, 2);
        assert!(!slots.may_go(now));
        slots.arrived(3);
        assert!(slots.may_go(now));
    }

    #[test]
    fn a_settlement_makes_places_free() {
        let (mut slots, now) = cancelling(4, 4);
        slots.settled(3, false);
        assert!(!slots.may_go(now));
        slots.arrived(5);
        assert!(slots.may_go(now));
        slots.settled(9, false); // another consumer's
        assert!(slots.may_go(now));
        slots.settled(4, true);
        slots.arrived(6);
        slots.arrived(7);
        assert!(!slots.may_go(now), "5, 6 and 7 are left");
        slots.arrived(8);
        assert!(slots.may_go(now));
    }

    #[test]
    fn an_empty_queue_has_sent_everything_when_that_is_seen_twice() {
        let (mut slots, now) = cancelling(9, 1);
        slots.note_ready(0);
        assert!(!slots.may_go(now));
        slots.arrived(2);
        slots.note_ready(0);
        assert!(!slots.may_go(now), "one came in between");
        slots.note_ready(0);
        assert!(slots.may_go(now));
    }

    #[test]
    fn one_that_was_never_served_goes_after_a_while() {
        let (mut slots, now) = cancelling(9, 0);
        for _ in 1..QUIET {
            slots.note_ready(7);
            assert!(!slots.may_go(now));
        }
        slots.note_ready(7);
        assert!(slots.may_go(now));
        let (mut slots, now) = cancelling(9, 1);
        (0..2 * QUIET).for_each(|_| slots.note_ready(7));
        assert!(!slots.may_go(now), "what was settled may be on its way");
        assert!(slots.may_go(now + TIME_LIMIT));
    }
}
