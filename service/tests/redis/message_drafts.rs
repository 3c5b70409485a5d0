//! Messages to keep.

use std::time::Duration;

use retryrmq::{
    BasicProperties,
    types::{AMQPValue, FieldArray, FieldTable},
};
use retryrmq_serve::store::{ClaimRequest, MessageDraft, StoredMessage};

/// Everything that is due, as far as one claim goes.
pub(crate) fn all() -> ClaimRequest {
    ClaimRequest {
        limit: 1_000,
        bytes: 100 << 20,
        exclusions: Vec::new(),
    }
}

/// A message for a queue with a body of its own.
pub(crate) fn draft(queue: &str, body: &str, delay: Duration) -> MessageDraft {
    MessageDraft {
        routing_key: queue.to_owned(),
        body: body.as_bytes().to_vec(),
        delay,
        ..MessageDraft::default()
    }
}

pub(crate) fn kept(queue: &str, body: &str, delay: Duration) -> StoredMessage {
    StoredMessage::new(draft(queue, body, delay)).expect("it can be kept")
}

/// As many for a queue, each with its number as its body.
pub(crate) fn many(queue: &str, count: usize, delay: Duration) -> Vec<StoredMessage> {
    (0..count)
        .map(|number| kept(queue, &number.to_string(), delay))
        .collect()
}

/// Properties and headers as they come from a dead-letter queue, and worse.
pub(crate) fn laden() -> BasicProperties {
    let mut death = FieldTable::default();
    death.insert("count".into(), AMQPValue::LongLongInt(3));
    death.insert("queue".into(), AMQPValue::LongString("orders".into()));
    death.insert("time".into(), AMQPValue::Timestamp(1_700_000_000));
    let deaths = FieldArray::from(vec![AMQPValue::FieldTable(death)]);
    let mut headers = FieldTable::default();
    headers.insert("x-death".into(), AMQPValue::FieldArray(deaths));
    headers.insert(
        "zero\0and\r\n".into(),
        AMQPValue::ByteArray(vec![0, 13, 10, 255].into()),
    );
    headers.insert(
        "raw".into(),
        AMQPValue::LongString(vec![0xff, 0, 0xfe].into()),
    );
    headers.insert("nothing".into(), AMQPValue::Void);
    headers.insert("small".into(), AMQPValue::ShortShortInt(-1));
    headers.insert("part".into(), AMQPValue::Double(0.1));
    BasicProperties::default()
        .with_message_id("m-1".into())
        .with_content_type("application/json".into())
        .with_delivery_mode(2)
        .with_priority(7)
        .with_timestamp(u64::MAX)
        .with_headers(headers)
}
