//! The table `[history]` of the policy file.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{ConfigDuration, queue_names::HISTORY_STREAM};

/// What happened, written to a stream of RabbitMQ. Read at the start only.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Configuration {
    /// Whether it is written and read at all. Without it the page knows queues and messages of the running service only by name.
    pub enabled: bool,
    /// The stream's name.
    pub stream: String,
    /// How long events are kept, where the service makes the stream.
    pub keep: ConfigDuration,
    /// How many bytes are kept, where the service makes the stream.
    pub max_bytes: u64,
    /// How many parked messages, and how many that wait, are known by name. Each takes about a kilobyte of memory.
    pub records: usize,
}

impl Default for Configuration {
    fn default() -> Self {
        Self {
            enabled: true,
            stream: HISTORY_STREAM.to_owned(),
            keep: ConfigDuration::minutes(7 * 24 * 60),
            max_bytes: 1_000_000_000,
            records: 10_000,
        }
    }
}

impl Configuration {
    /// # Errors
    /// What to change, in a sentence.
    pub fn check(&self) -> Result<(), String> {
        if self.stream.is_empty() || self.stream.len() > 255 {
            return Err("[history]: `stream` must have 1 to 255 bytes".to_owned());
        }
        if self.keep < ConfigDuration::minutes(60) {
            return Err("[history]: `keep` must be an hour at least, such as \"7d\"".to_owned());
        }
        if self.max_bytes < 1_000_000 {
            return Err("[history]: `max_bytes` must be 1000000 at least".to_owned());
        }
        if !(1..=1_000_000).contains(&self.records) {
            return Err("[history]: `records` must be between 1 and 1000000".to_owned());
        }
        Ok(())
    }
}
