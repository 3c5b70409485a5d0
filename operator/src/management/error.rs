//! Why the management API could not do what it was asked: a kind, and one sentence that says what to do.

use std::fmt;

/// What went wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ManagementErrorKind {
    /// The URL of the broker or of the management API makes no sense.
    InvalidUrl,
    /// Nothing answers there, or something else does, or TLS fails.
    Unreachable,
    /// The user or the password is wrong.
    Login,
    /// The user lacks a tag or a permission.
    Forbidden,
    /// The virtual host, or what was named in it, is not there.
    NotFound,
    /// The broker refuses what it was given.
    Refused,
    /// The answer cannot be used: too large, cut off, or an error of the broker's own.
    Broken,
}

/// An error of the management API. No text of it holds a password or a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    kind: ManagementErrorKind,
    sentence: String,
}

impl Error {
    pub(crate) fn new(kind: ManagementErrorKind, sentence: impl Into<String>) -> Self {
        Self {
            kind,
            sentence: sentence.into(),
        }
    }

    /// What went wrong.
    #[must_use]
    pub fn kind(&self) -> ManagementErrorKind {
        self.kind
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.sentence)
    }
}

impl std::error::Error for Error {}
