//! The reference tables of the documentation, made from the code of all languages: `docs/reference/options.md`, `events.md` and
//! `errors.md`. A test fails when they differ; `make docs-renew` writes them.

mod table;

use std::{fmt::Write as _, fs, path::Path};

use retryrmq::{ErrorKind, ParkReason};
use retryrmq_bindings::EVENTS;

use crate::repository::{read, root};

/// The head of a page that nobody edits.
const MADE: &str =
    "<!-- Made from the code by `make docs-renew`: tests/docs/src/reference/mod.rs. -->";

/// The option of the command, where it has one.
fn in_command(option: &str) -> Option<String> {
    Some(match option {
        "queue" => "QUEUE".into(),
        "rules" => "--rule".into(),
        "handler_timeout" => "--timeout".into(),
        "park" => "--no-park".into(),
        "declare" => "--no-declare".into(),
        "drain_timeout" => "--drain".into(),
        "crash_limit" => "--max-crashes".into(),
        "defer_limit" => "--max-deferrals".into(),
        "on_event" | "fatal" => return None,
        other => format!("--{}", other.replace('_', "-")),
    })
}

/// How Rust's setter is called.
fn in_rust(option: &str) -> &str {
    match option {
        "crash_limit" | "defer_limit" => "limits",
        "queue" => "consumer",
        other => other,
    }
}

/// How Go's option is called.
fn in_go(option: &str) -> String {
    match option {
        "queue" => "queue".into(),
        "dlx" => "DLX".into(),
        "park" => "NoParking".into(),
        "declare" => "NoDeclare".into(),
        other => cased(other, true),
    }
}

/// `handler_timeout` as a language writes it.
fn cased(name: &str, first: bool) -> String {
    let mut upper = first;
    let mut cased = String::new();
    for c in name.chars() {
        match c {
            '_' => upper = true,
            c if std::mem::take(&mut upper) => cased.push(c.to_ascii_uppercase()),
            c => cased.push(c),
        }
    }
    cased
}

fn source(of: &str) -> String {
    read(Path::new(of)).unwrap()
}

/// Compares a file with what is made, or writes it.
fn hold(file: &str, made: &str) {
    let path = root().join(file);
    if std::env::var_os("RETRYRMQ_RENEW").is_some() {
        fs::write(&path, made).unwrap_or_else(|why| panic!("{file}: {why}"));
    }
    let written = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        written == made,
        "{file} is stale: `make docs-renew` makes it anew"
    );
}

/// The words of the documentation above a variant of an enum: its first paragraph, as Markdown outside of Rust.
fn documented(source: &str, variant: &str) -> String {
    let lines: Vec<&str> = source.lines().map(str::trim).collect();
    let at = lines
        .iter()
        .position(|line| {
            line.strip_prefix(variant)
                .is_some_and(|rest| rest == "," || rest == " {")
        })
        .unwrap_or_else(|| panic!("there is no variant {variant}"));
    let above = lines[..at]
        .iter()
        .rev()
        .skip_while(|line| line.starts_with("#["));
    let mut words: Vec<&str> = above
        .map_while(|line| line.strip_prefix("///"))
        .map(str::trim)
        .collect();
    words.reverse();
    let first: Vec<_> = words
        .into_iter()
        .take_while(|line| !line.is_empty())
        .collect();
    assert!(!first.is_empty(), "{variant} has no documentation");
    first
        .join(" ")
        .replace("`dlx = false`", "`dlx` off")
        .replace('|', "\\|")
}

/// `Self::Name` for a word in a match such as `Self::Name { .. } => "word"`.
fn variant(source: &str, word: &str) -> String {
    let line = source
        .lines()
        .find(|line| {
            line.trim_end_matches(',')
                .ends_with(&format!("=> \"{word}\""))
        })
        .unwrap_or_else(|| panic!("no variant is `{word}`"));
    let name = line.trim().trim_start_matches("Self::");
    name.split([' ', '{']).next().unwrap_or_default().to_owned()
}

/// The classes in whose body a line says `code`; of Python and TypeScript.
fn classes(source: &str, code: &str) -> Vec<String> {
    let mut class = String::new();
    let mut found = Vec::new();
    for line in source.lines() {
        if let Some((_, rest)) = line
            .split_once("class ")
            .filter(|(before, _)| before.is_empty() || *before == "export ")
        {
            class = rest.split(['(', ' ']).next().unwrap_or_default().to_owned();
        }
        let said = line
            .split_once("code = ")
            .map(|(_, said)| said.trim_matches(['"', '\'']));
        if said == Some(code) {
            found.push(class.clone());
        }
    }
    found
}

fn code(name: &str) -> String {
    format!("`{name}`")
}

fn options() -> String {
    let mut out = format!(
        "# Consumer options\n\n{MADE}\n\nConsumers have the same options in every language; the few exceptions are listed at the end. All options are checked at the \
         call. What only the broker\ncan check is checked when the consumer starts, before it receives a message.\n\n| option | default | what it does |\n|---|---|---|\n"
    );
    for (option, usual, meaning) in table::options() {
        let usual = if usual.is_empty() {
            "none".to_owned()
        } else {
            code(&usual)
        };
        let _ = writeln!(out, "| {} | {usual} | {meaning} |", code(option));
    }
    out.push_str(
        "\nA duration is the language's own type, or a string such as `250ms`, `5m` or `1h30m`. [Policies, rules and strategies](policies.md) are the same\nstrings \
         in all languages.\n\n## Names in each language\n\n| option | Rust | Python | Node | Go | the command |\n|---|---|---|---|---|---|\n",
    );
    for (option, ..) in table::options() {
        let go = in_go(option);
        let _ = writeln!(
            out,
            "| {} | {} | {} | {} | {} | {} |",
            code(option),
            code(in_rust(option)),
            code(option),
            code(&cased(option, false)),
            code(&go),
            in_command(option).map_or_else(|| "–".into(), |name| code(&name)),
        );
    }
    out.push_str(
        "\nIn Rust these are methods of `Consumer` (`.dlx(true)`); both limits are fields of `Limits`. In Go they are functions (`DLX()`); `NoDLX()`,\n\
         `NoParking()` and `NoDeclare()` turn an option off. Some options exist in one language only. Rust: `error_type` names types of errors. Node:\n\
         `keepAlive` decides whether the consumer keeps the process alive, and `signal` is an `AbortSignal`. Go: `Events` sends events to a channel, and\n\
         `OnReady` is called when the consumer has subscribed. The command: `--http`, `--count`, `--idle`, `--grace` and `--max-retry-after`.\n",
    );
    out
}

fn events() -> String {
    let rust = source("core/src/telemetry/events.rs");
    let (python, node, go) = (
        source("bindings-python/python/retryrmq/events.py"),
        source("bindings-node/lib/events.ts"),
        source("bindings-go/events.go"),
    );
    let mut out = format!(
        "# Consumer events\n\n{MADE}\n\nA consumer sends events about its messages to its listener. Every event has the name of its queue; the table shows its other fields.\nIn Python, \
         Node and Go up to {EVENTS} events wait for each slow listener. Further events for that listener are dropped, and the log says how many.\nIn Rust the \
         listener runs on the task that acknowledges messages, so it must return at once. Go's `Events` has only the buffer of its channel.\nThe error of an attempt \
         has at most 1024 bytes, as on the message: the middle of a longer text is left out.\nIts type (`error_type`) has at most 255 bytes, and is \
         missing if the handler gave none.\n\n| event | when | other fields |\n|---|---|---|\n"
    );
    for (event, said) in table::events() {
        let said: Vec<_> = said
            .into_iter()
            .filter(|name| *name != "queue")
            .map(code)
            .collect();
        let said = if said.is_empty() {
            "–".to_owned()
        } else {
            said.join(", ")
        };
        let _ = writeln!(
            out,
            "| {} | {} | {said} |",
            code(event),
            documented(&rust, &variant(&rust, event))
        );
    }
    out.push_str(
        "\n## Names in each language\n\n| event | Rust | Python | Node | Go |\n|---|---|---|---|---|\n",
    );
    for (event, _) in table::events() {
        let class = cased(event, true);
        assert!(
            python.contains(&format!("class {class}(")),
            "Python lacks {class}"
        );
        assert!(node.contains(&format!("'{event}'")), "Node lacks {event}");
        assert!(
            go.contains(&format!("Event{class} EventName = \"{event}\"")),
            "Go lacks {class}"
        );
        let _ = writeln!(
            out,
            "| {} | `Event::{}` | `{class}` | `'{event}'` | `Event{class}` |",
            code(event),
            variant(&rust, event),
        );
    }
    out.push_str("\n## The log\n\nEach attempt that did not succeed is logged with one line, the same in every language, at these levels. For example:\n\n| what happened to the message | level | line |\n|---|---|---|\n");
    for (what, level, line) in table::lines() {
        let what = match what {
            "dropped" => "dropped, because `park` is off".to_owned(),
            "lost" => "redelivered, because the connection was lost".to_owned(),
            what => what.replace('_', " "),
        };
        let _ = writeln!(out, "| {what} | {level} | `` {line} `` |");
    }
    let target = "retryrmq::attempt";
    assert!(
        source("core/src/telemetry/mod.rs")
            .contains(&format!("const ATTEMPT: &str = \"{target}\"")),
        "these lines have another target"
    );
    let _ = writeln!(
        out,
        "\nRust sends these lines to `tracing` (target `{target}`), Python to the logger `{}`, Go to `slog` (attribute `module={}`).\n\
         Filter by these names. Node sends them to the logger given to `setLogger`, with the prefix `retryrmq: `; without such a logger, only warnings and\n\
         errors go to the console.\n\n\
         Python and Go do not format lines that the logger would drop, because a storm of failures produces thousands a second. If you change the level while\n\
         the program runs, it takes effect at the next line or within a tenth of a second; a few lines may be missing. Node formats lines below `warn` only if\n\
         `setLogger` was given a logger.",
        target.replace("::", "."),
        target.trim_start_matches("retryrmq::"),
    );
    let outcome = source("core/src/retry/outcome.rs");
    out.push_str("\n## Why a message was parked\n\nThe reason is in `reason` of the event `parked`, in `x-retry-parked-reason` of the message, and in a column of `retryrmq parked ls`:\n\n| reason | when |\n|---|---|\n");
    for reason in ParkReason::ALL {
        let word = reason.as_str();
        let _ = writeln!(
            out,
            "| {} | {} |",
            code(word),
            documented(&outcome, &variant(&outcome, word))
        );
    }
    out
}

fn errors() -> String {
    let rust = source("core/src/error.rs");
    let (python, node, go) = (
        source("bindings-python/python/retryrmq/errors.py"),
        source("bindings-node/lib/errors.ts"),
        source("bindings-go/errors.go"),
    );
    let mut out = format!(
        "# Error codes\n\n{MADE}\n\nAn error has a `code`, the same in every language, and a message that says what to change. None of these errors means that a delivered \
         message was\nlost: a message that was not acknowledged stays in its queue. None contains a password.\n\n| code | what is wrong | if you try again |\n|---|---|---|\n"
    );
    for kind in ErrorKind::ALL {
        let again = if kind.is_transient() {
            "may succeed once the cause is gone"
        } else if kind.is_permanent() {
            "fails until you fix the cause"
        } else {
            "depends"
        };
        let _ = writeln!(
            out,
            "| {} | {} | {again} |",
            code(kind.code()),
            documented(&rust, &variant(&rust, kind.code())),
        );
    }
    out.push_str(
        "\n## Names in each language\n\n| code | Rust | Python | Node | Go |\n|---|---|---|---|---|\n",
    );
    for kind in ErrorKind::ALL {
        let word = kind.code();
        let sentinel = go
            .lines()
            .find(|line| line.contains(&format!("errorKind(\"{word}\"")))
            .and_then(|line| line.trim().split(' ').next());
        let named = |all: Vec<String>| {
            let all: Vec<_> = all.iter().map(|name| code(name)).collect();
            if all.is_empty() {
                "–".to_owned()
            } else {
                all.join(", ")
            }
        };
        let python = named(classes(&python, word));
        assert!(python != "–", "Python lacks {word}");
        let _ = writeln!(
            out,
            "| {} | `ErrorKind::{}` | {python} | {} | {} |",
            code(word),
            variant(&rust, word),
            named(classes(&node, word)),
            named(sentinel.map(str::to_owned).into_iter().collect()),
        );
    }
    out.push_str(
        "\nAll are `retryrmq::Error` in Rust, `RetryRmqError` in Python and Node, `*retryrmq.Error` in Go. Errors about options are also `ValueError` or\n\
         `TypeError` in Python, and `RangeError` or `TypeError` in Node. `forked` is reported in Rust and Python, which can be forked while they run.\n\n\
         The code `error` means a bug in retryrmq. The operation may or may not have completed. It is `RetryRmqError` itself in Python and Node, and `ErrFault`\n\
         in Go.\n",
    );
    out
}

#[test]
fn the_page_of_options_is_up_to_date() {
    hold("docs/reference/options.md", &options());
}

#[test]
fn the_page_of_events_is_up_to_date() {
    hold("docs/reference/events.md", &events());
}

#[test]
fn the_page_of_errors_is_up_to_date() {
    hold("docs/reference/errors.md", &errors());
}

#[test]
fn every_language_has_the_options_that_the_page_names() {
    let rust = source("core/src/consumer/options.rs") + &source("core/src/client/mod.rs");
    let (python, node) = (
        source("bindings-python/python/retryrmq/options.py"),
        source("bindings-node/lib/options.ts"),
    );
    let go = ["options.go", "work_queue.go"]
        .map(|file| source(&format!("bindings-go/{file}")))
        .concat();
    let command = ["consume/options.rs", "retry_args.rs"]
        .map(|file| source(&format!("cli/src/{file}")))
        .concat();
    for (option, ..) in table::options() {
        assert!(
            rust.contains(&format!("pub fn {}(", in_rust(option))),
            "Rust lacks {option}"
        );
        let node_name = cased(option, false);
        assert!(
            node.contains(&format!("\n  {node_name}?: "))
                || node.contains(&format!("\n  {node_name}: ")),
            "Node lacks {node_name}"
        );
        if option != "queue" {
            assert!(
                python.contains(&format!("\n    {option}: ")),
                "Python lacks {option}"
            );
            let go_name = in_go(option);
            let has = go.contains(&format!("\nfunc {go_name}("))
                || go.contains(&format!("\nfunc {go_name}["));
            assert!(has, "Go lacks {go_name}");
            if let Some(name) = in_command(option) {
                let field = name.trim_start_matches("--").replace('-', "_");
                let has = command.contains(&format!(" {field}: "))
                    || command.contains(&format!("long = \"{field}\""));
                assert!(has, "the command lacks {name}");
            }
        }
    }
}
