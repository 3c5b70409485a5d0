//! The last messages that the broker refused, to recognise them when they come again.

use std::{
    collections::VecDeque,
    hash::{BuildHasher, RandomState},
};

use super::job::Task;

/// How many are remembered.
const KNOWN: usize = 64;

/// How many bytes of a body are compared.
const BEGINNING: usize = 1024;

/// Marks of refused messages, oldest first. A message that comes again is sent alone, so that no other is delayed by it twice.
#[derive(Default)]
pub(super) struct RejectedCache {
    marks: VecDeque<u64>,
    hash: RandomState,
}

impl RejectedCache {
    pub(super) fn note(&mut self, task: &Task) {
        let mark = self.mark(task);
        if !self.marks.contains(&mark) {
            if self.marks.len() == KNOWN {
                self.marks.pop_front();
            }
            self.marks.push_back(mark);
        }
    }

    /// The broker accepted it after all.
    pub(super) fn forget(&mut self, task: &Task) {
        if !self.marks.is_empty() {
            let mark = self.mark(task);
            self.marks.retain(|known| *known != mark);
        }
    }

    pub(super) fn knows(&self, task: &Task) -> bool {
        !self.marks.is_empty() && self.marks.contains(&self.mark(task))
    }

    /// Made of what copies of the same message have in common; their headers may differ. The beginning of a large body is enough: a message
    /// that is mistaken for another is only sent alone.
    fn mark(&self, task: &Task) -> u64 {
        let properties = &task.properties;
        let body = task.body();
        self.hash.hash_one((
            task.exchange.as_str(),
            task.routing_key.as_str(),
            properties.message_id().as_ref().map(|id| id.as_str()),
            properties.user_id().as_ref().map(|user| user.as_str()),
            (body.len(), &body[..body.len().min(BEGINNING)]),
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::{super::job::tests::job, *};

    #[test]
    fn the_last_refused_are_known_and_no_others() {
        let task = |key: usize| Task::new(job(&key.to_string()).0, None);
        let mut refused = RejectedCache::default();
        assert!(!refused.knows(&task(0)));
        for key in 0..=KNOWN {
            refused.note(&task(key));
            refused.note(&task(key));
        }
        assert!(!refused.knows(&task(0)), "bounded");
        assert!((1..=KNOWN).all(|key| refused.knows(&task(key))));
        assert!(!refused.knows(&task(KNOWN + 1)));
        refused.forget(&task(1));
        assert!(!refused.knows(&task(1)) && refused.knows(&task(2)));
    }
}
