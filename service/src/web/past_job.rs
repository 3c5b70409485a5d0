//! A job of another replica, or of before a restart, as far as the history has it.

use std::sync::Arc;

use super::{
    Page,
    jobs::{MessageOutcome, taken_out},
    refusal::Refusal,
};
use crate::history::{Event, HistoryAction};

/// What a job did that this service does not know.
pub(super) struct PastJob {
    pub(super) id: String,
    /// What it did last.
    pub(super) last: Arc<Event>,
    /// The latest first.
    pub(super) actions: Vec<Arc<Event>>,
}

impl PastJob {
    /// # Errors
    /// The history has nothing about it.
    pub(super) fn find(page: &Page, id: &str) -> Result<Self, Refusal> {
        let is_of_job = |action: &Event| action.job.as_deref() == Some(id);
        let actions = page.history.index().actions(is_of_job, usize::MAX);
        let Some(last) = actions.first().map(Arc::clone) else {
            return Err(Refusal::not_found(
                "The history has nothing about this job. It may be running in another replica: reload this page in a moment.",
            ));
        };
        Ok(Self {
            id: id.to_owned(),
            last,
            actions,
        })
    }

    /// A result for each of its actions, the oldest first: what it goes on to do comes behind those.
    pub(super) fn outcomes(&self) -> Vec<MessageOutcome> {
        let outcome = |action: &Arc<Event>| MessageOutcome {
            mark: Event::text(&action.mark).to_owned(),
            message_id: action.message_id.clone(),
            went_well: true,
            text: match action.event {
                HistoryAction::Replayed => format!("replayed to {}", Event::text(&action.to)),
                HistoryAction::Dropped => "dropped".to_owned(),
                HistoryAction::Restored => "parked again".to_owned(),
                HistoryAction::Cancelled | HistoryAction::Flushed => {
                    taken_out(action.event).to_owned()
                }
                _ => "done".to_owned(),
            },
        };
        self.actions.iter().rev().map(outcome).collect()
    }

    /// The marks of what it dropped.
    pub(super) fn dropped(&self) -> Vec<&str> {
        let dropped = self
            .actions
            .iter()
            .filter(|action| action.event == HistoryAction::Dropped);
        dropped.map(|action| Event::text(&action.mark)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_job_goes_on_to_do_comes_behind_what_it_did() {
        let action = |mark: &str| {
            Arc::new(Event {
                event: HistoryAction::Dropped,
                mark: Some(mark.to_owned()),
                ..Event::default()
            })
        };
        let past = PastJob {
            id: "7".to_owned(),
            last: action("b"),
            actions: vec![action("b"), action("a")],
        };
        let outcomes = past.outcomes();
        let marks: Vec<_> = outcomes.iter().map(|one| one.mark.as_str()).collect();
        assert_eq!(marks, ["a", "b"]);
    }
}
