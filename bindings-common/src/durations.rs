//! Times and durations of languages.

use std::time::{Duration, SystemTime};

use crate::BindingError;

/// A duration as every language writes it in an error: the largest unit that leaves no remainder. One that is none is no time at all.
#[must_use]
pub fn duration_text(ms: f64) -> String {
    let duration = Duration::try_from_secs_f64(ms / 1000.0).unwrap_or_default();
    retryrmq::format_duration(duration)
}

/// Seconds as a duration. `option` names it in errors.
///
/// # Errors
/// `invalid_option` for a negative number, one that is not a number, and one that is too large.
pub fn seconds(option: &str, seconds: f64) -> Result<Duration, BindingError> {
    Duration::try_from_secs_f64(seconds).map_err(|_| refused(option, &format!("{seconds} seconds")))
}

/// Milliseconds as a duration. `option` names it in errors.
///
/// # Errors
/// Those of [`seconds`].
pub fn milliseconds(option: &str, ms: f64) -> Result<Duration, BindingError> {
    Duration::try_from_secs_f64(ms / 1000.0).map_err(|_| refused(option, &format!("{ms} ms")))
}

fn refused(option: &str, value: &str) -> BindingError {
    BindingError::option(format!(
        "`{option}` cannot be {value}; it must be a duration of at least 0"
    ))
}

/// A duration in nanoseconds, at most the largest number.
#[must_use]
pub fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// A time in whole seconds since 1970.
#[must_use]
pub fn unix_seconds(at: Option<SystemTime>) -> Option<u64> {
    at.and_then(|at| at.duration_since(SystemTime::UNIX_EPOCH).ok())
        .map(|since| since.as_secs())
}
