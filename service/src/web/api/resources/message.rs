//! Messages that are parked, and messages that wait.

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::Serialize;

use super::{
    super::super::{
        parked_message::ParkedMessage,
        waiting_list::{Place, WaitRow, WaitingList},
    },
    line, said,
};
use crate::history::Event;

/// Characters of a stack trace.
const STACK: usize = 20_000;

/// A part of a list of parked messages.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub(in super::super) struct MessageList {
    pub(in super::super) messages: Vec<MessageSummary>,
    /// The `cursor` of the next part; nothing at the end.
    pub(in super::super) next: Option<String>,
}

/// Parked messages with a text.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub(in super::super) struct FoundMessages {
    pub(in super::super) messages: Vec<MessageSummary>,
    /// Whether there may be more than `limit`.
    pub(in super::super) is_cut: bool,
}

/// A parked message, as the history knows it.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub(in super::super) struct MessageSummary {
    /// Its work queue.
    queue: String,
    /// Names it wherever it stands.
    mark: String,
    /// The publisher's id.
    message_id: Option<String>,
    /// The fingerprint of its group.
    fingerprint: Option<String>,
    /// Why it was parked.
    reason: Option<String>,
    /// The last error.
    error: Option<String>,
    /// Its type.
    error_type: Option<String>,
    /// Attempts before it was parked, as far as somebody has counted.
    attempts: Option<u32>,
    /// When it was parked, or found in its parking queue.
    #[schemars(with = "String", extend("format" = "date-time"))]
    at: Timestamp,
}

impl MessageSummary {
    pub(in super::super) fn of(event: &Event) -> Self {
        Self {
            queue: event.queue.clone(),
            mark: Event::text(&event.mark).to_owned(),
            message_id: said(Event::text(&event.message_id)),
            fingerprint: event.fingerprint.clone(),
            reason: said(Event::text(&event.reason)),
            error: said(Event::text(&event.error)),
            error_type: said(Event::text(&event.error_type)),
            attempts: event.attempt.filter(|count| *count > 0),
            at: event.at,
        }
    }
}

/// A parked message, read from its parking queue. Bodies, headers and fields are masked as on the page.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub(in super::super) struct Message {
    /// The work queue in whose parking queue it is.
    queue: String,
    /// The queue that it belongs to, and goes back to.
    home: String,
    /// Names it wherever it stands.
    mark: String,
    /// The publisher's id.
    message_id: Option<String>,
    /// The fingerprint of its group.
    fingerprint: String,
    /// Why it was parked; nothing if it has no record.
    reason: Option<&'static str>,
    /// The last error.
    error: Option<String>,
    /// Its type.
    error_type: Option<String>,
    /// The stack trace of the last error, 20000 characters of it.
    stack: Option<String>,
    /// Attempts, as far as somebody has counted.
    attempts: Option<u32>,
    /// The last failed attempts, as the record has them.
    attempt_log: Vec<Attempt>,
    /// How often it was replayed before.
    replays: u32,
    /// When it was parked.
    #[schemars(with = "Option<String>", extend("format" = "date-time"))]
    parked_at: Option<Timestamp>,
    /// When it failed first.
    #[schemars(with = "Option<String>", extend("format" = "date-time"))]
    first_failed_at: Option<Timestamp>,
    /// The exchange that it was published to; empty for the default exchange.
    exchange: String,
    /// The routing key that it was published with.
    routing_key: String,
    /// The property `type`.
    r#type: Option<String>,
    /// The property `content_type`.
    content_type: Option<String>,
    /// The property `app_id`.
    app_id: Option<String>,
    /// The property `correlation_id`.
    correlation_id: Option<String>,
    /// What was repaired so that it could be read.
    mended: Option<String>,
    /// The publisher's headers.
    headers: Vec<Header>,
    body: Body,
}

/// A failed attempt.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
struct Attempt {
    /// 1 is the first delivery.
    number: u32,
    /// When it failed.
    #[schemars(with = "Option<String>", extend("format" = "date-time"))]
    at: Option<Timestamp>,
    /// The error.
    error: String,
    /// Where it ran.
    host: String,
}

/// A header of the publisher.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
struct Header {
    name: String,
    /// As text, `***` if it is masked, 2000 characters at most.
    value: String,
}

/// A body, decoded and masked.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
struct Body {
    /// What it was decoded as, such as `JSON`; nothing if it is hidden altogether.
    format: Option<&'static str>,
    /// Its size, in bytes, as it stands in the queue.
    size: usize,
    /// What people may see of it, 65536 characters at most and then `…`; nothing if nothing can be shown.
    text: Option<String>,
    /// Why something is missing.
    remark: Option<String>,
}

impl Message {
    pub(in super::super) fn of(queue: String, shown: ParkedMessage) -> Self {
        let ParkedMessage {
            record,
            body,
            headers,
        } = shown;
        let message = record.message();
        let moment = |at| Timestamp::try_from(at).ok();
        let properties = message.properties();
        let text = |field: Option<&str>| field.and_then(said);
        let history = record.history.iter().map(|entry| Attempt {
            number: entry.attempt,
            at: i64::try_from(entry.at)
                .ok()
                .and_then(|at| Timestamp::from_second(at).ok()),
            error: line(&entry.error),
            host: line(&entry.host),
        });
        let stack = record.stack.as_ref().map(|stack| {
            let stack = retryrmq::terminal_escape::block(stack);
            stack.chars().take(STACK).collect()
        });
        Self {
            queue,
            home: record.home.clone(),
            mark: record.mark.clone(),
            message_id: text(message.message_id()),
            fingerprint: record.fingerprint.clone(),
            reason: record.reason.map(|reason| reason.as_str()),
            error: said(&record.error),
            error_type: said(&record.error_type),
            stack,
            attempts: Some(record.attempts).filter(|count| *count > 0),
            attempt_log: history.collect(),
            replays: message.replays(),
            parked_at: record.parked_at.and_then(moment),
            first_failed_at: message.first_failed_at().and_then(moment),
            exchange: line(message.exchange()),
            routing_key: line(message.routing_key()),
            r#type: text(properties.kind().as_ref().map(|text| text.as_str())),
            content_type: text(properties.content_type().as_ref().map(|text| text.as_str())),
            app_id: text(properties.app_id().as_ref().map(|text| text.as_str())),
            correlation_id: text(
                properties
                    .correlation_id()
                    .as_ref()
                    .map(|text| text.as_str()),
            ),
            mended: text(message.mended()),
            headers: headers
                .into_iter()
                .map(|(name, value)| Header { name, value })
                .collect(),
            body: Body {
                format: body.format,
                size: body.size,
                text: Some(body.text).filter(|text| !text.is_empty()),
                remark: Some(body.remark).filter(|text| !text.is_empty()),
            },
        }
    }
}

/// What waits for its next attempt.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub(in super::super) struct WaitingMessages {
    /// By due time: the first 200 of the store, and the first 200 of those that the history knows.
    messages: Vec<WaitingMessage>,
    /// Messages that the history knows to wait in the broker.
    in_broker: usize,
    /// Messages that wait in the store; nothing without a store, or if it does not answer.
    in_store: Option<u64>,
    /// Messages that the history knows to wait in a store that the policy had before.
    in_former_store: usize,
    /// Whether there are more than are listed.
    is_cut: bool,
    /// Why the store does not answer.
    store_error: Option<String>,
}

/// A message that waits.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
struct WaitingMessage {
    /// Its work queue; `retryrmq.delayed` for what was published with a delay.
    queue: String,
    /// Names it wherever it stands.
    mark: String,
    /// The publisher's id.
    message_id: Option<String>,
    /// When it comes back. In a burst, what waits longest may come back a little later.
    #[schemars(with = "String", extend("format" = "date-time"))]
    due_at: Timestamp,
    /// Where it waits.
    place: WaitingPlace,
    /// The last error.
    error: Option<String>,
    /// Its type.
    error_type: Option<String>,
    /// The attempt that failed last, as far as somebody has counted.
    attempt: Option<u32>,
    /// Where it goes, if not to `queue`.
    target: Option<Target>,
}

/// Where a message waits.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum WaitingPlace {
    /// In a waiting queue of the broker.
    Broker,
    /// In the store.
    Store,
    /// In a store that the policy had before: this service cannot move it.
    FormerStore,
}

/// Where a delayed message goes.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
struct Target {
    /// Empty for the default exchange.
    exchange: String,
    /// With the default exchange the name of a queue.
    routing_key: String,
}

impl WaitingMessages {
    pub(in super::super) fn of(list: WaitingList) -> Self {
        let kept = list.kept.as_ref();
        let answered = kept.filter(|kept| kept.fault.is_none());
        Self {
            in_broker: list.in_broker,
            in_store: answered.map(|kept| kept.total),
            in_former_store: list.in_former_store,
            is_cut: list.is_cut || kept.is_some_and(|kept| kept.is_cut),
            store_error: kept.and_then(|kept| kept.fault.as_deref()).map(line),
            messages: list.rows.into_iter().map(WaitingMessage::of).collect(),
        }
    }
}

impl WaitingMessage {
    fn of(row: WaitRow) -> Self {
        let event = row.event;
        Self {
            mark: Event::text(&event.mark).to_owned(),
            message_id: said(Event::text(&event.message_id)),
            due_at: row.due,
            place: match row.place {
                Place::Broker => WaitingPlace::Broker,
                Place::Store => WaitingPlace::Store,
                Place::FormerStore => WaitingPlace::FormerStore,
            },
            error: said(Event::text(&event.error)),
            error_type: said(Event::text(&event.error_type)),
            attempt: event.attempt.filter(|count| *count > 0),
            target: row.to.map(|to| Target {
                exchange: to.exchange,
                routing_key: to.routing_key,
            }),
            queue: event.queue,
        }
    }
}
