//! When a consumer may be cancelled.
//!
//! If a quorum queue has sent messages that the channel has not passed on when its consumer is cancelled, they are requeued. Before
//! RabbitMQ 4.3 that counts as a delivery, as a crash does (fact 58). So a consumer is cancelled only when nothing can be on its way to it:
//! when all its places are occupied, or when the queue is empty. Until then nothing is settled, because that would free a place.

use std::time::Duration;

use tokio::time::Instant;

/// How often in a row the queue must be found empty. The answer to the first look may overtake a delivery; the answer to the second does
/// not.
const EMPTY: u32 = 2;

/// After this number of looks without a delivery to a consumer that was never served, another consumer is the active one.
pub(crate) const QUIET: u32 = 20;

/// How long to wait at most. A settlement frees a place only when a majority of nodes has it on disk, so no number of looks shows that no
/// message is about to be sent. A message on its way after that time is counted as delivered once more.
pub(crate) const TIME_LIMIT: Duration = Duration::from_secs(3);

/// A consumer that is to be cancelled.
#[derive(Debug)]
pub(crate) struct SafeCancel {
    until: Instant,
    was_served: bool,
    /// Looks since the last delivery.
    quiet: u32,
    /// How many looks in a row found the queue empty.
    empty: u32,
}

impl SafeCancel {
    /// `was_served`: whether anything ever came to it.
    pub(crate) fn begin(now: Instant, was_served: bool) -> Self {
        Self {
            until: now + TIME_LIMIT,
            was_served,
            quiet: 0,
            empty: 0,
        }
    }

    /// A delivery arrived.
    pub(crate) fn arrived(&mut self) {
        (self.was_served, self.quiet, self.empty) = (true, 0, 0);
    }

    /// How many messages the broker says are ready in the queue.
    pub(crate) fn note_ready(&mut self, ready: u32) {
        self.quiet += 1;
        self.empty = if ready == 0 { self.empty + 1 } else { 0 };
    }

    /// The look got no answer.
    pub(crate) fn has_timed_out(&mut self) {
        (self.quiet, self.empty) = (self.quiet + 1, 0);
    }

    /// How long to wait before the next look. A queue that is neither empty nor served to us is not asked all the time.
    pub(crate) fn pause(&self) -> Duration {
        if self.quiet < EMPTY {
            Duration::ZERO
        } else {
            Duration::from_millis(u64::from(self.quiet.min(20)))
        }
    }

    /// Whether nothing can be on its way, or the wait was long enough. `full`: whether all its places are occupied.
    pub(crate) fn may_go(&self, full: bool, now: Instant) -> bool {
        full || self.empty >= EMPTY
            || (self.quiet >= QUIET && !self.was_served)
            || now >= self.until
    }
}
