//! One run of the handler: perhaps sleep, then end in one of the ways a handler can end.

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};

use super::Span;

/// What the handler does with one delivery.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Step {
    /// Waits this long first.
    #[serde(rename = "sleep_ms", skip_serializing_if = "is_zero")]
    pub sleep: Span,
    /// Then ends like this.
    #[serde(flatten)]
    pub act: HandlerEnd,
}

fn is_zero(span: &Span) -> bool {
    *span == Span::default()
}

/// How a run of the handler ends.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "do", rename_all = "snake_case")]
pub enum HandlerEnd {
    /// It succeeds.
    Ok,
    /// It fails with an error of this type and message.
    Error {
        /// The error's type, as rules see it.
        #[serde(rename = "type")]
        kind: String,
        /// The error's text.
        message: String,
    },
    /// It fails with an error that the consumer's options call fatal.
    Fatal {
        /// The error's text.
        message: String,
    },
    /// It fails and names the delay.
    RetryAfter {
        /// The delay.
        #[serde(rename = "delay_ms")]
        delay: Span,
        /// The error's text.
        message: String,
    },
    /// It gives the message up.
    Park {
        /// Why.
        reason: String,
        /// The text of an error that wraps that.
        #[serde(skip_serializing_if = "Option::is_none")]
        within: Option<String>,
    },
    /// It puts the message off without failing.
    Defer {
        /// For how long.
        #[serde(rename = "delay_ms")]
        delay: Span,
    },
    /// It panics, or throws what no handler should throw.
    Panic {
        /// The panic's text.
        message: String,
    },
    /// The whole driver dies at once, as by SIGKILL.
    Exit,
}

/// The YAML form: one key for the way it ends, beside an optional `sleep`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    sleep: Option<Span>,
    ok: Option<bool>,
    error: Option<Failure>,
    fatal: Option<String>,
    retry_after: Option<Delayed>,
    park: Option<Parking>,
    defer: Option<Span>,
    panic: Option<String>,
    exit: Option<bool>,
}

#[derive(Deserialize)]
#[serde(untagged, deny_unknown_fields)]
enum Failure {
    Text(String),
    Typed {
        #[serde(rename = "type")]
        kind: String,
        #[serde(default)]
        message: String,
    },
}

#[derive(Deserialize)]
#[serde(untagged, deny_unknown_fields)]
enum Parking {
    Text(String),
    Wrapped { reason: String, within: String },
}

#[derive(Deserialize)]
#[serde(untagged, deny_unknown_fields)]
enum Delayed {
    Span(Span),
    Told { delay: Span, message: String },
}

#[derive(Deserialize)]
#[serde(untagged, deny_unknown_fields)]
enum Either {
    Word(String),
    Map(serde_json::Value),
}

impl<'de> Deserialize<'de> for Step {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let written = match Either::deserialize(deserializer)? {
            Either::Word(word) => {
                let act = match word.as_str() {
                    "ok" => HandlerEnd::Ok,
                    "exit" => HandlerEnd::Exit,
                    "error" => HandlerEnd::Error {
                        kind: "Error".into(),
                        message: "it failed".into(),
                    },
                    "panic" => HandlerEnd::Panic {
                        message: "it panicked".into(),
                    },
                    "fatal" => HandlerEnd::Fatal {
                        message: "it is hopeless".into(),
                    },
                    _ => {
                        return Err(D::Error::custom(format!(
                            "'{word}' is no step: ok, error, fatal, panic, exit"
                        )));
                    }
                };
                return Ok(Self {
                    sleep: Span::default(),
                    act,
                });
            }
            Either::Map(map) => serde_json::from_value::<Written>(map).map_err(D::Error::custom)?,
        };
        let acts: Vec<HandlerEnd> = [
            written.ok.map(|_| HandlerEnd::Ok),
            written.error.map(|failure| match failure {
                Failure::Text(message) => HandlerEnd::Error {
                    kind: "Error".into(),
                    message,
                },
                Failure::Typed { kind, message } => HandlerEnd::Error { kind, message },
            }),
            written.fatal.map(|message| HandlerEnd::Fatal { message }),
            written.retry_after.map(|delayed| match delayed {
                Delayed::Span(delay) => HandlerEnd::RetryAfter {
                    delay,
                    message: "come back later".into(),
                },
                Delayed::Told { delay, message } => HandlerEnd::RetryAfter { delay, message },
            }),
            written.park.map(|parking| match parking {
                Parking::Text(reason) => HandlerEnd::Park {
                    reason,
                    within: None,
                },
                Parking::Wrapped { reason, within } => HandlerEnd::Park {
                    reason,
                    within: Some(within),
                },
            }),
            written.defer.map(|delay| HandlerEnd::Defer { delay }),
            written.panic.map(|message| HandlerEnd::Panic { message }),
            written.exit.map(|_| HandlerEnd::Exit),
        ]
        .into_iter()
        .flatten()
        .collect();
        let sleep = written.sleep.unwrap_or_default();
        match <[HandlerEnd; 1]>::try_from(acts) {
            Ok([act]) => Ok(Self { sleep, act }),
            Err(acts) if acts.is_empty() && written.sleep.is_some() => Ok(Self {
                sleep,
                act: HandlerEnd::Ok,
            }),
            Err(acts) => Err(D::Error::custom(format!(
                "a step ends in one way, this one in {}",
                acts.len()
            ))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(yaml: &str) -> Result<Step, String> {
        serde_saphyr::from_str(yaml).map_err(|error| error.to_string())
    }

    #[test]
    fn the_forms_of_a_step() {
        let ms = |n| Span(std::time::Duration::from_millis(n));
        assert_eq!(
            step("ok").unwrap(),
            Step {
                sleep: ms(0),
                act: HandlerEnd::Ok
            }
        );
        assert_eq!(
            step("{sleep: 2s}").unwrap(),
            Step {
                sleep: ms(2000),
                act: HandlerEnd::Ok
            }
        );
        let error = HandlerEnd::Error {
            kind: "Timeout".into(),
            message: "slow".into(),
        };
        assert_eq!(
            step("{sleep: 5ms, error: {type: Timeout, message: slow}}").unwrap(),
            Step {
                sleep: ms(5),
                act: error
            }
        );
        assert_eq!(
            step("{defer: 1s}").unwrap().act,
            HandlerEnd::Defer { delay: ms(1000) }
        );
    }

    #[test]
    fn what_is_no_step_is_refused() {
        for wrong in [
            "oops",
            "{ok: true, park: x}",
            "{}",
            "{defer: soon}",
            "{eror: x}",
            "7",
        ] {
            assert!(step(wrong).is_err(), "{wrong} was taken for a step");
        }
    }

    #[test]
    fn drivers_get_milliseconds() {
        let json = serde_json::to_value(step("{sleep: 1s, retry_after: 300ms}").unwrap()).unwrap();
        assert_eq!(
            json,
            serde_json::json!({"sleep_ms": 1000, "do": "retry_after", "delay_ms": 300, "message": "come back later"})
        );
    }
}
