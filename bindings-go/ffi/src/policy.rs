//! Policies and durations as people write them.

use retryrmq::Policy;

use crate::{errors::Refusal, news::nanoseconds};

/// A policy, read.
#[derive(Debug, uniffi::Record)]
pub struct Read {
    /// Its full text.
    pub text: String,
    /// How many retries it grants.
    pub retries: u32,
    /// Their delays in nanoseconds; the first thousand.
    pub delays: Vec<u64>,
}

/// Reads a policy; the default one when there is no text.
#[uniffi::export]
pub fn read_policy(text: Option<String>) -> Result<Read, Refusal> {
    let policy = match text {
        Some(text) => text.parse()?,
        None => Policy::default(),
    };
    Ok(Read {
        text: policy.to_string(),
        retries: policy.max_retries(),
        delays: (1..=policy.max_retries().min(1_000))
            .map(|retry| nanoseconds(policy.delay(retry, 2)))
            .collect(),
    })
}

/// The version of this library.
#[uniffi::export]
pub fn version() -> String {
    env!("CARGO_PKG_VERSION").to_owned()
}
