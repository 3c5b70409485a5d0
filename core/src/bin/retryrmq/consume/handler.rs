//! What runs for a message: a command or an HTTP request.

use std::io;

use retryrmq::{Message, Outcome};
use tokio::sync::watch;

use super::{child::Program, http::Endpoint};

/// How urgently what runs has to end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Urgency {
    /// In its own time.
    #[default]
    None,
    /// In its own time; what has not begun does not begin.
    Drain,
    /// SIGTERM, and SIGKILL after the grace period; a request is aborted.
    Soon,
    /// SIGKILL.
    Now,
}

/// How a run ended.
pub(super) enum Run {
    /// By itself or by its timeout.
    Ended(Verdict),
    /// By us while it ran: its message goes back to the queue, and counts as delivered.
    Stopped,
    /// It never began, because we are to end, or for this reason: its message goes back to the queue as if it had never left it.
    Unstarted(Option<io::Error>),
}

/// What follows from a run that ended.
#[derive(Debug)]
pub(super) struct Verdict {
    pub(super) outcome: Outcome,
    /// To be told, as it does not show in the outcome.
    pub(super) remark: Option<String>,
    /// Whether a signal ended it that a service manager sends to all processes: no failure while we drain.
    pub(super) is_by_a_signal_to_all: bool,
}

impl Verdict {
    pub(super) fn new(outcome: Outcome, remark: Option<String>) -> Self {
        Self {
            outcome,
            remark,
            is_by_a_signal_to_all: false,
        }
    }
}

/// What is given the messages.
pub(super) enum Handler {
    Command(Box<Program>),
    Http(Box<Endpoint>),
}

impl Handler {
    /// One attempt.
    ///
    /// # Errors
    /// When it began, and cannot be followed.
    pub(super) async fn run(
        &self,
        message: &Message,
        urgency: watch::Receiver<Urgency>,
    ) -> io::Result<Run> {
        match self {
            Self::Command(program) => program.run(message, urgency).await,
            Self::Http(endpoint) => Ok(endpoint.run(message, urgency).await),
        }
    }

    /// What it is called, once and several times.
    pub(super) fn noun(&self) -> (&'static str, &'static str) {
        match self {
            Self::Command(_) => ("command", "commands"),
            Self::Http(_) => ("request", "requests"),
        }
    }

    /// Its name, for a complaint.
    pub(super) fn name(&self) -> String {
        match self {
            Self::Command(program) => std::path::Path::new(&program.name).display().to_string(),
            Self::Http(endpoint) => endpoint.origin().to_owned(),
        }
    }

    /// Where messages go, if that is another process.
    pub(super) fn target(&self) -> Option<&str> {
        match self {
            Self::Command(_) => None,
            Self::Http(endpoint) => Some(endpoint.origin()),
        }
    }
}
