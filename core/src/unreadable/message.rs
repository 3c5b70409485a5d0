//! A message in a queue for unreadable messages, as an operator sees it.

use ring::digest::{SHA256, digest};

use crate::amqp10::{
    APPLICATION_PROPERTIES, CAUSE, EXCHANGE, FOUND_AT, FOUND_IN, Message, PROPERTIES, ROUTING_KEY,
    Value,
};

/// A message that RabbitMQ cannot deliver over AMQP 0-9-1.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct UnreadableMessage {
    /// Identifies it in its queue: 16 hexadecimal digits, made from its content and from when it was moved.
    pub id: String,
    /// The queue in which it was found; `None` if it was not moved by this library.
    pub found_in: Option<String>,
    /// When it was moved, in milliseconds since 1970.
    pub moved_at: Option<i64>,
    /// Why it cannot be delivered over AMQP 0-9-1.
    pub cause: Option<String>,
    /// The exchange that it was first published to; empty for the default exchange.
    pub exchange: Option<String>,
    /// The routing key that it was first published with.
    pub routing_key: Option<String>,
    /// Its property `message-id`, if it is text.
    pub message_id: Option<String>,
    /// Its property `content-type`, if its publisher set it.
    pub content_type: Option<String>,
    /// Its application properties, as text.
    pub properties: Vec<(String, String)>,
    /// Its body: the content of its data sections, or the encoded body.
    pub body: Vec<u8>,
}

impl UnreadableMessage {
    /// How many bytes it takes, roughly.
    pub(super) fn size(&self) -> usize {
        let properties = self.properties.iter();
        let properties: usize = properties
            .map(|(name, value)| name.len() + value.len())
            .sum();
        self.body.len() + properties + self.message_id.as_ref().map_or(0, String::len)
    }

    pub(super) fn of(message: &Message) -> Self {
        let annotation = |name| message.annotation(name).and_then(text);
        let moved_at = match message.annotation(FOUND_AT) {
            Some(Value::Timestamp(at)) => Some(*at),
            _ => None,
        };
        Self {
            id: id(message, moved_at),
            found_in: annotation(FOUND_IN),
            moved_at,
            cause: annotation(CAUSE),
            exchange: annotation(EXCHANGE),
            routing_key: annotation(ROUTING_KEY),
            message_id: text(message.field(PROPERTIES, 0)),
            content_type: text(message.field(PROPERTIES, 6)),
            properties: message
                .map(APPLICATION_PROPERTIES)
                .iter()
                .map(|(name, value)| (shown(name), shown(value)))
                .collect(),
            body: message.body(),
        }
    }
}

/// From all that does not change with each delivery.
fn id(message: &Message, moved_at: Option<i64>) -> String {
    let mut content = message.content().to_vec();
    content.extend(moved_at.unwrap_or_default().to_be_bytes());
    for name in [FOUND_IN, EXCHANGE, ROUTING_KEY] {
        let value = message.annotation(name).and_then(Value::bytes);
        content.extend(value.unwrap_or_default());
        content.push(0);
    }
    let hash = digest(&SHA256, &content);
    hash.as_ref()[..8]
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

fn text(value: &Value) -> Option<String> {
    let bytes = value.bytes()?;
    Some(String::from_utf8_lossy(bytes).into_owned())
}

/// A value for a person.
fn shown(value: &Value) -> String {
    match value {
        Value::Null => "null".to_owned(),
        Value::Bool(value) => value.to_string(),
        Value::Number(number) => number.to_string(),
        Value::Ulong(number) => number.to_string(),
        Value::Timestamp(at) => format!("timestamp {at}"),
        Value::Uuid(bytes) => format!("uuid {}", hyphenated(bytes)),
        Value::Char(point) => format!("char {:?}", char::from_u32(*point).unwrap_or('\u{fffd}')),
        Value::Decimal => "a decimal number".to_owned(),
        Value::Opaque => "a value with too many levels or values".to_owned(),
        Value::Float(number) => number.to_string(),
        Value::Binary(bytes) | Value::String(bytes) | Value::Symbol(bytes) => {
            String::from_utf8_lossy(bytes).into_owned()
        }
        Value::List(items) | Value::Array(items) => {
            let items: Vec<_> = items.iter().map(shown).collect();
            format!("[{}]", items.join(", "))
        }
        Value::Map(pairs) => {
            let pairs: Vec<_> = pairs
                .iter()
                .map(|(key, value)| format!("{}: {}", shown(key), shown(value)))
                .collect();
            format!("{{{}}}", pairs.join(", "))
        }
        Value::Described(descriptor, value) => format!("{}({})", shown(descriptor), shown(value)),
    }
}

fn hyphenated(bytes: &[u8; 16]) -> String {
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    let part = |from: usize, to: usize| &hex[from..to];
    [
        part(0, 8),
        part(8, 12),
        part(12, 16),
        part(16, 20),
        part(20, 32),
    ]
    .join("-")
}
