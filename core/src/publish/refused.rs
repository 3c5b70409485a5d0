//! The last messages that the broker refused, to be known when they come again.

use std::{
    collections::VecDeque,
    hash::{BuildHasher, RandomState},
};

use super::job::Task;

/// As many are known.
const KNOWN: usize = 64;

/// Bytes of a body that are looked at.
const BEGINNING: usize = 1024;

/// Marks of refused messages, oldest first. One that comes again goes alone, so that nobody else pays for it twice.
#[derive(Default)]
pub(super) struct Refused {
    marks: VecDeque<u64>,
    hash: RandomState,
}

impl Refused {
    pub(super) fn note(&mut self, task: &Task) {
        let mark = self.mark(task);
        if !self.marks.contains(&mark) {
            if self.marks.len() == KNOWN {
                self.marks.pop_front();
            }
            self.marks.push_back(mark);
        }
    }

    /// It was taken after all.
    pub(super) fn forget(&mut self, task: &Task) {
        if !self.marks.is_empty() {
            let mark = self.mark(task);
            self.marks.retain(|known| *known != mark);
        }
    }

    pub(super) fn knows(&self, task: &Task) -> bool {
        !self.marks.is_empty() && self.marks.contains(&self.mark(task))
    }

    /// By what a copy of the same message shares with the one before; its headers may differ. Of a large body the beginning
    /// will do: who is taken for another goes alone, no more.
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
        let mut refused = Refused::default();
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
