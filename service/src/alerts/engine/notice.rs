//! A notice: what a channel tells people.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::alerts::{Severity, rule::Trigger};

/// What a notice says of its incident.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NoticeKind {
    /// There is a new incident.
    Opened,
    /// It is more important than was said.
    Raised,
    /// It goes on, or grows.
    Updated,
    /// It is over.
    Resolved,
}

impl NoticeKind {
    /// The word in payloads.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Opened => "opened",
            Self::Raised => "raised",
            Self::Updated => "updated",
            Self::Resolved => "resolved",
        }
    }
}

/// What people are told: one incident has one `Opened`, then perhaps others, and at last one `Resolved`. All texts are one line, cut, and
/// without control characters.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Notice {
    /// Rises by one with each notice.
    pub number: u64,
    /// The incident: equal in all notices of it, and of no other.
    #[serde(alias = "page")]
    pub incident: String,
    /// The group: equal for equal failures of a queue, also after a fix.
    pub group: String,
    /// What is said.
    pub kind: NoticeKind,
    /// Why now; of an incident that is over what opened it.
    pub trigger: Trigger,
    /// How important it is.
    pub severity: Severity,
    /// It was less important when people were told of it first.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub raised: bool,
    /// The name of the service that says it.
    pub service: String,
    /// One sentence.
    pub summary: String,
    /// The virtual host, of a queue in trouble.
    pub vhost: Option<String>,
    /// The queue.
    pub queue: String,
    /// The fingerprint of the failure; empty for a queue in trouble.
    pub fingerprint: String,
    /// The word of the record, or the kind of the trouble.
    pub reason: String,
    /// What the consumer said last.
    pub error: String,
    /// The class of the error.
    pub error_type: String,
    /// The routing key of the last message.
    pub routing_key: String,
    /// The `message-id` of the last message.
    pub message_id: Option<String>,
    /// The decoded type of the last message.
    pub type_name: Option<String>,
    /// The fields of the last message that the rule asked for.
    pub fields: BTreeMap<String, String>,
    /// The rule that decided.
    pub rule: String,
    /// Failures since the incident's group was first seen.
    pub count: u64,
    /// Failures in the last minute.
    pub per_minute: u32,
    /// When the incident was opened.
    pub opened: Timestamp,
    /// When its group was first seen.
    pub first: Timestamp,
    /// When it was last seen.
    pub last: Timestamp,
    /// When this notice was made.
    pub at: Timestamp,
    /// The channels it goes to.
    pub channels: Vec<String>,
}
