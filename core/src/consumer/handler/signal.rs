//! What a handler can say besides success and failure, as an error.

use std::{error::Error as StdError, fmt, time::Duration};

use super::Cause;
use crate::retry::format_duration;

/// What a handler can say besides success and failure: [`retry_after`], [`park`], [`defer`], [`fatal`] or [`undecodable`]. A signal is an error. Return it,
/// or have it anywhere in the chain of causes of the error that you return.
///
/// It is found behind every wrapper that passes on its [`source`](StdError::source): `anyhow` and `eyre`, with or without context,
/// `Box<dyn Error>`, `io::Error`, an enum's `#[from]` and `#[error(transparent)]`.
///
/// Without [`dlx`](crate::Consumer::dlx) there is no retry and no parking: all but `defer` reject the message, and the queue's own
/// dead-lettering decides.
#[derive(Debug)]
pub struct Signal(Meaning);

/// What a signal means.
///
/// It is an error of its own and the source of the signal, because a wrapper can hide the signal itself: a boxed `anyhow::Error` and a
/// transparent enum answer for the error inside them, and their `source` is that error's source.
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
    Undecodable,
}

/// The attempt failed; retry after `delay`, whatever the policy's delay is. It counts as a retry. If no retries are left, the message is
/// parked.
///
/// The strategy `delayed-exchange` keeps a message for at most 4 294 967 295 ms (49.7 days), however long `delay` is.
#[must_use]
pub fn retry_after(delay: Duration, cause: impl Into<Cause>) -> Signal {
    Signal::new(Kind::RetryAfter(delay), Some(cause.into()))
}

/// Parks the message now as `requested`. `why` is written into its record, for people to read.
#[must_use]
pub fn park(why: impl Into<String>) -> Signal {
    Signal::new(Kind::Park(why.into()), None)
}

/// Defers the message: it is delivered again after `delay`, and uses up no attempt. After 1000 deferrals, by default, it is parked.
///
/// Without `dlx` there are no waiting queues. The consumer then holds the message, for at most a minute, and puts a copy at the tail of its
/// queue.
///
/// The strategy `delayed-exchange` keeps a message for at most 4 294 967 295 ms (49.7 days), however long `delay` is.
#[must_use]
pub fn defer(delay: Duration) -> Signal {
    Signal::new(Kind::Defer(delay), None)
}

/// The attempt failed, and no retry can fix it: the message is parked now as `fatal`.
#[must_use]
pub fn fatal(cause: impl Into<Cause>) -> Signal {
    Signal::new(Kind::Fatal, Some(cause.into()))
}

/// The body is not what the handler reads: the message is parked now as `undecodable`. `cause` says what is wrong with it.
#[must_use]
pub fn undecodable(cause: impl Into<Cause>) -> Signal {
    Signal::new(Kind::Undecodable, Some(cause.into()))
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
            Kind::Undecodable => f.write_str("undecodable"),
        }
    }
}

impl StdError for Meaning {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.cause.as_deref().map(|cause| cause as _)
    }
}
