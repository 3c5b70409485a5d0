//! Handlers in Rust: a function from a message to a future.

mod answer;
mod batch_answer;
mod error_classifier;
mod extract;
mod json;
mod names;
#[cfg(feature = "tower")]
mod service;
mod signal;
mod span;
mod workers;

use std::{any::Any, error::Error as StdError};

pub use answer::IntoOutcome;
pub use batch_answer::IntoOutcomes;
pub use error_classifier::ErrorClassifier;
pub use extract::{FromMessage, extract};
pub use json::{InvalidBody, Json};
#[cfg(feature = "tower")]
pub use service::service;
pub use signal::{Signal, defer, fatal, park, retry_after, undecodable};
pub use workers::RunningConsumer;
pub(super) use workers::{HandlerRunner, run_workers, work, work_in_batches};

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
