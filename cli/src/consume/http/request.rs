//! A message's data as the headers of its request. Pure.
//!
//! Servers bound what they take: 8 KiB a line and 16 KiB together are the lowest usual limits, and a message must not fail
//! for its headers. So all of ours together stay below 12 KiB, in ASCII, and below 15 KiB with the attributes of a CloudEvent.

use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};
use reqwest::header::{CONTENT_ENCODING, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use retryrmq::Message;
use serde_json::Value;

use super::super::{batch, environment};
use crate::{json, time_format};

/// The JSON of the message's headers at most,
const MOST_HEADERS: usize = 4 * 1024;
/// that of its properties,
const MOST_PROPERTIES: usize = 2 * 1024;
/// and any other value.
const MOST_TEXT: usize = 1024;
/// What begins the names that are ours.
pub(super) const PREFIX: &str = "retryrmq-";

/// What is encoded in a text: all that is not printable ASCII, which `utf8_percent_encode` does by itself, and what encodes.
const IN_TEXT: &AsciiSet = &CONTROLS.add(b'%');

/// All headers that come from `message`.
pub(super) fn headers(message: &Message) -> HeaderMap {
    let mut all = HeaderMap::with_capacity(20);
    let properties = message.properties();
    let own = |text: Option<&str>| text.and_then(|text| HeaderValue::from_str(text.trim()).ok());
    let content_type = own(properties.content_type().as_ref().map(|text| text.as_str()));
    let unknown = HeaderValue::from_static("application/octet-stream");
    let content_type = content_type.filter(|text| !text.is_empty());
    all.insert(CONTENT_TYPE, content_type.unwrap_or(unknown));
    let encoding = own(properties
        .content_encoding()
        .as_ref()
        .map(|text| text.as_str()));
    if let Some(encoding) = encoding.filter(|coding| is_coding(coding.to_str().unwrap_or_default()))
    {
        all.insert(CONTENT_ENCODING, encoding);
    }
    let mut set = |name: &'static str, value: &str| {
        if let Ok(value) = HeaderValue::from_str(value) {
            all.insert(HeaderName::from_static(name), value);
        }
    };
    set("retryrmq-queue", &text(message.queue()));
    set("retryrmq-attempt", &message.attempt().to_string());
    set("retryrmq-retries", &message.retries().to_string());
    set("retryrmq-exchange", &text(message.exchange()));
    set("retryrmq-routing-key", &text(message.routing_key()));
    if let Some(id) = message.message_id() {
        set("retryrmq-message-id", &text(id));
    }
    if let Some(error) = message.last_error() {
        set("retryrmq-last-error", &text(error));
    }
    if let Some(time) = message.first_failed_at().and_then(time_format::rfc3339) {
        set("retryrmq-first-failed-at", &time);
    }
    let table = message.headers().map(json::table).unwrap_or_default();
    let (headers, cut) = environment::fit(table, MOST_HEADERS, ascii);
    set("retryrmq-headers", &headers);
    if cut > 0 {
        set("retryrmq-headers-cut", &cut.to_string());
    }
    let (rest, cut) = environment::fit(json::properties(properties), MOST_PROPERTIES, ascii);
    set("retryrmq-properties", &rest);
    if cut > 0 {
        set("retryrmq-properties-cut", &cut.to_string());
    }
    all
}

/// The headers of a batch. Its messages are in the body.
pub(super) fn headers_of_batch(messages: &[Message]) -> HeaderMap {
    let mut all = HeaderMap::with_capacity(8);
    all.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    let queue = messages.first().map_or("", Message::queue);
    for (name, value) in [
        ("retryrmq-queue", text(queue)),
        ("retryrmq-batch", messages.len().to_string()),
    ] {
        if let Ok(value) = HeaderValue::from_str(&value) {
            all.insert(HeaderName::from_static(name), value);
        }
    }
    all
}

/// The body of a batch: an array with its messages.
pub(super) fn body_of_batch(messages: &[Message]) -> Vec<u8> {
    let all = messages.iter().map(batch::object);
    Value::from_iter(all).to_string().into_bytes()
}

/// Whether HTTP knows it. Kombu and others write a character set there, which makes servers refuse the request.
pub(super) fn is_coding(encoding: &str) -> bool {
    const KNOWN: [&str; 8] = [
        "br",
        "compress",
        "deflate",
        "gzip",
        "identity",
        "x-compress",
        "x-gzip",
        "zstd",
    ];
    let text = encoding.to_ascii_lowercase();
    text.split(',').all(|coding| KNOWN.contains(&coding.trim()))
}

/// A text percent-encoded, without a character cut in two. Servers take white space away from both ends.
fn text(value: &str) -> String {
    // Nearly every name is like this.
    if value.len() <= MOST_TEXT
        && value
            .bytes()
            .all(|byte| byte.is_ascii_graphic() && byte != b'%')
    {
        return value.to_owned();
    }
    let mut encoded = String::new();
    let inner = value.trim_matches(' ');
    let (start, end) = match value.find(inner) {
        Some(at) if !inner.is_empty() => (at, at + inner.len()),
        _ => (value.len(), value.len()),
    };
    for (at, character) in value.char_indices() {
        let mut bytes = [0; 4];
        let is_at_an_end = at < start || at >= end;
        let part = match character {
            ' ' if is_at_an_end => "%20".to_owned(),
            character => {
                utf8_percent_encode(character.encode_utf8(&mut bytes), IN_TEXT).to_string()
            }
        };
        if encoded.len() + part.len() > MOST_TEXT {
            // The end is another one now.
            let kept = encoded.trim_end_matches(' ').len();
            encoded.truncate(kept);
            break;
        }
        encoded.push_str(&part);
    }
    encoded
}

/// JSON in printable ASCII.
fn ascii(value: &Value) -> String {
    let text = value.to_string();
    if text.bytes().all(|byte| (0x20..0x7f).contains(&byte)) {
        return text;
    }
    let mut all = String::with_capacity(text.len() + 32);
    for character in text.chars() {
        if matches!(character, ' '..='~') {
            all.push(character);
        } else {
            // Beyond the first plane JSON writes two halves. All of these stand in strings.
            for unit in character.encode_utf16(&mut [0; 2]) {
                all.push_str(&format!("\\u{unit:04x}"));
            }
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use percent_encoding::percent_decode_str;
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[test]
    fn text_is_printable_ascii_and_can_be_read_back() {
        for (value, encoded) in [
            ("orders.eu", "orders.eu"),
            ("50% of ü", "50%25 of %C3%BC"),
            (" a b  ", "%20a b%20%20"),
            ("  ", "%20%20"),
            ("", ""),
            ("a\r\nX-Evil: 1\0", "a%0D%0AX-Evil: 1%00"),
        ] {
            assert_eq!(text(value), encoded);
        }
        assert!(text(&"ü".repeat(1_000)).len() <= MOST_TEXT);
    }

    #[test]
    fn only_codings_of_http_are_passed_on() {
        for (text, is) in [
            ("gzip", true),
            ("GZIP, br", true),
            ("identity", true),
            ("utf-8", false),
            ("binary", false),
            ("", false),
            ("gzip,", false),
        ] {
            assert_eq!(is_coding(text), is, "{text}");
        }
    }

    proptest! {
        #[test]
        fn no_text_is_refused_as_a_header(value in any::<String>()) {
            let encoded = text(&value);
            prop_assert!(HeaderValue::from_str(&encoded).is_ok());
            prop_assert_eq!(encoded.trim(), &encoded);
            let decoded = percent_decode_str(&encoded).decode_utf8().unwrap();
            prop_assert!(value.starts_with(&*decoded));
            prop_assert!(encoded.len() > 900 || *decoded == value);
        }

        #[test]
        fn json_in_ascii_is_the_same(value in any::<String>()) {
            let value = json!({ "ü": value });
            let text = ascii(&value);
            prop_assert!(HeaderValue::from_str(&text).is_ok());
            prop_assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), value);
        }
    }
}
