//! Errors of the core, as they cross the boundary.

use std::fmt;

use retryrmq_bindings as common;

/// An error of the core: its code, its sentence, and what stands behind it.
#[derive(Debug, uniffi::Error)]
pub enum FfiError {
    /// The only kind; codes tell them apart.
    Failed {
        /// The stable code.
        code: String,
        /// One sentence for people.
        message: String,
        /// The causes; often empty.
        detail: String,
    },
}

impl FfiError {
    pub(crate) fn new(code: &str, message: impl Into<String>) -> Self {
        Self::Failed {
            code: code.to_owned(),
            message: message.into(),
            detail: String::new(),
        }
    }

    pub(crate) fn option(message: impl Into<String>) -> Self {
        Self::new("invalid_option", message)
    }
}

impl From<common::BindingError> for FfiError {
    fn from(refusal: common::BindingError) -> Self {
        Self::Failed {
            code: refusal.code.to_owned(),
            message: refusal.message,
            detail: refusal.detail,
        }
    }
}

impl From<retryrmq::Error> for FfiError {
    fn from(error: retryrmq::Error) -> Self {
        common::BindingError::from(error).into()
    }
}

impl fmt::Display for FfiError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self::Failed { message, .. } = self;
        f.write_str(message)
    }
}

impl std::error::Error for FfiError {}
