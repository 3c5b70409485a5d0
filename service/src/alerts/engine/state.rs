//! What the engine knows, as it is kept beyond the life of a replica.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{group::Group, notice::Notice};
use crate::alerts::{Silence, sanitize};

/// Characters of a text where there is no room for more.
const SHORT: usize = 100;

/// The form of the text. Another one is not read, so that a newer release may change it.
pub(super) const FORM: u32 = 1;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(in crate::alerts) struct State {
    pub(super) form: u32,
    /// Rises with each change that must not be lost.
    pub(super) at: Timestamp,
    pub(super) numbers: u64,
    pub(super) groups: BTreeMap<String, Group>,
    pub(super) silences: Vec<Silence>,
    pub(super) replicas: BTreeMap<String, ReplicaReport>,
    pub(super) outbox: Vec<PendingNotice>,
    #[serde(alias = "tally")] // as builds before 0.1.0 wrote it; so with the other aliases
    pub(super) totals: Totals,
}

/// The last report of a replica.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct ReplicaReport {
    pub(super) sequence: u64,
    pub(super) at: Timestamp,
}

/// A notice, and the channels that it has not reached yet.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct PendingNotice {
    pub(super) notice: Notice,
    pub(super) channels: Vec<String>,
}

/// Numbers since the state began.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Totals {
    /// Failures by severity.
    pub(super) failures: BTreeMap<String, u64>,
    #[serde(alias = "pages")]
    pub(super) incidents: u64,
    pub(super) resolved: u64,
    pub(super) silenced: u64,
    /// Groups that were forgotten before their time.
    pub(super) evicted: u64,
    /// Failures of groups that there was no room for.
    pub(super) ungrouped: u64,
    /// Events that never reached the leader.
    pub(super) lost: u64,
    pub(super) repeated: u64,
    /// Notices that no longer fitted into the outbox.
    pub(super) unsent: u64,
}

impl State {
    pub(super) fn new(now: Timestamp) -> Self {
        Self {
            form: FORM,
            at: now,
            numbers: 0,
            groups: BTreeMap::new(),
            silences: Vec::new(),
            replicas: BTreeMap::new(),
            outbox: Vec::new(),
            totals: Totals::default(),
        }
    }

    /// Makes it smaller, a step at a time: what people can do without goes first, then whole notices and groups, the oldest first. Whether there
    /// was anything that could go.
    pub(super) fn shrink(&mut self, step: u32) -> bool {
        let (groups, outbox) = (&mut self.groups, &mut self.outbox);
        match step {
            0 => (groups.values_mut()).for_each(|group| group.example.fields.clear()),
            1 => (outbox.iter_mut()).for_each(|pending| pending.notice.fields.clear()),
            2 => {
                for group in groups.values_mut() {
                    let example = &mut group.example;
                    for field in [
                        &mut example.error,
                        &mut example.error_type,
                        &mut example.routing_key,
                        &mut example.exchange,
                    ] {
                        *field = sanitize::cut(field, SHORT);
                    }
                }
                for PendingNotice { notice, .. } in outbox.iter_mut() {
                    for field in [
                        &mut notice.summary,
                        &mut notice.error,
                        &mut notice.error_type,
                        &mut notice.routing_key,
                    ] {
                        *field = sanitize::cut(field, SHORT);
                    }
                }
            }
            _ => {
                let idle = groups.iter().filter(|(_, group)| group.incident.is_none());
                let mut idle: Vec<_> = idle.map(|(id, group)| (group.last, id.clone())).collect();
                idle.sort_unstable();
                idle.truncate(idle.len().div_ceil(2));
                for (_, id) in &idle {
                    groups.remove(id);
                }
                self.totals.evicted += idle.len() as u64;
                // What people were not told goes last.
                if idle.is_empty() {
                    let late = outbox.len().div_ceil(2);
                    outbox.drain(..late);
                    self.totals.unsent += late as u64;
                    return late > 0;
                }
            }
        }
        true
    }
}
