//! The tables `[defaults]` and `[[rules]]` of the policy file.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use toml::Spanned;

use super::Reason;

/// What holds where no rule does.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Defaults {
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
pub(crate) struct RuleEntry {
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
