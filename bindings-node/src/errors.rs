//! Errors of the core as exceptions of the TypeScript half: a code, a sentence, and what stands behind it.

use std::error::Error as _;

/// The stable code of an error: `code` of the exception.
#[derive(Debug)]
pub struct Code(pub(crate) &'static str);

impl AsRef<str> for Code {
    fn as_ref(&self) -> &str {
        self.0
    }
}

/// A result whose error is thrown with a code.
pub(crate) type Result<T> = std::result::Result<T, napi::Error<Code>>;

/// The exception for an error of the core.
pub(crate) fn thrown(error: &retryrmq::Error) -> napi::Error<Code> {
    let mut exception = napi::Error::new(Code(error.code()), error.to_string());
    let detail = detail(error);
    if !detail.is_empty() {
        exception.set_cause(napi::Error::from_reason(detail));
    }
    exception
}

/// The exception for an error of the core that does not name the option it is about.
pub(crate) fn about(option: &str, error: &retryrmq::Error) -> napi::Error<Code> {
    napi::Error::new(Code(error.code()), format!("`{option}`: {error}"))
}

/// Why an operation failed.
pub(crate) struct Failed {
    pub(crate) code: &'static str,
    pub(crate) message: String,
    pub(crate) detail: String,
}

impl From<retryrmq::Error> for Failed {
    fn from(error: retryrmq::Error) -> Self {
        Self {
            code: error.code(),
            message: error.to_string(),
            detail: detail(&error),
        }
    }
}

/// The causes of an error, as one line.
fn detail(error: &retryrmq::Error) -> String {
    let mut causes = Vec::new();
    let mut next = error.source();
    while let Some(cause) = next.filter(|_| causes.len() < 8) {
        causes.push(cause.to_string());
        next = cause.source();
    }
    causes.join(": ")
}

/// An option with a value that cannot work.
pub(crate) fn bad_option(message: impl Into<String>) -> napi::Error<Code> {
    napi::Error::new(Code("invalid_option"), message.into())
}

/// Bytes that only another version of the TypeScript half can have written.
pub(crate) fn mixed_versions() -> napi::Error<Code> {
    bad_option("the two halves of `retryrmq` are of different versions; install the package again")
}
