//! Copies that wait because the broker does not read from publishers, or because all channels are in use. They were not sent yet, and can be
//! withdrawn.

use std::time::Duration;

use super::super::{World, books::number};
use crate::consumer::{
    Token,
    engine::{Copy, LONGEST_KEPT},
};

/// A message is acknowledged within this time when its copy is safe.
const PROMPTLY: Duration = Duration::from_millis(500);

/// A copy that was not sent to the broker yet.
pub(super) struct HeldUp {
    pub(super) token: Token,
    pub(super) copy: Copy,
    since: Duration,
    /// Its original was taken from its consumer and comes again, so there may be two of it.
    original_comes_again: bool,
}

impl HeldUp {
    fn number(&self) -> u32 {
        number(&self.copy.properties)
    }

    /// Whether it is withdrawn when a channel is lost.
    fn is_stale(&self, now: Duration) -> bool {
        now > self.since + LONGEST_KEPT
    }
}

impl World {
    /// Holds a copy until the broker reads again.
    pub(super) fn hold_up(&mut self, at: usize, token: Token, copy: Copy) {
        let (since, original_comes_again) = (self.now, false);
        self.replicas[at].held_up.push(HeldUp {
            token,
            copy,
            since,
            original_comes_again,
        });
    }

    /// The broker reads again, or another connection is tried.
    pub(super) fn send_what_was_held_up(&mut self, at: usize) {
        self.replicas[at].is_blocked = false;
        self.serve_lanes(at);
    }

    /// A copy is no longer wanted.
    pub(super) fn withdraw(&mut self, at: usize, token: Token) {
        let held_up = &mut self.replicas[at].held_up;
        if let Some(place) = held_up.iter().position(|copy| copy.token == token) {
            let copy = held_up.remove(place);
            self.note(|| format!("replica {at}: the copy of {} is withdrawn", copy.number()));
            self.answer_copy(at, token, Err(super::lost()));
        } else {
            // It is on its way already.
            let mut sent = self.replicas[at].unconfirmed.values();
            if let Some(copy) = sent.find(|copy| copy.token == token) {
                self.books.may_be_doubled(copy.number);
            }
        }
    }

    /// Messages that a replica has not settled are delivered again, and their copies may be stored already. Copies that were not sent do
    /// not count: one held up for long is withdrawn, now or with a later channel.
    pub(super) fn comes_again(&mut self, at: usize) {
        let replica = &mut self.replicas[at];
        let (books, now) = (&mut self.books, self.now);
        let crash_loops = self.setting.crash_loops;
        for (_, number) in std::mem::take(&mut replica.with_us) {
            // Nothing keeps it from acknowledging what is stored in an old queue.
            let is_kept = |stored: &Duration| crash_loops && *stored + PROMPTLY < now;
            if replica.stored.get(&number).is_some_and(is_kept) {
                continue;
            }
            books.may_be_doubled(number);
            let mut copies = replica.held_up.iter_mut();
            let copy = copies.find(|copy| !copy.original_comes_again && copy.number() == number);
            if let Some(copy) = copy {
                copy.original_comes_again = true;
            }
        }
        for copy in &mut replica.held_up {
            if copy.is_stale(now) && std::mem::take(&mut copy.original_comes_again) {
                books.is_not_doubled(copy.number());
            }
        }
    }
}
