//! Policies and durations as people write them.

use std::time::Duration;

use retryrmq_bindings::{PolicyText, nanoseconds};

use crate::errors::FfiError;

/// A policy, read.
#[derive(Debug, uniffi::Record)]
pub struct PolicyDetails {
    /// Its full text.
    pub text: String,
    /// How many retries it grants.
    pub retries: u32,
    /// Their delays in nanoseconds; the first thousand.
    pub delays: Vec<u64>,
}

/// Reads a policy; the default one when there is no text.
#[uniffi::export]
pub fn read_policy(text: Option<String>) -> Result<PolicyDetails, FfiError> {
    let read = PolicyText::read(text.as_deref())?;
    Ok(PolicyDetails {
        text: read.text,
        retries: read.retries,
        delays: read.delays.into_iter().map(nanoseconds).collect(),
    })
}

/// Nanoseconds as text, as in every language.
#[uniffi::export]
pub fn duration_text(nanoseconds: u64) -> String {
    retryrmq::format_duration(Duration::from_nanos(nanoseconds))
}

/// The version of this library.
#[uniffi::export]
pub fn version() -> String {
    env!("CARGO_PKG_VERSION").to_owned()
}
