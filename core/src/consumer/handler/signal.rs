//! What a handler says besides success and failure, as an error.

use std::{error::Error as StdError, fmt, time::Duration};

use super::Cause;
use crate::retry::format_duration;

/// What a handler can say besides success and failure. It travels as an error: return it, or have it anywhere in the
/// chain of causes of the error that you return.
///
/// It is found behind whatever wraps it, as long as that passes on its [`source`](StdError::source): `anyhow` and `eyre`,
/// with context or not, `Box<dyn Error>`, `io::Error`, an enum's `#[from]` and `#[error(transparent)]`.
#[derive(Debug)]
pub struct Signal(Meaning);

/// What a signal means.
///
/// It is an error of its own, the first source of the signal, because a wrapper may hide the signal itself: a boxed
/// `anyhow::Error` and a transparent enum answer for the error that they hold, and their `source` is that error's.
#[derive(Debug)]
pub(super) struct Meaning {
    pub(super) kind: Kind,
    cause: Option<Cause>,
}

#[derive(Debug)]
pub(super) enum Kind {
    RetryAfter(Duration),
    Park(String),
    Defer(Duration),
    Fatal,
}

/// A failure after which the message is to come back in `delay`, whatever the policy says; it counts as a retry.
///
/// The strategy `delayed-exchange` keeps a message for at most 4 294 967 295 ms (49.7 days), however long `delay` is.
#[must_use]
pub fn retry_after(delay: Duration, cause: impl Into<Cause>) -> Signal {
    Signal::new(Kind::RetryAfter(delay), Some(cause.into()))
}

/// Parks the message now, with this reason for people to read.
#[must_use]
pub fn park(why: impl Into<String>) -> Signal {
    Signal::new(Kind::Park(why.into()), None)
}

/// Defers the message: it comes back in `delay`, and no attempt is spent. Without `dlx` there are no waiting queues: the
/// message is held, for at most a minute, and then goes to the tail of its queue as a copy.
///
/// The strategy `delayed-exchange` keeps a message for at most 4 294 967 295 ms (49.7 days), however long `delay` is.
#[must_use]
pub fn defer(delay: Duration) -> Signal {
    Signal::new(Kind::Defer(delay), None)
}

/// A failure that no retry can mend: the message is parked now.
#[must_use]
pub fn fatal(cause: impl Into<Cause>) -> Signal {
    Signal::new(Kind::Fatal, Some(cause.into()))
}

impl Signal {
    fn new(kind: Kind, cause: Option<Cause>) -> Self {
        Self(Meaning { kind, cause })
    }
}

impl fmt::Display for Signal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.0.cause, &self.0.kind) {
            (Some(cause), _) => fmt::Display::fmt(cause, f),
            (None, Kind::Park(why)) => f.write_str(why),
            (None, _) => fmt::Display::fmt(&self.0, f),
        }
    }
}

impl StdError for Signal {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        Some(&self.0)
    }
}

impl fmt::Display for Meaning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.kind {
            Kind::RetryAfter(delay) => write!(f, "retry after {}", format_duration(*delay)),
            Kind::Defer(delay) => write!(f, "deferred for {}", format_duration(*delay)),
            Kind::Park(_) => f.write_str("park"),
            Kind::Fatal => f.write_str("fatal"),
        }
    }
}

impl StdError for Meaning {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.cause.as_deref().map(|cause| cause as _)
    }
}
