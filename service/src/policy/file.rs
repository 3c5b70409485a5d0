//! What may stand in a policy file.

use std::collections::BTreeMap;

use schemars::{JsonSchema, Schema, schema_for};
use serde::{Deserialize, Serialize};
use toml::Spanned;

use crate::{Settings, alerts, delayed, history, queue_watch, store::redis, web};

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

/// What holds where no rule does.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Defaults {
    /// The policy of what is retried: fixed(5s, retries=3), linear(…), list(…) or exponential(1s, factor=4, max=5m, retries=5), with
    /// jitter=…, max_age=… and age_from=… as everywhere.
    #[schemars(with = "Option<String>")]
    pub(super) retry: Option<Spanned<String>>,
    /// A consumer rejected the message. Unless given: retry.
    pub(super) rejected: Option<ActionName>,
    /// A client with the strategy `service` handed its failure over. Unless given: retry.
    pub(super) failed: Option<ActionName>,
    /// The message's time to live ran out. Unless given: park.
    pub(super) expired: Option<ActionName>,
    /// The queue was full, and the message was pushed out. Unless given: park.
    pub(super) maxlen: Option<ActionName>,
    /// The message came back to its queue more often than that allows. Unless given: park.
    #[serde(rename = "delivery-limit")]
    pub(super) delivery_limit: Option<ActionName>,
}

/// What becomes of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(super) enum ActionName {
    /// It waits, and comes back to the tail of its queue.
    Retry,
    /// It is kept in the parking queue, with a record, for a person to look at.
    Park,
    /// It is gone.
    Drop,
}

/// A rule: conditions, and what becomes of a message where all of them hold.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RuleEntry {
    /// The queue in which the message died; * is any text.
    pub(super) queue: Option<String>,
    /// The routing key with which it was first published: words between dots, * is one word, # any number of words.
    pub(super) routing_key: Option<String>,
    /// Headers and their values; * is any text in a value.
    #[serde(default)]
    pub(super) headers: BTreeMap<String, String>,
    /// The type of the error, where a client with the strategy `service` handed the failure over; * is any text. Base classes are not handed over, and
    /// what was only rejected has no error: such a rule is about `failed` alone.
    pub(super) error_type: Option<String>,
    /// Why it died: one reason, or several. Unless given: rejected and failed.
    pub(super) reason: Option<Reasons>,
    /// It is retried by this policy. Either this or `end`.
    #[schemars(with = "Option<String>")]
    pub(super) retry: Option<Spanned<String>>,
    /// It is parked, or dropped. Either this or `retry`.
    pub(super) end: Option<TerminalAction>,
}

/// The end of a message that is not retried.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(super) enum TerminalAction {
    /// It is kept in the parking queue, with a record, for a person to look at.
    Park,
    /// It is gone.
    Drop,
}

/// One reason, or several.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(
    untagged,
    expecting = "one or several of: rejected, failed, expired, maxlen, delivery-limit"
)]
pub(super) enum Reasons {
    /// One.
    One(Reason),
    /// Several.
    Several(Vec<Reason>),
}

impl Reasons {
    pub(super) fn list(&self) -> Vec<Reason> {
        match self {
            Self::One(reason) => vec![*reason],
            Self::Several(reasons) => reasons.clone(),
        }
    }
}

/// Why the broker dead-lettered a message, or that its consumer handed it over.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize, Serialize, JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum Reason {
    /// A consumer rejected it.
    Rejected,
    /// An attempt failed, and its consumer handed it over.
    Failed,
    /// Its time to live ran out.
    Expired,
    /// Its queue was full.
    Maxlen,
    /// It came back to its queue more often than that allows.
    DeliveryLimit,
}

impl Reason {
    /// The word for what clients hand over, in logs and metrics.
    pub(crate) const FAILED: &str = "failed";

    /// Reads RabbitMQ's word in `x-death`; `None` for one that it does not have today.
    #[must_use]
    pub fn parse(word: &str) -> Option<Self> {
        match word {
            "rejected" => Some(Self::Rejected),
            "expired" => Some(Self::Expired),
            "maxlen" => Some(Self::Maxlen),
            "delivery_limit" => Some(Self::DeliveryLimit),
            _ => None,
        }
    }
}

/// The JSON Schema of a policy file.
#[must_use]
pub fn schema() -> Schema {
    schema_for!(PolicyFile)
}
