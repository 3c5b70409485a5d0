//! The one error type of the crate: a stable code, one human sentence, and the cause behind it.

use std::{borrow::Cow, error, fmt};

use crate::terminal_escape;

/// A result with this crate's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

type Cause = Box<dyn error::Error + Send + Sync>;

/// What went wrong, and what to change.
///
/// `Display` is one sentence that names the thing to change. It never contains a password. Control characters in names are shown as
/// escapes, so that a terminal cannot be misled. [`source`](error::Error::source) returns the cause, if there is one.
///
/// No error of this crate means that a delivered message was lost: what was not acknowledged stays in its queue.
pub struct Error(Box<Inner>);

struct Inner {
    kind: ErrorKind,
    message: String,
    source: Option<Cause>,
    /// Set when the same call is known to fail again, whatever its kind says.
    permanent: bool,
}

/// The kinds of [`Error`]. Each has a [`code`](ErrorKind::code) that is the same in every language.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The broker's address cannot be used: unknown scheme, missing host, port out of range, or hosts of different clusters.
    InvalidUrl,
    /// An option has a value that cannot work. Nothing was subscribed or published.
    InvalidOption,
    /// A retry policy or a rule cannot be parsed, or cannot work.
    InvalidPolicy,
    /// No usable connection: nothing answers, it is not AMQP 0-9-1, the broker is still starting, or its limit of connections or channels
    /// is reached.
    Unreachable,
    /// The broker refused the login (AMQP 403 while connecting), or the password file or the `credentials` function failed.
    AuthenticationFailed,
    /// The TLS handshake failed, or a certificate file contains no certificate.
    TlsFailed,
    /// The virtual host does not exist (AMQP 530 while connecting).
    VhostNotFound,
    /// A queue, or an exchange that the strategy needs, does not exist, and this call does not create it (AMQP 404).
    QueueNotFound,
    /// A queue or exchange exists with other arguments (AMQP 406), or is a stream or an auto-delete queue and cannot be used.
    Mismatch,
    /// The user lacks a permission (AMQP 403; the error message names the pattern), or another connection uses the queue exclusively (AMQP
    /// 403 or 405).
    AccessRefused,
    /// This broker or this queue cannot serve the chosen strategy safely. The error message names one that can.
    StrategyRefused,
    /// No queue takes a message with this exchange and routing key (AMQP `basic.return`), or there is no such exchange (AMQP 404). It was
    /// not stored.
    Unroutable,
    /// The broker rejected a publish (AMQP `basic.nack`). Try again after a pause.
    NotConfirmed,
    /// The message does not fit: a name longer than 255 bytes, headers larger than one frame, or a body larger than the broker allows.
    TooLarge,
    /// The broker did not answer in time, or the nodes of the queue are down.
    Timeout,
    /// The connection was lost. The client reconnects in the background.
    ConnectionLost,
    /// The client or the consumer was closed, or a bug in retryrmq ended the consumer.
    Closed,
    /// The client was connected before this process was forked. Connect again in this process.
    Forked,
    /// Any other refusal by the broker. The error message quotes it.
    ///
    /// [`runtime`](crate::runtime) also returns it if no thread can be started.
    Broker,
}

/// The most causes that `Debug` shows.
const MOST_CAUSES: usize = 16;

impl ErrorKind {
    /// All kinds.
    #[doc(hidden)]
    pub const ALL: [Self; 19] = [
        Self::InvalidUrl,
        Self::InvalidOption,
        Self::InvalidPolicy,
        Self::Unreachable,
        Self::AuthenticationFailed,
        Self::TlsFailed,
        Self::VhostNotFound,
        Self::QueueNotFound,
        Self::Mismatch,
        Self::AccessRefused,
        Self::StrategyRefused,
        Self::Unroutable,
        Self::NotConfirmed,
        Self::TooLarge,
        Self::Timeout,
        Self::ConnectionLost,
        Self::Closed,
        Self::Forked,
        Self::Broker,
    ];

    /// The stable code of this kind, such as `"queue_not_found"`. It is the same in every language, metric and JSON output.
    #[must_use]
    pub const fn code(self) -> &'static str {
        match self {
            Self::InvalidUrl => "invalid_url",
            Self::InvalidOption => "invalid_option",
            Self::InvalidPolicy => "invalid_policy",
            Self::Unreachable => "unreachable",
            Self::AuthenticationFailed => "authentication_failed",
            Self::TlsFailed => "tls_failed",
            Self::VhostNotFound => "vhost_not_found",
            Self::QueueNotFound => "queue_not_found",
            Self::Mismatch => "mismatch",
            Self::AccessRefused => "access_refused",
            Self::StrategyRefused => "strategy_refused",
            Self::Unroutable => "unroutable",
            Self::NotConfirmed => "not_confirmed",
            Self::TooLarge => "too_large",
            Self::Timeout => "timeout",
            Self::ConnectionLost => "connection_lost",
            Self::Closed => "closed",
            Self::Forked => "forked",
            Self::Broker => "broker_error",
        }
    }

    /// Whether the same call can succeed later although nobody has changed anything.
    #[must_use]
    pub const fn is_transient(self) -> bool {
        matches!(
            self,
            Self::Unreachable | Self::NotConfirmed | Self::Timeout | Self::ConnectionLost
        )
    }

    /// Whether the same call fails again until somebody changes the call, a permission, a limit or a queue.
    ///
    /// For some kinds both this and [`is_transient`](Self::is_transient) are `false`: a missing queue, for example, may be created at any
    /// time.
    #[must_use]
    pub const fn is_permanent(self) -> bool {
        matches!(
            self,
            Self::InvalidUrl
                | Self::InvalidOption
                | Self::InvalidPolicy
                | Self::Mismatch
                | Self::AccessRefused
                | Self::StrategyRefused
                | Self::TooLarge
        )
    }
}

impl Error {
    /// Escapes control characters: a message often quotes names that strangers chose, or text of the broker, and a terminal would obey
    /// them.
    pub(crate) fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        let mut message = message.into();
        if let Cow::Owned(shown) = terminal_escape::line(&message) {
            message = shown;
        }
        Self(Box::new(Inner {
            kind,
            message,
            source: None,
            permanent: false,
        }))
    }

    pub(crate) fn with_source(mut self, source: impl Into<Cause>) -> Self {
        self.0.source = Some(source.into());
        self
    }

    /// The same error with another sentence.
    pub(crate) fn saying(self, message: impl Into<String>) -> Self {
        let mut said = Self::new(self.0.kind, message);
        said.0.permanent = self.0.permanent;
        said.0.source = self.0.source;
        said
    }

    /// The same error, marked as permanent.
    pub(crate) fn lasting(mut self) -> Self {
        self.0.permanent = true;
        self
    }

    /// The kind of this error.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// The stable code of its kind, such as `"queue_not_found"`.
    #[must_use]
    pub fn code(&self) -> &'static str {
        self.0.kind.code()
    }

    /// Whether the same call can succeed later although nobody has changed anything.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        self.0.kind.is_transient()
    }

    /// Whether the same call fails again until somebody changes the call, a permission, a limit, a queue or an exchange. Examples: a
    /// message too large for a frame or for the broker, one that the user may not publish, or one for an exchange that does not exist.
    #[must_use]
    pub fn is_permanent(&self) -> bool {
        self.0.permanent || self.0.kind.is_permanent()
    }

    /// A copy of the error, for each task that waits for the same answer. The cause becomes text.
    pub(crate) fn duplicate(&self) -> Self {
        let mut copy = Self::new(self.0.kind, self.0.message.clone());
        copy.0.permanent = self.0.permanent;
        match &self.0.source {
            Some(source) => copy.with_source(source.to_string()),
            None => copy,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.message)
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // This is what a `main` prints that returns the error. A cause that the sentence already quotes is not repeated.
        write!(f, "{}: {}", self.code(), self.0.message)?;
        let mut said = self.0.message.clone();
        let mut cause = error::Error::source(self);
        // A chain of causes can be circular.
        for _ in 0..MOST_CAUSES {
            let Some(why) = cause else { break };
            let text = terminal_escape::line(&why.to_string()).into_owned();
            if !said.contains(&text) {
                write!(f, "; caused by: {text}")?;
                said.push_str(&text);
            }
            cause = why.source();
        }
        Ok(())
    }
}

impl error::Error for Error {
    fn source(&self) -> Option<&(dyn error::Error + 'static)> {
        self.0.source.as_ref().map(|source| &**source as _)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sentence_holds_nothing_that_a_terminal_obeys() {
        let name = "evil\x1b]0;x\x07\u{202e}\u{9b}1m";
        let error = Error::new(ErrorKind::Unroutable, format!("there is no queue `{name}`"));
        let shown = "there is no queue `evil\\x1b]0;x\\x07\\u{202e}\\x9b1m`";
        assert_eq!(error.to_string(), shown);
        assert_eq!(error.duplicate().to_string(), shown);
        assert_eq!(format!("{error:?}"), format!("unroutable: {shown}"));
    }

    #[test]
    fn what_passes_and_what_lasts_are_told_apart() {
        for kind in [
            ErrorKind::NotConfirmed,
            ErrorKind::Timeout,
            ErrorKind::ConnectionLost,
        ] {
            let error = Error::new(kind, "");
            assert!(error.is_transient() && !error.is_permanent(), "{error:?}");
        }
        for kind in [
            ErrorKind::TooLarge,
            ErrorKind::AccessRefused,
            ErrorKind::InvalidOption,
        ] {
            let error = Error::new(kind, "");
            assert!(error.is_permanent() && !error.is_transient(), "{error:?}");
        }
        // Anybody may create a missing queue. A missing exchange is its owner's to create.
        let returned = Error::new(ErrorKind::Unroutable, "");
        assert!(!returned.is_permanent() && !returned.is_transient());
        assert!(returned.lasting().duplicate().is_permanent());
    }

    #[test]
    fn the_cause_is_kept_and_shown_once() {
        let within = std::io::Error::other("no route to host");
        let error = Error::new(ErrorKind::Unreachable, "cannot reach it").with_source(within);
        assert_eq!(error.to_string(), "cannot reach it");
        assert_eq!(
            format!("{error:?}"),
            "unreachable: cannot reach it; caused by: no route to host"
        );
        let copy = error.duplicate();
        assert_eq!(format!("{copy:?}"), format!("{error:?}"));
        let cause = error::Error::source(&error).unwrap();
        assert!(cause.downcast_ref::<std::io::Error>().is_some());
        let quoted = Error::new(ErrorKind::Broker, "refused: gone").with_source("gone");
        assert_eq!(format!("{quoted:?}"), "broker_error: refused: gone");
    }
}
