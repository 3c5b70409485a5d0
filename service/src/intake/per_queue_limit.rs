//! How many messages may be kept here because their queues do not take them, so that there is always room for the others.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

/// Trouble that was not heard of for so long is over: whatever comes next is another one.
const FORGOTTEN: Duration = Duration::from_secs(120);

/// For more queues than this trouble is forgotten, and begins anew.
const MOST_TROUBLED: usize = 4_096;

/// The places for messages that are held.
#[derive(Debug)]
pub(crate) struct PerQueueLimit {
    /// For one work queue.
    most_of_one: usize,
    /// For all together.
    most: usize,
    held: Mutex<HeldCounts>,
}

#[derive(Debug, Default)]
struct HeldCounts {
    all: usize,
    by_queue: HashMap<String, usize>,
    note_failed: HashMap<String, FailingSince>,
}

/// Since when nothing could be stored for a queue.
#[derive(Clone, Copy, Debug)]
struct FailingSince {
    since: Instant,
    heard: Instant,
}

/// A place that is taken until this is dropped.
#[derive(Debug)]
pub(crate) struct HeldPermit {
    per_queue_limit: Arc<PerQueueLimit>,
    queue: String,
}

impl PerQueueLimit {
    /// For a consumer with this prefetch: half of it may be held, a quarter for one queue.
    pub(crate) fn new(prefetch: u16) -> Self {
        let prefetch = usize::from(prefetch);
        Self {
            most_of_one: (prefetch / 4).max(1),
            most: (prefetch / 2).max(1),
            held: Mutex::default(),
        }
    }

    /// Takes a place for a message of `queue`; `None` where there is none left.
    pub(crate) fn take(self: &Arc<Self>, queue: &str) -> Option<HeldPermit> {
        let mut held = self.lock();
        let of_one = held.by_queue.get(queue).copied().unwrap_or(0);
        if held.all >= self.most || of_one >= self.most_of_one {
            return None;
        }
        held.all += 1;
        *held.by_queue.entry(queue.to_owned()).or_default() += 1;
        Some(HeldPermit {
            per_queue_limit: Arc::clone(self),
            queue: queue.to_owned(),
        })
    }

    /// Nothing was stored for `queue` just now. Returns for how long that has been so.
    pub(crate) fn note_failed(&self, queue: &str, now: Instant) -> Duration {
        let note_failed = &mut self.lock().note_failed;
        if note_failed.len() >= MOST_TROUBLED && !note_failed.contains_key(queue) {
            note_failed.clear();
        }
        let new = FailingSince {
            since: now,
            heard: now,
        };
        let failing = note_failed.entry(queue.to_owned()).or_insert(new);
        if now.saturating_duration_since(failing.heard) >= FORGOTTEN {
            *failing = new;
        }
        failing.heard = now;
        now.saturating_duration_since(failing.since)
    }

    /// Something was stored for `queue`.
    pub(crate) fn note_stored(&self, queue: &str) {
        self.lock().note_failed.remove(queue);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HeldCounts> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for HeldPermit {
    fn drop(&mut self) {
        let mut held = self.per_queue_limit.lock();
        held.all -= 1;
        if let Some(count) = held.by_queue.get_mut(&self.queue) {
            *count -= 1;
            if *count == 0 {
                held.by_queue.remove(&self.queue);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trouble_lasts_until_something_is_stored_or_nothing_is_heard_of_it() {
        let (per_queue_limit, now) = (PerQueueLimit::new(16), Instant::now());
        let later = |seconds| now + Duration::from_secs(seconds);
        assert_eq!(per_queue_limit.note_failed("a", now), Duration::ZERO);
        assert_eq!(
            per_queue_limit.note_failed("a", later(100)),
            Duration::from_secs(100)
        );
        assert_eq!(per_queue_limit.note_failed("b", later(100)), Duration::ZERO);
        per_queue_limit.note_stored("a");
        assert_eq!(per_queue_limit.note_failed("a", later(150)), Duration::ZERO);
        assert_eq!(
            per_queue_limit.note_failed("b", later(100 + 120)),
            Duration::ZERO
        );
    }

    #[test]
    fn one_queue_never_takes_all_and_all_never_take_everything() {
        let per_queue_limit = Arc::new(PerQueueLimit::new(16));
        let mut taken: Vec<_> = (0..4).map(|_| per_queue_limit.take("a").unwrap()).collect();
        assert!(per_queue_limit.take("a").is_none());
        taken.extend((0..4).map(|_| per_queue_limit.take("b").unwrap()));
        assert!(per_queue_limit.take("c").is_none(), "half is taken");
        taken.remove(0);
        assert!(per_queue_limit.take("c").is_some());
        drop(taken);
        assert!(per_queue_limit.lock().by_queue.is_empty());
        assert!(Arc::new(PerQueueLimit::new(1)).take("a").is_some());
    }
}
