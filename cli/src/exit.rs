//! The exit codes, in one place: for the code and for the help.

use std::process::ExitCode;

use retryrmq::ErrorKind;

/// How the command ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    Ok = 0,
    Failed = 1,
    Usage = 2,
    NotFound = 3,
    Unconnected = 4,
    Refused = 5,
    /// Others hold parked messages: what was done may not be all.
    Held = 6,
    /// Of `doctor`: something was found.
    Found = 8,
    /// Ctrl-C or SIGTERM: stopped before the end.
    Interrupted = 130,
}

/// What each of them means.
const MEANINGS: [(Exit, &[&str]); 9] = [
    (Exit::Ok, &["done; of `topology`: everything is there"]),
    (
        Exit::Failed,
        &[
            "failed on the way: a lost connection, a broker that does not answer,",
            "an operation that went wrong",
        ],
    ),
    (
        Exit::Usage,
        &[
            "an option, a policy, a URL or the command to run is invalid;",
            "nothing was done",
        ],
    ),
    (
        Exit::NotFound,
        &[
            "not found: the queue, the parked message, or any queue that takes the",
            "message; of `topology` and `setup --dry-run`: something is missing",
        ],
    ),
    (
        Exit::Unconnected,
        &[
            "cannot connect: nothing answers, wrong user or password, TLS, no such",
            "virtual host",
        ],
    ),
    (
        Exit::Refused,
        &[
            "the broker refuses: a permission is missing, a queue has other",
            "arguments, a strategy it cannot serve; of `topology` and `setup`:",
            "something differs; of `gc`: some queues stay",
        ],
    ),
    (
        Exit::Held,
        &[
            "of `parked` and `waiting`: others hold messages, so what was shown or done",
            "may not be all; try again when they are done",
        ],
    ),
    (
        Exit::Found,
        &["of `doctor`: something was found that loses, loops or blocks messages"],
    ),
    (
        Exit::Interrupted,
        &[
            "stopped by Ctrl-C, SIGTERM or SIGHUP before the end; of `consume`: at",
            "once, by the second one. What was held goes back to its queue",
        ],
    ),
];

/// For `retryrmq exit-codes` and its help.
pub(crate) fn table() -> String {
    let mut table = "What the exit codes mean:\n\n".to_owned();
    for (exit, lines) in MEANINGS {
        for (number, line) in lines.iter().enumerate() {
            let code = match number {
                0 => (exit as u8).to_string(),
                _ => String::new(),
            };
            table.push_str(&format!("  {code:>3}  {line}\n"));
        }
    }
    table.push_str(
        "
With --json an error is one JSON object on standard error: `error` (a sentence),
`code` (stable, such as `queue_not_found`) and `exit`.

What the exit status of a COMMAND of `retryrmq consume` means is another matter:
`retryrmq help consume`.",
    );
    table
}

/// The same for programs: the meaning by code.
pub(crate) fn as_json() -> serde_json::Value {
    MEANINGS
        .into_iter()
        .map(|(exit, lines)| ((exit as u8).to_string(), lines.join(" ").into()))
        .collect::<serde_json::Map<_, _>>()
        .into()
}

impl Exit {
    /// How the program of the service ended: its exit codes are these.
    pub(crate) fn of_service(code: Option<i32>) -> Self {
        match code {
            Some(2) => Self::Usage,
            Some(4) => Self::Unconnected,
            Some(5) => Self::Refused,
            Some(130) => Self::Interrupted,
            _ => Self::Failed,
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

impl From<ErrorKind> for Exit {
    fn from(kind: ErrorKind) -> Self {
        match kind {
            ErrorKind::InvalidUrl
            | ErrorKind::InvalidOption
            | ErrorKind::InvalidPolicy
            | ErrorKind::TooLarge => Self::Usage,
            ErrorKind::QueueNotFound | ErrorKind::Unroutable => Self::NotFound,
            ErrorKind::Unreachable
            | ErrorKind::AuthenticationFailed
            | ErrorKind::TlsFailed
            | ErrorKind::VhostNotFound => Self::Unconnected,
            ErrorKind::Mismatch
            | ErrorKind::AccessRefused
            | ErrorKind::StrategyRefused
            | ErrorKind::Broker => Self::Refused,
            _ => Self::Failed,
        }
    }
}
