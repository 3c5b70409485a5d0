//! How an attempt to send a notice ends.

use std::time::Duration;

/// Why a notice was not taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SendError {
    /// One sentence without a secret.
    pub(super) why: String,
    /// Whether it may be taken later.
    pub(super) again: RetryAdvice,
}

/// Whether to try again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RetryAdvice {
    /// It would be refused as before.
    Never,
    /// After the usual pause.
    Soon,
    /// Not before that: so the other side wishes.
    NotBefore(Duration),
}

impl SendError {
    pub(super) fn never(why: impl Into<String>) -> Self {
        Self {
            why: why.into(),
            again: RetryAdvice::Never,
        }
    }

    pub(super) fn soon(why: impl Into<String>) -> Self {
        Self {
            why: why.into(),
            again: RetryAdvice::Soon,
        }
    }
}

/// What sending gives.
pub(super) type SendResult = Result<(), SendError>;
