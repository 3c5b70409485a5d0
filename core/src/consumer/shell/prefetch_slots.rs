//! The occupied places in a consumer's prefetch. Together with looks at its queue they say when it [may be cancelled](Parting).

use std::{collections::VecDeque, time::Duration};

use tokio::time::Instant;

use crate::connection::SafeCancel;

#[derive(Debug)]
pub(super) struct PrefetchSlots {
    prefetch: usize,
    /// Delivery tags, oldest first.
    taken: VecDeque<u64>,
    was_served: bool,
    parting: Option<SafeCancel>,
}

impl PrefetchSlots {
    pub(super) fn new(prefetch: u16) -> Self {
        Self {
            prefetch: prefetch.into(),
            taken: VecDeque::new(),
            was_served: false,
            parting: None,
        }
    }

    pub(super) fn arrived(&mut self, tag: u64) {
        self.taken.push_back(tag);
        self.was_served = true;
        if let Some(parting) = &mut self.parting {
            parting.arrived();
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
        self.parting
            .get_or_insert_with(|| SafeCancel::begin(now, was_served));
    }

    /// Whether it is to be cancelled.
    pub(super) fn is_parting(&self) -> bool {
        self.parting.is_some()
    }

    /// How many messages the broker says are ready in the queue.
    pub(super) fn looked(&mut self, ready: u32) {
        if let Some(parting) = &mut self.parting {
            parting.looked(ready);
        }
    }

    /// How long to wait before the next look.
    pub(super) fn pause(&self) -> Duration {
        self.parting
            .as_ref()
            .map(SafeCancel::pause)
            .unwrap_or_default()
    }

    /// Whether it is to be cancelled, and nothing can be on its way to it.
    pub(super) fn may_go(&self, now: Instant) -> bool {
        let full = self.taken.len() >= self.prefetch;
        self.parting
            .as_ref()
            .is_some_and(|parting| parting.may_go(full, now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connection::{PARTING_PATIENCE as PATIENCE, PARTING_QUIET as QUIET};

    fn parting(prefetch: u16, arrived: u64) -> (PrefetchSlots, Instant) {
        let (mut places, now) = (PrefetchSlots::new(prefetch), Instant::now());
        (1..=arrived).for_each(|tag| places.arrived(tag));
        assert!(!places.may_go(now), "nobody asked");
        places.part(now);
        (places, now)
    }

    #[test]
    fn a_consumer_whose_places_are_all_taken_may_go_at_once() {
        let (places, now) = parting(3, 3);
        assert!(places.may_go(now));
        let (mut places, now) = parting(3, 2);
        assert!(!places.may_go(now));
        places.arrived(3);
        assert!(places.may_go(now));
    }

    #[test]
    fn a_settlement_makes_places_free() {
        let (mut places, now) = parting(4, 4);
        places.settled(3, false);
        assert!(!places.may_go(now));
        places.arrived(5);
        assert!(places.may_go(now));
        places.settled(9, false); // another consumer's
        assert!(places.may_go(now));
        places.settled(4, true);
        places.arrived(6);
        places.arrived(7);
        assert!(!places.may_go(now), "5, 6 and 7 are left");
        places.arrived(8);
        assert!(places.may_go(now));
    }

    #[test]
    fn an_empty_queue_has_sent_everything_when_that_is_seen_twice() {
        let (mut places, now) = parting(9, 1);
        places.looked(0);
        assert!(!places.may_go(now));
        places.arrived(2);
        places.looked(0);
        assert!(!places.may_go(now), "one came in between");
        places.looked(0);
        assert!(places.may_go(now));
    }

    #[test]
    fn one_that_was_never_served_goes_after_a_while() {
        let (mut places, now) = parting(9, 0);
        for _ in 1..QUIET {
            places.looked(7);
            assert!(!places.may_go(now));
        }
        places.looked(7);
        assert!(places.may_go(now));
        let (mut places, now) = parting(9, 1);
        (0..2 * QUIET).for_each(|_| places.looked(7));
        assert!(!places.may_go(now), "what was settled may be on its way");
        assert!(places.may_go(now + PATIENCE));
    }
}
