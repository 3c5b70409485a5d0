//! Events for listeners: a bounded queue, from which a language's half fetches them.

use std::collections::{BTreeMap, VecDeque};

/// How many events can wait for each listener. Further ones for it are dropped and counted.
pub const EVENTS: usize = 10_000;

/// Events that were not fetched yet, each as a [row](crate::json_rows::event) with the number of its listener.
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

    /// Whether one more event can wait for this listener. Only then is its row worth making, and without the lock that guards this queue:
    /// all consumers share it.
    #[must_use]
    pub fn has_room(&self, listener: L) -> bool {
        self.counts
            .get(&listener)
            .is_none_or(|count| *count < EVENTS)
    }

    /// Adds an event as its row, or counts one that has no row, or whose listener has no room.
    pub fn put(&mut self, listener: L, row: Option<String>) {
        match row.filter(|_| self.has_room(listener)) {
            Some(row) => {
                *self.counts.entry(listener).or_default() += 1;
                self.waiting.push_back((listener, row));
            }
            None => self.missed = self.missed.saturating_add(1),
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
        for _ in 0..EVENTS + 3 {
            let row = events.has_room(7).then(String::new);
            events.put(7, row);
        }
        events.put(7, Some(String::new())); // another one was quicker
        let (waiting, missed) = events.take();
        assert_eq!((waiting.len(), missed), (EVENTS, 4));
        assert!(events.is_empty() && events.take().1 == 0);
        assert!(events.has_room(7), "there is room again");
        events.put(7, Some(String::new()));
        assert!(!events.is_empty());
    }

    #[test]
    fn a_listener_with_too_many_events_costs_no_other_listener_any() {
        let mut events = Events::new();
        for _ in 0..=EVENTS {
            events.put(1, Some(String::new()));
        }
        assert!(!events.has_room(1) && events.has_room(2));
        events.put(2, Some(String::new()));
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
