//! The options of a consumer, as the TypeScript half writes them.

use std::time::Duration;

use napi_derive::napi;
use retryrmq::Consumer;
use retryrmq_bindings::PolicyText as Read;

use crate::errors::{Result, about, thrown};

fn ms(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1000.0
}

/// Parses a duration such as `"5m"`; returns milliseconds.
#[napi(catch_unwind)]
pub fn parse_duration(text: String) -> Result<f64> {
    retryrmq::parse_duration(&text).map(ms).map_err(thrown)
}

/// Milliseconds as text, as in every language.
#[napi(catch_unwind)]
pub fn duration_text(ms: f64) -> String {
    retryrmq_bindings::duration_text(ms)
}

/// A policy in its full form.
#[napi(object, object_from_js = false)]
pub struct PolicyText {
    /// Its full form.
    pub text: String,
    /// How many retries it has.
    pub retries: u32,
    /// The delay before each of them, in milliseconds.
    pub delays: Vec<f64>,
}

/// Reads a policy.
#[napi(catch_unwind)]
pub fn read_policy(text: String) -> Result<PolicyText> {
    let read = Read::read(Some(&text)).map_err(thrown)?;
    Ok(PolicyText {
        text: read.text,
        retries: read.retries,
        delays: read.delays.into_iter().map(ms).collect(),
    })
}

/// The options of a consumer, checked.
#[napi]
pub struct Options {
    pub(crate) consumer: Consumer,
    has_rules: bool,
}

#[napi]
impl Options {
    /// Reads and checks all options, as one JSON object.
    #[napi(constructor, catch_unwind)]
    pub fn new(given: String) -> Result<Self> {
        let options =
            retryrmq_bindings::Options::read(&given).map_err(|refused| match refused.option {
                Some(option) => about(option, refused),
                None => thrown(refused),
            })?;
        Ok(Self {
            consumer: options.consumer,
            has_rules: options.has_rules,
        })
    }

    /// How many handlers run at a time.
    #[napi(getter, catch_unwind)]
    pub fn concurrency(&self) -> u32 {
        u32::try_from(self.consumer.configured_concurrency()).unwrap_or(u32::MAX)
    }

    /// How many messages a handler gets at most; `null` for single messages.
    #[napi(getter, catch_unwind)]
    pub fn batch(&self) -> Option<u32> {
        let size = self.consumer.batch_size()?;
        Some(u32::try_from(size).unwrap_or(u32::MAX))
    }

    /// How long a handler may take, in milliseconds.
    #[napi(getter, catch_unwind)]
    pub fn handler_timeout(&self) -> Option<f64> {
        self.consumer.configured_handler_timeout().map(ms)
    }

    /// How long closing waits for running handlers, in milliseconds.
    #[napi(getter, catch_unwind)]
    pub fn drain_timeout(&self) -> f64 {
        ms(self.consumer.configured_drain_timeout())
    }

    /// Whether rules need the types of an error.
    #[napi(getter, catch_unwind)]
    pub fn has_rules(&self) -> bool {
        self.has_rules
    }
}
