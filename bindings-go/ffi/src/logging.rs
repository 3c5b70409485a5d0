//! Log lines of the core on their way to Go's `slog`.

use retryrmq::log_buffer::{self, Level};

/// One line.
#[derive(Debug, uniffi::Record)]
pub struct Line {
    /// The module of the core that it comes from: `consumer`, `client`, …
    pub module: String,
    /// As in `slog`: −4 is DEBUG, 8 is ERROR.
    pub level: i8,
    /// The message.
    pub text: String,
    /// Its fields, name and value in turns.
    pub fields: Vec<String>,
}

/// The lines since the last call.
pub(crate) fn take() -> Vec<Line> {
    log_buffer::take().into_iter().map(Line::from).collect()
}

impl From<log_buffer::LogLine> for Line {
    fn from(line: log_buffer::LogLine) -> Self {
        Self {
            module: line.module.to_owned(),
            level: match line.level {
                Level::ERROR => 8,
                Level::WARN => 4,
                Level::INFO => 0,
                Level::DEBUG | Level::TRACE => -4,
            },
            text: line.message,
            fields: line
                .fields
                .into_iter()
                .flat_map(|(name, value)| [name.to_owned(), value])
                .collect(),
        }
    }
}
