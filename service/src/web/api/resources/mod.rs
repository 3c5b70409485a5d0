//! What the API answers, as JSON. Texts of strangers have control characters in a visible form, as on the page.

mod activity;
mod job;
mod message;
mod queue;

use retryrmq::terminal_escape;

pub(super) use activity::{Action, Actions, Failures, Incident, Incidents, Session};
pub(super) use job::{DryRun, Job, JobResults, Jobs};
pub(super) use message::{FoundMessages, Message, MessageList, MessageSummary, WaitingMessages};
pub(super) use queue::{Group, Groups, Queue, Queues};

/// One visible line.
fn line(text: &str) -> String {
    terminal_escape::line(text).into_owned()
}

/// The same; nothing of a text that says nothing.
fn said(text: &str) -> Option<String> {
    Some(text).filter(|text| !text.is_empty()).map(line)
}
