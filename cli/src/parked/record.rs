//! A parked message in JSON, with stable names.

use retryrmq::Record;
use retryrmq_operator::{
    decoding::Decoded,
    other_libraries::{DeadLetter, ReplayedMessage},
};
use serde_json::{Value, json};

use super::foreign;
use crate::{json, time_format};

/// What every subcommand shows of it. `letter` is what another library or the broker says of it: of these messages the exchange
/// and the routing key are those that they were first published with, as `--routing-key` chooses.
pub(super) fn summary(place: usize, record: &Record, letter: Option<&DeadLetter>) -> Value {
    let message = record.message();
    let (exchange, routing_key) = foreign::published(letter, &message);
    json!({
        "place": place,
        "mark": record.mark,
        "message_id": message.message_id(),
        "parked_at": record.parked_at.and_then(time_format::rfc3339),
        "reason": record.reason.map(|reason| reason.as_str()),
        "by_broker": record.by_broker,
        "attempts": record.attempts,
        "error": record.error,
        "error_type": record.error_type,
        "fingerprint": record.fingerprint,
        "exchange": exchange,
        "routing_key": routing_key,
        "replays": message.replays(),
        "body_bytes": message.body().len(),
        "home": (!record.home.is_empty()).then_some(&record.home),
        "library": foreign::library(record, letter),
    })
}

/// All that is known of it.
pub(super) fn full(place: usize, record: &Record, letter: Option<&DeadLetter>) -> Value {
    let message = record.message();
    let mut all = summary(place, record, letter);
    all["first_failed_at"] = json!(message.first_failed_at().and_then(time_format::rfc3339));
    all["stack"] = json!(record.stack);
    all["history"] = record
        .history
        .iter()
        .map(|entry| {
            json!({
                "attempt": entry.attempt,
                "at": time_format::rfc3339_of_seconds(entry.at),
                "error": entry.error,
                "host": entry.host,
                "app_version": entry.app_version,
            })
        })
        .collect();
    all["properties"] = Value::Object(json::properties(message.properties()));
    all["headers"] = Value::Object(message.headers().map(json::table).unwrap_or_default());
    match std::str::from_utf8(message.body()) {
        Ok(text) => all["body"] = json!(text),
        Err(_) => all["body_base64"] = json!(json::base64(message.body())),
    }
    let Some(letter) = letter else {
        if let Some((task, _)) = foreign::task(record) {
            all["message_type"] = json!(task);
        }
        return all;
    };
    all["message_type"] = json!(letter.message_type);
    if let ReplayedMessage::Original { body, properties } = &letter.replay {
        let properties = foreign::unwrapped(properties);
        let mut original = json!({
            "properties": json::properties(&properties),
            "headers": properties.headers().as_ref().map(json::table),
        });
        match std::str::from_utf8(body) {
            Ok(text) => original["body"] = json!(text),
            Err(_) => original["body_base64"] = json!(json::base64(body)),
        }
        all["original"] = original;
    }
    all
}

/// What the body is, decoded.
pub(super) fn decoded(decoded: &Decoded<'_>) -> Value {
    let fit = decoded.fit.as_ref();
    let unwrapped: Vec<String> = decoded.unwrapped.iter().map(ToString::to_string).collect();
    json!({
        "format": decoded.format.code(),
        "guess": decoded.is_guess,
        "unwrapped": unwrapped,
        "type": fit.map(|fit| &fit.message).or(decoded.schema.as_ref()),
        "score": fit.map(|fit| fit.score),
        "value": decoded.value,
        "truncation": decoded.truncation.as_ref().map(|broken| json!({
            "within": broken.within,
            "byte": broken.byte,
            "why": broken.why,
        })),
    })
}
