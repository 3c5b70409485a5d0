//! `[[queues]]` and `[policies]`: work queues and how failures are retried.

use std::collections::BTreeMap;

use serde::Deserialize;
use toml::Spanned;

/// `[policies]`: retry policies by name, as text.
pub type Policies = BTreeMap<String, Spanned<String>>;

/// A `[[queues]]` entry: a work queue, and what its consumers are told.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Queue {
    /// Its name.
    pub name: Spanned<String>,
    /// A policy's text, or the name of one in `[policies]`; the default policy without it.
    pub retry: Option<Spanned<String>>,
    /// `CONDITION => POLICY`.
    #[serde(default)]
    pub rules: Vec<Spanned<String>>,
    /// `retry-queues`, `dead-letter`, `native`, `delayed-exchange` or `service`.
    pub strategy: Option<Spanned<String>>,
    /// The type of the waiting and parking queues: `quorum` or `classic`.
    pub queue_type: Option<Spanned<String>>,
    /// What it is made with where it is missing: `"quorum"`, `"classic"`, `"existing"`, or a table of arguments.
    pub work_queue: Option<Spanned<toml::Value>>,
}
