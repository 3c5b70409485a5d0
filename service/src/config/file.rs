//! What may stand in a policy file.

use schemars::{JsonSchema, Schema, schema_for};
use serde::Deserialize;
use toml::Spanned;

use crate::{
    Settings, alerts, delayed, history,
    policy::{Defaults, RuleEntry},
    queue_watch,
    store::redis,
    web,
};

/// The policy of a service: what becomes of the dead letters of each queue.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PolicyFile {
    /// What holds where no rule does.
    #[serde(default)]
    pub(super) defaults: Defaults,
    /// The first rule whose conditions all hold decides.
    #[serde(default)]
    #[schemars(with = "Vec<RuleEntry>")]
    pub(super) rules: Vec<Spanned<RuleEntry>>,
    /// Who is told what, when and how. Without this table and `orphans` nobody is.
    #[schemars(with = "Option<alerts::Configuration>")]
    pub(super) alerts: Option<Spanned<alerts::Configuration>>,
    /// Which queues are watched, and when people are told.
    #[schemars(with = "Option<queue_watch::Configuration>")]
    pub(super) orphans: Option<Spanned<queue_watch::Configuration>>,
    /// Messages that are published with a delay (`x-delay`), by the exchange that publishers send them to.
    #[schemars(with = "Option<delayed::DelayedSections>")]
    pub(super) delayed: Option<Spanned<delayed::DelayedSections>>,
    /// How the program runs. Read at the start: a change needs a restart.
    #[serde(default)]
    pub(super) service: Settings,
    /// What happened, in a stream. Read at the start: a change needs a restart.
    #[serde(default)]
    #[schemars(with = "history::Configuration")]
    pub(super) history: Option<Spanned<history::Configuration>>,
    /// Who may see the page, and do what there.
    #[serde(default)]
    #[schemars(with = "web::Configuration")]
    pub(super) page: Option<Spanned<web::Configuration>>,
    /// Where messages wait. Chosen at the start: a change needs a restart.
    #[serde(default)]
    pub(super) store: StoreEntry,
}

/// Where messages wait: in waiting queues of the broker, unless another store is given.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct StoreEntry {
    /// In Redis or Valkey.
    #[schemars(with = "Option<redis::Configuration>")]
    pub(super) redis: Option<Spanned<redis::Configuration>>,
}

/// The JSON Schema of a policy file.
#[must_use]
pub fn schema() -> Schema {
    schema_for!(PolicyFile)
}
