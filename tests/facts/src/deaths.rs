//! The `x-death` header, read so strictly that any change of its shape is noticed.

use crate::header;
use lapin::BasicProperties;
use lapin::types::{AMQPValue, FieldTable};

const FIELDS: [&str; 7] = [
    "count",
    "exchange",
    "original-expiration",
    "queue",
    "reason",
    "routing-keys",
    "time",
];

/// One entry of `x-death`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct XDeath {
    /// The queue the message died in.
    pub queue: String,
    /// `rejected`, `expired`, `maxlen` or `delivery_limit`.
    pub reason: String,
    /// How often it died there for this reason.
    pub count: i64,
    /// The exchange it had come from.
    pub exchange: String,
    /// The routing keys it had come with, those of `CC` included.
    pub routing_keys: Vec<String>,
    /// The message's own expiration, which its death removed.
    pub original_expiration: Option<String>,
}

/// The entries of `x-death` in the order they came; none when there is no such header.
///
/// # Panics
/// When the header is not of the shape that brokers write.
pub fn deaths(properties: &BasicProperties) -> Vec<XDeath> {
    match header(properties, "x-death") {
        None => Vec::new(),
        Some(AMQPValue::FieldArray(entries)) => {
            entries.as_slice().iter().map(XDeath::read).collect()
        }
        Some(other) => panic!("x-death is {other:?}"),
    }
}

impl XDeath {
    fn read(entry: &AMQPValue) -> Self {
        let AMQPValue::FieldTable(entry) = entry else {
            panic!("x-death holds {entry:?}")
        };
        let unknown = entry
            .inner()
            .keys()
            .find(|name| !FIELDS.contains(&name.as_str()));
        assert_eq!(unknown, None, "x-death has a new field");
        let AMQPValue::LongLongInt(count) = field(entry, "count") else {
            panic!("the count in {entry:?}")
        };
        let AMQPValue::Timestamp(_) = field(entry, "time") else {
            panic!("the time in {entry:?}")
        };
        let AMQPValue::FieldArray(keys) = field(entry, "routing-keys") else {
            panic!("the keys in {entry:?}")
        };
        XDeath {
            queue: text(field(entry, "queue")),
            reason: text(field(entry, "reason")),
            count: *count,
            exchange: text(field(entry, "exchange")),
            routing_keys: keys.as_slice().iter().map(text).collect(),
            original_expiration: entry.inner().get("original-expiration").map(text),
        }
    }

    /// Queue, reason and count: enough to tell entries apart.
    pub fn brief(&self) -> (&str, &str, i64) {
        (&self.queue, &self.reason, self.count)
    }
}

fn field<'a>(entry: &'a FieldTable, name: &str) -> &'a AMQPValue {
    entry
        .inner()
        .get(name)
        .unwrap_or_else(|| panic!("x-death has no {name} in {entry:?}"))
}

fn text(value: &AMQPValue) -> String {
    match value {
        AMQPValue::LongString(text) => text.to_string(),
        other => panic!("x-death has {other:?} where a string is expected"),
    }
}
