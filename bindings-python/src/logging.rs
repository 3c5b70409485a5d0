//! Log lines of the core, for Python's `logging`.

use pyo3::pyfunction;
use retryrmq::log_buffer::{self, Level};

/// A line: its logger below `retryrmq`, its level as in Python's `logging`, its text, its fields.
pub(crate) type Line = (&'static str, u8, String, Vec<(&'static str, String)>);

/// The lines since the last call.
pub(crate) fn take() -> Vec<Line> {
    let lines = log_buffer::take().into_iter();
    lines
        .map(|line| {
            let level = match line.level {
                Level::ERROR => 40,
                Level::WARN => 30,
                Level::INFO => 20,
                Level::DEBUG => 10,
                Level::TRACE => 5,
            };
            // The sentence about an attempt already says what its fields say.
            let text = if line.module == "attempt" {
                line.message.clone()
            } else {
                line.to_string()
            };
            (line.module, level, text, line.fields)
        })
        .collect()
}

/// Sets the least level, as in Python's `logging`, of the lines that are wanted.
#[pyfunction]
pub(crate) fn want_lines(least: u8) {
    log_buffer::set_level(match least {
        0..=10 => Level::DEBUG,
        11..=20 => Level::INFO,
        _ => Level::WARN,
    });
}
