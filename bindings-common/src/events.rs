//! Events for listeners: a bounded queue, from which a language's half fetches them.

use std::collections::VecDeque;

use retryrmq::Event;

/// How many events can wait for a listener. Further ones are dropped and counted.
pub const EVENTS: usize = 10_000;

/// Events that were not fetched yet, each with the number of its listener.
#[derive(Debug)]
pub struct Events<L> {
    waiting: VecDeque<(L, Event)>,
    missed: u32,
}

impl<L> Events<L> {
    /// An empty queue.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            waiting: VecDeque::new(),
            missed: 0,
        }
    }

    /// Adds an event, or counts it if there is no room.
    pub fn put(&mut self, listener: L, event: &Event) {
        if self.waiting.len() < EVENTS {
            self.waiting.push_back((listener, event.clone()));
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
    pub fn take(&mut self) -> (VecDeque<(L, Event)>, u32) {
        (
            std::mem::take(&mut self.waiting),
            std::mem::take(&mut self.missed),
        )
    }
}

impl<L> Default for Events<L> {
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
    }
}
