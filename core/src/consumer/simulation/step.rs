//! What a test sees of a message's life.

use std::time::Duration;

use crate::{Message, retry::ParkReason};

/// What happened to a message after an attempt.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Step {
    /// It was acknowledged.
    Acked,
    /// It waits for its next attempt.
    #[non_exhaustive]
    Retried {
        /// How long it waits.
        delay: Duration,
    },
    /// It was deferred, and uses up no attempt.
    #[non_exhaustive]
    Deferred {
        /// How long it waits.
        delay: Duration,
    },
    /// It was parked.
    #[non_exhaustive]
    Parked {
        /// Why.
        reason: ParkReason,
        /// The parked copy, with its record in the headers.
        message: Message,
    },
    /// It was given up and dropped, because `park` is off.
    #[non_exhaustive]
    Dropped {
        /// Why.
        reason: ParkReason,
    },
    /// It was rejected without requeue, because `dlx` is off. The queue's own dead-lettering decides.
    Rejected,
}
