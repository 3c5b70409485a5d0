//! Jobs: what they would do, how far they are, and what became of each message.

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::Serialize;

use super::{
    super::super::{
        job_request::Preview,
        jobs::{self, MessageOutcome, Progress},
        past_job::PastJob,
    },
    line,
    queue::Note,
    said,
};
use crate::history::Event;

/// What a job would do. Nothing was changed.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub(in super::super) struct DryRun {
    /// Always `true`.
    dry_run: bool,
    /// What it would do.
    action: &'static str,
    /// The queue.
    queue: String,
    /// Messages that it would touch, as far as they are still there by then. Nothing for an action that names no message.
    count: Option<usize>,
    /// Whether `expected_count` is needed even if `marks` are sent.
    is_count_required: bool,
    /// The marks of these messages. A job that is sent these touches exactly them, whatever comes meanwhile.
    marks: Vec<String>,
    /// The first 50 of them that the history or the store knows.
    messages: Vec<JobMessage>,
    /// What operators noted about the group.
    note: Option<Note>,
}

/// A message that a job would touch.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
struct JobMessage {
    /// Names it.
    mark: String,
    /// The publisher's id.
    message_id: Option<String>,
    /// The last error.
    error: Option<String>,
    /// Its type.
    error_type: Option<String>,
    /// Attempts, as far as somebody has counted.
    attempts: Option<u32>,
}

impl DryRun {
    pub(in super::super) fn of(queue: &str, preview: &Preview) -> Self {
        let messages = preview.messages.iter().map(|event| JobMessage {
            mark: Event::text(&event.mark).to_owned(),
            message_id: said(Event::text(&event.message_id)),
            error: said(Event::text(&event.error)),
            error_type: said(Event::text(&event.error_type)),
            attempts: event.attempt.filter(|count| *count > 0),
        });
        let marks = preview.work.marks();
        Self {
            dry_run: true,
            action: preview.work.word(),
            queue: queue.to_owned(),
            count: marks.map(<[String]>::len),
            is_count_required: preview.work.is_counted(),
            marks: marks.unwrap_or_default().to_vec(),
            messages: messages.collect(),
            note: preview.note.as_ref().map(Note::of),
        }
    }
}

/// Jobs.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub(in super::super) struct Jobs {
    /// The latest 100 of the replica that answers, the latest first.
    pub(in super::super) jobs: Vec<Job>,
}

/// How far a job is.
#[derive(Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum JobState {
    /// It waits for its turn, or runs.
    Running,
    /// It ended. Messages may have failed all the same: see `succeeded`.
    Done,
    /// It ended early: see `error`.
    Failed,
    /// It is a job of another replica, or of before a restart, or one that this replica has forgotten: this is what the history has of it. It may
    /// still be running in the other replica. Messages that it failed with are not known.
    Past,
}

/// A job.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub(in super::super) struct Job {
    /// Its id.
    id: String,
    /// What it does; nothing for a past one.
    action: Option<&'static str>,
    /// The queue.
    queue: String,
    /// Who asked for it.
    by: String,
    /// When it was asked for; of a past one, when something was last done.
    #[schemars(with = "String", extend("format" = "date-time"))]
    began_at: Timestamp,
    /// When it ended.
    #[schemars(with = "Option<String>", extend("format" = "date-time"))]
    ended_at: Option<Timestamp>,
    state: JobState,
    /// Messages that it is about; 0 if that is not known, as of a past one.
    total: usize,
    /// Messages that it has come to; of a past one, those that the history has.
    done: usize,
    /// Results that say that it went well; of a past one, those that the history has.
    succeeded: usize,
    /// Results that there are: `GET /api/v1/jobs/{id}/results`. At most 10000 are kept; of a past one, the history has no failures.
    results: usize,
    /// What to know of it.
    notes: Vec<String>,
    /// Why it ended early.
    error: Option<String>,
}

impl Job {
    pub(in super::super) fn of(job: &jobs::Job, state: &Progress) -> Self {
        Self {
            id: job.id.clone(),
            action: Some(job.word),
            queue: job.queue.clone(),
            by: line(&job.who),
            began_at: job.started,
            ended_at: state.ended,
            state: match (&state.ended, &state.fault) {
                (None, _) => JobState::Running,
                (Some(_), None) => JobState::Done,
                (Some(_), Some(_)) => JobState::Failed,
            },
            total: state.total,
            done: state.done,
            succeeded: state.succeeded,
            results: state.outcomes.len(),
            notes: state.notes.iter().map(|note| line(note)).collect(),
            error: state.fault.as_deref().map(line),
        }
    }

    pub(in super::super) fn past(past: &PastJob) -> Self {
        let count = past.actions.len();
        Self {
            id: past.id.clone(),
            action: None,
            queue: past.last.queue.clone(),
            by: line(&past.last.who),
            began_at: past.last.at,
            ended_at: None,
            state: JobState::Past,
            total: 0, // nobody here knows how many were chosen
            done: count,
            succeeded: count,
            results: count,
            notes: Vec::new(),
            error: None,
        }
    }
}

/// A part of the results of a job.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub(in super::super) struct JobResults {
    /// In the order in which they came.
    results: Vec<JobResult>,
    /// The `offset` of the next part; nothing at the end of those that there are by now.
    next: Option<usize>,
    /// Whether the job has more results than the 10000 that are kept: these are the first.
    is_cut: bool,
}

/// What became of one message. A search has a result for each message with the text.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
struct JobResult {
    /// Names the message.
    mark: String,
    /// The publisher's id.
    message_id: Option<String>,
    /// Whether it went well. If not, nothing was done with the message, or `text` says what else.
    is_success: bool,
    /// In a few words.
    text: String,
}

impl JobResults {
    /// A part of those of a job that has `reported` so many.
    pub(in super::super) fn of(
        outcomes: &[MessageOutcome],
        reported: usize,
        offset: usize,
        limit: usize,
    ) -> Self {
        let some = outcomes.iter().skip(offset).take(limit);
        let results: Vec<_> = some
            .map(|outcome| JobResult {
                mark: outcome.mark.clone(),
                message_id: outcome.message_id.as_deref().and_then(said),
                is_success: outcome.went_well,
                text: line(&outcome.text),
            })
            .collect();
        let end = offset.saturating_add(results.len());
        Self {
            next: (end < outcomes.len()).then_some(end),
            is_cut: reported > outcomes.len(),
            results,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_say_where_they_stop() {
        let outcome = |mark: &str| MessageOutcome {
            mark: mark.to_owned(),
            message_id: None,
            went_well: true,
            text: String::new(),
        };
        let outcomes = ["a", "b", "c"].map(outcome);
        let part = |reported, offset| {
            let part = JobResults::of(&outcomes, reported, offset, 2);
            (part.results.len(), part.next, part.is_cut)
        };
        assert_eq!(part(3, 0), (2, Some(2), false));
        assert_eq!(part(3, 2), (1, None, false));
        assert_eq!(part(4, 2), (1, None, true));
        assert_eq!(part(3, 9), (0, None, false));
    }
}
