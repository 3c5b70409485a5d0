//! Why the command could not do what it was asked: one sentence, a stable code, an exit code.

use std::io;

use retryrmq::ErrorKind;

use crate::exit::Exit;

/// An error of the command.
#[derive(Debug)]
pub(crate) struct CliError {
    sentence: String,
    code: &'static str,
    exit: Exit,
    closed_pipe: bool,
}

impl CliError {
    fn new(exit: Exit, code: &'static str, sentence: impl Into<String>) -> Self {
        Self {
            sentence: sentence.into(),
            code,
            exit,
            closed_pipe: false,
        }
    }

    /// Options that cannot be combined, or a command that cannot be run.
    pub(crate) fn usage(sentence: impl Into<String>) -> Self {
        Self::new(Exit::Usage, "invalid_option", sentence)
    }

    /// What was named is not there.
    pub(crate) fn not_found(sentence: impl Into<String>) -> Self {
        Self::new(Exit::NotFound, "not_found", sentence)
    }

    /// It may be there, with somebody else.
    pub(crate) fn held(sentence: impl Into<String>) -> Self {
        Self::new(Exit::Held, "held_by_others", sentence)
    }

    /// The broker, or we on its behalf, refuse.
    pub(crate) fn refused(sentence: impl Into<String>) -> Self {
        Self::new(Exit::Refused, "refused", sentence)
    }

    /// What the program of the service says, with its exit code.
    pub(crate) fn of_program(exit: Exit, sentence: impl Into<String>) -> Self {
        let code = match exit {
            Exit::Usage => "invalid_option",
            Exit::Refused => "refused",
            Exit::Unconnected => "unreachable",
            _ => "failed",
        };
        Self::new(exit, code, sentence)
    }

    /// Anything else.
    pub(crate) fn failed(sentence: impl Into<String>) -> Self {
        Self::new(Exit::Failed, "failed", sentence)
    }

    pub(crate) fn sentence(&self) -> &str {
        &self.sentence
    }

    pub(crate) fn code(&self) -> &'static str {
        self.code
    }

    pub(crate) fn exit(&self) -> Exit {
        self.exit
    }

    /// Whether the reader of our output has gone, as `head` does: no reason to complain.
    pub(crate) fn is_closed_pipe(&self) -> bool {
        self.closed_pipe
    }

    /// An error of the core about what was given with the options of `consume` and `topology`: it names those.
    pub(crate) fn in_flags(error: retryrmq::Error) -> Self {
        let mut cli_error = Self::from(error);
        cli_error.sentence = with_flags(&cli_error.sentence);
        cli_error
    }

    /// The same about one message of several: one that is too large is no mistake of who asked for all of them, and the others may
    /// be done with.
    pub(crate) fn on_the_way(mut self) -> Self {
        if self.code == ErrorKind::TooLarge.code() {
            self.exit = Exit::Failed;
        }
        self
    }

    /// The same about one message that was refused while others went: that the options made no sense, and nothing was done, would be wrong.
    pub(crate) fn of_one(mut self) -> Self {
        if self.exit == Exit::Usage {
            self.exit = Exit::Failed;
        }
        self
    }

    /// The same, and what failed afterwards, unless that is the same. A reader that has gone is no reason to say nothing of the latter.
    pub(crate) fn then(self, later: Self) -> Self {
        if self.closed_pipe {
            return later;
        }
        if self.code == later.code {
            return self;
        }
        let sentence = later.sentence;
        self.after(&sentence)
    }

    /// The same with an addition to its sentence.
    pub(crate) fn after(mut self, done: &str) -> Self {
        self.sentence = format!("{}; {done}", self.sentence);
        self
    }
}

/// What the core says of its options, and what the command says.
const FLAGS: [(&str, &str); 10] = [
    (
        "with `dlx` and `declare` on",
        "with `--dlx` and without `--no-declare`",
    ),
    (
        "leave `declare` on and it",
        "leave out `--no-declare`, and it",
    ),
    ("with `declare` off", "with `--no-declare`"),
    ("turn `declare` on", "leave out `--no-declare`"),
    ("set `declare` off", "consume with `--no-declare`"),
    ("`queue_type` as `classic`", "`--queue-type classic`"),
    ("`work_queue`", "`--work-queue`"),
    ("`drain_timeout`", "`--drain`"),
    (
        "`limits.crashes` and `limits.deferrals`",
        "`--max-crashes` and `--max-deferrals`",
    ),
    ("`dlx`", "`--dlx`"),
];

/// A sentence of the core with the command's options. A queue may be called like an option, so what stands after the word `queue` is left
/// alone.
fn with_flags(sentence: &str) -> String {
    FLAGS
        .into_iter()
        .fold(sentence.to_owned(), |sentence, (said, flag)| {
            let mut all = String::with_capacity(sentence.len());
            let mut rest = sentence.as_str();
            while let Some((before, after)) = rest.split_once(said) {
                all.push_str(before);
                all.push_str(if before.ends_with("queue ") {
                    said
                } else {
                    flag
                });
                rest = after;
            }
            all + rest
        })
}

impl From<retryrmq::Error> for CliError {
    fn from(error: retryrmq::Error) -> Self {
        Self::new(error.kind().into(), error.code(), error.to_string())
    }
}

impl From<retryrmq_operator::management::Error> for CliError {
    fn from(error: retryrmq_operator::management::Error) -> Self {
        use retryrmq_operator::management::ManagementErrorKind;
        let (exit, code) = match error.kind() {
            ManagementErrorKind::InvalidUrl => (Exit::Usage, "invalid_url"),
            ManagementErrorKind::Unreachable => (Exit::Unconnected, "unreachable"),
            ManagementErrorKind::Login => (Exit::Unconnected, "authentication_failed"),
            ManagementErrorKind::Forbidden => (Exit::Refused, "access_refused"),
            ManagementErrorKind::NotFound => (Exit::NotFound, "not_found"),
            ManagementErrorKind::Refused => (Exit::Refused, "refused"),
            ManagementErrorKind::Broken => (Exit::Failed, "failed"),
        };
        Self::new(exit, code, error.to_string())
    }
}

impl From<io::Error> for CliError {
    fn from(error: io::Error) -> Self {
        Self {
            closed_pipe: error.kind() == io::ErrorKind::BrokenPipe,
            ..Self::failed(format!("cannot write the output: {error}"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_options_of_the_core_are_named_as_the_commands() {
        for (said, shown) in [
            (
                "the queue `work_queue` does not exist, and `work_queue` is `existing`",
                "the queue `work_queue` does not exist, and `--work-queue` is `existing`",
            ),
            (
                "connect with `queue_type` as `classic` (then",
                "connect with `--queue-type classic` (then",
            ),
            (
                "let a consumer make it, which it does with `dlx` and `declare` on",
                "let a consumer make it, which it does with `--dlx` and without `--no-declare`",
            ),
            (
                "declare it, or leave `declare` on and it is created",
                "declare it, or leave out `--no-declare`, and it is created",
            ),
        ] {
            assert_eq!(with_flags(said), shown);
        }
    }
}
