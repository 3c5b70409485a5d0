//! A policy in text form.

use std::time::Duration;

use retryrmq::{Error, Policy};

/// The most delays that are listed.
const MOST_DELAYS: u32 = 1_000;

/// A policy in its full form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyText {
    /// Its full form.
    pub text: String,
    /// How many retries it has.
    pub retries: u32,
    /// The delays before its retries, at most the first thousand.
    pub delays: Vec<Duration>,
}

impl PolicyText {
    /// Parses a policy; without a text, it is the default one.
    ///
    /// # Errors
    /// `invalid_policy`.
    pub fn read(text: Option<&str>) -> Result<Self, Error> {
        let policy = text.map_or_else(|| Ok(Policy::default()), str::parse)?;
        Ok(Self {
            text: policy.to_string(),
            retries: policy.max_retries(),
            delays: (1..=policy.max_retries().min(MOST_DELAYS))
                .map(|retry| policy.delay(retry, 2))
                .collect(),
        })
    }
}
