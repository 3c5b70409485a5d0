//! How many bytes of bodies a consumer holds (`prefetch_bytes`). A prefetch counts messages, and RabbitMQ refuses one in bytes.
//!
//! ```text
//! it fits               admitted
//! it does not           the budget is exceeded: one message at a time, as in a pause. What a wide consumer still brings goes back without
//!                       its body, and the message of a narrow one is held until there is room
//! half of it is free    a consumer for as many messages as the largest one lately allows
//! it waits aside        it does not count, as long as all that do so take no more than twice the limit
//! ```
//!
//! A message larger than the limit runs when nothing else does.
//!
//! Aside wait copies that are held up, because consuming must go on in an alarm (`publish_stall`), and deferrals without waiting queues. Twice
//! the limit in bytes is what `most_slots_taken` is in messages. So at most three times the limit is held, beside a message that waits for room.

use std::sync::Arc;

use tracing::debug;

#[cfg(test)]
use super::delivery_state::Purpose;
use super::{
    super::Token,
    Engine,
    delivery_state::{DeliveryState, HoldReason, Phase},
};
use crate::mutants::{self, Mutant};

/// The most messages without an excess before a wider consumer is tried, in prefetches.
const MOST_WIDEN_AFTER: u32 = 64;

/// How many times the limit may wait aside.
const ASIDE: u64 = 2;

/// The budget. Without a limit it allows everything.
#[derive(Debug)]
pub(super) struct ByteBudget {
    limit: Option<u64>,
    prefetch: u16,
    /// The bytes of all bodies that are kept.
    held: u64,
    is_exceeded: bool,
    /// How many messages a wide consumer may bring.
    window: u16,
    /// The largest body lately.
    largest: u64,
    /// The largest body, and the number of messages, since the last excess or look at the window.
    largest_since: u64,
    since: u32,
    /// How many messages it takes until the window is looked at.
    widen_after: u32,
}

impl ByteBudget {
    pub(super) fn new(limit: Option<u64>, prefetch: u16) -> Self {
        Self {
            limit,
            prefetch,
            held: 0,
            is_exceeded: false,
            window: prefetch,
            largest: 0,
            largest_since: 0,
            since: 0,
            widen_after: prefetch.into(),
        }
    }

    /// A body of this size is kept. `is_narrow`: whether the broker may send one message at a time.
    fn arrived(&mut self, bytes: u64, is_narrow: bool) {
        self.held += bytes;
        self.largest = self.largest.max(bytes);
        self.largest_since = self.largest_since.max(bytes);
        self.since = self.since.saturating_add(1);
        // Before the next consumer is asked for.
        if is_narrow {
            self.window = self.window.min(self.room(self.largest, 0, 1));
        }
    }

    /// A body is kept no longer.
    pub(super) fn released(&mut self, bytes: u64) {
        self.held -= bytes;
    }

    pub(super) fn is_exceeded(&self) -> bool {
        self.is_exceeded
    }

    /// How many messages a wide consumer may bring.
    pub(super) fn window(&self) -> u16 {
        self.window
    }

    /// Whether so few messages may come at a time that no message should wait for another one.
    pub(super) fn is_narrow(&self) -> bool {
        self.limit.is_some() && self.window == 1
    }

    /// Whether fewer messages may come than the prefetch says.
    pub(super) fn limits_prefetch(&self) -> bool {
        self.window < self.prefetch
    }

    /// Whether bytes decide how many messages may come now.
    pub(super) fn lets_few_come(&self) -> bool {
        self.is_exceeded || self.limits_prefetch()
    }

    #[cfg(test)]
    pub(super) fn held(&self) -> u64 {
        self.held
    }

    /// A message does not fit.
    fn exceed(&mut self) {
        if !std::mem::replace(&mut self.is_exceeded, true) {
            let most = u32::from(self.prefetch) * MOST_WIDEN_AFTER;
            self.widen_after = self.widen_after.saturating_mul(2).min(most);
        }
        (self.since, self.largest_since) = (0, 0);
    }

    /// The messages of this size for which there is room, beside `held` bytes and a consumer for `width` messages that is replaced.
    fn room(&self, largest: u64, held: u64, width: u16) -> u16 {
        let free = self.limit.unwrap_or(u64::MAX).saturating_sub(held);
        let Some(places) = free.checked_div(largest) else {
            return self.prefetch;
        };
        let room = places.saturating_sub(width.into());
        u16::try_from(room).map_or(self.prefetch, |room| room.clamp(1, self.prefetch))
    }

    /// Ends the excess when at least half of the bytes are free, for half of what could come if all were.
    fn end_excess(&mut self, held: u64) {
        let window = self.room(self.largest, held, 1);
        let most = self.room(self.largest, 0, 1);
        let is_free = self.limit.is_some_and(|limit| held <= limit / 2);
        if self.is_exceeded && is_free && window >= most.div_ceil(2) {
            (self.is_exceeded, self.window) = (false, window);
        }
    }

    /// Widens the window if only smaller messages have come for long. `width`: how many may come now.
    fn widen(&mut self, width: u16) {
        if self.is_exceeded || self.since < self.widen_after {
            return;
        }
        self.largest = self.largest_since;
        (self.since, self.largest_since) = (0, 0);
        self.widen_after = (self.widen_after / 2).max(self.prefetch.into());
        let window = self.room(self.largest, 0, width);
        // Each change replaces the consumer.
        if window / 2 >= self.window || (window == self.prefetch && window > self.window) {
            self.window = window;
        }
    }
}

impl Engine {
    /// Whether there is room for a message that just came.
    pub(super) fn fits(&mut self, token: Token) -> bool {
        if self.has_room(token, |_| true) || mutants::has(Mutant::IgnoresBytes) {
            return true;
        }
        let (held, largest) = (self.byte_budget.held, self.byte_budget.largest);
        if !self.byte_budget.is_exceeded {
            debug!(queue = %self.name, held, largest, "too many bytes are held; one message at a time until there is room");
        }
        self.byte_budget.exceed();
        false
    }

    /// Whether a kept message may run now. Others that are kept, or are to go back, do not count: nothing would run any more.
    pub(super) fn may_run_now(&self, token: Token) -> bool {
        self.has_room(token, |entry| {
            !matches!(
                entry.phase,
                Phase::Held(HoldReason::Spare | HoldReason::Returning)
            )
        })
    }

    /// Whether a message fits beside the others that count. A larger one than the limit fits beside none.
    fn has_room(&self, token: Token, counts: impl Fn(&DeliveryState) -> bool) -> bool {
        let Some(limit) = self.byte_budget.limit else {
            return true;
        };
        if self.byte_budget.held <= limit {
            return true;
        }
        let others = self.held_not_aside(limit, |other, entry| other != token && counts(entry));
        let mut entries = self.entries.iter();
        let own = entries.find(|(other, _)| *other == token);
        others == 0 || others + own.map_or(0, |(_, entry)| entry.bytes) <= limit
    }

    /// Whether the bytes allow no other message before one of those with the handlers is settled.
    pub(super) fn takes_the_last_place(&self) -> bool {
        if !self.byte_budget.limits_prefetch() {
            return false;
        }
        let out = self.entries.iter().filter(|(_, entry)| {
            self.is_current(entry.session) && matches!(entry.phase, Phase::Out)
        });
        out.count() >= usize::from(self.byte_budget.window)
    }

    /// Whether any bytes are free.
    pub(super) fn has_free_bytes(&self) -> bool {
        self.byte_budget.limit.is_none_or(|limit| {
            self.byte_budget.held < limit || self.held_not_aside(limit, |_, _| true) < limit
        })
    }

    /// The bytes of the messages that count. What waits aside may do so for long, so it holds nobody up before it takes all the room for itself.
    fn held_not_aside(&self, limit: u64, counts: impl Fn(Token, &DeliveryState) -> bool) -> u64 {
        let (mut held, mut aside, mut room) = (0, 0, limit.saturating_mul(ASIDE));
        for (token, entry) in self.entries.iter() {
            if entry.waits_aside() {
                aside += entry.bytes;
                room = room.max(entry.bytes);
            } else if counts(token, entry) {
                held += entry.bytes;
            }
        }
        held + aside.saturating_sub(room)
    }

    /// A message came, and its body is kept.
    pub(super) fn count_body(&mut self, bytes: u64) {
        let is_narrow = self.prefetch_control.is_narrow();
        self.byte_budget.arrived(bytes, is_narrow);
    }

    /// Lets go of the body of a message that is to be returned. A copy of it would need the body.
    pub(super) fn drop_body(&mut self, token: Token) {
        if self.byte_budget.limit.is_none() {
            return;
        }
        let Some(entry) = self.entries.get_mut(token) else {
            return;
        };
        let received = Arc::clone(&entry.received);
        if self.returns_as_copy(&received) {
            return;
        }
        let mark = self.memory.mark(&received);
        drop(received);
        if let Some(entry) = self.entries.get_mut(token)
            && let Some(received) = Arc::get_mut(&mut entry.received)
        {
            (received.body, entry.mark) = (Vec::new(), mark);
            self.byte_budget.released(std::mem::take(&mut entry.bytes));
        }
    }

    /// Ends the excess when there is room again, and lets a wider consumer be asked for when messages have become smaller.
    pub(super) fn review_budget(&mut self) {
        let Some(limit) = self.byte_budget.limit else {
            return;
        };
        if self.byte_budget.is_exceeded && self.prefetch_control.is_narrow() {
            let held = self.held_not_aside(limit, |_, _| true);
            self.byte_budget.end_excess(held);
        }
        self.byte_budget.widen(self.prefetch_control.width());
    }
}

impl DeliveryState {
    /// Whether no handler has it, and it may be held for long. Others run meanwhile.
    fn waits_aside(&self) -> bool {
        let is_held_up = match mutants::has(Mutant::CountsWhatIsHeldUp) {
            true => self.is_stuck,
            false => self.is_held_up,
        };
        is_held_up || matches!(self.phase, Phase::Held(HoldReason::Deferred(_)))
    }
}

#[cfg(test)]
impl Engine {
    /// The limit, the bytes that count against it, and those that wait aside as well. Copies that carry a message back are beyond all limits.
    pub(super) fn held_bytes(&self) -> Option<(u64, u64, u64)> {
        let limit = self.byte_budget.limit?;
        let (mut held, mut all) = (0, 0);
        for (_, entry) in self.entries.iter() {
            let (goes_back, was_aside) = match &entry.phase {
                Phase::Held(HoldReason::Returning) => (true, false),
                Phase::Copying(copy) => {
                    (!copy.purpose.is_an_end(), copy.purpose == Purpose::Deferral)
                }
                _ => (false, false),
            };
            if !goes_back {
                all += entry.bytes;
                held += if entry.waits_aside() || was_aside {
                    0
                } else {
                    entry.bytes
                };
            }
        }
        Some((limit, held, all))
    }

    /// Whether a message is kept although nothing else is held.
    pub(super) fn keeps_needlessly(&self) -> bool {
        let waits = |phase: &Phase| {
            matches!(
                phase,
                Phase::Held(HoldReason::Spare | HoldReason::Returning)
            )
        };
        self.byte_budget.limit.is_some()
            && self.suspect.is_none()
            && self.drain.is_none()
            && !self.circuit_breaker.is_pausing()
            && self.detours == 0
            && self.syncs.are_done()
            && !self.spares.is_empty()
            && self.entries.iter().all(|(_, entry)| waits(&entry.phase))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn budget(prefetch: u16) -> ByteBudget {
        ByteBudget::new(Some(8 * MIB), prefetch)
    }

    #[test]
    fn without_a_limit_everything_may_come() {
        let mut budget = ByteBudget::new(None, 64);
        budget.arrived(u64::from(u32::MAX), true);
        assert_eq!((budget.window(), budget.is_narrow()), (64, false));
    }

    #[test]
    fn the_first_message_tells_how_many_may_come() {
        for (bytes, window) in [
            (0, 64),
            (256, 64),
            (MIB, 7),
            (2 * MIB, 3),
            (3 * MIB, 1),
            (12 * MIB, 1),
        ] {
            let mut budget = budget(64);
            budget.arrived(bytes, true);
            assert_eq!(budget.window(), window, "{bytes}");
        }
    }

    #[test]
    fn a_wide_consumer_stays_until_the_budget_is_exceeded() {
        let mut budget = budget(64);
        budget.arrived(2 * MIB, false);
        assert_eq!(budget.window(), 64);
        budget.exceed();
        budget.end_excess(5 * MIB);
        assert!(budget.is_exceeded(), "less than half is free");
        budget.end_excess(2 * MIB);
        assert!(!budget.is_exceeded());
        assert_eq!(budget.window(), 2, "beside what is held");
    }

    #[test]
    fn what_ends_an_excess_does_not_cause_the_next_one() {
        for (largest, held) in [(MIB, 0), (MIB, 3 * MIB), (2 * MIB, 2 * MIB), (7 * MIB, 0)] {
            let mut budget = budget(64);
            budget.arrived(largest, false);
            budget.exceed();
            budget.end_excess(held);
            assert!(!budget.is_exceeded(), "{largest} {held}");
            let most = held + (u64::from(budget.window()) + 1) * largest;
            assert!(budget.window() == 1 || most <= 8 * MIB, "{largest} {held}");
        }
    }

    #[test]
    fn it_widens_after_smaller_messages_and_later_after_each_excess() {
        let mut budget = budget(64);
        budget.arrived(2 * MIB, true);
        assert_eq!(budget.window(), 3);
        let smaller = |budget: &mut ByteBudget, count| {
            for _ in 0..count {
                budget.arrived(256, false);
                budget.widen(3);
            }
        };
        smaller(&mut budget, 63);
        assert_eq!(budget.window(), 3, "the largest one is among the last 64");
        smaller(&mut budget, 64);
        assert_eq!(budget.window(), 64);
        budget.arrived(2 * MIB, false);
        budget.exceed();
        budget.end_excess(0);
        smaller(&mut budget, 127);
        assert_eq!(budget.window(), 3);
        smaller(&mut budget, 1);
        assert_eq!(budget.window(), 64);
    }

    #[test]
    fn a_window_that_would_grow_little_stays() {
        let mut budget = budget(64);
        budget.arrived(2 * MIB, true);
        for _ in 0..1_000 {
            budget.arrived(MIB, false);
            budget.widen(3);
        }
        assert_eq!(budget.window(), 3, "5 beside 3 are not twice as many");
    }
}
