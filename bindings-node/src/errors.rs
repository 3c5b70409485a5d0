//! Errors of the core as exceptions of the TypeScript half: a code, a sentence, and the cause.

use retryrmq_bindings::BindingError;

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

/// The exception for an error of the core or of the bindings.
pub(crate) fn thrown(error: impl Into<BindingError>) -> napi::Error<Code> {
    let error = error.into();
    let mut exception = napi::Error::new(Code(error.code), error.message);
    if !error.detail.is_empty() {
        exception.set_cause(napi::Error::from_reason(error.detail));
    }
    exception
}

/// The exception for an error that does not name its option.
pub(crate) fn about(option: &str, error: impl Into<BindingError>) -> napi::Error<Code> {
    let mut refusal = error.into();
    refusal.message = format!("`{option}`: {}", refusal.message);
    thrown(refusal)
}

/// The error for bytes that only another version of the TypeScript half can have written.
pub(crate) fn mixed_versions() -> napi::Error<Code> {
    let why = "the two halves of `retryrmq` are of different versions; install the package again";
    thrown(BindingError::option(why))
}
