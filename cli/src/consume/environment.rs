//! A message's data in the environment of its command.
//!
//! An environment string holds no NUL byte, and on Linux at most 128 KiB: one too long makes the command fail to start,
//! and with it every attempt of that message.

use std::collections::BTreeMap;

use retryrmq::Message;
use serde_json::{Map, Value};

use crate::json;

/// The JSON of the headers at most; the kernel's limit of 131 072 holds for name, value and NUL together.
const MOST_HEADERS: usize = 100 * 1024;
/// Any other value.
const MOST_TEXT: usize = 8 * 1024;

/// Name and value of each variable.
pub(super) type Environment = BTreeMap<&'static str, String>;

/// What `message` puts into the environment.
pub(super) fn of(message: &Message) -> Environment {
    let headers = message.headers().map(json::table).unwrap_or_default();
    let (headers, cut) = fit(headers, MOST_HEADERS, Value::to_string);
    let mut all = Environment::from([
        ("RETRYRMQ_QUEUE", text(message.queue())),
        ("RETRYRMQ_ATTEMPT", message.attempt().to_string()),
        ("RETRYRMQ_RETRIES", message.retries().to_string()),
        ("RETRYRMQ_EXCHANGE", text(message.exchange())),
        ("RETRYRMQ_ROUTING_KEY", text(message.routing_key())),
        ("RETRYRMQ_HEADERS", headers),
    ]);
    if let Some(id) = message.message_id() {
        all.insert("RETRYRMQ_MESSAGE_ID", text(id));
    }
    if let Some(error) = message.last_error() {
        all.insert("RETRYRMQ_LAST_ERROR", text(error));
    }
    if cut > 0 {
        all.insert("RETRYRMQ_HEADERS_CUT", cut.to_string());
    }
    all
}

/// What a batch puts there. Its messages are in the input.
pub(super) fn of_batch(messages: &[Message]) -> Environment {
    let queue = messages.first().map_or("", Message::queue);
    Environment::from([
        ("RETRYRMQ_QUEUE", text(queue)),
        ("RETRYRMQ_BATCH", messages.len().to_string()),
    ])
}

/// The same without headers, for a machine whose limit is lower still.
pub(super) fn without_headers(message: &Message) -> Environment {
    let mut all = of(message);
    all.insert("RETRYRMQ_HEADERS", "{}".to_owned());
    let count = message.headers().map_or(0, |headers| headers.inner().len());
    all.insert("RETRYRMQ_HEADERS_CUT", count.to_string());
    all
}

/// Every variable that may be set: none may be inherited from a consumer that runs us.
pub(super) const NAMES: [&str; 10] = [
    "RETRYRMQ_QUEUE",
    "RETRYRMQ_BATCH",
    "RETRYRMQ_ATTEMPT",
    "RETRYRMQ_RETRIES",
    "RETRYRMQ_EXCHANGE",
    "RETRYRMQ_ROUTING_KEY",
    "RETRYRMQ_HEADERS",
    "RETRYRMQ_HEADERS_CUT",
    "RETRYRMQ_MESSAGE_ID",
    "RETRYRMQ_LAST_ERROR",
];

/// The headers as JSON of at most `room` bytes, each value as `write` has it, and how many had to be left out, the largest
/// first.
pub(super) fn fit(
    headers: Map<String, Value>,
    room: usize,
    write: impl Fn(&Value) -> String,
) -> (String, usize) {
    let mut entries: Vec<String> = headers
        .into_iter()
        .map(|(name, value)| format!("{}:{}", write(&Value::from(name)), write(&value)))
        .collect();
    entries.sort_by_key(String::len);
    let mut total = 2 + entries.iter().map(|entry| entry.len() + 1).sum::<usize>();
    let mut cut = 0;
    while total > room {
        let Some(entry) = entries.pop() else { break };
        total -= entry.len() + 1;
        cut += 1;
    }
    entries.sort_unstable();
    (format!("{{{}}}", entries.join(",")), cut)
}

fn text(value: &str) -> String {
    let mut end = value.len().min(MOST_TEXT);
    while !value.is_char_boundary(end) {
        end -= 1;
    }
    value[..end].replace('\0', "\u{fffd}")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_largest_headers_give_way() {
        let Value::Object(headers) = json!({"a": "x".repeat(60_000), "b": 1, "c": "\u{1}".repeat(20_000), "d": "x".repeat(39_000)})
        else {
            panic!("an object")
        };
        let (text, cut) = fit(headers.clone(), MOST_HEADERS, Value::to_string);
        assert_eq!(cut, 1, "c, which JSON writes six times as long");
        assert!(text.len() <= MOST_HEADERS && !text.contains("\"c\""));
        let (text, cut) = fit(headers, 2, Value::to_string);
        assert_eq!((text.as_str(), cut), ("{}", 4));
    }

    #[test]
    fn what_fits_is_the_same_json() {
        let headers = json!({"ä\"\n": [null, {"k": 1.5}], "b": "\u{7f}", "": {}});
        let Value::Object(map) = headers.clone() else {
            panic!("an object")
        };
        let (text, cut) = fit(map.clone(), 1_000, Value::to_string);
        assert_eq!(
            (serde_json::from_str::<Value>(&text).unwrap(), cut),
            (headers, 0)
        );
        let (shorter, cut) = fit(map, text.len(), Value::to_string);
        assert!(shorter.len() <= text.len() && cut <= 1, "{shorter}");
    }

    #[test]
    fn no_value_holds_a_nul() {
        assert_eq!(text("a\0b"), "a\u{fffd}b");
        assert!(text(&"ä".repeat(5_000)).len() <= MOST_TEXT);
    }
}
