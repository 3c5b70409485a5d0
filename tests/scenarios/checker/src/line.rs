//! What a driver prints: one JSON object a line on its standard output.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Map, Value};

/// One line of a driver.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(tag = "line", rename_all = "snake_case")]
pub enum Line {
    /// What the driver can do (answer to `describe`).
    Driver {
        /// Its name.
        name: String,
        /// The steps, options and other words it knows.
        can: Vec<String>,
        /// Scenarios that are not for it, by name or pattern, and why.
        #[serde(default)]
        cannot: BTreeMap<String, String>,
    },
    /// It subscribed.
    Ready {},
    /// The handler was called.
    Attempt(Attempt),
    /// The handler is about to end.
    Settled {
        /// The message.
        id: String,
        /// The run of the handler, from 1.
        run: usize,
        /// When, in milliseconds since 1970.
        at_ms: u64,
    },
    /// Something that the library reported.
    Event {
        /// Its name.
        kind: String,
        /// What it says.
        #[serde(flatten)]
        rest: Map<String, Value>,
    },
    /// A line of the library's log.
    Log {
        /// `debug`, `info`, `warn` or `error`.
        level: String,
        /// The line.
        text: String,
    },
    /// The library refused the subscription.
    Refused {
        /// The error's stable code.
        #[serde(default)]
        code: String,
        /// The error's text.
        message: String,
    },
    /// It is about to replay a parked message (answer to `replay`).
    Parked {
        /// The message.
        id: String,
        /// What the library showed of it: `reason`, `by_broker`, `home`, `error`, `error_type`, `attempts`.
        #[serde(flatten)]
        record: Map<String, Value>,
    },
    /// It published a message (answer to `publish`).
    Published {
        /// The message.
        id: String,
        /// When its delay began, in milliseconds since 1970.
        at_ms: u64,
    },
    /// All is settled and closed: the last line.
    Done {},
}

/// One call of the handler.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Attempt {
    /// The message.
    pub id: String,
    /// How many times the handler was called with it, this one included.
    pub run: usize,
    /// When, in milliseconds since 1970.
    pub at_ms: u64,
    /// The number of the attempt that the library told.
    pub attempt: u64,
    /// The exchange that the library showed.
    pub exchange: String,
    /// The routing key that the library showed.
    pub routing_key: String,
    /// The headers that the library showed.
    pub headers: Map<String, Value>,
    /// Length of the body.
    pub body_bytes: u64,
    /// SHA-256 of the body, in lower-case hexadecimal digits.
    pub body_sha256: String,
    /// All else: `retries`, `queue`, `message_id`, `redelivered`, `last_error`, `first_failed_at_ms`, `properties`, ….
    #[serde(flatten)]
    pub rest: Map<String, Value>,
}

impl Attempt {
    /// Everything printed, for the matcher.
    pub fn fields(&self) -> Value {
        let mut fields = self.rest.clone();
        fields.insert("attempt".into(), self.attempt.into());
        fields.insert("exchange".into(), self.exchange.clone().into());
        fields.insert("routing_key".into(), self.routing_key.clone().into());
        fields.insert("headers".into(), Value::Object(self.headers.clone()));
        fields.insert("body_bytes".into(), self.body_bytes.into());
        Value::Object(fields)
    }
}

/// Reads a line, or says what is wrong with it.
pub fn read(text: &str) -> Result<Line, String> {
    serde_json::from_str(text).map_err(|error| {
        let start: String = text.chars().take(200).collect();
        format!("the driver printed what is no line of the contract ({error}): {start}")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read() {
        let attempt = read(
            r#"{"line":"attempt","id":"a","run":2,"at_ms":5,"attempt":2,"exchange":"","routing_key":"orders",
                "headers":{"x":1},"body_bytes":0,"body_sha256":"e3","retries":1}"#,
        );
        let Ok(Line::Attempt(attempt)) = attempt else {
            panic!("{attempt:?}")
        };
        assert_eq!(attempt.fields()["retries"], 1);
        assert_eq!(attempt.fields()["headers"]["x"], 1);
        assert_eq!(read(r#"{"line":"done"}"#), Ok(Line::Done {}));
        assert!(matches!(
            read(r#"{"line":"event","kind":"paused","for_ms":5}"#),
            Ok(Line::Event { .. })
        ));
    }

    #[test]
    fn anything_else_is_a_complaint() {
        for text in [
            "",
            "hello",
            "{}",
            r#"{"line":"attempt","id":"a"}"#,
            r#"{"line":"dance"}"#,
        ] {
            assert!(read(text).is_err(), "{text} was taken for a line");
        }
    }
}
