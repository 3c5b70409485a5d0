//! Where something stands in a file.

use std::fmt;

/// A line and a column, both from 1; columns count characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position {
    /// The line.
    pub line: usize,
    /// The character in it.
    pub column: usize,
}

impl Position {
    /// Of the byte at `offset`; of an offset inside a character, or past the end, the nearest before it.
    #[must_use]
    pub fn of(text: &str, offset: usize) -> Self {
        let mut end = offset.min(text.len());
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        let before = &text[..end];
        let line_begins = before.rfind('\n').map_or(0, |at| at + 1);
        Self {
            line: before.matches('\n').count() + 1,
            column: before[line_begins..].chars().count() + 1,
        }
    }
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.line, self.column)
    }
}

/// Why a file cannot be read, and where.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{position}: {message}")]
pub struct ConfigError {
    /// Where it stands.
    pub position: Position,
    /// What is wrong, in one line.
    pub message: String,
}

impl ConfigError {
    /// What is wrong with the value at this byte.
    #[must_use]
    pub fn at(text: &str, offset: usize, message: impl Into<String>) -> Self {
        Self {
            position: Position::of(text, offset),
            message: message.into(),
        }
    }

    pub(super) fn of(text: &str, why: &toml::de::Error) -> Self {
        let offset = why.span().map_or(0, |span| span.start);
        let words: Vec<&str> = why.message().split_whitespace().collect();
        Self::at(text, offset, words.join(" "))
    }
}
