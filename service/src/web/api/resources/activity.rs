//! Who asks, how much failed, what people are told, and what they did.

use jiff::{Timestamp, ToSpan};
use schemars::JsonSchema;
use serde::Serialize;

use super::{
    super::super::{auth::User, configuration::Role},
    line,
    queue::FailureCounts,
    said,
};
use crate::{
    alerts::{GroupView, Severity},
    history::{Event, HistoryAction, IntervalCounts},
};

/// Whoever asks.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub(in super::super) struct Session {
    /// The name of the token, or of the person whom the proxy has signed in.
    name: String,
    /// What they may do.
    role: Role,
    /// For requests with a cookie, or by way of a proxy: what they send as `X-CSRF-Token` to change something. Nothing for a request with a token, which
    /// needs none.
    csrf_token: Option<String>,
}

impl Session {
    pub(in super::super) fn of(user: &User, csrf_token: Option<String>) -> Self {
        Self {
            name: user.name.clone(),
            role: user.role,
            csrf_token,
        }
    }
}

/// Failed attempts of the last 24 hours.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub(in super::super) struct Failures {
    /// 24, the oldest first.
    hours: Vec<Hour>,
}

/// Failed attempts of an hour.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
struct Hour {
    /// When it begins. It ends an hour later; the last one ends now.
    #[schemars(with = "String", extend("format" = "date-time"))]
    from: Timestamp,
    failed: FailureCounts,
}

impl Failures {
    pub(in super::super) fn of(hours: &[IntervalCounts; 24], now: Timestamp) -> Self {
        let hours = (0i64..).zip(hours).map(|(place, counts)| Hour {
            from: now.checked_sub((24 - place).hours()).unwrap_or(now),
            failed: FailureCounts::of(counts),
        });
        Self {
            hours: hours.collect(),
        }
    }
}

/// Open incidents.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub(in super::super) struct Incidents {
    /// Those of the replica that answers: only the one that sends the notices has some.
    pub(in super::super) incidents: Vec<Incident>,
}

/// An incident that is open.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub(in super::super) struct Incident {
    /// Its id, as in notices.
    id: String,
    /// The id of its group: to close it by.
    group: String,
    /// The queue.
    queue: String,
    /// The fingerprint of the group; nothing for a queue in trouble.
    fingerprint: Option<String>,
    /// The reason of the last failure, or the kind of the trouble.
    reason: String,
    /// The last error.
    error: Option<String>,
    /// The rule that decided last.
    rule: String,
    /// How important it is.
    severity: Severity,
    /// Failures since it was first seen.
    failures: u64,
    /// When it was first seen.
    #[schemars(with = "String", extend("format" = "date-time"))]
    first_at: Timestamp,
    /// When it was last seen.
    #[schemars(with = "String", extend("format" = "date-time"))]
    last_at: Timestamp,
    /// Whether a silence covers it.
    is_silenced: bool,
}

impl Incident {
    pub(in super::super) fn of(view: GroupView) -> Self {
        Self {
            id: view.incident.unwrap_or_default(),
            group: view.id,
            queue: view.queue,
            fingerprint: Some(view.fingerprint).filter(|print| !print.is_empty()),
            reason: line(&view.reason),
            error: said(&view.error),
            rule: line(&view.rule),
            severity: view.severity,
            failures: view.count,
            first_at: view.first,
            last_at: view.last,
            is_silenced: view.silenced,
        }
    }
}

/// What people did.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub(in super::super) struct Actions {
    /// The latest first.
    pub(in super::super) actions: Vec<Action>,
}

/// What somebody did, to one message or to a group.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub(in super::super) struct Action {
    /// When.
    #[schemars(with = "String", extend("format" = "date-time"))]
    at: Timestamp,
    /// Who.
    by: String,
    /// The `event` of the history, such as `replayed`.
    event: String,
    /// The queue.
    queue: String,
    /// The message; nothing if it was done to a group.
    mark: Option<String>,
    /// Its id.
    message_id: Option<String>,
    /// The job that did it.
    job: Option<String>,
}

impl Action {
    pub(in super::super) fn of(event: &Event) -> Self {
        Self {
            at: event.at,
            by: line(&event.who),
            event: word(event.event),
            queue: event.queue.clone(),
            mark: event.mark.clone(),
            message_id: said(Event::text(&event.message_id)),
            job: said(Event::text(&event.job)),
        }
    }
}

/// As the history has it.
fn word(action: HistoryAction) -> String {
    format!("{action:?}").to_lowercase()
}
