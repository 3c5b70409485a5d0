//! A job: the request, its progress, and the result of each message.

use std::sync::{Mutex, MutexGuard, PoisonError};

use jiff::Timestamp;

use super::super::configuration::Role;
use crate::alerts::Silence;

/// Results that are kept of one job.
const MOST: usize = 10_000;

/// What is asked for.
#[derive(Clone, Debug, PartialEq)]
pub(in super::super) enum JobKind {
    /// Parked messages with these marks go back to their queue.
    Replay(Vec<String>),
    /// Parked messages with these marks are dropped, and kept for a while.
    Drop(Vec<String>),
    /// Dropped messages with these marks are parked again.
    Restore(Vec<String>),
    /// Waiting messages with these marks are parked.
    Cancel(Vec<String>),
    /// Waiting messages with these marks come back now.
    Flush(Vec<String>),
    /// Nothing is told of a group for a while.
    Silence(Silence),
    /// The incident of a group is over: its id, and the fingerprint of its failures.
    Close { group: String, fingerprint: String },
    /// Reads the parking queue, so that the history knows what is in it.
    Scan,
    /// Looks for a text in the decoded bodies.
    Search(String),
}

impl JobKind {
    /// For programs and addresses.
    pub(in super::super) fn word(&self) -> &'static str {
        match self {
            Self::Replay(_) => "replay",
            Self::Drop(_) => "drop",
            Self::Restore(_) => "restore",
            Self::Cancel(_) => "cancel",
            Self::Flush(_) => "flush",
            Self::Silence(_) => "silence",
            Self::Close { .. } => "close",
            Self::Scan => "scan",
            Self::Search(_) => "search",
        }
    }

    /// Who may ask for it.
    pub(in super::super) fn role(&self) -> Role {
        match self {
            Self::Drop(_) => Role::Admin,
            _ => Role::Operator,
        }
    }

    /// How many messages it is about, where that is known.
    pub(in super::super) fn count(&self) -> usize {
        self.marks().map_or(0, <[String]>::len)
    }

    /// The messages that it names; nothing of a job that names none.
    pub(in super::super) fn marks(&self) -> Option<&[String]> {
        match self {
            Self::Replay(marks)
            | Self::Drop(marks)
            | Self::Restore(marks)
            | Self::Cancel(marks)
            | Self::Flush(marks) => Some(marks),
            Self::Silence(_) | Self::Close { .. } | Self::Scan | Self::Search(_) => None,
        }
    }
}

/// The result of one message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in super::super) struct MessageOutcome {
    pub(in super::super) mark: String,
    pub(in super::super) message_id: Option<String>,
    pub(in super::super) went_well: bool,
    /// In a few words.
    pub(in super::super) text: String,
}

/// A job. It is remembered after its end, so it does not hold the marks of what it was about.
#[derive(Debug)]
pub(in super::super) struct Job {
    pub(in super::super) id: String,
    /// What it does: [`JobKind::word`].
    pub(in super::super) word: &'static str,
    /// Its results are hits.
    pub(in super::super) is_search: bool,
    pub(in super::super) queue: String,
    pub(in super::super) who: String,
    pub(in super::super) started: Timestamp,
    state: Mutex<Progress>,
}

/// How far it is.
#[derive(Clone, Debug, Default)]
pub(in super::super) struct Progress {
    pub(in super::super) total: usize,
    pub(in super::super) done: usize,
    /// Outcomes, also of those that are not kept.
    pub(in super::super) reported: usize,
    /// How many of them went well.
    pub(in super::super) succeeded: usize,
    pub(in super::super) outcomes: Vec<MessageOutcome>,
    pub(in super::super) notes: Vec<String>,
    pub(in super::super) fault: Option<String>,
    pub(in super::super) ended: Option<Timestamp>,
}

impl Job {
    pub(super) fn new(work: &JobKind, queue: &str, who: &str) -> Self {
        let state = Progress {
            total: work.count(),
            ..Progress::default()
        };
        Self {
            id: format!("{:016x}", fastrand::u64(..)),
            word: work.word(),
            is_search: matches!(work, JobKind::Search(_)),
            queue: queue.to_owned(),
            who: who.to_owned(),
            started: Timestamp::now(),
            state: Mutex::new(state),
        }
    }

    pub(in super::super) fn state(&self) -> Progress {
        self.lock().clone()
    }

    pub(super) fn has_ended(&self) -> bool {
        self.lock().ended.is_some()
    }

    pub(super) fn succeeded(&self) -> usize {
        self.lock().succeeded
    }

    pub(super) fn expects(&self, total: usize) {
        self.lock().total = total;
    }

    pub(super) fn advances(&self) {
        self.lock().done += 1;
    }

    pub(super) fn add(&self, outcome: MessageOutcome) {
        let mut state = self.lock();
        state.reported += 1;
        state.succeeded += usize::from(outcome.went_well);
        if state.outcomes.len() < MOST {
            state.outcomes.push(outcome);
        }
    }

    pub(super) fn note(&self, sentence: impl Into<String>) {
        self.lock().notes.push(sentence.into());
    }

    pub(super) fn end(&self, fault: Option<String>) {
        let mut state = self.lock();
        (state.fault, state.ended) = (fault, Some(Timestamp::now()));
    }

    fn lock(&self) -> MutexGuard<'_, Progress> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outcomes_that_are_not_kept_are_counted() {
        let job = Job::new(&JobKind::Drop(Vec::new()), "orders", "ana");
        for number in 0..MOST + 5 {
            job.add(MessageOutcome {
                mark: format!("{number:016x}"),
                message_id: None,
                went_well: number % 2 == 0,
                text: String::new(),
            });
        }
        let state = job.state();
        assert_eq!((state.outcomes.len(), state.reported), (MOST, MOST + 5));
        assert_eq!(job.succeeded(), MOST / 2 + 3);
    }
}
