//! `[[permissions]]`: what a user of the broker does with the queues.

use serde::Deserialize;
use toml::Spanned;

/// A `[[permissions]]` entry. The lists are names of queues, and of exchanges.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Permission {
    /// The user's name.
    pub user: Spanned<String>,
    /// Queues that he consumes with retries.
    #[serde(default)]
    pub consumes: Vec<Spanned<String>>,
    /// Queues that he publishes to, by the default exchange.
    #[serde(default)]
    pub publishes: Vec<Spanned<String>>,
    /// Exchanges that he publishes to.
    #[serde(default)]
    pub exchanges: Vec<Spanned<String>>,
    /// Queues whose parked and waiting messages he looks at and moves.
    #[serde(default)]
    pub operates: Vec<Spanned<String>>,
    /// Whether his consumers declare their queues themselves.
    #[serde(default)]
    pub declares: bool,
}
