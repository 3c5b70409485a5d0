//! What a handler decides about a message. Only this crosses from a language into the core.

use std::{fmt, time::Duration};

use super::copy_headers::cut_middle;

/// The most bytes of an error that messages and events keep.
const ERROR_MAX: usize = 1024;
/// The same of its type.
const TYPE_MAX: usize = 255;

/// Why and how an attempt failed. It is written into the error headers of the copy, and into the record of a parked message.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Failure {
    /// One line for people (`x-retry-error`); longer text is cut to 1024 bytes.
    pub error: String,
    /// The error's type or class, for rules and for grouping (`x-retry-error-type`). Empty if unknown.
    pub error_type: String,
    /// Other names of the error, for rules only: its base classes, or the types it wraps. They are not written on the message.
    pub kinds: Vec<String>,
    /// A stack trace or a chain of causes, if there is one (`x-retry-error-stack`). Only parked messages keep it, at most 16 KiB.
    pub stack: Option<String>,
    /// The headers of the message already have it: the consumer that handed the message over wrote it.
    pub(crate) is_recorded: bool,
}

impl Failure {
    /// A failure with a text, and nothing else.
    #[must_use]
    pub fn new(error: impl Into<String>) -> Self {
        Self {
            error: error.into(),
            ..Self::default()
        }
    }

    /// Sets the error's type or class.
    #[must_use]
    pub fn of_type(mut self, error_type: impl Into<String>) -> Self {
        self.error_type = error_type.into();
        self
    }

    /// Sets other names of the error, for rules: its base classes, or the types it wraps.
    #[must_use]
    pub fn also(mut self, kinds: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.kinds = kinds.into_iter().map(Into::into).collect();
        self
    }

    /// Sets a stack trace or a chain of causes.
    #[must_use]
    pub fn with_stack(mut self, stack: impl Into<String>) -> Self {
        self.stack = Some(stack.into());
        self
    }

    /// Its error as messages and events have it.
    pub(crate) fn written(&self) -> String {
        cut_middle(&self.error, ERROR_MAX)
    }

    /// The type of its error as messages and events have it, if it is known.
    pub(crate) fn written_type(&self) -> Option<String> {
        (!self.error_type.is_empty()).then(|| cut_middle(&self.error_type, TYPE_MAX))
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.error)
    }
}

/// A handler may return a failure as its error, to name the error's type itself.
impl std::error::Error for Failure {}

/// How an attempt ended. New variants may be added; the existing ones stay as they are.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Outcome {
    /// Handled: the message is acknowledged (AMQP `basic.ack`).
    Ack,
    /// Failed: the message waits for its next attempt, or is parked when the policy allows no more retries.
    Retry {
        /// What went wrong.
        failure: Failure,
        /// A delay chosen by the handler; `None` for the delay of the policy.
        delay: Option<Duration>,
    },
    /// Failed, and no retry can help: the message is parked now, whatever the policy says.
    Park {
        /// Handlers use [`ParkReason::Requested`], [`ParkReason::Fatal`] or [`ParkReason::Undecodable`].
        reason: ParkReason,
        /// What went wrong.
        failure: Failure,
    },
    /// Not now: the message is delivered again after `delay`, and uses up no attempt.
    Defer {
        /// How long to wait.
        delay: Duration,
    },
}

impl Outcome {
    /// What went wrong; `None` for `Ack` and `Defer`.
    #[must_use]
    pub fn failure(&self) -> Option<&Failure> {
        match self {
            Self::Retry { failure, .. } | Self::Park { failure, .. } => Some(failure),
            Self::Ack | Self::Defer { .. } => None,
        }
    }

    /// The attempt failed; retry after `delay` instead of the policy's delay. It counts as a retry.
    #[must_use]
    pub fn retry_after(delay: Duration, failure: Failure) -> Self {
        Self::Retry {
            failure,
            delay: Some(delay),
        }
    }

    /// Parks the message now as `requested`.
    #[must_use]
    pub fn park(failure: Failure) -> Self {
        Self::Park {
            reason: ParkReason::Requested,
            failure,
        }
    }

    /// Parks the message now as `fatal`: no retry can fix this error.
    #[must_use]
    pub fn fatal(failure: Failure) -> Self {
        Self::Park {
            reason: ParkReason::Fatal,
            failure,
        }
    }

    /// Parks the message now as `undecodable`: its body is not what the handler reads.
    #[must_use]
    pub fn undecodable(failure: Failure) -> Self {
        Self::Park {
            reason: ParkReason::Undecodable,
            failure,
        }
    }

    /// Delivers the message again after `delay`, and uses up no attempt.
    #[must_use]
    pub fn defer(delay: Duration) -> Self {
        Self::Defer { delay }
    }

    /// The attempt failed; the policy decides on the delay.
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
    /// All retries, or all deferrals, are used up.
    Exhausted,
    /// No retry can fix the error.
    Fatal,
    /// A handler or an operator asked for it.
    Requested,
    /// It crashed its consumers too often, or the broker's delivery limit was reached.
    DeliveryLimit,
    /// It cannot be read: its body is not what the handler expects, or it is not AMQP (names that are not UTF-8, tables nested too deeply).
    Undecodable,
    /// Its time to live ran out, and the broker dead-lettered it.
    Expired,
    /// Its next attempt would be later than the policy's `max_age` allows.
    TooOld,
    /// Another consumer rejected it, and the broker dead-lettered it.
    Rejected,
    /// The queue was full, and the broker dead-lettered it.
    Overflow,
}

impl ParkReason {
    /// All reasons.
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

    /// The word used in headers, logs and metrics, such as `delivery-limit`.
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

    /// Reads a word of [`as_str`](Self::as_str), or a reason that RabbitMQ writes into `x-death`. `None` for any other word.
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
