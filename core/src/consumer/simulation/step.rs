//! What a test sees of a message's way.

use std::time::Duration;

use crate::{Message, retry::ParkReason};

/// What became of a message after an attempt.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Step {
    /// Handled: acknowledged and gone.
    Acked,
    /// It waits for another attempt.
    #[non_exhaustive]
    Retried {
        /// How long.
        delay: Duration,
    },
    /// It was deferred; no attempt is spent.
    #[non_exhaustive]
    Deferred {
        /// For how long.
        delay: Duration,
    },
    /// It is parked.
    #[non_exhaustive]
    Parked {
        /// Why.
        reason: ParkReason,
        /// The parked copy, with the record that a person would read.
        message: Message,
    },
    /// It was given up and dropped, because `park` is off.
    #[non_exhaustive]
    Dropped {
        /// Why.
        reason: ParkReason,
    },
    /// It was rejected, because `dlx` is off: the queue's own dead-lettering decides.
    Rejected,
}
