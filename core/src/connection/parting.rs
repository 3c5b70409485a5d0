//! When a consumer may be cancelled.
//!
//! What a quorum queue has sent and the channel has not passed on when its consumer is cancelled goes back to the queue, and
//! before RabbitMQ 4.3 that counts as a delivery, as a crash does (fact 58). So a consumer is cancelled when nothing can be on
//! its way to it: when all its places are taken, or when the queue is empty. Until then nothing is settled, which would make a
//! place free.

use std::time::Duration;

use tokio::time::Instant;

/// How often in a row the queue must be found empty, with nothing in between: the answer to the first look may overtake a
/// delivery, that to the second does not.
const EMPTY: u32 = 2;

/// After this many looks without a delivery to a consumer that was never served, another one is the active one.
pub(crate) const QUIET: u32 = 20;

/// For no longer. A settlement makes a place free only when a majority of nodes has it on disk, so no number of looks tells that no
/// message is about to be sent. What is on its way after that time counts as delivered once more.
pub(crate) const PATIENCE: Duration = Duration::from_secs(3);

/// A consumer that is to go.
#[derive(Debug)]
pub(crate) struct Parting {
    until: Instant,
    was_served: bool,
    /// Looks since the last delivery.
    quiet: u32,
    /// Those of them that found the queue empty, in a row.
    empty: u32,
}

impl Parting {
    /// `was_served`: whether anything ever came to it.
    pub(crate) fn begin(now: Instant, was_served: bool) -> Self {
        Self {
            until: now + PATIENCE,
            was_served,
            quiet: 0,
            empty: 0,
        }
    }

    /// A delivery came.
    pub(crate) fn arrived(&mut self) {
        (self.was_served, self.quiet, self.empty) = (true, 0, 0);
    }

    /// The broker says how many messages wait in the queue.
    pub(crate) fn looked(&mut self, ready: u32) {
        self.quiet += 1;
        self.empty = if ready == 0 { self.empty + 1 } else { 0 };
    }

    /// Nobody was there to say it.
    pub(crate) fn heard_nothing(&mut self) {
        (self.quiet, self.empty) = (self.quiet + 1, 0);
    }

    /// How long to wait before the next look: a queue that is neither empty nor ours is not asked all the time.
    pub(crate) fn pause(&self) -> Duration {
        if self.quiet < EMPTY {
            Duration::ZERO
        } else {
            Duration::from_millis(u64::from(self.quiet.min(20)))
        }
    }

    /// Whether nothing can be on its way, or it was waited for long enough. `full`: whether all its places are taken.
    pub(crate) fn may_go(&self, full: bool, now: Instant) -> bool {
        full || self.empty >= EMPTY
            || (self.quiet >= QUIET && !self.was_served)
            || now >= self.until
    }
}
