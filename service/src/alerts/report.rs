//! What a replica tells the leader: small, and nothing of a body that was not asked for.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{Severity, Silence, rule::RuleSet, sanitize};
use crate::{QueueProblemState, ServiceEvent};

/// Several things that happened, in one message.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Report {
    /// The replica, another name after each start.
    pub(super) replica: String,
    /// 1, 2, 3 … of each replica: one that comes twice is known, and so is one that is missing.
    pub(super) sequence: u64,
    /// Events that the replica had to drop since its last report.
    #[serde(default)]
    pub(super) lost: u64,
    pub(super) entries: Vec<ReportEntry>,
}

/// One of them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum ReportEntry {
    Died(ParkedMessage),
    Troubled(QueueProblem),
    Asked(OperatorRequest),
}

/// A message was parked.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct ParkedMessage {
    pub(super) at: Timestamp,
    pub(super) queue: String,
    pub(super) fingerprint: String,
    pub(super) rule: String,
    pub(super) severity: Severity,
    #[serde(flatten)]
    pub(super) example: ParkedExample,
}

/// What people are shown of it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct ParkedExample {
    pub(super) reason: String,
    pub(super) error: String,
    pub(super) error_type: String,
    pub(super) routing_key: String,
    pub(super) exchange: String,
    pub(super) attempt: u32,
    pub(super) message_id: Option<String>,
    pub(super) type_name: Option<String>,
    pub(super) fields: BTreeMap<String, String>,
}

/// A queue is in trouble, or out of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct QueueProblem {
    pub(super) vhost: String,
    pub(super) queue: String,
    pub(super) kind: String,
    pub(super) text: String,
    pub(super) state: QueueProblemState,
    pub(super) rule: String,
    pub(super) severity: Severity,
}

/// Something that a person wants.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum OperatorRequest {
    Silence(Silence),
    /// The id of a silence.
    Lift(String),
    /// The id of a group that is fixed.
    Resolve(String),
}

impl ReportEntry {
    /// What alerts make of an event; a retry is none of theirs, nor is what the policy drops.
    pub(super) fn of(
        service_event: &ServiceEvent,
        rule_set: &mut RuleSet,
        now: Timestamp,
    ) -> Option<Self> {
        match service_event {
            ServiceEvent::Parked(death) => {
                let verdict = rule_set.evaluate(death);
                let at = death.at.and_then(|at| Timestamp::try_from(at).ok());
                let optional = |value: &Option<String>| {
                    value.as_ref().map(|v| sanitize::line(v, sanitize::FIELD))
                };
                Some(Self::Died(ParkedMessage {
                    at: at.unwrap_or(now),
                    queue: sanitize::line(&death.queue, sanitize::NAME),
                    fingerprint: sanitize::line(&death.fingerprint, sanitize::NAME),
                    rule: verdict.rule,
                    severity: verdict.severity,
                    example: ParkedExample {
                        reason: sanitize::line(&death.reason, sanitize::NAME),
                        error: sanitize::line(&death.error, sanitize::ERROR),
                        error_type: sanitize::line(&death.error_type, sanitize::FIELD),
                        routing_key: sanitize::line(&death.routing_key, sanitize::NAME),
                        exchange: sanitize::line(&death.exchange, sanitize::NAME),
                        attempt: death.attempt,
                        message_id: optional(&death.message_id),
                        type_name: optional(&death.type_name),
                        fields: verdict.fields,
                    },
                }))
            }
            ServiceEvent::Troubled(trouble) => {
                let verdict = rule_set.evaluate_queue_problem(trouble);
                Some(Self::Troubled(QueueProblem {
                    vhost: sanitize::line(&trouble.vhost, sanitize::NAME),
                    queue: sanitize::line(&trouble.queue, sanitize::NAME),
                    kind: trouble.kind.to_owned(),
                    text: sanitize::line(&trouble.text, sanitize::ERROR),
                    state: trouble.state,
                    rule: verdict.rule,
                    severity: verdict.severity,
                }))
            }
            ServiceEvent::Retried(_) | ServiceEvent::Dropped { .. } => None,
        }
    }
}
