//! What must be done later, and when.

use std::{cmp::Reverse, collections::BinaryHeap};

use super::{Token, engine_time::EngineTime};

/// Something to do with a delivery at a later time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum TimerTask {
    /// Publish its copy again.
    Resubmit,
    /// Its copy is safe now: acknowledge it.
    Release,
    /// Its deferral is over.
    Defer,
    /// Its waiting queue is a safe place now: reject it.
    Reject,
    /// Its copy was tried for long enough: requeue it.
    GiveBack,
    /// It was held for long enough without having run: requeue it.
    HoldNoLonger,
}

/// Tasks, sorted by time.
#[derive(Debug, Default)]
pub(super) struct Timers(BinaryHeap<Reverse<(EngineTime, Token, TimerTask)>>);

impl Timers {
    pub(super) fn add(&mut self, at: EngineTime, token: Token, task: TimerTask) {
        self.0.push(Reverse((at, token, task)));
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// When the next task is due.
    pub(super) fn next(&self) -> Option<EngineTime> {
        self.0.peek().map(|Reverse((at, ..))| *at)
    }

    /// The next task, if it is due.
    pub(super) fn due(&mut self, now: EngineTime) -> Option<(Token, TimerTask)> {
        if self.next()? > now {
            return None;
        }
        self.0.pop().map(|Reverse((_, token, task))| (token, task))
    }
}
