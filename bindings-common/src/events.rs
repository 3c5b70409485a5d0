//! Events for listeners: a bounded queue, from which a language's half fetches them.

use std::collections::{BTreeMap, VecDeque};

use retryrmq::Event;

use crate::rows;

/// How many events can wait for each listener. Further ones for it are dropped and counted.
pub const EVENTS: usize = 10_000;

/// Events that were not fetched yet, each as a [row](rows::event) with the number of its listener.
#[derive(Debug)]
pub struct Events<L> {
    waiting: VecDeque<(L, String)>,
    /// How many of them each listener has. One that many events wait for must not cost the others theirs.
    counts: BTreeMap<L, usize>,
    missed: u32,
}

impl<L: Copy + Ord> Events<L> {
    /// An empty queue.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            waiting: VecDeque::new(),
            counts: BTreeMap::new(),
            missed: 0,
        }
    }

    /// Adds an event, or counts it if its listener has no room.
    pub fn put(&mut self, listener: L, event: &Event) {
        let count = self.counts.entry(listener).or_default();
        if *count < EVENTS {
            *count += 1;
            self.waiting.push_back((listener, rows::event(event)));
        } else {
            self.missed = self.missed.saturating_add(1);
        }
    }

    /// Whether there are no events and no dropped ones.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// All waiting events, and how many were dropped since the last call.
    pub fn take(&mut self) -> (VecDeque<(L, String)>, u32) {
        self.counts.clear();
        (
            std::mem::take(&mut self.waiting),
            std::mem::take(&mut self.missed),
        )
    }
}

impl<L: Copy + Ord> Default for Events<L> {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_no_room_is_counted() {
        let mut events = Events::new();
        let resumed = |event: &Event| matches!(event, Event::Resumed { .. });
        let event = Event::one_of_each().into_iter().find(resumed).unwrap();
        for _ in 0..EVENTS + 3 {
            events.put(7, &event);
        }
        let (waiting, missed) = events.take();
        assert_eq!((waiting.len(), missed), (EVENTS, 3));
        assert!(events.is_empty() && events.take().1 == 0);
        events.put(7, &event);
        assert!(!events.is_empty(), "there is room again");
    }

    #[test]
    fn a_listener_with_too_many_events_costs_no_other_listener_any() {
        let mut events = Events::new();
        let all = Event::one_of_each();
        for _ in 0..=EVENTS {
            events.put(1, &all[0]);
        }
        events.put(2, &all[0]);
        let (waiting, missed) = events.take();
        let of = |listener| {
            waiting
                .iter()
                .filter(|(whose, _)| *whose == listener)
                .count()
        };
        assert_eq!((of(1), of(2), missed), (EVENTS, 1, 1));
    }
}
