//! What messages are chosen by: when, which error, which routing key, which headers, and a condition on the body.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use clap::Args;
use jiff::{Timestamp, civil, tz::TimeZone};
use retryrmq::{ParkReason, Record, glob, terminal_escape};
use retryrmq_operator::{
    condition::{Condition, Variables},
    decoding::Format,
    plural,
};
use serde_json::{Value, json};

use super::{
    decode_args::{BodyDecoder, DecodeArgs},
    foreign::{self, PublishedMessage},
    message_ref::handle,
};
use crate::{error::CliError, json, output::Output, time_format};

/// The options: all that are given must hold.
#[derive(Clone, Debug, Default, PartialEq, Eq, Args)]
pub(super) struct FilterArgs {
    /// Those parked in the last 2h (or 30m, 7d), or since a time: 2026-11-22T21:00:00Z, or 2026-11-22 and '2026-11-22 21:00'
    /// in the time zone of this machine. Messages without a date are left out
    #[arg(long, value_name = "AGE|TIME", help_heading = "Choosing messages")]
    since: Option<String>,

    /// Those whose error contains this text, ignoring case
    #[arg(long, value_name = "TEXT", help_heading = "Choosing messages")]
    error: Option<String>,

    /// Those whose error is of this type: the whole name, or the part after its last dot
    #[arg(long, value_name = "TYPE", help_heading = "Choosing messages")]
    error_type: Option<String>,

    /// Those published with this routing key; as in a binding, * is one word and # any number of words
    #[arg(long, value_name = "KEY", help_heading = "Choosing messages")]
    routing_key: Option<String>,

    /// Those with this header, of this value, in which * is any text; may be repeated, all must hold
    #[arg(long, value_name = "NAME[=VALUE]", help_heading = "Choosing messages")]
    header: Vec<String>,

    /// Those for which a condition holds, in CEL: 'body.customer.id == 7'. It can use body (decoded), headers, properties,
    /// error, error_type, reason, fingerprint, queue, exchange, routing_key, message_id, attempts, replays and parked_at
    // A keyword of the language, hence the name.
    #[arg(
        long = "where",
        value_name = "CONDITION",
        help_heading = "Choosing messages"
    )]
    condition: Option<String>,
}

/// The variables of a condition.
const VARIABLES: [&str; 14] = [
    "body",
    "headers",
    "properties",
    "error",
    "error_type",
    "reason",
    "fingerprint",
    "queue",
    "exchange",
    "routing_key",
    "message_id",
    "attempts",
    "replays",
    "parked_at",
];

/// What the options mean.
#[derive(Debug, Default)]
pub(super) struct Filter {
    fingerprint: Option<String>,
    /// `None` within: of unknown reason.
    reason: Option<Option<ParkReason>>,
    since: Option<SystemTime>,
    /// In small letters.
    error: Option<String>,
    error_type: Option<String>,
    routing_key: Option<String>,
    headers: Vec<(String, Option<String>)>,
    condition: Option<Condition>,
    /// Whether something is done with what is chosen: a body whose format is a guess is nothing to choose by then.
    acts: bool,
    decoding: Arc<BodyDecoder>,
    /// How many messages the condition was tried on, and could not be judged on.
    tried: u64,
    unevaluated: u64,
    /// The first of these, and why.
    first: Option<String>,
}

impl FilterArgs {
    pub(super) fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Whether they go by when a message was parked, which nobody did with one that waits.
    pub(super) fn goes_by_parking(&self) -> bool {
        self.since.is_some()
    }

    pub(super) fn read(
        &self,
        fingerprint: Option<&str>,
        reason: Option<&str>,
        reading: &DecodeArgs,
        decoding: Arc<BodyDecoder>,
    ) -> Result<Filter, CliError> {
        let fingerprint = fingerprint.map(self::fingerprint).transpose()?;
        let reason = reason.map(self::reason).transpose()?;
        let error_type = match (&self.error_type, reading.error_type()) {
            (Some(_), Some(_)) => {
                return Err(CliError::usage(
                    "--type without --proto is --error-type, and that was given as well: leave one out",
                ));
            }
            (Some(kind), None) => Some(kind.clone()),
            (None, kind) => kind.map(str::to_owned),
        };
        let headers = self.header.iter().map(|text| {
            let (name, value) = match text.split_once('=') {
                Some((name, value)) => (name, Some(value.to_owned())),
                None => (text.as_str(), None),
            };
            if name.is_empty() {
                return Err(CliError::usage(
                    "--header names no header: write NAME=VALUE, or NAME alone",
                ));
            }
            Ok((name.to_owned(), value))
        });
        for (text, option) in [(&self.error, "--error"), (&error_type, "--error-type")] {
            if text.as_deref() == Some("") {
                return Err(CliError::usage(format!(
                    "{option} is empty, and would choose every message"
                )));
            }
        }
        let condition = self.condition.as_deref().map(|text| {
            Condition::parse(text, &VARIABLES).map_err(|why| {
                CliError::usage(format!(
                    "--where `{}`: {}",
                    terminal_escape::line(text),
                    terminal_escape::line(&why)
                ))
            })
        });
        Ok(Filter {
            fingerprint,
            reason,
            since: self.since.as_deref().map(since).transpose()?,
            error: self.error.as_ref().map(|text| text.to_lowercase()),
            error_type,
            routing_key: self.routing_key.clone(),
            headers: headers.collect::<Result<_, CliError>>()?,
            condition: condition.transpose()?,
            decoding,
            ..Filter::default()
        })
    }
}

/// The moment from which on messages are meant.
fn since(text: &str) -> Result<SystemTime, CliError> {
    let now = SystemTime::now();
    let whole_seconds = |time: Timestamp| Timestamp::from_second(time.as_second()).unwrap_or(time);
    if let Ok(age) = retryrmq::parse_duration(text) {
        let from = now.checked_sub(age).unwrap_or(SystemTime::UNIX_EPOCH);
        // A parking is known to the second.
        return Ok(from.checked_sub(Duration::from_secs(1)).unwrap_or(from));
    }
    if let Ok(time) = text.parse::<Timestamp>() {
        return Ok(whole_seconds(time).into());
    }
    let local = text
        .parse::<civil::DateTime>()
        .ok()
        .and_then(|time| time.to_zoned(TimeZone::system()).ok());
    match local {
        Some(time) => Ok(time.timestamp().into()),
        None => Err(CliError::usage(format!(
            "--since `{}` is neither an age such as 30m, 2h or 7d nor a time such as 2026-11-22T21:00:00Z or 2026-11-22",
            terminal_escape::line(text)
        ))),
    }
}

/// The reason of `--reason`; `None` is an unknown one.
fn reason(word: &str) -> Result<Option<ParkReason>, CliError> {
    if word == "unknown" {
        return Ok(None);
    }
    ParkReason::parse(word).map(Some).ok_or_else(|| {
        CliError::usage(format!(
            "unknown --reason `{}`: use exhausted, fatal, requested, delivery-limit, undecodable, expired, too-old, rejected, overflow or unknown",
            terminal_escape::line(word)
        ))
    })
}

/// The beginning of a fingerprint, of `--fingerprint`.
fn fingerprint(text: &str) -> Result<String, CliError> {
    hexadecimal(text).ok_or_else(|| {
        CliError::usage("--fingerprint is 4 to 16 hexadecimal digits, as `parked ls` shows them")
    })
}

/// The beginning of a mark or a fingerprint.
pub(super) fn hexadecimal(text: &str) -> Option<String> {
    let text = text.to_ascii_lowercase();
    let sound = (4..=16).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    sound.then_some(text)
}

impl Filter {
    /// Whether every message is meant.
    pub(super) fn is_empty(&self) -> bool {
        self.fingerprint.is_none() && self.reason.is_none() && self.has_no_conditions()
    }

    fn has_no_conditions(&self) -> bool {
        self.since.is_none()
            && self.error.is_none()
            && self.error_type.is_none()
            && self.routing_key.is_none()
            && self.headers.is_empty()
            && self.condition.is_none()
    }

    /// The beginning of a fingerprint, if one was given.
    pub(super) fn fingerprint(&self) -> Option<&str> {
        self.fingerprint.as_deref()
    }

    /// What the messages have in common, for the sentence that there are none.
    pub(super) fn described(&self) -> &'static str {
        match (&self.fingerprint, self.reason, self.has_no_conditions()) {
            (Some(_), None, true) => "with this fingerprint",
            (None, Some(_), true) => "that was parked for this reason",
            _ => "like that",
        }
    }

    /// Something is done with what is chosen, and nobody is asked: from now on the condition cannot be judged on a body whose
    /// format is a guess.
    ///
    /// # Errors
    /// Where the decoder itself guesses, and no message could be judged.
    pub(super) fn refuse_guesses(&mut self) -> Result<(), CliError> {
        self.acts = true;
        let reads_body = self.condition.as_ref().is_some_and(|it| it.uses("body"));
        if !reads_body || !self.decoding.guesses_type() {
            return Ok(());
        }
        Err(CliError::usage(
            "--where would be judged on the protobuf message that fits each body best, which is a guess; nothing was done: name the type with --proto-type, or in the configuration file with `type` beside `proto`",
        ))
    }

    /// Whether this one of the queue `parking` is. What the condition cannot be judged on is not, and is counted.
    pub(super) fn takes(&mut self, place: usize, record: &Record, parking: &str) -> bool {
        if !self.is_alike(record) {
            return false;
        }
        if self.routing_key.is_none() && self.headers.is_empty() && self.condition.is_none() {
            return true;
        }
        let (letter, message) = (foreign::of(record, parking), record.message());
        let content = PublishedMessage::of(letter.as_ref(), &message);
        self.was_published_so(&content) && self.holds((place, parking), record, &content)
    }

    /// All that costs little.
    fn is_alike(&self, record: &Record) -> bool {
        let is_of_type = |kind: &String| {
            let has = record.error_type.as_str();
            has == kind
                || has
                    .strip_suffix(kind.as_str())
                    .is_some_and(|rest| rest.ends_with(['.', ':', '\\', '/', '$']))
        };
        let has_fingerprint = |start: &String| record.fingerprint.starts_with(start.as_str());
        if !self.fingerprint.as_ref().is_none_or(has_fingerprint)
            || self.reason.is_some_and(|reason| record.reason != reason)
        {
            return false;
        }
        let since = self
            .since
            .is_none_or(|since| record.parked_at.is_some_and(|at| at >= since));
        since
            && self
                .error
                .as_ref()
                .is_none_or(|text| record.error.to_lowercase().contains(text))
            && self.error_type.as_ref().is_none_or(is_of_type)
    }

    /// Whether it has the routing key and the headers.
    fn was_published_so(&self, content: &PublishedMessage<'_>) -> bool {
        let has = content.routing_key;
        let is_key = |key: &String| key == has || glob::topic(key, has);
        if !self.routing_key.as_ref().is_none_or(is_key) {
            return false;
        }
        if self.headers.is_empty() {
            return true;
        }
        let all = content.headers();
        self.headers.iter().all(|(name, wanted)| {
            let Some(value) = all.get(name) else {
                return false;
            };
            wanted.as_ref().is_none_or(|wanted| match value {
                Value::String(text) => wanted == text || glob::glob(wanted, text),
                other => glob::glob(wanted, &other.to_string()),
            })
        })
    }

    fn holds(
        &mut self,
        (place, parking): (usize, &str),
        record: &Record,
        content: &PublishedMessage<'_>,
    ) -> bool {
        let Some(condition) = &mut self.condition else {
            return true;
        };
        self.tried += 1;
        let given = variables(condition, record, content, |content| {
            body(&self.decoding, record, content, self.acts)
        });
        let judged = given.and_then(|given| {
            condition
                .holds(given)
                .map_err(|unevaluated| unevaluated.why)
        });
        match judged {
            Ok(holds) => holds,
            Err(why) => {
                self.unevaluated += 1;
                self.first.get_or_insert_with(|| {
                    format!(
                        "{} of {}: {}",
                        handle(place, record),
                        terminal_escape::line(parking),
                        terminal_escape::line(&why)
                    )
                });
                false
            }
        }
    }

    /// Says on how many messages the condition could not be judged.
    pub(super) fn report_unevaluated(&self, output: &Output) {
        let Some(first) = &self.first else { return };
        let sentence = format!(
            "--where could not be evaluated on {} of {}, which {} therefore not among them; the first is {first}",
            self.unevaluated,
            plural::messages(self.tried),
            plural::word(self.unevaluated, "is", "are")
        );
        if output.is_json() {
            tracing::warn!("{sentence}");
        } else {
            output.note(&sentence);
        }
    }
}

/// The decoded body. One that breaks off is null: half of it is nothing to choose by.
///
/// # Errors
/// A sentence, where something is done by it (`acts`) and its format is a guess.
fn body(
    decoding: &BodyDecoder,
    record: &Record,
    content: &PublishedMessage<'_>,
    acts: bool,
) -> Result<Value, String> {
    let decoded = decoding.decode(record, content);
    if acts && decoded.is_guess {
        let mend = match decoded.format {
            Format::Protobuf | Format::ProtobufWire => "name its message with --proto and --type",
            _ => "name its format in a [[decoders]] of --config",
        };
        return Err(format!(
            "its body is {} by a guess, which is enough to look at and not to act on: {mend}",
            decoded.format.name()
        ));
    }
    Ok(decoded.sound().cloned().unwrap_or(Value::Null))
}

/// What a condition is judged on: the variables that it uses.
///
/// # Errors
/// That of `body`.
fn variables(
    condition: &Condition,
    record: &Record,
    content: &PublishedMessage<'_>,
    body: impl Fn(&PublishedMessage<'_>) -> Result<Value, String>,
) -> Result<Variables, String> {
    let message = record.message();
    let used = VARIABLES.iter().filter(|name| condition.uses(name));
    used.map(|name| {
        let value = match *name {
            "body" => body(content)?,
            "headers" => Value::Object(content.headers()),
            "properties" => Value::Object(json::properties(&content.properties)),
            "error" => json!(record.error),
            "error_type" => json!(record.error_type),
            "reason" => json!(record.reason.map(|reason| reason.as_str())),
            "fingerprint" => json!(record.fingerprint),
            "queue" => json!((!record.home.is_empty()).then_some(&record.home)),
            "exchange" => json!(content.exchange),
            "routing_key" => json!(content.routing_key),
            "message_id" => json!(message.message_id()),
            "attempts" => json!(record.attempts),
            "replays" => json!(message.replays()),
            "parked_at" => json!(record.parked_at.and_then(time_format::rfc3339)),
            other => return Err(format!("`{other}` has no value")),
        };
        Ok(((*name).to_owned(), value))
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn since_is_an_age_or_a_time() {
        let now = SystemTime::now();
        let from = since("2h").unwrap();
        assert!(from < now - Duration::from_secs(7_199) && from > now - Duration::from_secs(7_300));
        let time = SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000);
        assert_eq!(since("2023-11-14T22:13:20Z").unwrap(), time);
        assert_eq!(since("2023-11-14T23:13:20+01:00").unwrap(), time);
        for text in ["2023-11-14", "2023-11-14 22:13", "2023-11-14T22:13:20"] {
            let day = Duration::from_secs(86_400);
            let found = since(text).unwrap();
            assert!(found > time - 2 * day && found < time + 2 * day, "{text}");
        }
        for text in ["", "yesterday", "2 hours", "2023-13-01", "\u{1b}[2J"] {
            assert!(
                since(text)
                    .unwrap_err()
                    .sentence()
                    .contains("neither an age"),
                "{text}"
            );
        }
    }
}
