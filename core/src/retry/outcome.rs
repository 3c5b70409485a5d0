//! What a handler makes of a message: the only thing that crosses from a language into the core.

use std::{fmt, time::Duration};

/// Why and how an attempt failed: becomes the message's error headers and, when it is parked, its record.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Failure {
    /// One line for people (`x-retry-error`).
    pub error: String,
    /// The error's type or class, for rules and for grouping (`x-retry-error-type`); empty when unknown.
    pub error_type: String,
    /// What else the error is: its base classes, or what it wraps. Rules look at these too; nothing is written of them.
    pub kinds: Vec<String>,
    /// A stack trace or a chain of causes, if there is one (`x-retry-error-stack`, on parked messages only).
    pub stack: Option<String>,
    /// The headers of the message say it already: the consumer wrote it that handed the message over.
    pub(crate) is_recorded: bool,
}

impl Failure {
    /// A failure with a text and nothing else.
    #[must_use]
    pub fn new(error: impl Into<String>) -> Self {
        Self {
            error: error.into(),
            ..Self::default()
        }
    }

    /// Names the error's type or class.
    #[must_use]
    pub fn of_type(mut self, error_type: impl Into<String>) -> Self {
        self.error_type = error_type.into();
        self
    }

    /// Names what else the error is, for rules: its base classes, or the types that it wraps.
    #[must_use]
    pub fn also(mut self, kinds: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.kinds = kinds.into_iter().map(Into::into).collect();
        self
    }

    /// Adds a stack trace or a chain of causes.
    #[must_use]
    pub fn with_stack(mut self, stack: impl Into<String>) -> Self {
        self.stack = Some(stack.into());
        self
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.error)
    }
}

/// A handler may return a failure as its error, to name the error's type itself.
impl std::error::Error for Failure {}

/// The end of one attempt. More kinds of ends may come; what these hold stays as it is.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Outcome {
    /// Handled: the message is acknowledged and gone.
    Ack,
    /// Failed: wait and try again, or park when the policy says it was enough.
    Retry {
        /// What went wrong.
        failure: Failure,
        /// The delay the handler chose; `None` leaves it to the policy.
        delay: Option<Duration>,
    },
    /// Failed, and no retry can help: park now, whatever the policy would allow.
    Park {
        /// [`ParkReason::Requested`] or [`ParkReason::Fatal`] for handlers.
        reason: ParkReason,
        /// What went wrong.
        failure: Failure,
    },
    /// Not now: come back after `delay` without spending an attempt.
    Defer {
        /// How long to wait.
        delay: Duration,
    },
}

impl Outcome {
    /// What went wrong, if anything did.
    #[must_use]
    pub fn failure(&self) -> Option<&Failure> {
        match self {
            Self::Retry { failure, .. } | Self::Park { failure, .. } => Some(failure),
            Self::Ack | Self::Defer { .. } => None,
        }
    }

    /// A failure that comes back after `delay`, whatever the policy says of the time; it counts as a retry.
    #[must_use]
    pub fn retry_after(delay: Duration, failure: Failure) -> Self {
        Self::Retry {
            failure,
            delay: Some(delay),
        }
    }

    /// Parks now, because the handler asks for it.
    #[must_use]
    pub fn park(failure: Failure) -> Self {
        Self::Park {
            reason: ParkReason::Requested,
            failure,
        }
    }

    /// Parks now, because the error is of a class that no retry can mend.
    #[must_use]
    pub fn fatal(failure: Failure) -> Self {
        Self::Park {
            reason: ParkReason::Fatal,
            failure,
        }
    }

    /// Comes back after `delay`, without an attempt spent.
    #[must_use]
    pub fn defer(delay: Duration) -> Self {
        Self::Defer { delay }
    }

    /// A failure that leaves the delay to the policy.
    #[must_use]
    pub fn retry(failure: Failure) -> Self {
        Self::Retry {
            failure,
            delay: None,
        }
    }
}

/// Why a message was parked (`x-retry-parked-reason`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ParkReason {
    /// All retries (or deferrals) are spent.
    Exhausted,
    /// The error is of a class that no retry can mend.
    Fatal,
    /// The handler asked for it.
    Requested,
    /// It crashed its consumer too often.
    DeliveryLimit,
    /// It cannot be read as AMQP: names that are not UTF-8, tables nested without end.
    Undecodable,
    /// Its time to live ran out (dead-lettered by the broker).
    Expired,
    /// Its next attempt would come later than the policy's `max_age` allows.
    TooOld,
    /// Another consumer rejected it (dead-lettered by the broker).
    Rejected,
    /// The queue was full (dead-lettered by the broker).
    Overflow,
}

impl ParkReason {
    /// All of them.
    #[doc(hidden)]
    pub const ALL: [Self; 9] = [
        Self::Exhausted,
        Self::Fatal,
        Self::Requested,
        Self::DeliveryLimit,
        Self::Undecodable,
        Self::Expired,
        Self::TooOld,
        Self::Rejected,
        Self::Overflow,
    ];

    /// The word on the wire, in logs and in metrics.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Exhausted => "exhausted",
            Self::Fatal => "fatal",
            Self::Requested => "requested",
            Self::DeliveryLimit => "delivery-limit",
            Self::Undecodable => "undecodable",
            Self::Expired => "expired",
            Self::TooOld => "too-old",
            Self::Rejected => "rejected",
            Self::Overflow => "overflow",
        }
    }

    /// Reads the word on the wire, or the reason that RabbitMQ writes into `x-death`.
    #[must_use]
    pub fn parse(word: &str) -> Option<Self> {
        match word {
            "delivery_limit" => Some(Self::DeliveryLimit),
            "maxlen" => Some(Self::Overflow),
            word => Self::ALL.into_iter().find(|reason| reason.as_str() == word),
        }
    }
}

impl fmt::Display for ParkReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_is_read_back() {
        for reason in ParkReason::ALL {
            assert_eq!(ParkReason::parse(reason.as_str()), Some(reason));
        }
        assert_eq!(
            ParkReason::parse("delivery_limit"),
            Some(ParkReason::DeliveryLimit)
        );
        assert_eq!(ParkReason::parse("bored"), None);
    }
}
