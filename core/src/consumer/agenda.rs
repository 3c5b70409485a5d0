//! What is to be done later, and when.

use std::{cmp::Reverse, collections::BinaryHeap};

use tokio::time::Instant;

use super::Token;

/// Something to do with a delivery at a later time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Task {
    /// Publish its copy once more.
    Resubmit,
    /// Its copy is safe now: acknowledge it.
    Release,
    /// Give it back to its queue, counted.
    Requeue,
    /// Give it back to its queue as one that no handler has begun with.
    PutBack,
}

/// Tasks by time.
#[derive(Debug, Default)]
pub(super) struct Agenda(BinaryHeap<Reverse<(Instant, Token, Task)>>);

impl Agenda {
    pub(super) fn add(&mut self, at: Instant, token: Token, task: Task) {
        self.0.push(Reverse((at, token, task)));
    }

    /// When the next task is due.
    pub(super) fn next(&self) -> Option<Instant> {
        self.0.peek().map(|Reverse((at, ..))| *at)
    }

    /// The next task, if it is due.
    pub(super) fn due(&mut self, now: Instant) -> Option<(Token, Task)> {
        if self.next()? > now {
            return None;
        }
        self.0.pop().map(|Reverse((_, token, task))| (token, task))
    }
}
