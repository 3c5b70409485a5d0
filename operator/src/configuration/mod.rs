//! The configuration file of the command: what each part of it is, where each value stands, and nothing of what it means.

mod bodies;
mod decoders;
mod error;
mod permissions;
mod position;
mod queues;

pub use bodies::Bodies;
pub use decoders::{Decoders, MessageFacts};
pub use permissions::Permission;
pub use position::{ConfigError, Position};
pub use queues::{Policies, Queue};

use serde::Deserialize;

/// The file, as it was written. Unknown keys are refused: a misspelt one would be a policy that nobody has.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Configuration {
    /// Retry policies by name, for `retry` of the queues.
    #[serde(default)]
    pub policies: Policies,
    /// The work queues.
    #[serde(default)]
    pub queues: Vec<Queue>,
    /// Who does what with them.
    #[serde(default)]
    pub permissions: Vec<Permission>,
    /// How bodies are decoded; read elsewhere, and no matter of queues.
    #[serde(default)]
    pub decoders: Option<toml::Value>,
}

impl Configuration {
    /// Reads the text of a file.
    ///
    /// # Errors
    /// What is no TOML, an unknown key, a value of another type: with its line and column.
    pub fn read(text: &str) -> Result<Self, ConfigError> {
        toml::from_str(text).map_err(|why| ConfigError::of(text, &why))
    }
}

#[cfg(test)]
mod tests;
