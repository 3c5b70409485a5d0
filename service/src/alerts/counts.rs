//! Numbers and views, for metrics and a page.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::Serialize;

use super::Severity;

/// The numbers of the alerts, as plain as a metric wants them. Those of the leader are all zero on the replicas that are silent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Counts {
    /// Whether this replica is the one that speaks.
    pub is_leader: bool,
    /// Events that the alerts received on this replica.
    pub received: u64,
    /// Events that this replica dropped because it could not keep up, or because the broker was away for long.
    pub dropped: u64,
    /// Messages that a rule's condition could not be judged on, on this replica.
    pub unevaluated: u64,
    /// Leader: failures by severity.
    pub failures: BTreeMap<String, u64>,
    /// Leader: incidents that were opened.
    pub incidents: u64,
    /// Leader: incidents that were over.
    pub resolved: u64,
    /// Leader: incidents that a silence kept from being opened.
    pub silenced: u64,
    /// Leader: incidents that are open now.
    pub open: u64,
    /// Leader: groups that are known now.
    pub groups: u64,
    /// Leader: groups that were forgotten early, to make room.
    pub evicted: u64,
    /// Leader: failures for which there was no group of their own.
    pub ungrouped: u64,
    /// Leader: events, or reports of them, that never arrived.
    pub lost: u64,
    /// Leader: reports that came twice.
    pub repeated: u64,
    /// Leader: notices that wait for a channel.
    pub outbox: u64,
    /// Leader: notices that were given up because too many waited.
    pub unsent: u64,
    /// Notices by channel, on this replica.
    pub channels: BTreeMap<String, ChannelCounts>,
}

/// The numbers of one channel on one replica.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct ChannelCounts {
    /// Notices that it took.
    pub sent: u64,
    /// Tries that failed and were made again.
    pub retried: u64,
    /// Notices that were given up: refused for good, or too old, or too many.
    pub failed: u64,
}

/// A group, as people see it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct GroupView {
    /// Its id, to resolve it by.
    pub id: String,
    /// Its queue.
    pub queue: String,
    /// Its fingerprint; empty for a queue in trouble.
    pub fingerprint: String,
    /// The reason of the last failure, or the kind of the trouble.
    pub reason: String,
    /// The last error.
    pub error: String,
    /// The rule that decided last.
    pub rule: String,
    /// How important it is.
    pub severity: Severity,
    /// Failures since it was first seen.
    pub count: u64,
    /// When it was first seen.
    pub first: Timestamp,
    /// When it was last seen.
    pub last: Timestamp,
    /// Its open incident.
    pub incident: Option<String>,
    /// Whether a silence covers it.
    pub silenced: bool,
}
