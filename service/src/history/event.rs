//! One thing that happened, as it stands in the stream: a small JSON object without a body, of the format of
//! `retryrmq parked replay --audit-stream`.

use jiff::Timestamp;
use retryrmq::{Record, WaitingMessage, headers};
use serde::{Deserialize, Serialize};

use super::who;
use crate::{
    ParkedReport, RetryEvent, ServiceEvent,
    store::StoredMessage,
    stored_messages::{header, queue_of},
};

/// What happened. Events of other words are kept in the stream and not counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum HistoryAction {
    /// An attempt failed; the message waits for its next.
    Retried,
    /// An attempt failed; the message was parked.
    Parked,
    /// The message was dropped: with a mark by a person, without one by the policy.
    Dropped,
    /// A person had a dropped message parked again.
    Restored,
    /// A person sent a parked message back to a queue.
    Replayed,
    /// A person took a waiting message out, and it was parked.
    Cancelled,
    /// A person brought a waiting message back early.
    Flushed,
    /// A person wants to hear nothing of a group for a while.
    Silenced,
    /// A person closed the incident of a group.
    Closed,
    /// A walk found a parked message that the history did not know.
    Found,
    /// A walk did not find a parked message that the history knew.
    Gone,
    /// Something begins.
    Begun,
    /// A service says by which policy it decides.
    Policy,
    /// Something else.
    #[default]
    #[serde(other)]
    Other,
}

/// One event.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Event {
    pub(crate) at: Timestamp,
    pub(crate) who: String,
    pub(crate) event: HistoryAction,
    pub(crate) queue: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) command: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) message_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) mark: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) fingerprint: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) to: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reason: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) error: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) error_type: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) routing_key: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) attempt: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) delay_ms: Option<u64>,
    /// Whether what was retried waits in a store, and not in the broker.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) in_store: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) traceparent: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) job: Option<String>,
    /// Which service, of several on one host.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) replica: Option<String>,
    /// The digest of a policy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) policy: Option<String>,
}

/// Texts of strangers take no more.
const ERROR: usize = 500;
const FIELD: usize = 255;

impl Event {
    /// What the history keeps of an event; of a queue's trouble nothing.
    pub(crate) fn of(service_event: &ServiceEvent, now: Timestamp) -> Option<Self> {
        let event = match service_event {
            ServiceEvent::Retried(retry) => Self::retried(retry),
            ServiceEvent::Parked(death) => Self::parked(death),
            ServiceEvent::Dropped {
                queue,
                message_id,
                reason,
                traceparent,
            } => Self {
                event: HistoryAction::Dropped,
                queue: queue.clone(),
                message_id: message_id.clone(),
                reason: Some(reason.clone()),
                traceparent: traceparent.clone(),
                ..Self::default()
            },
            ServiceEvent::Troubled(_) => return None,
        };
        Some(Self {
            at: now,
            who: who(),
            ..event
        })
    }

    fn retried(retry: &RetryEvent) -> Self {
        let delay = u64::try_from(retry.delay.as_millis()).unwrap_or(u64::MAX);
        Self {
            event: HistoryAction::Retried,
            queue: retry.queue.clone(),
            message_id: retry.message_id.clone(),
            mark: Some(retry.mark.clone()),
            fingerprint: Some(retry.fingerprint.clone()),
            reason: Some(retry.reason.clone()),
            error: Some(cut(&retry.error, ERROR)),
            error_type: Some(cut(&retry.error_type, FIELD)),
            routing_key: Some(retry.routing_key.clone()),
            attempt: Some(retry.attempt),
            delay_ms: Some(delay),
            in_store: retry.is_in_store,
            traceparent: retry.traceparent.clone(),
            ..Self::default()
        }
    }

    fn parked(death: &ParkedReport) -> Self {
        Self {
            event: HistoryAction::Parked,
            queue: death.queue.clone(),
            message_id: death.message_id.clone(),
            mark: Some(death.mark.clone()),
            fingerprint: Some(death.fingerprint.clone()),
            reason: Some(death.reason.clone()),
            error: Some(cut(&death.error, ERROR)),
            error_type: Some(cut(&death.error_type, FIELD)),
            routing_key: Some(death.routing_key.clone()),
            attempt: Some(death.attempt),
            traceparent: death.traceparent.clone(),
            ..Self::default()
        }
    }

    /// What a person does to a parked message.
    pub(crate) fn to_record(action: HistoryAction, queue: &str, record: &Record) -> Self {
        let message = record.message();
        let at = record.parked_at.and_then(|at| Timestamp::try_from(at).ok());
        Self {
            // What was found happened when it was parked.
            at: at
                .filter(|_| matches!(action, HistoryAction::Found | HistoryAction::Restored))
                .unwrap_or_else(Timestamp::now),
            event: action,
            queue: queue.to_owned(),
            message_id: message.message_id().map(str::to_owned),
            mark: Some(record.mark.clone()),
            fingerprint: Some(record.fingerprint.clone()),
            reason: record.reason.map(|reason| reason.as_str().to_owned()),
            error: Some(cut(&record.error, ERROR)),
            error_type: Some(cut(&record.error_type, FIELD)),
            attempt: Some(record.attempts),
            ..Self::default()
        }
    }

    /// What a person does to a waiting message.
    pub(crate) fn to_waiting_message(
        action: HistoryAction,
        queue: &str,
        waiting_message: &WaitingMessage,
    ) -> Self {
        Self {
            at: Timestamp::now(),
            event: action,
            queue: queue.to_owned(),
            message_id: waiting_message.message().message_id().map(str::to_owned),
            mark: Some(waiting_message.mark.clone()),
            error: Some(cut(&waiting_message.error, ERROR)),
            error_type: Some(cut(&waiting_message.error_type, FIELD)),
            ..Self::default()
        }
    }

    /// The same to a message that waits in a store.
    pub(crate) fn to_stored_message(action: HistoryAction, message: &StoredMessage) -> Self {
        let id = message.draft().properties.message_id().as_ref();
        let retries = header(message, headers::COUNT).and_then(|count| count.parse().ok());
        let text = |name, most| header(message, name).map(|text| cut(&text, most));
        Self {
            at: Timestamp::now(),
            event: action,
            queue: queue_of(message),
            message_id: id.map(|id| id.as_str().to_owned()),
            mark: message.id().mark(),
            error: text(headers::ERROR, ERROR),
            error_type: text(headers::ERROR_TYPE, FIELD),
            attempt: retries,
            ..Self::default()
        }
    }

    /// By whom, in which job.
    pub(crate) fn by(mut self, who: &str, job: &str) -> Self {
        self.who = who.to_owned();
        self.job = Some(job.to_owned());
        self
    }

    pub(crate) fn text(field: &Option<String>) -> &str {
        field.as_deref().unwrap_or_default()
    }
}

fn cut(text: &str, most: usize) -> String {
    text.chars().take(most).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_small_json_without_what_is_not_known_and_words_of_others_are_read() {
        let retry = RetryEvent {
            queue: "orders".to_owned(),
            traceparent: Some("00-a-b-01".to_owned()),
            error: "x".repeat(10_000),
            ..RetryEvent::default()
        };
        let event = Event::of(
            &ServiceEvent::Retried(Box::new(retry)),
            Timestamp::UNIX_EPOCH,
        )
        .unwrap();
        let text = serde_json::to_string(&event).unwrap();
        assert!(text.len() < 1_000, "{text}");
        assert!(text.contains(r#""event":"retried""#), "{text}");
        assert!(text.contains(r#""traceparent":"00-a-b-01""#), "{text}");
        assert!(!text.contains("message_id"), "{text}");
        assert!(!text.contains("in_store"), "{text}");
        assert_eq!(serde_json::from_str::<Event>(&text).unwrap(), event);
        let audit = r#"{"at":"2026-01-05T10:00:00Z","who":"ana@shop","command":"replay","queue":"orders","event":"exported","mark":null,"to":"x"}"#;
        let read: Event = serde_json::from_str(audit).unwrap();
        assert_eq!((read.event, read.mark), (HistoryAction::Other, None));
    }
}
