//! EasyNetQ 3 to 8: a message whose consumer fails is wrapped into a new one, an `EasyNetQ.SystemMessages.Error` in JSON, which
//! has its body as text, its properties and its headers; it goes to `EasyNetQ_Default_Error_Queue`, or where the conventions say.
//!
//! Documented at <https://github.com/EasyNetQ/EasyNetQ/wiki/Error-Conditions>; the fields are those of
//! `EasyNetQ.SystemMessages.Error` and `EasyNetQ.MessageProperties`, the forms of headers those of its Newtonsoft and its
//! System.Text.Json serializers.

use base64::{Engine, prelude::BASE64_STANDARD};
use serde::{Deserialize, de::IgnoredAny};

use super::{
    Headers, Value,
    bounded_json::BoundedJson,
    raw_dead_letter::{
        DeadLetter, DeadLetterSource, ERROR, Library, NAME, Properties, RawDeadLetter,
        ReplayedMessage, STACK,
    },
    time,
    value::cut,
};

pub(crate) fn read(dead_letter: &RawDeadLetter<'_>) -> Option<DeadLetter> {
    let is_named = dead_letter
        .kind
        .is_some_and(|kind| kind.starts_with("EasyNetQ.SystemMessages.Error"));
    // Its type may be written by a serializer of types of one's own. A cheap look before the JSON is read.
    let looks_like_one = || {
        let begins = dead_letter
            .body
            .iter()
            .find(|byte| !byte.is_ascii_whitespace())
            == Some(&b'{');
        begins
            && contains(dead_letter.body, b"\"BasicProperties\"")
            && contains(dead_letter.body, b"\"Exception\"")
    };
    if !is_named && !looks_like_one() {
        return None;
    }
    let error: Envelope = serde_json::from_slice(dead_letter.body).ok()?;
    let is_whole =
        error.routing_key.is_some() && error.exchange.is_some() && error.date_time.is_some();
    if !(is_named || is_whole && error.message.is_some()) {
        return None;
    }
    let exception = error.exception?;
    let source = match error
        .queue
        .filter(|name| !name.is_empty() && name.len() <= NAME)
    {
        Some(queue) => DeadLetterSource::Queue(queue),
        None => DeadLetterSource::Unknown("EasyNetQ before 5 writes down no queue".to_owned()),
    };
    let (class, text) = first_line(&exception);
    let published = (error.exchange, error.routing_key);
    let fits = |name: &String| name.len() <= NAME;
    let properties = error.basic_properties.unwrap_or_default();
    Some(DeadLetter {
        published: published.0.filter(fits).zip(published.1.filter(fits)),
        error: cut(text, ERROR),
        error_type: cut(class, NAME),
        stack: Some(cut(&exception, STACK)),
        message_type: properties.kind.as_deref().map(|kind| cut(kind, NAME)),
        failed_at: error.date_time.and_then(|text| time::iso(&text)),
        replay: original(error.message, properties),
        ..DeadLetter::of(Library::EasyNetQ, source)
    })
}

fn contains(body: &[u8], word: &[u8]) -> bool {
    body.windows(word.len()).any(|window| window == word)
}

/// The class and the message of a .NET exception as text: `System.Exception: what went wrong`, then the stack.
fn first_line(exception: &str) -> (&str, &str) {
    let line = exception.lines().next().unwrap_or_default();
    match line.split_once(": ") {
        Some((class, text)) if !class.contains(' ') => (class, text),
        _ => ("", line),
    }
}

/// The message that was wrapped, if all of it can be had.
fn original(body: Option<String>, properties: BasicProperties) -> ReplayedMessage {
    let Some(body) = body else {
        return ReplayedMessage::Never("EasyNetQ's envelope holds no message".to_owned());
    };
    if body.contains('\u{fffd}') {
        return ReplayedMessage::Never(
            "its body was no text, and EasyNetQ's envelope has it only as text: some of its bytes are lost. Configure EasyNetQ's \
             `Base64ErrorMessageSerializer` for binary messages; what is here can be dropped or shown"
                .to_owned(),
        );
    }
    let mut headers = Headers::new();
    for (name, value) in properties.headers.unwrap_or_default().0 {
        // The name of a type that Newtonsoft writes beside.
        if name == "$type" {
            continue;
        }
        match header(&value) {
            Some(value) if name.len() <= NAME => {
                headers.insert(name, value);
            }
            _ => {
                return ReplayedMessage::Never(format!(
                    "the header `{}` in EasyNetQ's envelope cannot be read back",
                    cut(&name, NAME)
                ));
            }
        }
    }
    let has_not = |present: Option<bool>| present == Some(false);
    // A name that AMQP cannot carry never was one.
    let name = |text: Option<String>| text.filter(|text| text.len() <= NAME);
    let timestamp = properties
        .timestamp
        .filter(|_| !has_not(properties.timestamp_present));
    let Some(body) = body_of(body, properties.content_type.as_deref()) else {
        return ReplayedMessage::Never(
            "nobody can tell whether the body in EasyNetQ's envelope is text or base64: look at it, and publish it anew"
                .to_owned(),
        );
    };
    ReplayedMessage::Original {
        body,
        properties: Box::new(Properties {
            content_type: name(properties.content_type),
            content_encoding: name(properties.content_encoding),
            priority: properties
                .priority
                .filter(|_| !has_not(properties.priority_present)),
            correlation_id: name(properties.correlation_id),
            reply_to: name(properties.reply_to),
            message_id: name(properties.message_id),
            timestamp: timestamp.and_then(|seconds| u64::try_from(seconds).ok()),
            kind: name(properties.kind),
            app_id: name(properties.app_id),
            cluster_id: name(properties.cluster_id),
            headers,
        }),
    }
}

/// The body: as text, or in base64 with `Base64ErrorMessageSerializer`. `None` where it may be either: to guess would be to replay
/// rubbish.
fn body_of(text: String, content_type: Option<&str>) -> Option<Vec<u8>> {
    let is_json = |json: &[u8]| serde_json::from_slice::<IgnoredAny>(json).is_ok();
    let Ok(bytes) = BASE64_STANDARD.decode(&text) else {
        return Some(text.into_bytes());
    };
    let begins_so = matches!(bytes.first(), Some(b'{' | b'[' | b'"'));
    let may_be_json = content_type.is_none_or(|kind| kind.contains("json"));
    if begins_so && is_json(&bytes) {
        return Some(bytes);
    }
    if text.is_empty() || (may_be_json && is_json(text.as_bytes())) {
        return Some(text.into_bytes());
    }
    let is_binary =
        content_type.is_some_and(|kind| !kind.starts_with("text/") && !kind.contains("json"));
    is_binary.then_some(bytes)
}

/// A header as one of the two serializers writes it; `None` where it cannot be read back.
fn header(json: &BoundedJson) -> Option<Value> {
    let BoundedJson::Table(table) = json else {
        return scalar(json);
    };
    // Newtonsoft: {"$type": "System.Byte[], …", "$value": "base64"}; lists and tables have "$values" and plain members.
    if let (Some(BoundedJson::Text(kind)), Some(value)) = (table.get("$type"), table.get("$value"))
    {
        return match value {
            BoundedJson::Text(text) if kind.starts_with("System.Byte[]") => bytes(text),
            value => scalar(value),
        };
    }
    // System.Text.Json: {"Type": 14, "Value": "base64"}
    if let (Some(BoundedJson::Number(kind)), Some(value), 2) =
        (table.get("Type"), table.get("Value"), table.len())
    {
        return match (kind, value) {
            (14, BoundedJson::Text(text)) => bytes(text),
            (17, BoundedJson::Text(text)) => BASE64_STANDARD.decode(text).ok().map(Value::Bytes),
            (12, BoundedJson::Number(seconds)) => u64::try_from(*seconds).ok().map(Value::Time),
            (15, BoundedJson::List(items)) => items
                .iter()
                .map(header)
                .collect::<Option<_>>()
                .map(Value::List),
            (16, BoundedJson::Table(_)) => table_of(value),
            (1..=10 | 13, value) => scalar(value),
            _ => None,
        };
    }
    table_of(json)
}

fn table_of(json: &BoundedJson) -> Option<Value> {
    let BoundedJson::Table(table) = json else {
        return None;
    };
    let entries = table.iter().filter(|(name, _)| *name != "$type");
    let read = entries.map(|(name, value)| Some((name.clone(), header(value)?)));
    read.collect::<Option<_>>().map(Value::Table)
}

fn scalar(json: &BoundedJson) -> Option<Value> {
    Some(match json {
        BoundedJson::Null => Value::Null,
        BoundedJson::Flag(flag) => Value::Flag(*flag),
        BoundedJson::Number(number) => Value::Number(*number),
        BoundedJson::Fraction(number) => Value::Fraction(*number),
        BoundedJson::Text(text) => Value::Text(text.clone()),
        BoundedJson::List(items) => Value::List(items.iter().map(header).collect::<Option<_>>()?),
        BoundedJson::Table(_) | BoundedJson::TooMuch => return None,
    })
}

/// A string on the wire: bytes that are mostly text.
fn bytes(base64: &str) -> Option<Value> {
    let bytes = BASE64_STANDARD.decode(base64).ok()?;
    Some(match String::from_utf8(bytes) {
        Ok(text) => Value::Text(text),
        Err(why) => Value::Bytes(why.into_bytes()),
    })
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Envelope {
    routing_key: Option<String>,
    exchange: Option<String>,
    queue: Option<String>,
    exception: Option<String>,
    message: Option<String>,
    date_time: Option<String>,
    basic_properties: Option<BasicProperties>,
}

/// `expiration` and `user_id` are left out: no replay carries them.
#[derive(Default, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct BasicProperties {
    content_type: Option<String>,
    content_encoding: Option<String>,
    headers: Option<NamedHeaders>,
    priority: Option<u8>,
    priority_present: Option<bool>,
    correlation_id: Option<String>,
    reply_to: Option<String>,
    message_id: Option<String>,
    timestamp: Option<i64>,
    timestamp_present: Option<bool>,
    #[serde(rename = "Type")]
    kind: Option<String>,
    app_id: Option<String>,
    cluster_id: Option<String>,
}

/// Headers as they stand in the JSON.
#[derive(Default)]
struct NamedHeaders(std::collections::BTreeMap<String, BoundedJson>);

impl<'de> Deserialize<'de> for NamedHeaders {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(match BoundedJson::deserialize(deserializer)? {
            BoundedJson::Table(table) => Self(table),
            BoundedJson::Null => Self::default(),
            _ => Self([("(all)".to_owned(), BoundedJson::TooMuch)].into()),
        })
    }
}
