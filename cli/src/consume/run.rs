//! What happens to one message: how urgently it has to end, and how it ended.

use std::io;

use retryrmq::Outcome;

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
pub(super) enum RunEnd {
    /// By itself or by its timeout: what follows for each message.
    Ended(Vec<RunVerdict>),
    /// By us while it ran: its message goes back to the queue, and counts as delivered.
    Stopped,
    /// It never began, because we are to end, or for this reason: its message goes back to the queue as if it had never left it.
    Unstarted(Option<io::Error>),
}

/// What follows from a run that ended.
#[derive(Debug)]
pub(super) struct RunVerdict {
    pub(super) outcome: Outcome,
    /// To be told, as it does not show in the outcome.
    pub(super) remark: Option<String>,
    /// Whether a signal ended it that a service manager sends to all processes: no failure while we drain.
    pub(super) is_by_a_signal_to_all: bool,
}

impl RunVerdict {
    pub(super) fn new(outcome: Outcome, remark: Option<String>) -> Self {
        Self {
            outcome,
            remark,
            is_by_a_signal_to_all: false,
        }
    }
}
