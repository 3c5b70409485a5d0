//! Messages as CloudEvents 1.0: the HTTP protocol binding and the JSON event format. Pure.
//!
//! A message that is a CloudEvent by the AMQP protocol binding stays that event. Any other becomes one of its id, type, time and routing key.

use percent_encoding::{AsciiSet, CONTROLS, NON_ALPHANUMERIC, utf8_percent_encode};
use reqwest::header::{CONTENT_ENCODING, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use retryrmq::Message;
use serde_json::{Map, Value, json};

use super::{request, signature};
use crate::{json, time_format};

/// What precedes an attribute's name in the headers of a message. Clients of JMS cannot send the colon.
const IN_MESSAGES: [&str; 2] = ["cloudEvents:", "cloudEvents_"];
/// The content type of one event in structured mode,
const STRUCTURED: &str = "application/cloudevents+json";
/// and of a batch of them.
const BATCH: &str = "application/cloudevents-batch+json";
/// The attributes of binary mode at most, as headers. An event with more is sent in structured mode, which has no limit.
const MOST_IN_HEADERS: usize = 3 * 1024;
/// How many they are at most: some servers take a hundred headers, and the request has others.
const MOST_HEADERS: usize = 40;
/// What begins the names of the attributes of an attempt.
const OURS: &str = "retryrmq";
/// The attributes that are texts, even if the message has a number or a truth there.
const TEXTS: [&str; 7] = [
    "dataschema",
    "id",
    "source",
    "specversion",
    "subject",
    "time",
    "type",
];
/// An error at most, in characters.
const MOST_OF_ERROR: usize = 256;

/// What a header's value encodes, beside all that is not ASCII (HTTP protocol binding, 3.1.3.2).
const IN_HEADERS: &AsciiSet = &CONTROLS.add(b' ').add(b'"').add(b'%');
/// What a segment of a path encodes (RFC 3986).
const IN_PATHS: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~');

/// How messages become events.
#[derive(Debug)]
pub(super) struct CloudEvents {
    /// Of those that have no source of their own. None is `/queues/NAME`, which is the queue's address in AMQP 1.0.
    source: Option<String>,
}

impl CloudEvents {
    /// With this source, or the default if it is empty.
    ///
    /// # Errors
    /// When it is no URI reference.
    pub(super) fn new(source: &str) -> Result<Self, String> {
        let is_in_uris = |byte: u8| byte.is_ascii_graphic() && !br#""<>\^`{|}"#.contains(&byte);
        if !source.bytes().all(is_in_uris) {
            return Err(
                "the source must be a URI or a path of one, such as https://shop.example/orders"
                    .to_owned(),
            );
        }
        Ok(Self {
            source: Some(source.to_owned()).filter(|source| !source.is_empty()),
        })
    }

    /// The headers and the body for one message: binary mode, or the mode that it came in.
    pub(super) fn request(&self, message: &Message) -> (HeaderMap, Vec<u8>) {
        let mut headers = request::headers(message);
        let event = self.event(message);
        if event.is_structured() {
            return (headers, event.body.to_vec());
        }
        if let Some(attributes) = event.in_headers() {
            headers.extend(attributes);
            if event.content_type.is_none() {
                headers.remove(CONTENT_TYPE);
                let kind = event.guessed_type(event.as_json());
                headers.extend(kind.map(|kind| (CONTENT_TYPE, HeaderValue::from_static(kind))));
            }
            return (headers, event.body.to_vec());
        }
        headers.remove(CONTENT_ENCODING);
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(STRUCTURED));
        (headers, event.json().into_bytes())
    }

    /// The headers and the body for a batch.
    pub(super) fn batch_request(&self, messages: &[Message]) -> (HeaderMap, Vec<u8>) {
        let mut headers = request::headers_of_batch(messages);
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(BATCH));
        let events: Vec<_> = messages
            .iter()
            .map(|message| self.event(message).json())
            .collect();
        (headers, format!("[{}]", events.join(",")).into_bytes())
    }

    fn event<'a>(&self, message: &'a Message) -> Event<'a> {
        let properties = message.properties();
        let text = |value: &'a Option<retryrmq::types::ShortString>| {
            let value = value.as_ref().map(|text| text.as_str().trim());
            value.filter(|text| !text.is_empty())
        };
        let defaults = Defaults {
            id: match message.message_id().filter(|id| !id.is_empty()) {
                Some(id) => id.to_owned(),
                None => signature::id(None),
            },
            source: self.source.clone().unwrap_or_else(|| {
                format!("/queues/{}", utf8_percent_encode(message.queue(), IN_PATHS))
            }),
            kind: text(properties.kind()).unwrap_or("rabbitmq.message"),
            subject: message.routing_key(),
            time: properties
                .timestamp()
                .and_then(time_format::rfc3339_of_seconds),
        };
        let headers = message.headers().map(json::table).unwrap_or_default();
        let mut attempt = Map::new();
        attempt.insert("retryrmqattempt".to_owned(), json!(message.attempt()));
        attempt.insert("retryrmqretries".to_owned(), json!(message.retries()));
        if let Some(error) = message.last_error() {
            let error: String = error.chars().take(MOST_OF_ERROR).collect();
            attempt.insert("retryrmqlasterror".to_owned(), json!(printable(&error)));
        }
        if let Some(time) = message.first_failed_at().and_then(time_format::rfc3339) {
            attempt.insert("retryrmqfirstfailed".to_owned(), json!(time));
        }
        Event {
            attributes: attributes(&headers, defaults),
            attempt,
            content_type: text(properties.content_type()),
            coding: text(properties.content_encoding()).filter(|coding| {
                request::is_coding(coding) && !coding.eq_ignore_ascii_case("identity")
            }),
            body: message.body(),
        }
    }
}

/// What a message has for the attributes that it does not set itself.
struct Defaults<'a> {
    id: String,
    source: String,
    kind: &'a str,
    subject: &'a str,
    time: Option<String>,
}

/// The attributes in the headers of a message, and those that it lacks.
fn attributes(headers: &Map<String, Value>, defaults: Defaults<'_>) -> Map<String, Value> {
    let mut all = Map::new();
    for (name, value) in headers {
        let name = match name.as_str() {
            "traceparent" | "tracestate" => Some(name.as_str()),
            name => IN_MESSAGES
                .iter()
                .find_map(|prefix| name.strip_prefix(prefix)),
        };
        if let Some(name) = name.filter(|name| is_attribute(name))
            && let Some(value) = scalar(value)
        {
            let value = match value {
                Value::String(_) => value,
                value if TEXTS.contains(&name) => json!(value.to_string()),
                value => value,
            };
            all.entry(name).or_insert(value);
        }
    }
    let is_event = all.contains_key("specversion");
    let required = [
        ("specversion", json!("1.0")),
        ("id", json!(printable(&defaults.id))),
        ("source", json!(defaults.source)),
        ("type", json!(printable(defaults.kind))),
    ];
    let mut optional = Vec::new();
    if !is_event {
        // What an event leaves out it does not have.
        optional.extend(defaults.time.map(|time| ("time", json!(time))));
        let subject = Some(defaults.subject).filter(|subject| !subject.is_empty());
        optional.extend(subject.map(|subject| ("subject", json!(printable(subject)))));
    }
    for (name, value) in required.into_iter().chain(optional) {
        all.entry(name).or_insert(value);
    }
    all
}

/// Lower-case letters and digits. The content type and the data are no attributes in these formats, and what begins as ours is of another attempt.
fn is_attribute(name: &str) -> bool {
    let is_named = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    !name.is_empty()
        && name.bytes().all(is_named)
        && !matches!(name, "data" | "datacontenttype")
        && !name.starts_with(OURS)
}

/// A text without control characters, which attributes do not contain.
fn printable(text: &str) -> String {
    text.replace(char::is_control, " ")
}

/// A value of one of the types of attributes: text, 32 bits, or a truth.
fn scalar(value: &Value) -> Option<Value> {
    match value {
        Value::String(text) if !text.is_empty() => Some(json!(printable(text))),
        Value::Bool(_) => Some(value.clone()),
        Value::Number(number) => {
            let is_short = number
                .as_i64()
                .is_some_and(|number| i32::try_from(number).is_ok());
            Some(if is_short {
                value.clone()
            } else {
                json!(number.to_string())
            })
        }
        _ => None,
    }
}

/// A message on its way to become an event.
struct Event<'a> {
    attributes: Map<String, Value>,
    /// Attributes of the attempt.
    attempt: Map<String, Value>,
    content_type: Option<&'a str>,
    /// How the body is compressed.
    coding: Option<&'a str>,
    body: &'a [u8],
}

impl Event<'_> {
    /// Whether the body is the whole event, or several.
    fn is_structured(&self) -> bool {
        let kind = self.content_type.unwrap_or_default();
        kind.get(..23)
            .is_some_and(|start| start.eq_ignore_ascii_case("application/cloudevents"))
    }

    /// The attributes for binary mode, unless they are too many for that.
    fn in_headers(&self) -> Option<HeaderMap> {
        if self.attributes.len() + self.attempt.len() > MOST_HEADERS {
            return None;
        }
        let mut all = HeaderMap::new();
        let mut size = 0;
        for (name, value) in self.attributes.iter().chain(&self.attempt) {
            let name = HeaderName::try_from(format!("ce-{name}")).ok()?;
            let text = match value {
                Value::String(text) => utf8_percent_encode(text, IN_HEADERS).to_string(),
                other => other.to_string(),
            };
            size += name.as_str().len() + text.len() + ": \r\n".len();
            if size > MOST_IN_HEADERS {
                return None;
            }
            all.insert(name, HeaderValue::try_from(text).ok()?);
        }
        Some(all)
    }

    /// The content type of a body of which the message says nothing: what it looks like.
    fn guessed_type(&self, as_json: Option<&str>) -> Option<&'static str> {
        match (as_json, self.text()) {
            _ if self.body.is_empty() => None,
            (Some(_), _) => Some("application/json"),
            (None, Some(_)) => Some("text/plain; charset=utf-8"),
            (None, None) => Some("application/octet-stream"),
        }
    }

    /// The body, if it is JSON and not said to be anything else.
    fn as_json(&self) -> Option<&str> {
        let text = self
            .text()
            .filter(|_| self.content_type.is_none_or(is_json))?;
        is_strict_json(text).then_some(text.trim())
    }

    /// The body, if it is a text.
    fn text(&self) -> Option<&str> {
        std::str::from_utf8(self.body)
            .ok()
            .filter(|_| self.coding.is_none())
    }

    /// The event in the JSON event format.
    fn json(&self) -> String {
        if self.is_structured()
            && let Some(event) = self.structured_with_attempt()
        {
            return event;
        }
        let mut all = self.attributes.clone();
        all.extend(self.attempt.clone());
        if let Some(coding) = self.coding {
            all.insert("contentencoding".to_owned(), json!(coding));
        }
        let as_json = self.as_json();
        let kind = self.content_type.or_else(|| self.guessed_type(as_json));
        all.extend(kind.map(|kind| ("datacontenttype".to_owned(), json!(kind))));
        match (as_json, self.text()) {
            _ if self.body.is_empty() => {}
            // As it was written: a number may have more digits than a parser keeps.
            (Some(data), _) => {
                let attributes = Value::Object(all).to_string();
                return with_members(&attributes, &format!("\"data\":{data}"));
            }
            (None, Some(text)) if !self.content_type.is_some_and(is_json) => {
                all.insert("data".to_owned(), json!(text));
            }
            _ => _ = all.insert("data_base64".to_owned(), json!(json::base64(self.body))),
        }
        Value::Object(all).to_string()
    }

    /// The body, which is an event, with the attributes of this attempt.
    fn structured_with_attempt(&self) -> Option<String> {
        let text = self.text()?.trim();
        let mut event: Map<String, Value> = serde_json::from_str(text).ok()?;
        event.get("specversion")?;
        if event.keys().any(|name| name.starts_with(OURS)) {
            // Somebody has passed on what another attempt was sent.
            event.retain(|name, _| !name.starts_with(OURS));
            event.extend(self.attempt.clone());
            return Some(Value::Object(event).to_string());
        }
        let attempt = Value::Object(self.attempt.clone()).to_string();
        let attempt = attempt.strip_prefix('{')?.strip_suffix('}')?;
        Some(with_members(text, attempt))
    }
}

/// Whether every parser reads it: one that is lenient would take half of a surrogate pair, or a number that none can hold, and the receiver would
/// refuse the whole batch.
fn is_strict_json(text: &str) -> bool {
    serde_json::from_str::<Value>(text).is_ok()
}

/// A JSON object, which has members, with more of them.
fn with_members(object: &str, more: &str) -> String {
    let object = object.strip_suffix('}').unwrap_or(object);
    format!("{object},{more}}}")
}

fn is_json(content_type: &str) -> bool {
    let kind = content_type.split(';').next().unwrap_or_default().trim();
    let kind = kind.to_ascii_lowercase();
    kind.ends_with("/json") || kind.ends_with("+json")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn defaults() -> Defaults<'static> {
        Defaults {
            id: "4711".to_owned(),
            source: "/queues/orders".to_owned(),
            kind: "rabbitmq.message",
            subject: "orders.eu",
            time: Some("2026-11-29T10:00:00Z".to_owned()),
        }
    }

    fn event<'a>(headers: Value, content_type: Option<&'a str>, body: &'a [u8]) -> Event<'a> {
        let Value::Object(headers) = headers else {
            panic!("headers are an object")
        };
        let mut attempt = Map::new();
        attempt.insert("retryrmqattempt".to_owned(), json!(2));
        Event {
            attributes: attributes(&headers, defaults()),
            attempt,
            content_type,
            coding: None,
            body,
        }
    }

    fn read(event: &Event<'_>) -> Value {
        serde_json::from_str(&event.json()).expect("JSON")
    }

    #[test]
    fn a_message_becomes_an_event_of_its_properties() {
        let event = event(
            json!({"x-tenant": "7", "traceparent": "00-ab-cd-01"}),
            Some("application/json"),
            br#"{"total": 1.10}"#,
        );
        let headers = event.in_headers().unwrap();
        for (name, value) in [
            ("ce-specversion", "1.0"),
            ("ce-id", "4711"),
            ("ce-source", "/queues/orders"),
            ("ce-type", "rabbitmq.message"),
            ("ce-subject", "orders.eu"),
            ("ce-time", "2026-11-29T10:00:00Z"),
            ("ce-traceparent", "00-ab-cd-01"),
            ("ce-retryrmqattempt", "2"),
        ] {
            assert_eq!(headers[name], value, "{name}");
        }
        assert_eq!(headers.len(), 8);
        assert!(event.json().ends_with(r#","data":{"total": 1.10}}"#));
    }

    #[test]
    fn a_message_that_is_an_event_stays_it() {
        let headers = json!({
            "cloudEvents:specversion": "1.0", "cloudEvents:id": "a ü", "cloudEvents_source": "/mine", "cloudEvents:type": "t",
            "cloudEvents:subject": 42, "cloudEvents:retryrmqlasterror": "forged", "cloudEvents:note": "a\nb",
            "cloudEvents:count": 3, "cloudEvents:large": 5_000_000_000_u64, "cloudEvents:paid": true,
            "cloudEvents:datacontenttype": "no", "cloudEvents:Not-A-Name": "no", "cloudEvents:table": {}, "cloudEvents:": "no",
        });
        let event = event(headers, None, b"");
        let json = read(&event);
        assert_eq!(
            json,
            json!({
                "specversion": "1.0", "id": "a ü", "source": "/mine", "type": "t", "count": 3, "large": "5000000000",
                "subject": "42", "note": "a b", "paid": true, "retryrmqattempt": 2
            })
        );
        let headers = event.in_headers().unwrap();
        assert_eq!(headers["ce-id"], "a%20%C3%BC");
        assert_eq!(headers["ce-paid"], "true");
    }

    #[test]
    fn a_body_keeps_its_bytes() {
        let base64 = |bytes: &[u8]| json!(json::base64(bytes));
        let zip: &[u8] = b"\xff\x00";
        let no = Value::Null;
        for (kind, body, of_kind, data, bytes) in [
            // Without a content type it is what it looks like.
            (
                None,
                &b" {\"a\":1}"[..],
                json!("application/json"),
                json!({"a": 1}),
                no.clone(),
            ),
            (
                None,
                b"hello",
                json!("text/plain; charset=utf-8"),
                json!("hello"),
                no.clone(),
            ),
            (
                None,
                zip,
                json!("application/octet-stream"),
                no.clone(),
                base64(zip),
            ),
            (None, b"", no.clone(), no.clone(), no.clone()),
            (
                Some("text/csv"),
                b"1;2",
                json!("text/csv"),
                json!("1;2"),
                no.clone(),
            ),
            (
                Some("text/csv"),
                b"12",
                json!("text/csv"),
                json!("12"),
                no.clone(),
            ),
            (
                Some("application/json"),
                b"12",
                json!("application/json"),
                json!(12),
                no.clone(),
            ),
            (
                Some("a/b+JSON; x=y"),
                b"[]",
                json!("a/b+JSON; x=y"),
                json!([]),
                no.clone(),
            ),
            // What says that it is JSON and is none, or is such that a parser may refuse it, with the whole batch.
            (
                Some("application/json"),
                b"{",
                json!("application/json"),
                no.clone(),
                base64(b"{"),
            ),
            (
                Some("application/json"),
                b"\"\\ud800\"",
                json!("application/json"),
                no.clone(),
                base64(b"\"\\ud800\""),
            ),
            (
                Some("application/json"),
                b"1e400",
                json!("application/json"),
                no.clone(),
                base64(b"1e400"),
            ),
        ] {
            let event = read(&event(json!({}), kind, body));
            assert_eq!(
                (
                    &event["datacontenttype"],
                    &event["data"],
                    &event["data_base64"]
                ),
                (&of_kind, &data, &bytes),
                "{kind:?} {body:?}"
            );
        }
        let mut zipped = event(json!({}), Some("application/json"), b"12");
        zipped.coding = Some("gzip");
        let zipped = read(&zipped);
        assert_eq!(zipped["data_base64"], base64(b"12"));
        assert_eq!(zipped["contentencoding"], "gzip");
    }

    #[test]
    fn an_event_in_structured_mode_gets_the_attempt_and_nothing_else() {
        let body = br#" {"specversion":"1.0","id":"a","data":{"n":1.10}} "#;
        let event = event(
            json!({}),
            Some("application/CloudEvents+json; charset=utf-8"),
            body,
        );
        assert!(event.is_structured());
        assert_eq!(
            event.json(),
            r#"{"specversion":"1.0","id":"a","data":{"n":1.10},"retryrmqattempt":2}"#
        );
        let mut forwarded = event;
        forwarded.body = br#"{"specversion":"1.0","retryrmqattempt":1,"retryrmqlasterror":"old"}"#;
        assert_eq!(
            read(&forwarded),
            json!({"specversion": "1.0", "retryrmqattempt": 2})
        );
        // What only says so is data.
        for body in [&b"[]"[..], b"{\"id\":\"a\"}"] {
            forwarded.body = body;
            let json = read(&forwarded);
            assert_eq!(json["id"], "4711");
            assert_eq!(json["data"], serde_json::from_slice::<Value>(body).unwrap());
        }
    }

    #[test]
    fn attributes_that_headers_have_no_room_for_are_sent_in_the_body() {
        let headers =
            json!({"cloudEvents:specversion": "1.0", "cloudEvents:long": "ü".repeat(1_000)});
        let event = event(headers, None, b"1");
        assert!(event.in_headers().is_none());
        assert_eq!(read(&event)["long"].as_str().unwrap().len(), 2_000);
        let many: Map<_, _> = (0..100)
            .map(|number| (format!("cloudEvents:a{number}"), json!(number)))
            .collect();
        let event = self::event(Value::Object(many), None, b"1");
        assert!(event.in_headers().is_none());
        assert_eq!(read(&event)["a99"], 99);
    }

    #[test]
    fn a_source_is_a_reference() {
        for source in ["", "/orders", "https://shop.example/a?b#c", "urn:a:b"] {
            assert!(CloudEvents::new(source).is_ok(), "{source}");
        }
        for source in ["a b", "ü", "<a>", "\"", "a\n"] {
            assert!(CloudEvents::new(source).is_err(), "{source}");
        }
    }
}
