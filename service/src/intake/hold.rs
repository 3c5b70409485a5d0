//! How many messages may be kept here because their queues do not take them, so that there is always room for the others.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

/// The places for messages that are held.
#[derive(Debug)]
pub(super) struct Holds {
    /// For one work queue.
    most_of_one: usize,
    /// For all together.
    most: usize,
    held: Mutex<Held>,
}

#[derive(Debug, Default)]
struct Held {
    all: usize,
    by_queue: HashMap<String, usize>,
}

/// A place that is taken until this is dropped.
#[derive(Debug)]
pub(super) struct Hold {
    holds: Arc<Holds>,
    queue: String,
}

impl Holds {
    /// For a consumer with this prefetch: half of it may be held, a quarter for one queue.
    pub(super) fn new(prefetch: u16) -> Self {
        let prefetch = usize::from(prefetch);
        Self {
            most_of_one: (prefetch / 4).max(1),
            most: (prefetch / 2).max(1),
            held: Mutex::default(),
        }
    }

    /// Takes a place for a message of `queue`; `None` where there is none left.
    pub(super) fn take(self: &Arc<Self>, queue: &str) -> Option<Hold> {
        let mut held = self.lock();
        let of_one = held.by_queue.get(queue).copied().unwrap_or(0);
        if held.all >= self.most || of_one >= self.most_of_one {
            return None;
        }
        held.all += 1;
        *held.by_queue.entry(queue.to_owned()).or_default() += 1;
        Some(Hold {
            holds: Arc::clone(self),
            queue: queue.to_owned(),
        })
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        let mut held = self.holds.lock();
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
    fn one_queue_never_takes_all_and_all_never_take_everything() {
        let holds = Arc::new(Holds::new(16));
        let mut taken: Vec<_> = (0..4).map(|_| holds.take("a").unwrap()).collect();
        assert!(holds.take("a").is_none());
        taken.extend((0..4).map(|_| holds.take("b").unwrap()));
        assert!(holds.take("c").is_none(), "half is taken");
        taken.remove(0);
        assert!(holds.take("c").is_some());
        drop(taken);
        assert!(holds.lock().by_queue.is_empty());
        assert!(Arc::new(Holds::new(1)).take("a").is_some());
    }
}
