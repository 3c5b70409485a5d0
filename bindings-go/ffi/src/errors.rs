//! Errors of the core, as they cross the boundary.

use std::{error::Error as _, fmt};

/// An error of the core: its code, its sentence, and what stands behind it.
#[derive(Debug, uniffi::Error)]
pub enum Refusal {
    /// The only kind; codes tell them apart.
    Refused {
        /// The stable code.
        code: String,
        /// One sentence for people.
        message: String,
        /// The causes; often empty.
        detail: String,
    },
}

impl Refusal {
    pub(crate) fn new(code: &str, message: impl Into<String>) -> Self {
        Self::Refused {
            code: code.to_owned(),
            message: message.into(),
            detail: String::new(),
        }
    }

    pub(crate) fn option(message: impl Into<String>) -> Self {
        Self::new("invalid_option", message)
    }
}

impl From<retryrmq::Error> for Refusal {
    fn from(error: retryrmq::Error) -> Self {
        let mut causes = Vec::new();
        let mut next = error.source();
        while let Some(cause) = next.filter(|_| causes.len() < 8) {
            causes.push(cause.to_string());
            next = cause.source();
        }
        Self::Refused {
            code: error.code().to_owned(),
            message: error.to_string(),
            detail: causes.join(": "),
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self::Refused { message, .. } = self;
        f.write_str(message)
    }
}

impl std::error::Error for Refusal {}
