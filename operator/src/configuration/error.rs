//! A fault in the configuration file, and where it is.

use std::ops::Range;

use toml::Spanned;

use super::Position;

/// What is wrong, and in which bytes of the file.
#[derive(Debug)]
pub(super) struct SpannedError {
    span: Option<Range<usize>>,
    why: String,
}

impl SpannedError {
    pub(super) fn of(error: &toml::de::Error) -> Self {
        Self {
            span: error.span(),
            why: error.message().to_owned(),
        }
    }

    pub(super) fn at<T>(value: &Spanned<T>, why: impl Into<String>) -> Self {
        Self {
            span: Some(value.span()),
            why: why.into(),
        }
    }

    /// `:3:9: what is wrong`, as compilers write it, or without a place.
    pub(super) fn place(&self, text: &str) -> String {
        let why = self.why.trim_end().replace('\n', "; ");
        match &self.span {
            Some(span) => {
                let Position { line, column } = Position::of(text, span.start);
                format!(" line {line}, column {column}: {why}")
            }
            None => format!(": {why}"),
        }
    }
}
