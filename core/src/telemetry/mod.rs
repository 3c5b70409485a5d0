//! What a consumer reports: typed events, and metrics in the Prometheus text format.

mod events;
#[cfg(feature = "log-lines")]
pub mod log_buffer;
mod metrics;
mod warn_limiter;

/// The target of the log lines about attempts. A program that reports attempts itself can leave it out.
pub(crate) const ATTEMPT: &str = "retryrmq::attempt";

pub(crate) use events::Listener;
pub use events::{Event, EventFields};
pub use metrics::Stats;
pub(crate) use metrics::{Counters, Metrics, ParkedDepth};
pub(crate) use warn_limiter::WarnLimiter;

use once_cell::sync::Lazy;

/// The name of this machine, for the history of a message.
pub(crate) static HOST: Lazy<String> = Lazy::new(|| {
    gethostname::gethostname()
        .to_string_lossy()
        .chars()
        .take(120)
        .collect()
});

/// The name of this process, shown with its connections in the management UI.
pub(crate) fn process_name() -> String {
    let program = std::env::args_os().next().map(std::path::PathBuf::from);
    let program = program
        .as_deref()
        .and_then(|path| path.file_name())
        .map(|name| name.to_string_lossy().into_owned());
    format!(
        "{} {}@{}",
        program.as_deref().unwrap_or("retryrmq"),
        std::process::id(),
        *HOST
    )
}
