//! How many messages may be on their way to one exchange: one behind which nothing answers leaves room for the others.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

/// An exchange to which as many are on their way as may be, and none has arrived for so long, does not answer.
const STUCK: Duration = Duration::from_secs(2);

/// The ways to all exchanges.
#[derive(Debug)]
pub(super) struct Doors {
    /// On their way to one of them.
    most: usize,
    ways: Mutex<HashMap<String, Way>>,
}

#[derive(Debug)]
struct Way {
    taken: usize,
    /// When one arrived last, or the first set out.
    moved: Instant,
}

/// Whether a message may set out.
#[derive(Debug)]
pub(super) enum Entry {
    /// It may.
    Open(Passage),
    /// In a moment.
    Busy,
    /// Nobody knows when.
    Stuck,
}

/// A place on a way, until it is dropped.
#[derive(Debug)]
pub(super) struct Passage {
    doors: Arc<Doors>,
    to: String,
}

impl Doors {
    /// For a consumer with this prefetch: half of it may be on its way to one exchange.
    pub(super) fn new(prefetch: u16) -> Self {
        Self {
            most: usize::from(prefetch / 2).max(1),
            ways: Mutex::default(),
        }
    }

    pub(super) fn enter(self: &Arc<Self>, to: &str, now: Instant) -> Entry {
        let mut ways = self.lock();
        let way = ways.entry(to.to_owned()).or_insert(Way {
            taken: 0,
            moved: now,
        });
        if way.taken < self.most {
            way.taken += 1;
            return Entry::Open(Passage {
                doors: Arc::clone(self),
                to: to.to_owned(),
            });
        }
        match now.saturating_duration_since(way.moved) < STUCK {
            true => Entry::Busy,
            false => Entry::Stuck,
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Way>> {
        self.ways.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Passage {
    /// The message was taken.
    pub(super) fn arrived(self, now: Instant) {
        if let Some(way) = self.doors.lock().get_mut(&self.to) {
            way.moved = now;
        }
    }
}

impl Drop for Passage {
    fn drop(&mut self) {
        let mut ways = self.doors.lock();
        if let Some(way) = ways.get_mut(&self.to) {
            way.taken -= 1;
            if way.taken == 0 {
                ways.remove(&self.to);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_exchange_that_does_not_answer_takes_half_of_the_places_and_keeps_nobody_waiting() {
        let (doors, now) = (Arc::new(Doors::new(8)), Instant::now());
        let enter = |to, at| doors.enter(to, at);
        let mut taken: Vec<_> = (0..4).map(|_| enter("a", now)).collect();
        assert!(taken.iter().all(|one| matches!(one, Entry::Open(_))));
        assert!(matches!(enter("a", now), Entry::Busy));
        assert!(matches!(enter("b", now), Entry::Open(_)));
        let later = now + STUCK;
        assert!(matches!(enter("a", later), Entry::Stuck));
        // One that arrives makes room, and shows that it moves.
        let Some(Entry::Open(first)) = taken.pop() else {
            panic!("it is open");
        };
        first.arrived(later);
        let next = enter("a", later);
        assert!(matches!(next, Entry::Open(_)));
        assert!(matches!(enter("a", later), Entry::Busy));
        drop((next, taken));
        assert!(doors.lock().is_empty());
    }
}
