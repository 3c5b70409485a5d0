//! A group: equal failures of a queue, or one trouble of one.

use std::collections::BTreeSet;

use jiff::Timestamp;
use retryrmq_operator::plural;
use ring::digest;
use serde::{Deserialize, Serialize};

use super::{
    notice::{Notice, NoticeKind},
    rate::MinuteRate,
};
use crate::alerts::{
    Severity, report::ParkedExample, rule::Trigger, sanitize, silence::SilenceSubject,
};

/// What a group is about.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Subject {
    Failure {
        queue: String,
        fingerprint: String,
    },
    Trouble {
        vhost: String,
        queue: String,
        kind: String,
    },
    /// More kinds of failure than are kept.
    Overflow,
}

/// The group of the failures with this fingerprint in a queue.
pub(crate) fn failure_id(queue: &str, fingerprint: &str) -> String {
    let name = |text| sanitize::line(text, sanitize::NAME);
    Subject::Failure {
        queue: name(queue),
        fingerprint: name(fingerprint),
    }
    .id()
}

impl Subject {
    /// The same for the same subject, on every replica.
    pub(super) fn id(&self) -> String {
        let (kind, parts) = match self {
            Self::Failure { queue, fingerprint } => ("failure", [queue.as_str(), fingerprint, ""]),
            Self::Trouble { vhost, queue, kind } => ("trouble", [vhost.as_str(), queue, kind]),
            Self::Overflow => ("overflow", [""; 3]),
        };
        let mut context = digest::Context::new(&digest::SHA256);
        for part in [kind].iter().chain(&parts) {
            context.update(part.as_bytes());
            context.update(&[0]);
        }
        let hash = context.finish();
        hash.as_ref()[..8]
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect()
    }

    pub(super) fn queue(&self) -> &str {
        match self {
            Self::Failure { queue, .. } | Self::Trouble { queue, .. } => queue,
            Self::Overflow => "*",
        }
    }

    pub(super) fn is_trouble(&self) -> bool {
        matches!(self, Self::Trouble { .. })
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Group {
    pub(super) subject: Subject,
    pub(super) rule: String,
    pub(super) severity: Severity,
    pub(super) first: Timestamp,
    pub(super) last: Timestamp,
    /// Since when it goes on without a quiet time between.
    pub(super) streak: Timestamp,
    pub(super) count: u64,
    pub(super) rate: MinuteRate,
    pub(super) example: ParkedExample,
    #[serde(alias = "page")]
    pub(super) incident: Option<Incident>,
    /// When its last incident was over.
    pub(super) over: Option<Timestamp>,
}

/// What people are told, or will be in the morning.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Incident {
    pub(super) id: String,
    pub(super) trigger: Trigger,
    pub(super) severity: Severity,
    pub(super) opened: Timestamp,
    /// When people are to be told; nothing once they were.
    pub(super) due: Option<Timestamp>,
    /// The channels that were told.
    pub(super) told: BTreeSet<String>,
    pub(super) rate_told: bool,
    /// When to say that it still grows.
    pub(super) growth: Timestamp,
    /// A trouble was over before people were told.
    pub(super) ended: bool,
    /// It was less important when people were told.
    #[serde(default)]
    pub(super) raised: bool,
    /// The gravest failure of a silence.
    #[serde(default, alias = "unsaid", skip_serializing_if = "Option::is_none")]
    pub(super) withheld: Option<Severity>,
}

impl Group {
    pub(super) fn heard(&self) -> SilenceSubject<'_> {
        SilenceSubject {
            queue: self.subject.queue(),
            fingerprint: match &self.subject {
                Subject::Failure { fingerprint, .. } => fingerprint,
                _ => "",
            },
            reason: &self.example.reason,
            error_type: &self.example.error_type,
        }
    }

    /// A notice of its open incident. Number, service and channels are the engine's.
    pub(super) fn notice(
        &self,
        incident: &Incident,
        kind: NoticeKind,
        trigger: Trigger,
        now: Timestamp,
    ) -> Notice {
        let heard = self.heard();
        let (queue, fingerprint) = (heard.queue.to_owned(), heard.fingerprint.to_owned());
        Notice {
            number: 0,
            incident: incident.id.clone(),
            group: self.subject.id(),
            kind,
            trigger,
            severity: incident.severity,
            raised: incident.raised,
            service: String::new(),
            summary: self.summary(kind, trigger, now),
            vhost: match &self.subject {
                Subject::Trouble { vhost, .. } => Some(vhost.clone()),
                _ => None,
            },
            queue,
            fingerprint,
            reason: self.example.reason.clone(),
            error: self.example.error.clone(),
            error_type: self.example.error_type.clone(),
            routing_key: self.example.routing_key.clone(),
            message_id: self.example.message_id.clone(),
            type_name: self.example.type_name.clone(),
            fields: self.example.fields.clone(),
            rule: self.rule.clone(),
            count: self.count,
            per_minute: self.rate.last_minute(now),
            opened: incident.opened,
            first: self.first,
            last: self.last,
            at: now,
            channels: Vec::new(),
        }
    }

    fn summary(&self, kind: NoticeKind, trigger: Trigger, now: Timestamp) -> String {
        let subject = match &self.subject {
            Subject::Trouble { .. } => self.example.error.clone(),
            Subject::Overflow => {
                "more kinds of failure than are kept apart; `retryrmq parked` shows them".to_owned()
            }
            Subject::Failure { queue, .. } => {
                let class = match self.example.error_type.as_str() {
                    "" => String::new(),
                    class => format!("{class}: "),
                };
                format!(
                    "{queue}: {class}{} ({})",
                    self.example.error, self.example.reason
                )
            }
        };
        let subject = sanitize::cut(&subject, 300);
        let parked = plural::messages(self.count);
        if self.subject.is_trouble() {
            return match (kind, trigger) {
                (NoticeKind::Resolved, _) => format!("over: {subject}"),
                (_, Trigger::Again) => format!("again: {subject}"),
                _ => subject,
            };
        }
        match (kind, trigger) {
            (NoticeKind::Resolved, _) => format!("over: {subject}; {parked} in all"),
            (NoticeKind::Raised, _) => format!("now more important: {subject}; {parked}"),
            (_, Trigger::First) => format!("new: {subject}; {parked}"),
            (_, Trigger::Again) => format!("again after it was over: {subject}; {parked} in all"),
            (_, Trigger::Rate) => format!(
                "{} a minute: {subject}; {parked} in all",
                self.rate.last_minute(now)
            ),
            (_, Trigger::Growing) => format!("still growing: {subject}; {parked}"),
        }
    }
}
