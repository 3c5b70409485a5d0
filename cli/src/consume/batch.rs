//! Several messages for one run: what a handler reads of them, and what its answers mean. Pure.

use std::str;

use retryrmq::{Failure, Message, Outcome, terminal_escape};
use serde_json::{Map, Value, json};

use super::{
    exit_outcome::{self, CommandEnd, OutcomeWords},
    requested_outcome::{self, RequestedOutcome},
    run::RunVerdict,
};
use crate::{json, time_format};

/// What one run is given.
#[derive(Debug)]
pub(super) enum BatchInput {
    /// One message, as it is.
    Message(Message),
    /// Messages, each as JSON.
    Batch(Vec<Message>),
}

impl BatchInput {
    pub(super) fn messages(&self) -> &[Message] {
        match self {
            Self::Message(message) => std::slice::from_ref(message),
            Self::Batch(messages) => messages,
        }
    }
}

/// A message as a handler of batches reads it.
pub(super) fn object(message: &Message) -> Value {
    let mut all = Map::new();
    let mut set = |name: &str, value: Value| all.insert(name.to_owned(), value);
    if let Some(id) = message.message_id() {
        set("message_id", json!(id));
    }
    set("attempt", json!(message.attempt()));
    set("retries", json!(message.retries()));
    if let Some(error) = message.last_error() {
        set("last_error", json!(error));
    }
    if let Some(time) = message.first_failed_at().and_then(time_format::rfc3339) {
        set("first_failed_at", json!(time));
    }
    set("exchange", json!(message.exchange()));
    set("routing_key", json!(message.routing_key()));
    let headers = message.headers().map(json::table).unwrap_or_default();
    set("headers", Value::Object(headers));
    set(
        "properties",
        Value::Object(json::properties(message.properties())),
    );
    match str::from_utf8(message.body()) {
        Ok(text) => set("body", json!(text)),
        Err(_) => set("body_base64", json!(json::base64(message.body()))),
    };
    Value::Object(all)
}

/// The line of a message on a command's standard input.
pub(super) fn line(message: &Message) -> Vec<u8> {
    let mut line = object(message).to_string().into_bytes();
    line.push(b'\n');
    line
}

/// How many messages a run has, and how many of them its command could read.
#[derive(Clone, Copy, Debug)]
pub(super) struct FedMessages {
    pub(super) count: usize,
    pub(super) whole: usize,
}

/// What follows for the messages of a run from how their command ended, and from the lines that it wrote to its pipe. The line of each message
/// decides; those without one end as the command did. A command that succeeds has written a line for each message, or none.
pub(super) fn verdicts(
    ending: CommandEnd,
    words: OutcomeWords<'_>,
    lines: &[Vec<u8>],
    FedMessages { count, whole }: FedMessages,
) -> Vec<RunVerdict> {
    let is_success = ending == CommandEnd::Exit(0);
    // Nobody knows which line is whose.
    if lines.len() > count || is_success && !lines.is_empty() && lines.len() < count {
        let answers = lines.len();
        let error = format!(
            "the command answered {answers} of {count} messages; write one line for each, in their order"
        );
        return std::iter::repeat_with(|| unanswered(error.clone()))
            .take(count)
            .collect();
    }
    let mut all: Vec<_> = lines.iter().map(|line| of_a_line(line, &words)).collect();
    // As soon as there was a line, standard error has no say.
    let said: &[u8] = if lines.is_empty() { b"" } else { b"\n" };
    let (outcome, mut remark) = exit_outcome::outcome(ending, OutcomeWords { said, ..words });
    all.resize_with(count, || RunVerdict {
        outcome: outcome.clone(),
        remark: remark.take(),
        is_by_a_signal_to_all: ending.is_by_a_signal_to_all(),
    });
    // Without a word of it, it cannot have handled what it could not read.
    if is_success && lines.is_empty() {
        let error = format!("the command ended after it could read {whole} of {count} messages");
        all[whole.min(count)..].fill_with(|| unanswered(error.clone()));
    }
    all
}

/// The verdict for a message that has no answer that belongs to it.
pub(super) fn unanswered(error: String) -> RunVerdict {
    let outcome = Outcome::retry(Failure::new(error).of_type("BatchAnswerError"));
    RunVerdict::new(outcome, None)
}

fn of_a_line(line: &[u8], words: &OutcomeWords<'_>) -> RunVerdict {
    let line = String::from_utf8_lossy(line);
    let (outcome, remark) = answer(line.trim(), words.longest);
    let remark = remark.map(|why| terminal_escape::line(&why).into_owned());
    RunVerdict::new(outcome, remark)
}

/// The outcome for one message from its answer: `ok`, `fail: why`, `retry-after: 30s`, `defer: 5s` or `park: why`.
pub(super) fn answer(text: &str, longest: std::time::Duration) -> (Outcome, Option<String>) {
    let (word, why) = text.split_once(':').unwrap_or((text, ""));
    match word.trim().to_ascii_lowercase().as_str() {
        "ok" if why.is_empty() => return (Outcome::Ack, None),
        "fail" => {
            let why = Some(why.trim()).filter(|why| !why.is_empty());
            return (Outcome::retry(Failure::new(why.unwrap_or("fail"))), None);
        }
        _ => {}
    }
    let (requested, remark) = match RequestedOutcome::read(text) {
        Some(Ok(requested)) => (Some(requested), None),
        Some(Err(why)) => (None, Some(why.to_string())),
        None => {
            let start: String = text.chars().take(80).collect();
            (
                None,
                Some(format!(
                    "`{start}` is not known; write `ok`, `fail: why`, `retry-after: 30s`, `defer: 5s` or `park: why`"
                )),
            )
        }
    };
    let (requested, cut) = requested_outcome::bounded(requested, longest);
    let outcome = requested_outcome::outcome(requested, false, |why| {
        let unknown = if text.is_empty() {
            "an empty answer"
        } else {
            text
        };
        Failure::new(why.unwrap_or_else(|| unknown.to_owned()))
    });
    (outcome, remark.or(cut))
}

#[cfg(test)]
mod tests {
    use retryrmq::{DAY, ParkReason, SECOND};

    use super::*;

    fn ended(ending: CommandEnd, lines: &[&str], count: usize) -> Vec<RunVerdict> {
        let lines: Vec<_> = lines.iter().map(|line| line.as_bytes().to_vec()).collect();
        let words = OutcomeWords {
            tail: b"busy\nretry-after: 3h",
            said: b"",
            longest: DAY,
        };
        let fed = FedMessages {
            count,
            whole: count,
        };
        verdicts(ending, words, &lines, fed)
    }

    fn error(verdict: &RunVerdict) -> (&str, &str) {
        match &verdict.outcome {
            Outcome::Retry { failure, .. } | Outcome::Park { failure, .. } => {
                (&failure.error, &failure.error_type)
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn each_line_is_the_answer_for_its_message() {
        let lines = [
            "ok",
            " OK ",
            "fail: no such customer: 7",
            "retry-after: 30s",
            "defer: 2d",
            "park: junk",
            "fine",
            "fail",
        ];
        let all = ended(CommandEnd::Exit(0), &lines, lines.len());
        assert_eq!(all[0].outcome, Outcome::Ack);
        assert_eq!(all[1].outcome, Outcome::Ack);
        assert_eq!(error(&all[2]), ("no such customer: 7", ""));
        assert!(
            matches!(all[3].outcome, Outcome::Retry { delay: Some(delay), .. } if delay == 30 * SECOND)
        );
        assert_eq!(all[4].outcome, Outcome::Defer { delay: DAY });
        assert!(all[4].remark.as_deref().unwrap().contains("is 1d"));
        assert!(matches!(
            all[5].outcome,
            Outcome::Park {
                reason: ParkReason::Requested,
                ..
            }
        ));
        assert_eq!(error(&all[6]), ("fine", ""));
        assert!(all[6].remark.as_deref().unwrap().contains("write `ok`"));
        assert_eq!(error(&all[7]), ("fail", ""));
    }

    #[test]
    fn what_has_no_line_ends_as_the_command() {
        for count in [1, 3] {
            for verdict in ended(CommandEnd::Exit(0), &[], count) {
                assert_eq!(verdict.outcome, Outcome::Ack);
            }
            for verdict in ended(CommandEnd::Exit(1), &[], count) {
                assert_eq!(error(&verdict), ("busy", "exit status 1"));
            }
        }
        for (ending, of) in [
            (CommandEnd::Exit(7), "exit status 7"),
            (CommandEnd::Signal(15), "signal 15"),
            (CommandEnd::Timeout(SECOND), "HandlerTimeout"),
        ] {
            let all = ended(ending, &["ok"], 3);
            assert_eq!(all[0].outcome, Outcome::Ack);
            assert!(!all[0].is_by_a_signal_to_all);
            for verdict in &all[1..] {
                assert_eq!(error(verdict).1, of);
                assert!(
                    matches!(verdict.outcome, Outcome::Retry { delay: None, .. }),
                    "standard error has no say"
                );
                assert_eq!(verdict.is_by_a_signal_to_all, of == "signal 15");
            }
        }
    }

    #[test]
    fn a_wrong_number_of_lines_is_no_success() {
        // The second of three may be the one that has no line.
        for lines in [&["ok", "ok"][..], &["ok"; 4]] {
            let all = ended(CommandEnd::Exit(0), lines, 3);
            assert_eq!(all.len(), 3);
            for verdict in &all {
                let (text, of) = error(verdict);
                let said = format!("answered {} of 3", lines.len());
                assert!(text.contains(&said) && of == "BatchAnswerError", "{text}");
            }
        }
        let all = ended(CommandEnd::Exit(0), &["ok", "", "ok"], 3);
        assert_eq!(all[0].outcome, Outcome::Ack);
        assert!(matches!(all[1].outcome, Outcome::Retry { .. }));
        assert_eq!(all[2].outcome, Outcome::Ack);
        // An empty line keeps standard error from having a say.
        let all = ended(CommandEnd::Exit(1), &[""], 2);
        assert!(matches!(all[1].outcome, Outcome::Retry { delay: None, .. }));
    }

    #[test]
    fn what_could_not_be_read_was_not_handled() {
        let words = || OutcomeWords {
            tail: b"",
            said: b"",
            longest: DAY,
        };
        let fed = FedMessages { count: 3, whole: 1 };
        let all = verdicts(CommandEnd::Exit(0), words(), &[], fed);
        assert_eq!(all[0].outcome, Outcome::Ack);
        for verdict in &all[1..] {
            assert!(error(verdict).0.contains("could read 1 of 3"));
        }
        // It says so itself of each.
        let lines = vec![b"ok".to_vec(); 3];
        for verdict in verdicts(CommandEnd::Exit(0), words(), &lines, fed) {
            assert_eq!(verdict.outcome, Outcome::Ack);
        }
    }
}
