//! How many messages may be on their way to one exchange: one behind which nothing answers leaves room for the others, also where there are
//! several such.

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
pub(super) struct ExchangeLimiter {
    /// On their way to all of them.
    places: usize,
    ways: Mutex<ExchangeStates>,
}

#[derive(Debug, Default)]
struct ExchangeStates {
    /// On all of them.
    taken: usize,
    by_exchange: HashMap<String, ExchangeState>,
}

#[derive(Debug)]
struct ExchangeState {
    taken: usize,
    /// When one arrived last, or set out while there was plenty of room.
    moved: Instant,
}

/// Whether a message may set out.
#[derive(Debug)]
pub(super) enum AdmitResult {
    /// It may.
    Open(ExchangePermit),
    /// In a moment.
    Busy,
    /// Nobody knows when.
    Stuck,
}

/// A place on a way, until it is dropped.
#[derive(Debug)]
pub(super) struct ExchangePermit {
    exchange_limiter: Arc<ExchangeLimiter>,
    to: String,
}

impl ExchangeLimiter {
    /// For a consumer with this prefetch: as many may be on their way to one exchange as places are left. That is half of them where it
    /// is alone, and half of what is left for each that comes later. One message always may.
    pub(super) fn new(prefetch: u16) -> Self {
        Self {
            places: usize::from(prefetch),
            ways: Mutex::default(),
        }
    }

    pub(super) fn enter(self: &Arc<Self>, to: &str, now: Instant) -> AdmitResult {
        let mut ways = self.lock();
        let left = self.places.saturating_sub(ways.taken);
        let way = ways
            .by_exchange
            .entry(to.to_owned())
            .or_insert(ExchangeState {
                taken: 0,
                moved: now,
            });
        if way.taken < left.max(1) {
            // Nobody waits for its answers yet.
            if way.taken < left / 2 {
                way.moved = now;
            }
            way.taken += 1;
            ways.taken += 1;
            return AdmitResult::Open(ExchangePermit {
                exchange_limiter: Arc::clone(self),
                to: to.to_owned(),
            });
        }
        match now.saturating_duration_since(way.moved) < STUCK {
            true => AdmitResult::Busy,
            false => AdmitResult::Stuck,
        }
    }

    fn lock(&self) -> MutexGuard<'_, ExchangeStates> {
        self.ways.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ExchangePermit {
    /// The message was taken.
    pub(super) fn arrived(self, now: Instant) {
        if let Some(way) = self.exchange_limiter.lock().by_exchange.get_mut(&self.to) {
            way.moved = now;
        }
    }
}

impl Drop for ExchangePermit {
    fn drop(&mut self) {
        let mut ways = self.exchange_limiter.lock();
        ways.taken -= 1;
        if let Some(way) = ways.by_exchange.get_mut(&self.to) {
            way.taken -= 1;
            if way.taken == 0 {
                ways.by_exchange.remove(&self.to);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_exchange_that_does_not_answer_takes_half_of_the_places_and_keeps_nobody_waiting() {
        let (exchange_limiter, now) = (Arc::new(ExchangeLimiter::new(8)), Instant::now());
        let enter = |to, at| exchange_limiter.enter(to, at);
        let mut taken: Vec<_> = (0..4).map(|_| enter("a", now)).collect();
        assert!(taken.iter().all(|one| matches!(one, AdmitResult::Open(_))));
        assert!(matches!(enter("a", now), AdmitResult::Busy));
        assert!(matches!(enter("b", now), AdmitResult::Open(_)));
        let later = now + STUCK;
        assert!(matches!(enter("a", later), AdmitResult::Stuck));
        // One that arrives makes room, and shows that it moves.
        let Some(AdmitResult::Open(first)) = taken.pop() else {
            panic!("it is open");
        };
        first.arrived(later);
        let next = enter("a", later);
        assert!(matches!(next, AdmitResult::Open(_)));
        assert!(matches!(enter("a", later), AdmitResult::Busy));
        drop((next, taken));
        assert!(exchange_limiter.lock().by_exchange.is_empty());
        assert_eq!(exchange_limiter.lock().taken, 0);
    }

    #[test]
    fn several_exchanges_that_do_not_answer_leave_room_for_one_more() {
        let (exchange_limiter, now) = (Arc::new(ExchangeLimiter::new(100)), Instant::now());
        let mut taken = Vec::new();
        for name in ["a", "b", "c", "d"] {
            for _ in 0..200 {
                taken.extend(open(exchange_limiter.enter(name, now)));
            }
        }
        assert!(taken.len() < 100, "{}", taken.len());
        assert!(open(exchange_limiter.enter("fine", now)).is_some());
        let later = now + STUCK;
        assert!(matches!(
            exchange_limiter.enter("a", later),
            AdmitResult::Stuck
        ));
    }

    #[test]
    fn what_comes_at_once_after_a_quiet_while_does_not_show_an_exchange_as_stuck() {
        let (exchange_limiter, now) = (Arc::new(ExchangeLimiter::new(8)), Instant::now());
        let slow = open(exchange_limiter.enter("a", now));
        let later = now + STUCK * 5;
        let burst: Vec<_> = (0..3)
            .map(|_| open(exchange_limiter.enter("a", later)))
            .collect();
        assert!(burst.iter().all(Option::is_some) && slow.is_some());
        assert!(matches!(
            exchange_limiter.enter("a", later),
            AdmitResult::Busy
        ));
        // One that leaves without an answer, so that another one takes its place, is no sign that it moves.
        drop(slow);
        let _next = open(exchange_limiter.enter("a", later + STUCK / 2));
        assert!(matches!(
            exchange_limiter.enter("a", later + STUCK),
            AdmitResult::Stuck
        ));
    }

    fn open(entry: AdmitResult) -> Option<ExchangePermit> {
        match entry {
            AdmitResult::Open(permit) => Some(permit),
            AdmitResult::Busy | AdmitResult::Stuck => None,
        }
    }
}
