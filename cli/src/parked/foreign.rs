//! Dead letters that another library or the broker left: AMQP values to the readers of the crate `retryrmq-operator`, what they
//! say into the record, and what they say of a replay back to AMQP.

use std::borrow::Cow;

use retryrmq::{
    BasicProperties, Failure, Message, ParkReason, Record, Resend, terminal_escape,
    types::{AMQPValue, FieldArray, FieldTable, LongString, ShortString},
    work_queue_of,
};
use retryrmq_operator::other_libraries::{
    self, DeadLetter, DeadLetterSource, Headers, Library, Properties, RawDeadLetter,
    ReplayedMessage, Value,
};
use serde_json::{Map, Value as Json};

use crate::json;

/// What is known of a message in the queue `parking` that no consumer of ours parked.
pub(super) fn of(record: &Record, parking: &str) -> Option<DeadLetter> {
    if record.is_ours() {
        return None;
    }
    let message = record.message();
    let headers = message.headers().map(table).unwrap_or_default();
    let properties = message.properties();
    let kind = properties.kind().as_ref().map(|text| text.as_str());
    other_libraries::read(&RawDeadLetter {
        queue: parking,
        headers: &headers,
        kind,
        body: message.body(),
        died_in_own_queue: record.died_in_own_queue(),
    })
}

/// The task of Celery that a consumer of ours parked: its name and its arguments.
pub(super) fn task(record: &Record) -> Option<(String, String)> {
    let message = record.message();
    let headers = message.headers().filter(|_| record.is_ours());
    other_libraries::celery_task(&table(headers?))
}

/// One word for who left it.
pub(super) fn library(record: &Record, letter: Option<&DeadLetter>) -> Option<&'static str> {
    if record.is_ours() {
        return Some("retryrmq");
    }
    letter.map(|letter| letter.library.as_str())
}

/// The exchange and the routing key that a message was first published with, as far as that is known.
pub(super) fn published<'a>(
    letter: Option<&'a DeadLetter>,
    message: &'a Message,
) -> (&'a str, &'a str) {
    match letter.and_then(|letter| letter.published.as_ref()) {
        Some((exchange, routing_key)) => (exchange, routing_key),
        None => (message.exchange(), message.routing_key()),
    }
}

/// Takes over what a library says into the record; in a dead-letter queue also what the broker says.
pub(super) fn fill(record: &mut Record, parking: &str) {
    let Some(letter) = of(record, parking) else {
        return;
    };
    let is_dlq = record.message().queue() == parking;
    let by_broker = letter.library == Library::Broker;
    if by_broker && !is_dlq {
        return; // its own reader knows which queues are of the family
    }
    let mut failure = Failure::new(letter.error).of_type(letter.error_type);
    failure.stack = letter.stack;
    record.explain(&failure);
    record.by_broker = by_broker;
    record.reason = letter.reason.as_deref().and_then(ParkReason::parse);
    record.parked_at = letter.failed_at.or(record.parked_at);
    record.attempts = letter.attempts.unwrap_or(record.attempts);
    match letter.source {
        DeadLetterSource::Queue(_) if record.died_in_own_queue() => {}
        DeadLetterSource::Queue(queue) => record.home = queue,
        DeadLetterSource::Unknown(_) if is_dlq => record.home.clear(),
        DeadLetterSource::Unknown(_) => {}
    }
}

/// Why this message is not replayed to `target`, if so.
pub(super) fn obstacle(letter: Option<&DeadLetter>, target: &str) -> Option<String> {
    if let Some(ReplayedMessage::Never(why)) = letter.map(|letter| &letter.replay) {
        return Some(format!(
            "it is not replayed: {}",
            terminal_escape::line(why)
        ));
    }
    let by_broker = letter.is_none_or(|letter| letter.library == Library::Broker);
    if let Some(work) = work_queue_of(target).filter(|_| !by_broker) {
        return Some(format!(
            "it would go to `{}`, where messages of `{}` wait or are parked; pass --to QUEUE with a queue that is consumed",
            terminal_escape::line(target),
            terminal_escape::line(work)
        ));
    }
    if !target.is_empty() {
        return None;
    }
    let hint = match letter.map(|letter| &letter.source) {
        Some(DeadLetterSource::Unknown(hint)) => hint.as_str(),
        _ => "nothing in it says so",
    };
    Some(format!(
        "nobody knows which queue it came from ({}); pass --to QUEUE",
        terminal_escape::line(hint)
    ))
}

/// Replays the original instead of the message as it stands: without what was written on it as it failed. `keep_count`: a counter of the library
/// stays, too.
pub(super) fn instead(resend: Resend, letter: &DeadLetter, keep_count: bool) -> Resend {
    let (properties, body) = match &letter.replay {
        ReplayedMessage::Never(_) => return resend,
        ReplayedMessage::Without(names) if names.is_empty() => return resend,
        ReplayedMessage::Without(names) => {
            let message = resend.record().message();
            let mut kept = FieldTable::default();
            for (name, value) in message.headers().into_iter().flatten() {
                if !names.iter().any(|added| added == name.as_str()) {
                    kept.insert(name.clone(), value.clone());
                }
            }
            let properties = message.properties().clone().with_headers(kept);
            (properties, message.body().to_vec())
        }
        ReplayedMessage::Recounted(_) if keep_count => return resend,
        ReplayedMessage::Recounted(body) => {
            let message = resend.record().message();
            (message.properties().clone(), body.clone())
        }
        ReplayedMessage::Original { body, properties } => (unwrapped(properties), body.clone()),
    };
    resend.original(properties, body, letter.published.clone())
}

/// Whether a message that fails again has the mark of its replay where it can be seen: these write headers of their own.
pub(super) fn keeps_marks(letter: &DeadLetter) -> bool {
    !matches!(letter.library, Library::EasyNetQ | Library::Symfony)
}

/// A message as it was published, as far as that is known: what people are shown of it and choose by.
pub(super) struct PublishedMessage<'a> {
    pub(super) body: &'a [u8],
    pub(super) properties: Cow<'a, BasicProperties>,
    pub(super) exchange: &'a str,
    pub(super) routing_key: &'a str,
    /// Whether it was within an envelope.
    pub(super) is_original: bool,
}

impl<'a> PublishedMessage<'a> {
    pub(super) fn of(letter: Option<&'a DeadLetter>, message: &'a Message) -> Self {
        let (body, properties, is_original) = match letter.map(|letter| &letter.replay) {
            Some(ReplayedMessage::Original { body, properties }) => {
                (body.as_slice(), Cow::Owned(unwrapped(properties)), true)
            }
            _ => (message.body(), Cow::Borrowed(message.properties()), false),
        };
        let (exchange, routing_key) = published(letter, message);
        Self {
            body,
            properties,
            exchange,
            routing_key,
            is_original,
        }
    }

    /// Its headers in JSON.
    pub(super) fn headers(&self) -> Map<String, Json> {
        let headers = self.properties.headers().as_ref();
        headers.map(json::table).unwrap_or_default()
    }
}

/// Whether a library wrote this header when it gave the message up: that is told above the headers already.
pub(super) fn is_of_failure(letter: Option<&DeadLetter>, name: &str) -> bool {
    match letter.map(|letter| &letter.replay) {
        Some(ReplayedMessage::Without(names)) => names.iter().any(|added| added == name),
        _ => false,
    }
}

/// The properties of an original.
pub(super) fn unwrapped(properties: &Properties) -> BasicProperties {
    let mut all = BasicProperties::default();
    macro_rules! keep {
        ($($field:ident => $with:ident),*) => {$(
            if let Some(text) = properties.$field.as_deref().and_then(short) {
                all = all.$with(text);
            }
        )*};
    }
    keep!(
        content_type => with_content_type, content_encoding => with_content_encoding,
        correlation_id => with_correlation_id, reply_to => with_reply_to, message_id => with_message_id,
        kind => with_type, app_id => with_app_id, cluster_id => with_cluster_id
    );
    if let Some(priority) = properties.priority {
        all = all.with_priority(priority);
    }
    if let Some(seconds) = properties.timestamp {
        all = all.with_timestamp(seconds);
    }
    all.with_headers(fields(&properties.headers))
}

fn short(text: &str) -> Option<ShortString> {
    ShortString::try_new(text).ok()
}

fn fields(headers: &Headers) -> FieldTable {
    let mut table = FieldTable::default();
    for (name, value) in headers {
        if let Some(name) = short(name) {
            table.insert(name, field(value));
        }
    }
    table
}

fn field(value: &Value) -> AMQPValue {
    match value {
        Value::Null => AMQPValue::Void,
        Value::Flag(flag) => AMQPValue::Boolean(*flag),
        Value::Number(number) => AMQPValue::LongLongInt(*number),
        Value::Fraction(number) => AMQPValue::Double(*number),
        Value::Text(text) => AMQPValue::LongString(text.as_str().into()),
        Value::Bytes(bytes) => AMQPValue::LongString(LongString::from(bytes.clone())),
        Value::Time(seconds) => AMQPValue::Timestamp(*seconds),
        Value::List(items) => AMQPValue::FieldArray(FieldArray::from(
            items.iter().map(field).collect::<Vec<_>>(),
        )),
        Value::Table(table) => AMQPValue::FieldTable(fields(table)),
    }
}

fn table(table: &FieldTable) -> Headers {
    table
        .inner()
        .iter()
        .map(|(name, entry)| (name.as_str().to_owned(), value(entry)))
        .collect()
}

/// Any value. The depth is bounded: the client cuts deeper nesting off before it gets here.
fn value(value: &AMQPValue) -> Value {
    let text = |bytes: &[u8]| match std::str::from_utf8(bytes) {
        Ok(text) => Value::Text(text.to_owned()),
        Err(_) => Value::Bytes(bytes.to_vec()),
    };
    match value {
        AMQPValue::Boolean(flag) => Value::Flag(*flag),
        AMQPValue::ShortShortInt(number) => Value::Number((*number).into()),
        AMQPValue::ShortShortUInt(number) => Value::Number((*number).into()),
        AMQPValue::ShortInt(number) => Value::Number((*number).into()),
        AMQPValue::ShortUInt(number) => Value::Number((*number).into()),
        AMQPValue::LongInt(number) => Value::Number((*number).into()),
        AMQPValue::LongUInt(number) => Value::Number((*number).into()),
        AMQPValue::LongLongInt(number) => Value::Number(*number),
        AMQPValue::Float(number) => Value::Fraction((*number).into()),
        AMQPValue::Double(number) => Value::Fraction(*number),
        AMQPValue::DecimalValue(decimal) => {
            Value::Fraction(f64::from(decimal.value) / 10f64.powi(decimal.scale.into()))
        }
        AMQPValue::ShortString(string) => Value::Text(string.as_str().to_owned()),
        AMQPValue::LongString(string) => text(string.as_bytes()),
        AMQPValue::ByteArray(bytes) => text(bytes.as_slice()),
        AMQPValue::FieldArray(items) => {
            Value::List(items.as_slice().iter().map(self::value).collect())
        }
        AMQPValue::Timestamp(seconds) => Value::Time(*seconds),
        AMQPValue::FieldTable(inner) => Value::Table(table(inner)),
        AMQPValue::Void => Value::Null,
    }
}
