//! What the languages show of the core field by field, as rows: an event, a parked message's record, the entries of a history. A row is one
//! JSON object as text, which each language reads with its own reader into the classes that its users see.
//!
//! The names are those of `table.json`. Durations are whole nanoseconds, times whole seconds since 1970. What there is not is left out.

use std::time::Duration;

use retryrmq::{Event, HistoryEntry, ParkReason, Record};
use serde::{Serialize, Serializer as _};

use crate::{nanoseconds, unix_seconds};

/// The value of a field.
#[derive(Serialize)]
#[serde(untagged)]
enum Value<'a> {
    Text(&'a str),
    Number(u64),
    Flag(bool),
}

use Value::{Flag, Number, Text};

type Field<'a> = (&'static str, Option<Value<'a>>);

fn duration(duration: Duration) -> Value<'static> {
    // Go's durations have a sign.
    Number(nanoseconds(duration).min(i64::MAX.unsigned_abs()))
}

/// The fields of an event, in the same order everywhere.
fn of_event(event: &Event) -> [Field<'_>; 12] {
    let fields = event.fields();
    let number = |number: Option<u32>| number.map(|number| Number(number.into()));
    [
        ("name", Some(Text(event.name()))),
        ("queue", Some(Text(fields.queue))),
        ("message_id", fields.message_id.map(Text)),
        ("attempt", number(fields.attempt)),
        ("delay", fields.delay.map(duration)),
        ("reason", fields.reason.map(ParkReason::as_str).map(Text)),
        ("error", fields.error.map(Text)),
        ("error_type", fields.error_type.map(Text)),
        ("crashes", number(fields.crashes)),
        ("to", fields.to.map(Text)),
        ("count", number(fields.count)),
        ("cause", fields.cause.map(Text)),
    ]
}

/// The names of the fields that the row of an event has, in its order.
#[must_use]
pub fn names(event: &Event) -> Vec<&'static str> {
    let fields = of_event(event).into_iter();
    fields
        .filter_map(|(name, value)| value.map(|_| name))
        .collect()
}

/// An event.
#[must_use]
pub fn event(event: &Event) -> String {
    row(of_event(event))
}

/// What is known of a parked message beside the message itself.
#[must_use]
pub fn record(record: &Record) -> String {
    row([
        ("reason", record.reason.map(ParkReason::as_str).map(Text)),
        ("parked_at", unix_seconds(record.parked_at).map(Number)),
        ("error", Some(Text(&record.error))),
        ("error_type", Some(Text(&record.error_type))),
        ("stack", record.stack.as_deref().map(Text)),
        ("fingerprint", Some(Text(&record.fingerprint))),
        ("attempts", Some(Number(record.attempts.into()))),
        ("by_broker", Some(Flag(record.by_broker))),
        ("home", Some(Text(&record.home))),
        ("mark", Some(Text(&record.mark))),
    ])
}

/// The failures of a message, as an array of rows.
#[must_use]
pub fn history(entries: &[HistoryEntry]) -> String {
    let entries = entries.iter().map(|entry| {
        row([
            ("attempt", Some(Number(entry.attempt.into()))),
            ("at", Some(Number(entry.at))),
            ("error", Some(Text(&entry.error))),
            ("host", Some(Text(&entry.host))),
            ("app_version", Some(Text(&entry.app_version))),
        ])
    });
    format!("[{}]", entries.collect::<Vec<_>>().join(","))
}

fn row<const N: usize>(fields: [Field<'_>; N]) -> String {
    let there = fields
        .into_iter()
        .filter_map(|(name, value)| Some((name, value?)));
    let mut out = Vec::with_capacity(256);
    // Texts and numbers can always be written, and JSON is UTF-8.
    let _ = serde_json::Serializer::new(&mut out).collect_map(there);
    String::from_utf8(out).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(row: &str) -> serde_json::Value {
        serde_json::from_str(row).unwrap()
    }

    #[test]
    fn texts_stay_what_they_are() {
        let nasty =
            "NUL \0, \u{1b}[31m, \"quoted\" \\, \u{2028}\u{2029}\r\n, \u{fffd}, 💥 \u{10ffff}";
        let row = row([("error", Some(Text(nasty))), ("stack", None)]);
        assert_eq!(read(&row), serde_json::json!({ "error": nasty }));
        assert!(!row.contains('\0') && !row.contains('\n'));
    }

    #[test]
    fn numbers_are_exact() {
        let row = row([
            ("delay", Some(duration(Duration::new(400 * 86_400, 1)))),
            ("at", Some(Number(u64::MAX))),
        ]);
        assert_eq!(
            row,
            r#"{"delay":34560000000000001,"at":18446744073709551615}"#
        );
        let longest = read(&super::row([("delay", Some(duration(Duration::MAX)))]));
        assert_eq!(longest["delay"].as_i64(), Some(i64::MAX));
    }

    #[test]
    fn a_history_is_an_array() {
        assert_eq!(history(&[]), "[]");
        let entry = HistoryEntry::default();
        let two = read(&history(&[entry.clone(), entry]));
        assert_eq!(two.as_array().map(Vec::len), Some(2));
        assert_eq!(two[1]["app_version"], "");
    }
}
