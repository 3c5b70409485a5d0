//! What the engine knows, as it is kept beyond the life of a replica.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{group::Group, notice::Notice};
use crate::alerts::Silence;

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
    pub(super) replicas: BTreeMap<String, Replica>,
    pub(super) outbox: Vec<Pending>,
    pub(super) tally: Tally,
}

/// The last report of a replica.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Replica {
    pub(super) sequence: u64,
    pub(super) at: Timestamp,
}

/// A notice, and the channels that it has not reached yet.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Pending {
    pub(super) notice: Notice,
    pub(super) channels: Vec<String>,
}

/// Numbers since the state began.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Tally {
    /// Failures by severity.
    pub(super) failures: BTreeMap<String, u64>,
    pub(super) pages: u64,
    pub(super) resolved: u64,
    pub(super) silenced: u64,
    /// Groups that were forgotten before their time.
    pub(super) evicted: u64,
    /// Failures of groups that there was no room for.
    pub(super) ungrouped: u64,
    /// Happenings that never reached the speaker.
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
            tally: Tally::default(),
        }
    }
}
