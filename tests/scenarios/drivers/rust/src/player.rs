//! One run of the handler: tells what it sees, waits, and says how it ends.

use std::time::{Duration, UNIX_EPOCH};

use nix::sys::signal::{Signal, raise};
use retryrmq::Message;
use retryrmq::types::AMQPValue;
use retryrmq_scenarios::script::{Act, Script, now_ms, say};
use retryrmq_scenarios::{field, observations, property};
use serde_json::{Value, json};

/// Plays the next step of a message up to its end, which the caller puts into the words of the crate.
pub(crate) async fn play(script: &Script, message: &Message) -> Act {
    let id = id(message);
    let (run, step) = script.next(&id);
    say(&attempt(&id, run, message));
    tokio::time::sleep(Duration::from_millis(step.sleep_ms)).await;
    if step.act == Act::Exit {
        // as the kernel does it when memory is short
        let _ = raise(Signal::SIGKILL);
    }
    say(&json!({"line": "settled", "id": id, "run": run, "at_ms": now_ms()}));
    step.act
}

pub(crate) fn id(message: &Message) -> String {
    let mark = message
        .headers()
        .and_then(|headers| headers.inner().get("scenario-id"));
    match mark {
        Some(AMQPValue::LongString(id)) => id.to_string(),
        _ => message.message_id().unwrap_or_default().to_owned(),
    }
}

fn attempt(id: &str, run: usize, message: &Message) -> Value {
    let first_failed_at_ms = message
        .first_failed_at()
        .and_then(|time| time.duration_since(UNIX_EPOCH).ok())
        .and_then(|since| u64::try_from(since.as_millis()).ok());
    json!({
        "line": "attempt",
        "id": id,
        "run": run,
        "at_ms": now_ms(),
        "attempt": message.attempt(),
        "retries": message.retries(),
        "queue": message.queue(),
        "exchange": message.exchange(),
        "routing_key": message.routing_key(),
        "message_id": message.message_id(),
        "redelivered": message.redelivered(),
        "last_error": message.last_error(),
        "mended": message.mended(),
        "first_failed_at_ms": first_failed_at_ms,
        "headers": message.headers().map_or_else(|| json!({}), field::headers_plain),
        "properties": property::to_notation(message.properties()),
        "body_bytes": message.body().len(),
        "body_sha256": observations::sha256(message.body()),
    })
}
