//! AMQP values as JSON: for `RETRYRMQ_HEADERS` and for `--json`.
//!
//! What JSON has no type for becomes: a time an RFC 3339 text, bytes (and text that is not UTF-8) `{"$bytes": "base64"}`,
//! a decimal a text such as `"3.14"`, a number that is none the text `"NaN"` or `"Infinity"`.

use std::fmt::Write;

use base64::{Engine, prelude::BASE64_STANDARD};
use retryrmq::{
    BasicProperties,
    types::{AMQPValue, FieldTable},
};
use serde_json::{Map, Value, json};

use crate::time_format;

/// A table, its keys in alphabetical order.
pub(crate) fn table(table: &FieldTable) -> Map<String, Value> {
    table
        .inner()
        .iter()
        .map(|(name, entry)| (name.to_string(), value(entry)))
        .collect()
}

/// Any value. The depth is bounded: the client cuts deeper nesting off before it gets here.
pub(crate) fn value(value: &AMQPValue) -> Value {
    match value {
        AMQPValue::Boolean(flag) => json!(flag),
        AMQPValue::ShortShortInt(number) => json!(number),
        AMQPValue::ShortShortUInt(number) => json!(number),
        AMQPValue::ShortInt(number) => json!(number),
        AMQPValue::ShortUInt(number) => json!(number),
        AMQPValue::LongInt(number) => json!(number),
        AMQPValue::LongUInt(number) => json!(number),
        AMQPValue::LongLongInt(number) => json!(number),
        // By way of text, so that 0.1 does not become 0.10000000149011612.
        AMQPValue::Float(number) => {
            fraction(number.to_string().parse().unwrap_or(f64::from(*number)))
        }
        AMQPValue::Double(number) => fraction(*number),
        AMQPValue::DecimalValue(decimal) => json!(decimal_text(decimal.scale, decimal.value)),
        AMQPValue::ShortString(text) => json!(text.as_str()),
        AMQPValue::LongString(text) => match std::str::from_utf8(text.as_bytes()) {
            Ok(text) => json!(text),
            Err(_) => bytes(text.as_bytes()),
        },
        AMQPValue::FieldArray(array) => array.as_slice().iter().map(self::value).collect(),
        AMQPValue::Timestamp(seconds) => match time_format::rfc3339_of_seconds(*seconds) {
            Some(text) => json!(text),
            None => json!(seconds),
        },
        AMQPValue::FieldTable(table) => Value::Object(self::table(table)),
        AMQPValue::ByteArray(array) => bytes(array.as_slice()),
        AMQPValue::Void => Value::Null,
    }
}

/// Base64 as everywhere in the output.
pub(crate) fn base64(bytes: &[u8]) -> String {
    BASE64_STANDARD.encode(bytes)
}

/// The same JSON, without characters that a terminal would obey: those that JSON lets stand are control characters from
/// U+007F on and marks of direction. They stand in strings alone, where an escape means the same.
pub(crate) fn harmless(text: String) -> String {
    let obeyed = |c: char| {
        matches!(c,
            '\u{7f}'..='\u{9f}' | '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    if !text.contains(obeyed) {
        return text;
    }
    let mut shown = String::with_capacity(text.len() + 64);
    for c in text.chars() {
        if obeyed(c) {
            let _ = write!(shown, "\\u{:04x}", u32::from(c)); // a String takes it
        } else {
            shown.push(c);
        }
    }
    shown
}

fn bytes(bytes: &[u8]) -> Value {
    json!({ "$bytes": base64(bytes) })
}

fn fraction(number: f64) -> Value {
    serde_json::Number::from_f64(number).map_or_else(
        || {
            json!(if number.is_nan() {
                "NaN"
            } else if number > 0.0 {
                "Infinity"
            } else {
                "-Infinity"
            })
        },
        Value::Number,
    )
}

fn decimal_text(scale: u8, value: u32) -> String {
    let scale = usize::from(scale);
    let digits = format!("{value:0>width$}", width = scale + 1);
    match digits.split_at(digits.len() - scale) {
        (whole, "") => whole.to_owned(),
        (whole, part) => format!("{whole}.{part}"),
    }
}

/// The properties that are set, by their AMQP names, headers left out.
pub(crate) fn properties(properties: &BasicProperties) -> Map<String, Value> {
    let mut all = Map::new();
    let mut text = |name: &str, value: Option<&str>| {
        if let Some(value) = value {
            all.insert(name.to_owned(), json!(value));
        }
    };
    let get = |value: &'_ Option<retryrmq::types::ShortString>| {
        value.as_ref().map(|text| text.as_str().to_owned())
    };
    for (name, value) in [
        ("content_type", get(properties.content_type())),
        ("content_encoding", get(properties.content_encoding())),
        ("correlation_id", get(properties.correlation_id())),
        ("reply_to", get(properties.reply_to())),
        ("expiration", get(properties.expiration())),
        ("message_id", get(properties.message_id())),
        ("type", get(properties.kind())),
        ("user_id", get(properties.user_id())),
        ("app_id", get(properties.app_id())),
        ("cluster_id", get(properties.cluster_id())),
    ] {
        text(name, value.as_deref());
    }
    if let Some(mode) = properties.delivery_mode() {
        all.insert("delivery_mode".to_owned(), json!(mode));
    }
    if let Some(priority) = properties.priority() {
        all.insert("priority".to_owned(), json!(priority));
    }
    if let Some(seconds) = properties.timestamp() {
        all.insert(
            "timestamp".to_owned(),
            value(&AMQPValue::Timestamp(*seconds)),
        );
    }
    all
}

#[cfg(test)]
mod tests {
    use retryrmq::types::{DecimalValue, FieldArray};

    use super::*;

    #[test]
    fn a_terminal_obeys_nothing_and_a_reader_has_all() {
        let value = json!({"k\u{202e}": ["a\u{9b}31m\u{7f}\u{85}", "\u{2066}Grüße 🎉\u{200f}\x1b", "\\u0041"]});
        for text in [
            value.to_string(),
            serde_json::to_string_pretty(&value).unwrap(),
        ] {
            let shown = harmless(text);
            let is_harmless = |c: char| {
                c == '\n' || retryrmq::terminal_escape::line(&c.to_string()) == c.to_string()
            };
            assert!(shown.chars().all(is_harmless), "{shown}");
            assert!(shown.contains("Grüße 🎉"));
            assert_eq!(serde_json::from_str::<Value>(&shown).unwrap(), value);
        }
    }

    #[test]
    fn every_type_has_a_form() {
        let mut inner = FieldTable::default();
        inner.insert("k".into(), AMQPValue::Void);
        for (amqp, expected) in [
            (AMQPValue::Boolean(true), json!(true)),
            (AMQPValue::ShortShortInt(-5), json!(-5)),
            (AMQPValue::ShortShortUInt(250), json!(250)),
            (AMQPValue::ShortInt(-300), json!(-300)),
            (AMQPValue::ShortUInt(60_000), json!(60_000)),
            (AMQPValue::LongInt(i32::MIN), json!(i32::MIN)),
            (AMQPValue::LongUInt(u32::MAX), json!(u32::MAX)),
            (AMQPValue::LongLongInt(i64::MIN), json!(i64::MIN)),
            (AMQPValue::Float(0.1), json!(0.1)),
            (AMQPValue::Double(2.5), json!(2.5)),
            (AMQPValue::Double(f64::NAN), json!("NaN")),
            (AMQPValue::Float(f32::NEG_INFINITY), json!("-Infinity")),
            (
                AMQPValue::DecimalValue(DecimalValue {
                    scale: 2,
                    value: 314,
                }),
                json!("3.14"),
            ),
            (
                AMQPValue::DecimalValue(DecimalValue { scale: 3, value: 7 }),
                json!("0.007"),
            ),
            (
                AMQPValue::DecimalValue(DecimalValue { scale: 0, value: 7 }),
                json!("7"),
            ),
            (AMQPValue::ShortString("s".into()), json!("s")),
            (AMQPValue::LongString("l\0".into()), json!("l\0")),
            (
                AMQPValue::LongString(vec![0xff, 0].into()),
                json!({"$bytes": "/wA="}),
            ),
            (
                AMQPValue::ByteArray(vec![0, 1, 2].into()),
                json!({"$bytes": "AAEC"}),
            ),
            (
                AMQPValue::FieldArray(FieldArray::from(vec![AMQPValue::Void])),
                json!([null]),
            ),
            (
                AMQPValue::Timestamp(1_700_000_000),
                json!("2023-11-14T22:13:20Z"),
            ),
            (AMQPValue::Timestamp(u64::MAX), json!(u64::MAX)),
            (AMQPValue::FieldTable(inner), json!({"k": null})),
            (AMQPValue::Void, json!(null)),
        ] {
            assert_eq!(value(&amqp), expected, "{amqp:?}");
        }
    }
}
