//! Errors as they cross a boundary: a code, a sentence, and the cause.

use std::error::Error as _;

/// The most causes that are followed: a chain of causes can be circular.
const MOST_CAUSES: usize = 8;

/// Why something was refused or failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BindingError {
    /// The stable code.
    pub code: &'static str,
    /// One sentence for people.
    pub message: String,
    /// The causes, as one line; often empty.
    pub detail: String,
}

impl BindingError {
    /// A refusal without an error of the core.
    pub fn new(code: &'static str, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
            detail: String::new(),
        }
    }

    /// An option with a value that cannot work.
    pub fn option(message: impl Into<String>) -> Self {
        Self::new("invalid_option", message)
    }

    /// The error for an operation that did not end, for example because it panicked.
    #[must_use]
    pub fn broken() -> Self {
        Self::new(
            "error",
            "a bug in retryrmq interrupted this operation; it may or may not have taken effect",
        )
    }
}

impl From<&retryrmq::Error> for BindingError {
    fn from(error: &retryrmq::Error) -> Self {
        let causes: Vec<_> = std::iter::successors(error.source(), |cause| (*cause).source())
            .take(MOST_CAUSES)
            .map(|cause| retryrmq::terminal_escape::line(&cause.to_string()).into_owned())
            .collect();
        Self {
            code: error.code(),
            message: error.to_string(),
            detail: causes.join(": "),
        }
    }
}

impl From<retryrmq::Error> for BindingError {
    fn from(error: retryrmq::Error) -> Self {
        Self::from(&error)
    }
}
