//! Copies that wait because their queue is young, because the broker does not read from publishers, or because all channels are in use. They
//! were not sent yet, and can be withdrawn.

use std::time::Duration;

use super::{
    super::{Simulation, ledger::number},
    lost,
};
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
    /// When its queue is a safe place, and how many connections had been made again when it began to wait for that.
    safe_from: Option<(Duration, u32)>,
    since: Duration,
    /// It does not wait for its queue to be old.
    pub(super) at_once: bool,
    /// Its original was taken from its consumer and comes again, so there may be two of it.
    original_comes_again: bool,
}

impl HeldUp {
    /// Whether it could be sent.
    pub(super) fn is_due(&self) -> bool {
        self.safe_from.is_none()
    }

    /// When it can be sent, if its queue is young.
    pub(super) fn due_at(&self) -> Option<Duration> {
        self.safe_from.map(|(at, _)| at)
    }

    fn number(&self) -> u32 {
        number(&self.copy.properties)
    }

    /// Whether it is withdrawn when a channel is lost.
    fn is_stale(&self, now: Duration) -> bool {
        now > self.since + LONGEST_KEPT
    }
}

impl Simulation {
    /// Holds a copy until its queue is old, unless it is to be sent at once, and the broker reads.
    pub(super) fn hold_up(&mut self, at: usize, token: Token, copy: Copy, at_once: bool) {
        let (since, original_comes_again) = (self.now, false);
        let is_to_wait_for = !at_once && self.may_mark(at, &copy.routing_key);
        let replica = &mut self.replicas[at];
        let age = replica.ages.get(&copy.routing_key);
        let age = age.filter(|_| is_to_wait_for);
        let safe_from = age.and_then(|age| age.sends_at(since));
        replica.held_up.push(HeldUp {
            safe_from: safe_from.map(|safe| (safe, replica.losses)),
            token,
            copy,
            since,
            at_once,
            original_comes_again,
        });
    }

    /// Sends what waited for its queue to be old. After a lost connection, the original comes again.
    pub(super) fn send_what_is_safe(&mut self, at: usize) {
        let now = self.now;
        let replica = &mut self.replicas[at];
        let losses = replica.losses;
        let mut withdrawn = Vec::new();
        for mut copy in std::mem::take(&mut replica.held_up) {
            match copy.safe_from {
                Some((safe, before)) if safe <= now && before != losses => {
                    if copy.original_comes_again {
                        self.ledger.is_not_doubled(copy.number());
                    }
                    withdrawn.push(copy.token);
                    continue;
                }
                Some((safe, _)) if safe <= now => copy.safe_from = None,
                _ => {}
            }
            replica.held_up.push(copy);
        }
        for token in withdrawn {
            self.answer_copy(at, token, Err(lost()));
        }
        self.serve_lanes(at);
    }

    /// The process is killed, and what it has not sent was never stored.
    pub(super) fn drop_held_up(&mut self, at: usize) {
        for copy in std::mem::take(&mut self.replicas[at].held_up) {
            if copy.original_comes_again {
                self.ledger.is_not_doubled(copy.number());
            }
        }
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
                self.ledger.may_be_doubled(copy.number);
            }
        }
    }

    /// Messages that a replica has not settled are delivered again, and their copies may be stored already. Copies that were not sent do
    /// not count: one held up for long is withdrawn, now or with a later channel.
    pub(super) fn comes_again(&mut self, at: usize) {
        let replica = &mut self.replicas[at];
        let (ledger, now) = (&mut self.ledger, self.now);
        let crash_loops = self.setting.crash_loops;
        for (_, number) in std::mem::take(&mut replica.with_us) {
            // Nothing keeps it from acknowledging what is safe.
            let is_kept = |safe: &Duration| crash_loops && *safe + PROMPTLY < now;
            if replica.safe.get(&number).is_some_and(is_kept) {
                continue;
            }
            ledger.may_be_doubled(number);
            let mut copies = replica.held_up.iter_mut();
            let copy = copies.find(|copy| !copy.original_comes_again && copy.number() == number);
            if let Some(copy) = copy {
                copy.original_comes_again = true;
            }
        }
        for copy in &mut replica.held_up {
            if copy.is_stale(now) && std::mem::take(&mut copy.original_comes_again) {
                ledger.is_not_doubled(copy.number());
            }
        }
    }
}
