//! What every language repeats of the core, as data: options with their defaults, events with their fields, error codes, reasons to park,
//! log lines. `bindings-common/table.json` is its text form, which the tests of each language read. A test here compares it with the core, and the
//! tables of the languages' pages with it.

use std::fmt::Write as _;

use retryrmq::{
    AttemptLogLine, Consumer, ErrorKind, Event, Limits, NextStep, ParkReason, Pause, Policy,
    QueueType, Strategy, format_duration,
};
use retryrmq_bindings::{EVENTS, json_rows};

/// The options of a consumer, in the same order everywhere, each with its default as text, which is empty if there is none, and with what it
/// does.
pub(super) fn options() -> Vec<(&'static str, String, &'static str)> {
    let (usual, limits, pause) = (Consumer::new("orders"), Limits::default(), Pause::default());
    let pause = format!(
        "off; {}, {}, {}",
        pause.failures,
        pause.window,
        format_duration(pause.pause)
    );
    vec![
        ("queue", String::new(), "The queue to consume."),
        (
            "dlx",
            "off".into(),
            "Whether failed messages are retried and parked. If off, a failed message is rejected without requeue, and the queue's own dead-lettering applies. If the option is not given, the consumer also logs a warning when it starts.",
        ),
        (
            "retry",
            Policy::default().to_string(),
            "The policy for failures that no rule matches. Needs `dlx`.",
        ),
        (
            "strategy",
            Strategy::default().to_string(),
            "How failed messages wait: `retry-queues`, `dead-letter`, `native`, `service` or `delayed-exchange`.",
        ),
        (
            "rules",
            String::new(),
            "Other policies, by the error's type, a header or the routing key; the first rule that matches decides. Needs `dlx`.",
        ),
        (
            "prefetch",
            usual.configured_prefetch().to_string(),
            "How many messages may be unacknowledged at the same time, 1 to 65535.",
        ),
        (
            "prefetch_bytes",
            String::new(),
            "How many bytes of bodies of unacknowledged messages the consumer holds, about. By default only `prefetch` limits them. A larger message is handled alone.",
        ),
        (
            "priority",
            "0".into(),
            "Which consumers of the queue get messages first: those with the highest priority, as long as their `prefetch` is not full. May be negative.",
        ),
        (
            "concurrency",
            usual.configured_concurrency().to_string(),
            "How many handlers run at the same time. The default is 1 for a `def` handler in Python and for the command, which prefetches 2 × `concurrency`.",
        ),
        (
            "batch",
            String::new(),
            "How many messages a handler gets at once at most, 1 to 10000, as a list. By default it gets single messages. `concurrency` then counts batches, and the default `prefetch` is `batch` × `concurrency` if that is more.",
        ),
        (
            "batch_wait",
            format_duration(usual.configured_batch_wait()),
            "How long an incomplete batch waits for more messages, from its first one on. With 0 the handler gets what is there. At most 1 minute. Needs `batch`.",
        ),
        (
            "handler_timeout",
            usual
                .configured_handler_timeout()
                .map_or_else(String::new, format_duration),
            "How long a handler may take. If it takes longer, the attempt fails, whatever the handler returns. At most 365 days. The default with `--http` is 30 s.",
        ),
        (
            "park",
            "on".into(),
            "Whether messages that will not be retried again are parked. If off, they are acknowledged and dropped. Needs `dlx`.",
        ),
        (
            "pause",
            pause,
            "Off by default. If on, the consumer stops taking messages for 30 s when more than 0.5 of the last 20 attempts failed. All three numbers can be set.",
        ),
        (
            "on_event",
            String::new(),
            "A listener that receives every [event](events.md).",
        ),
        (
            "fatal",
            String::new(),
            "Errors that a retry cannot fix: the message is parked at once, as `fatal`. Needs `dlx`. In the command, exit status 65 parks at once, as `requested`.",
        ),
        (
            "declare",
            "on".into(),
            "Whether missing queues are created. If off, they must exist, and the user needs no configure permission.",
        ),
        (
            "work_queue",
            QueueType::default().as_str().into(),
            "How the queue itself is created if it is missing: `quorum`, `classic`, exactly the given arguments, or `existing` (never created).",
        ),
        (
            "reserved_name",
            "off".into(),
            "Consumes a queue even if its name ends in `.parked`, `.parked.dropped`, `.unreadable`, or `.retry.` and a number, as those of retryrmq do.",
        ),
        (
            "drain_timeout",
            format_duration(usual.configured_drain_timeout()),
            "How long closing waits for running handlers. After that, the messages that they hold are requeued. Copies that the broker has not confirmed yet get up to three seconds more. At most 365 days.",
        ),
        (
            "crash_limit",
            limits.crashes.to_string(),
            "A message is parked as `delivery-limit` after this many crashes of its consumer.",
        ),
        (
            "defer_limit",
            limits.deferrals.to_string(),
            "A message is parked as `exhausted` after this many deferrals.",
        ),
    ]
}

/// The events, each with the names of its fields.
pub(super) fn events() -> Vec<(&'static str, Vec<&'static str>)> {
    Event::one_of_each()
        .iter()
        .map(|event| {
            let names = json_rows::names(event).into_iter();
            (event.name(), names.filter(|name| *name != "name").collect())
        })
        .collect()
}

/// The log lines of attempts that were no success: by what follows, the level, and the line of an example.
pub(super) fn lines() -> Vec<(&'static str, &'static str, String)> {
    NextStep::one_of_each()
        .into_iter()
        .map(|follows| {
            let line = AttemptLogLine::example(follows).to_string();
            (follows.name(), follows.level(), line)
        })
        .collect()
}

/// All of it, in the form of `table.json`.
pub(super) fn json() -> String {
    let quoted = |text: &str| format!("{text:?}");
    let list = |all: &[&str]| {
        let all: Vec<_> = all.iter().map(|one| quoted(one)).collect();
        format!("[{}]", all.join(", "))
    };
    let mut out = String::from("{\n");
    let mut section = |name: &str, rows: Vec<(&str, String)>, end: &str| {
        let rows: Vec<_> = rows
            .into_iter()
            .map(|(name, value)| format!("    {}: {value}", quoted(name)))
            .collect();
        // Writing to a String cannot fail.
        let _ = write!(
            out,
            "  {}: {{\n{}\n  }}{end}\n",
            quoted(name),
            rows.join(",\n")
        );
    };
    let options = options().into_iter();
    section(
        "options",
        options
            .map(|(name, usual, _)| (name, quoted(&usual)))
            .collect(),
        ",",
    );
    let events = events().into_iter();
    section(
        "events",
        events.map(|(name, said)| (name, list(&said))).collect(),
        ",",
    );
    section(
        "levels",
        lines()
            .into_iter()
            .map(|(what, level, _)| (what, quoted(level)))
            .collect(),
        ",",
    );
    section(
        "lines",
        lines()
            .into_iter()
            .map(|(what, _, line)| (what, quoted(&line)))
            .collect(),
        ",",
    );
    let codes = ErrorKind::ALL.map(ErrorKind::code);
    let reasons = ParkReason::ALL.map(ParkReason::as_str);
    let _ = write!(
        out,
        "  \"codes\": {},\n  \"reasons\": {},\n  \"events_waiting\": {EVENTS}\n}}\n",
        list(&codes),
        list(&reasons)
    );
    out
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, fs};

    use super::*;
    use crate::{
        reference::{cased, hold, source},
        repository::root,
    };

    /// All pages of a folder.
    fn pages(folder: &str) -> String {
        let files =
            fs::read_dir(root().join(folder)).unwrap_or_else(|error| panic!("{folder}: {error}"));
        files
            .map(|file| fs::read_to_string(file.unwrap().path()).unwrap())
            .collect()
    }

    #[test]
    fn the_text_is_up_to_date() {
        hold("bindings-common/table.json", &json());
    }

    /// How often the names of a kind stand in the match that gives them: there each of them must be.
    fn named(file: &str, from: &str) -> usize {
        let text = source(file);
        let body = text.split(from).nth(1).unwrap();
        body.split("\n    }\n")
            .next()
            .unwrap()
            .matches("=> \"")
            .count()
    }

    #[test]
    fn none_is_left_out() {
        let names = events().into_iter().map(|(name, _)| name);
        let names: BTreeSet<_> = names.collect();
        assert_eq!(
            names.len(),
            named("core/src/telemetry/events.rs", "const fn name")
        );
        let codes: BTreeSet<_> = ErrorKind::ALL.map(ErrorKind::code).into();
        assert_eq!(codes.len(), named("core/src/error.rs", "const fn code"));
        let reasons: BTreeSet<_> = ParkReason::ALL.map(ParkReason::as_str).into();
        assert_eq!(
            reasons.len(),
            named("core/src/retry/outcome.rs", "const fn as_str")
        );
        let given = source("bindings-common/src/options.rs");
        let given = given.split("struct OptionsJson {").nth(1).unwrap();
        let given = given.split("\n}\n").next().unwrap();
        let here: BTreeSet<_> = options().into_iter().map(|(name, ..)| name).collect();
        let fields: Vec<_> = given
            .lines()
            .filter_map(|line| line.trim().split_once(": "))
            .map(|(name, _)| name)
            .collect();
        assert!(fields.len() > 15, "{fields:?}");
        for option in fields {
            assert!(here.contains(option), "the table lacks `{option}`");
        }
    }

    #[test]
    fn the_pages_of_each_language_name_every_option_with_its_default_and_every_event() {
        let in_go = |name: &str| match name {
            "queue" => "retryrmq".to_owned(), // an argument of its own
            "dlx" => "DLX".to_owned(),
            "park" => "NoParking".to_owned(),
            "declare" => "NoDeclare".to_owned(),
            name => cased(name, true),
        };
        for (folder, is_python, name) in [
            (
                "docs/python",
                true,
                &(|name: &str| name.to_owned()) as &dyn Fn(&str) -> String,
            ),
            ("docs/node", false, &|name| cased(name, false)),
            ("docs/go", false, &in_go),
        ] {
            let text = pages(folder);
            for (option, usual, _) in options() {
                let named = name(option);
                // A number stands behind its option; the concurrency of Python depends on the handler.
                let number =
                    usual.parse::<u32>().is_ok() && !(is_python && option == "concurrency");
                let has = if number {
                    text.contains(&format!("`{named}` ({usual})"))
                } else {
                    // As code, and whole: `dlx: true` and `DLX()` name it, a word of prose does not.
                    text.match_indices(&named).any(|(at, _)| {
                        let before = text[..at].chars().next_back();
                        let after = text[at + named.len()..].chars().next();
                        before.is_none_or(|c| "`(, {\n\t.".contains(c))
                            && after.is_some_and(|c| "`=:(.".contains(c))
                    })
                };
                assert!(has, "{folder} lacks `{named}` ({usual})");
            }
            for (event, _) in events() {
                let named = match folder {
                    "docs/node" => event.to_owned(),
                    "docs/python" => cased(event, true),
                    _ => continue, // Go's documentation has them, as constants
                };
                assert!(text.contains(&named), "{folder} lacks the event `{named}`");
            }
        }
    }

    #[test]
    fn scenarios_hold_the_lines_in_every_language() {
        let held = |name: &str| source(&format!("tests/scenarios/{name}.yaml"));
        let held = ["log", "log-dlx-off", "log-park-off", "strategy-service"].map(held);
        let held = held.concat();
        for (what, level, line) in lines() {
            let is_held = held.contains(&format!("- '{level} {line}'\n"));
            // No scenario loses its connection.
            assert!(is_held || what == "lost", "{what}");
        }
    }
}
