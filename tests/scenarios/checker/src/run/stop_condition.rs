//! When enough was seen: the checker decides, so that drivers need no idea of it.

use std::collections::BTreeMap;

use super::Run;
use crate::scenario::{End, Scenario};

impl Run<'_> {
    /// Whether all that is expected was seen, so that the driver can be asked to end.
    pub(super) async fn is_enough(&self) -> bool {
        let runs = self.seen.run_counts();
        let expect = &self.scenario.expect;
        let all_ran = self.scenario.messages().iter().all(|message| {
            let least = self
                .scenario
                .expected(&message.id)
                .map_or(0, |expected| expected.runs.at_least);
            runs.get(&message.id).copied().unwrap_or(0) >= least
        });
        let all_told = expect
            .events
            .iter()
            .all(|event| self.seen.told(event).is_empty())
            && expect.log.iter().all(|line| self.seen.logged(line));
        self.is_ready
            && all_ran
            && all_told
            && self.seen.restarts >= expect.restarts.at_least
            && self.all_in_place([]).await
            // only now the rest, because it takes a question to the management interface
            && self.all_in_place(self.fixture.queues().await).await
    }

    /// Whether every queue holds as many messages as it should in the end: those that are named, and those given.
    pub(super) async fn all_in_place(&self, empty: impl IntoIterator<Item = String>) -> bool {
        let mut held = held(self.scenario);
        for queue in empty
            .into_iter()
            .chain([self.scenario.topology.queue.name.clone()])
        {
            held.entry(queue).or_insert(0);
        }
        for (queue, count) in held {
            if self.fixture.depth(&queue).await != count {
                return false;
            }
        }
        true
    }
}

/// How many messages each queue is expected to hold.
fn held(scenario: &Scenario) -> BTreeMap<String, u32> {
    let mut held = BTreeMap::new();
    let messages = scenario.messages();
    for expected in messages
        .iter()
        .filter_map(|message| scenario.expected(&message.id))
    {
        let place = match &expected.ends {
            End::Handled | End::Gone => None,
            End::Unreadable => Some(scenario.unreadable_queue()),
            End::Stuck => Some(scenario.topology.queue.name.clone()),
            End::Parked { .. } => Some(format!("{}.parked", scenario.topology.queue.name)),
            End::In { queue, .. } => Some(queue.clone()),
        };
        for queue in place.into_iter().chain(expected.also_in.iter().cloned()) {
            *held.entry(queue).or_insert(0) += 1;
        }
    }
    held
}
