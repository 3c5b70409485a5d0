//! The worker of a quorum queue that carries its dead letters away at least once.
//!
//! It has up to 32 of them in its hands, sends each on, and lets go of it when the next queue has it. What finds no queue,
//! or a full one, stays in its hands until its patience ends, and then is tried again.

use crate::death::Reason;
use crate::message::Message;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

/// How many it takes up at once.
const HANDS: usize = 32;

/// A message that has died and is not yet anywhere else.
#[derive(Clone, Debug)]
pub(crate) struct Dead {
    pub(crate) message: Arc<Message>,
    pub(crate) reason: Reason,
    pub(crate) delivery_count: Option<i64>,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Worker {
    discarded: VecDeque<Dead>,
    pending: BTreeMap<u64, Dead>,
    /// Those that are on their way.
    under_way: BTreeSet<u64>,
    next: u64,
    /// When what is stuck is tried again.
    pub(crate) timer: Option<Duration>,
}

impl Worker {
    pub(crate) fn discard(&mut self, dead: Dead) {
        self.discarded.push_back(dead);
    }

    /// Takes up the next one, when a hand is free.
    pub(crate) fn take_up(&mut self) -> Option<u64> {
        if self.pending.len() >= HANDS {
            return None;
        }
        let dead = self.discarded.pop_front()?;
        let number = self.next;
        self.next += 1;
        self.pending.insert(number, dead);
        Some(number)
    }

    pub(crate) fn pending(&self, number: u64) -> Option<&Dead> {
        self.pending.get(&number)
    }

    /// What is stuck in its hands.
    pub(crate) fn stuck(&self) -> Vec<u64> {
        let numbers = self.pending.keys().copied();
        numbers
            .filter(|number| !self.under_way.contains(number))
            .collect()
    }

    /// It is on its way.
    pub(crate) fn send(&mut self, number: u64) {
        self.under_way.insert(number);
    }

    /// It was refused.
    pub(crate) fn keep(&mut self, number: u64) {
        self.under_way.remove(&number);
    }

    /// It has arrived.
    pub(crate) fn finish(&mut self, number: u64) {
        self.pending.remove(&number);
        self.under_way.remove(&number);
        if self.pending.is_empty() {
            self.timer = None;
        }
    }

    /// After a restart it begins anew with all that has not arrived.
    pub(super) fn restart(&mut self) {
        let pending = std::mem::take(&mut self.pending);
        for dead in pending.into_values().rev() {
            self.discarded.push_front(dead);
        }
        self.under_way.clear();
        self.timer = None;
    }

    pub(super) fn clear(&mut self) {
        self.discarded.clear();
        self.pending.clear();
        self.timer = None;
    }

    /// Whether it has anything in its hands.
    pub(crate) fn is_busy(&self) -> bool {
        !self.pending.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.discarded.len() + self.pending.len()
    }

    pub(super) fn messages(&self) -> impl Iterator<Item = &Arc<Message>> {
        let pending = self.pending.values().chain(&self.discarded);
        pending.map(|dead| &dead.message)
    }
}
