//! What alerts and the history are told of a parked message: its record, without the body.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use retryrmq::{
    BasicProperties, Decision, Event, FailedMessage, ParkReason, Record, headers, terminal_escape,
    types::{AMQPValue, FieldTable},
};
use retryrmq_operator::decoding::{Hints, decode, is_declared_packed};
use serde_json::{Map, Value, json};
use tokio::sync::watch;
use tracing::warn;

use crate::{DecodedBody, EventBus, Metrics, ParkedReport, RetryEvent, ServiceEvent};

/// A body, decoded as its properties say or as it looks.
#[derive(Debug, Default)]
struct BodyContent {
    type_name: Option<String>,
    body: Option<DecodedBody>,
}

impl BodyContent {
    /// Not on the threads that wait for the broker: a large body takes its time. Without memory for it, the message is told of without its body.
    async fn of(failed: &FailedMessage, event_bus: &EventBus) -> Self {
        let failed = failed.clone();
        let type_name = failed.properties().kind().as_ref();
        let type_name = type_name.map(|kind| kind.as_str().to_owned());
        let is_packed = is_packed(failed.properties());
        let Some(reserved) = event_bus.memory().to_decode(failed.body(), is_packed).await else {
            event_bus.body_left_out();
            return Self {
                type_name,
                body: None,
            };
        };
        let read = tokio::task::spawn_blocking(move || {
            let properties = failed.properties();
            let hints = Hints {
                content_type: properties.content_type().as_ref().map(|text| text.as_str()),
                content_encoding: properties
                    .content_encoding()
                    .as_ref()
                    .map(|text| text.as_str()),
            };
            let decoded = decode(failed.body(), hints, None);
            (decoded.value, reserved)
        });
        let Ok((value, _reserved)) = read.await else {
            return Self::default();
        };
        let body = value.and_then(|value| match event_bus.memory().to_keep(&value) {
            Some(reserved) => Some(DecodedBody::new(value, Some(reserved))),
            None => {
                event_bus.body_left_out();
                None
            }
        });
        Self { type_name, body }
    }
}

/// Whether the properties of a message say that its body is packed.
pub(crate) fn is_packed(properties: &BasicProperties) -> bool {
    let encoding = properties.content_encoding().as_ref();
    encoding.is_some_and(|encoding| is_declared_packed(encoding.as_str()))
}

/// What is told of a message that waits.
pub(super) fn retry(
    failed: &FailedMessage,
    decision: &Decision,
    reason: &str,
    attempt: u32,
    delay: Duration,
    is_in_store: bool,
) -> RetryEvent {
    let (mark, fingerprint) = Record::mark_and_fingerprint(failed, decision);
    RetryEvent {
        queue: failed.queue().to_owned(),
        message_id: message_id(failed),
        attempt,
        delay,
        reason: reason.to_owned(),
        error: text(decision, headers::ERROR),
        error_type: text(decision, headers::ERROR_TYPE),
        fingerprint,
        mark,
        routing_key: failed.routing_key().to_owned(),
        traceparent: traceparent(failed),
        is_in_store,
    }
}

/// A header of ours on the copy.
fn text(decision: &Decision, name: &str) -> String {
    let written = decision.properties.headers().as_ref();
    match written.and_then(|written| written.inner().get(name)) {
        Some(AMQPValue::LongString(text)) => text.to_string(),
        _ => String::new(),
    }
}

/// The trace it belongs to, as its publisher said it (W3C Trace Context).
pub(super) fn traceparent(failed: &FailedMessage) -> Option<String> {
    let headers = failed.properties().headers().as_ref()?;
    match headers.inner().get("traceparent") {
        Some(AMQPValue::LongString(text)) if text.as_bytes().len() <= 64 => Some(text.to_string()),
        _ => None,
    }
}

/// The record of a message that was parked for `failed`'s queue.
fn parked_report(
    failed: &FailedMessage,
    decision: &Decision,
    reason: ParkReason,
    content: BodyContent,
) -> ParkedReport {
    let (mark, fingerprint) = Record::mark_and_fingerprint(failed, decision);
    let empty = FieldTable::default();
    let written = decision.properties.headers().as_ref().unwrap_or(&empty);
    let at = match written.inner().get(headers::PARKED_AT) {
        Some(AMQPValue::Timestamp(seconds)) => {
            Some(SystemTime::UNIX_EPOCH + Duration::from_secs(*seconds))
        }
        _ => None,
    };
    let own = written.inner().iter();
    let own = own.filter(|(name, _)| !headers::has_our_prefix(name.as_str()));
    ParkedReport {
        queue: failed.queue().to_owned(),
        reason: reason.as_str().to_owned(),
        message_id: message_id(failed),
        exchange: failed.exchange().to_owned(),
        routing_key: failed.routing_key().to_owned(),
        attempt: failed.attempt(),
        error: text(decision, headers::ERROR),
        error_type: text(decision, headers::ERROR_TYPE),
        fingerprint,
        mark,
        traceparent: traceparent(failed),
        at,
        headers: Value::Object(
            own.map(|(name, entry)| (name.to_string(), value(entry)))
                .collect(),
        ),
        type_name: content.type_name,
        body: content.body,
    }
}

/// The id that its publisher gave it.
pub(super) fn message_id(failed: &FailedMessage) -> Option<String> {
    let id = failed.properties().message_id().as_ref();
    id.map(|id| id.as_str().to_owned())
}

/// Tells that messages were parked.
#[derive(Clone, Debug)]
pub(crate) struct ParkedReporter {
    metrics: Arc<Metrics>,
    event_bus: EventBus,
    /// Whether anybody who listens looks into bodies.
    reads_bodies: watch::Receiver<bool>,
}

impl ParkedReporter {
    pub(crate) fn new(
        metrics: Arc<Metrics>,
        event_bus: EventBus,
        reads_bodies: watch::Receiver<bool>,
    ) -> Self {
        Self {
            metrics,
            event_bus,
            reads_bodies,
        }
    }

    /// Tells the log, the metrics and whoever listens that a message was parked. Does nothing for another decision.
    pub(crate) async fn report(&self, failed: &FailedMessage, decision: &Decision) {
        let Event::Parked { reason, error, .. } = &decision.event else {
            return;
        };
        let queue = failed.queue();
        self.metrics.parked(queue, reason.as_str());
        warn!(
            queue = %terminal_escape::line(queue),
            message_id = message_id(failed),
            reason = reason.as_str(),
            error = %terminal_escape::line(error),
            "parked"
        );
        self.publish(failed, decision, *reason).await;
    }

    /// Tells whoever listens, and neither the log nor the metrics.
    pub(super) async fn publish(
        &self,
        failed: &FailedMessage,
        decision: &Decision,
        reason: ParkReason,
    ) {
        let reads_bodies = *self.reads_bodies.borrow();
        let content = match reads_bodies {
            true => BodyContent::of(failed, &self.event_bus).await,
            false => BodyContent::default(),
        };
        self.event_bus.publish(|| {
            let written = parked_report(failed, decision, reason, content);
            ServiceEvent::Parked(Box::new(written))
        });
    }
}

/// An AMQP value as JSON. Its depth is bounded: the client cuts deeper nesting off before it gets here.
pub(crate) fn value(entry: &AMQPValue) -> Value {
    match entry {
        AMQPValue::Boolean(flag) => json!(flag),
        AMQPValue::ShortShortInt(number) => json!(number),
        AMQPValue::ShortShortUInt(number) => json!(number),
        AMQPValue::ShortInt(number) => json!(number),
        AMQPValue::ShortUInt(number) => json!(number),
        AMQPValue::LongInt(number) => json!(number),
        AMQPValue::LongUInt(number) => json!(number),
        AMQPValue::LongLongInt(number) => json!(number),
        AMQPValue::Float(number) => json!(number),
        AMQPValue::Double(number) => json!(number),
        AMQPValue::DecimalValue(decimal) => {
            json!(f64::from(decimal.value) / 10f64.powi(decimal.scale.into()))
        }
        AMQPValue::ShortString(text) => json!(text.as_str()),
        AMQPValue::LongString(text) => json!(String::from_utf8_lossy(text.as_bytes())),
        AMQPValue::ByteArray(bytes) => json!(String::from_utf8_lossy(bytes.as_slice())),
        AMQPValue::Timestamp(seconds) => json!(seconds),
        AMQPValue::FieldArray(items) => items.as_slice().iter().map(value).collect(),
        AMQPValue::FieldTable(table) => {
            let entries = table.inner().iter();
            let object: Map<String, Value> = entries
                .map(|(name, entry)| (name.to_string(), value(entry)))
                .collect();
            Value::Object(object)
        }
        AMQPValue::Void => Value::Null,
    }
}

#[cfg(test)]
mod tests {
    use retryrmq::types::FieldArray;

    use super::*;

    #[test]
    fn values_of_every_kind_are_json() {
        let mut table = FieldTable::default();
        table.insert("n".into(), AMQPValue::LongLongInt(-7));
        let entry = AMQPValue::FieldArray(FieldArray::from(vec![
            AMQPValue::Boolean(true),
            AMQPValue::LongString("é".into()),
            AMQPValue::Void,
            AMQPValue::FieldTable(table),
            AMQPValue::Double(f64::NAN),
        ]));
        assert_eq!(value(&entry), json!([true, "é", null, {"n": -7}, null]));
    }
}
