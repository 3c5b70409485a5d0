//! A bound on how much is ready.

use super::{Context, Publisher, Queue};
use crate::death::Reason;

impl Queue {
    /// Whether a publish is refused because the queue is full.
    pub(super) fn refuses(&mut self, publisher: Publisher) -> bool {
        let Some(most) = self.settings.max_length else {
            return false;
        };
        if !self.settings.reject_publish {
            return false;
        }
        if !self.is_quorum() {
            return self.ready() as u64 + 1 > most;
        }
        if publisher == Publisher::Nobody {
            return false;
        }
        let full = self.counted() > most;
        *self.publishers.entry(publisher).or_insert(full)
    }

    /// Drops what is too much, or tells publishers to stop and to go on. They go on when a fifth is free.
    pub(super) fn keep_length(&mut self, context: &mut Context<'_>) {
        let Some(most) = self.settings.max_length else {
            return;
        };
        if !self.settings.reject_publish {
            while self.counted() > most {
                let Some(entry) = self.take() else { return };
                self.bury(context, entry, Reason::MaxLength);
            }
            return;
        }
        if !self.is_quorum() {
            return;
        }
        let low = self.counted() <= most * 4 / 5;
        if self.counted() > most {
            self.publishers.values_mut().for_each(|told| *told = true);
        } else if low && !self.was_low {
            self.publishers.values_mut().for_each(|told| *told = false);
        }
        self.was_low = low;
    }

    /// What the bound is about: dead letters that wait to be carried away count as well, and what is delayed.
    fn counted(&self) -> u64 {
        (self.ready() + self.delayed.len() + self.worker.len()) as u64
    }
}
