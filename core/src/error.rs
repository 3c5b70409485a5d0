//! The one error type of the crate: a stable code, one human sentence, and the cause behind it.

use std::{borrow::Cow, error, fmt};

use crate::visible;

/// A result with this crate's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

type Cause = Box<dyn error::Error + Send + Sync>;

/// What went wrong and what to change.
///
/// `Display` is one sentence that names the thing to change and never contains a password, nor a control character or another
/// that a terminal would obey: those of names are shown as escapes. The cause, if there is
/// one, is behind [`source`](error::Error::source). No error of this crate means that a message was lost: what was not
/// acknowledged stays in its queue.
pub struct Error(Box<Inner>);

struct Inner {
    kind: ErrorKind,
    message: String,
    source: Option<Cause>,
    /// Known to come again, whatever its kind says.
    permanent: bool,
}

/// The kinds of [`Error`], each with a [`code`](ErrorKind::code) that is the same in every language.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The broker's address cannot be used: unknown scheme, missing host, port out of range.
    InvalidUrl,
    /// An option has a value that cannot work; nothing was subscribed or published.
    InvalidOption,
    /// A retry policy or rule cannot be read or cannot work.
    InvalidPolicy,
    /// Nothing answers at the address, or what answers does not speak AMQP 0-9-1.
    Unreachable,
    /// The broker refuses the user or the password (AMQP 403 while connecting).
    AuthenticationFailed,
    /// The TLS handshake failed, or a certificate file holds no certificate.
    TlsFailed,
    /// The virtual host does not exist (AMQP 530 while connecting).
    VhostNotFound,
    /// The queue does not exist and may not be declared (AMQP 404).
    QueueNotFound,
    /// A queue or exchange exists with other arguments (AMQP 406).
    Mismatch,
    /// The user lacks a permission (AMQP 403); the sentence names the pattern that is missing.
    AccessRefused,
    /// The connected broker or the queue cannot serve the chosen strategy safely; the sentence names one that can.
    StrategyRefused,
    /// No queue takes a message with this exchange and routing key (AMQP `basic.return`).
    Unroutable,
    /// The broker did not confirm a publish (AMQP `basic.nack`): try again after a pause.
    NotConfirmed,
    /// The message does not fit: a name above 255 bytes, or headers above one frame.
    TooLarge,
    /// The broker did not answer in time, or the nodes of a queue that is there are away.
    Timeout,
    /// The connection was lost; it is re-made in the background.
    ConnectionLost,
    /// The client or consumer was closed.
    Closed,
    /// The client was connected before this process was forked; it has to connect itself.
    Forked,
    /// Any other refusal by the broker; the sentence quotes it.
    Broker,
}

/// The most causes that are shown.
const MOST_CAUSES: usize = 16;

impl ErrorKind {
    /// All of them.
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

    /// The stable code of this kind, the same in every language, metric and JSON output.
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

    /// Whether trying the same again later can succeed without anybody changing anything.
    #[must_use]
    pub const fn is_transient(self) -> bool {
        matches!(
            self,
            Self::Unreachable | Self::NotConfirmed | Self::Timeout | Self::ConnectionLost
        )
    }

    /// Whether the same will be refused again until somebody changes it, or a permission, a limit or a queue.
    ///
    /// Of some kinds neither this nor [`is_transient`](Self::is_transient) can be said: a queue that is missing may be made
    /// at any time.
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
    /// Names that strangers chose, and what a broker says of them, stand in many a sentence: a terminal must not obey them.
    pub(crate) fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        let mut message = message.into();
        if let Cow::Owned(shown) = visible::line(&message) {
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

    /// The same error in other words.
    pub(crate) fn saying(self, message: impl Into<String>) -> Self {
        let mut said = Self::new(self.0.kind, message);
        said.0.permanent = self.0.permanent;
        said.0.source = self.0.source;
        said
    }

    /// The same error, known to come again.
    pub(crate) fn lasting(mut self) -> Self {
        self.0.permanent = true;
        self
    }

    /// Which kind of error this is.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// The stable code of the kind, such as `"queue_not_found"`.
    #[must_use]
    pub fn code(&self) -> &'static str {
        self.0.kind.code()
    }

    /// Whether trying the same again later can succeed.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        self.0.kind.is_transient()
    }

    /// Whether the same will be refused again until somebody changes it, or a permission, a limit, a queue or an exchange:
    /// a message that is too large for a frame or for the broker, that the user may not publish, or whose exchange does not
    /// exist.
    #[must_use]
    pub fn is_permanent(&self) -> bool {
        self.0.permanent || self.0.kind.is_permanent()
    }

    /// The same error once more, for every task that waits for the same answer. The cause becomes text.
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
        // What a `main` that returns it prints. A cause that the sentence quotes already is not said again.
        write!(f, "{}: {}", self.code(), self.0.message)?;
        let mut said = self.0.message.clone();
        let mut cause = error::Error::source(self);
        // A chain of causes can be a circle.
        for _ in 0..MOST_CAUSES {
            let Some(why) = cause else { break };
            let text = visible::line(&why.to_string()).into_owned();
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
        // A queue that is missing can be made; an exchange that is missing is somebody else's to make.
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
