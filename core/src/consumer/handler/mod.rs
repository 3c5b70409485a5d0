//! Handlers in Rust: a function from a message to a future.

mod answer;
mod error_classifier;
mod names;
mod signal;
mod span;
mod workers;

use std::{any::Any, error::Error as StdError};

pub use answer::IntoOutcome;
pub use error_classifier::Judge;
pub use signal::{Signal, defer, fatal, park, retry_after};
pub use workers::Running;
pub(super) use workers::{Handling, run_workers};

type Cause = Box<dyn StdError + Send + Sync>;

/// The text of a panic.
pub(super) fn panic_text(panic: &(dyn Any + Send)) -> &str {
    let text = panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("(no text)")
}

#[cfg(test)]
mod tests;
