//! The ledger: which messages were published, and what has become of each.

use crate::handler_script::HandlerScript;
use crate::observations::Observations;
use std::collections::BTreeSet;

/// What was published, batch by batch.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    published: BTreeSet<String>,
    held: BTreeSet<String>,
}

impl Ledger {
    /// The broker has confirmed this message.
    pub(crate) fn published(&mut self, id: &str) {
        self.published.insert(id.to_owned());
    }

    /// This message waits for a queue that is missing, and nobody can read it before the broker offers it again.
    pub(crate) fn held(&mut self, id: &str) {
        self.held.insert(id.to_owned());
    }

    /// What a scenario waits for: messages that were neither handled, nor parked as their fate is.
    pub(crate) fn unsettled(&self, observations: &Observations) -> Vec<String> {
        let (handled, parked) = (observations.handled(), observations.parked());
        let settled = |id: &&String| {
            handled.contains_key(*id)
                || self.held.contains(*id)
                || (HandlerScript::is_parked(id) && parked.contains(*id))
        };
        let all = self.published.iter();
        all.filter(|id| !settled(id)).cloned().collect()
    }

    /// What is parked now, by the consumer's own word, and was not handled since.
    pub(crate) fn parked(&self, observations: &Observations) -> BTreeSet<String> {
        let handled = observations.handled();
        let mut parked = observations.parked();
        parked.retain(|id| !handled.contains_key(id));
        parked
    }

    /// What is left of the messages at the end, when all queues were looked into.
    pub(crate) fn missing(
        &self,
        observations: &Observations,
        found: &BTreeSet<String>,
    ) -> BTreeSet<String> {
        let handled = observations.handled();
        let there = |id: &&String| {
            handled.contains_key(*id) || self.held.contains(*id) || found.contains(*id)
        };
        let all = self.published.iter();
        all.filter(|id| !there(id)).cloned().collect()
    }

    pub(crate) fn count(&self) -> usize {
        self.published.len()
    }
}
