//! Queues and the groups of failures in them.

use jiff::Timestamp;
use retryrmq_operator::note;
use schemars::JsonSchema;
use serde::Serialize;

use super::{
    super::super::queue_lists::{
        Depth, GroupState, QueueList, QueueRow, StoreSource, WaitingCounts,
    },
    line, said,
};
use crate::history::IntervalCounts;

/// Work queues.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub(in super::super) struct Queues {
    /// Those with the most parked messages first.
    queues: Vec<Queue>,
    /// Whether every queue with parked messages is listed (`[orphans]` with the management API). Otherwise those that the history knows.
    is_complete: bool,
}

/// A work queue.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub(in super::super) struct Queue {
    /// Its name.
    name: String,
    parked: ParkedCount,
    waiting: WaitingCount,
    /// Groups of equal failures that the history knows.
    groups: usize,
    failed_24h: FailureCounts,
}

/// How many messages are parked.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
struct ParkedCount {
    /// Messages, as `source` says.
    count: u64,
    /// Who says so.
    source: CountSource,
    /// Messages that the history knows by name: these can be listed and named.
    known: u64,
}

/// How many messages wait for their next attempt, by where they wait.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
struct WaitingCount {
    /// Messages, in the broker and in the store.
    count: u64,
    /// In the broker, as the history says.
    broker: u64,
    /// In the store, as `store_source` says.
    store: u64,
    /// Who says how many wait in the store.
    store_source: StoreCountSource,
}

/// Who says how many there are.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum CountSource {
    /// The broker, two seconds ago at most.
    Broker,
    /// The last look of the queue watch (`[orphans]` with the management API): the broker was not asked just now, or did not answer.
    Watch,
    /// The history: the broker was not asked, or did not answer.
    History,
}

/// Who says how many messages wait in a store.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum StoreCountSource {
    /// The store.
    Store,
    /// The history: the store does not answer.
    History,
    /// The history: this service has no store, and its policy had one before. These wait until a service uses that store.
    FormerStore,
}

/// Failed attempts.
#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub(super) struct FailureCounts {
    /// The message waits, or waited, for its next attempt.
    retried: u64,
    /// The message was parked.
    parked: u64,
    /// The message was dropped, as its policy says.
    dropped: u64,
}

impl FailureCounts {
    pub(super) fn of(counts: &IntervalCounts) -> Self {
        Self {
            retried: counts.retried,
            parked: counts.parked,
            dropped: counts.dropped,
        }
    }
}

impl Queues {
    pub(in super::super) fn of(list: QueueList) -> Self {
        Self {
            queues: list.rows.into_iter().map(Queue::of).collect(),
            is_complete: list.sees_all,
        }
    }
}

impl Queue {
    pub(in super::super) fn of(row: QueueRow) -> Self {
        Self {
            parked: ParkedCount::of(row.parked),
            waiting: WaitingCount::of(row.waiting),
            groups: row.line.groups,
            failed_24h: FailureCounts::of(&row.line.day),
            name: row.line.name,
        }
    }
}

impl ParkedCount {
    fn of(depth: Depth) -> Self {
        Self {
            count: depth.count(),
            source: match (depth.broker, depth.is_of_watch) {
                (Some(_), false) => CountSource::Broker,
                (Some(_), true) => CountSource::Watch,
                (None, _) => CountSource::History,
            },
            known: depth.history,
        }
    }
}

impl WaitingCount {
    fn of(counts: WaitingCounts) -> Self {
        Self {
            count: counts.total(),
            broker: counts.broker,
            store: counts.store,
            store_source: match counts.source {
                StoreSource::Store => StoreCountSource::Store,
                StoreSource::History => StoreCountSource::History,
                StoreSource::NoStore => StoreCountSource::FormerStore,
            },
        }
    }
}

/// The groups of a queue.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub(in super::super) struct Groups {
    /// The one that failed last first.
    pub(in super::super) groups: Vec<Group>,
}

/// Equal failures in one queue.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub(in super::super) struct Group {
    /// Equal for equal failures.
    fingerprint: String,
    /// The last error.
    error: Option<String>,
    /// Its type.
    error_type: Option<String>,
    /// Why the last message was retried or parked.
    reason: Option<String>,
    /// When it was first seen here.
    #[schemars(with = "String", extend("format" = "date-time"))]
    first_at: Timestamp,
    /// When it failed last.
    #[schemars(with = "String", extend("format" = "date-time"))]
    last_at: Timestamp,
    /// Failed attempts since then.
    failures: u64,
    /// Parked messages that the history knows by name.
    parked: usize,
    /// What operators noted, 20 seconds ago at most.
    note: Option<Note>,
    /// Until when people are told nothing of it, as far as this replica sends the notices.
    silence: Option<Silence>,
    /// The `group` of its incident, open or not: to close it by.
    incident_group: String,
}

/// What operators noted of a group (`retryrmq parked tag`, `hold`).
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub(super) struct Note {
    /// Leave the group alone. A job that names the group includes it all the same.
    hold: bool,
    /// Whose it is.
    owner: Option<String>,
    /// A sentence.
    text: Option<String>,
    /// Who noted it.
    by: Option<String>,
}

/// Nothing is told of a group for a while.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
struct Silence {
    /// Until when.
    #[schemars(with = "String", extend("format" = "date-time"))]
    until: Timestamp,
    /// Who asked for it.
    by: String,
    /// Why.
    why: String,
}

impl Note {
    pub(super) fn of(note: &note::Note) -> Self {
        Self {
            hold: note.hold,
            owner: said(&note.owner),
            text: said(&note.note),
            by: said(&note.by),
        }
    }
}

impl Group {
    pub(in super::super) fn of(state: GroupState) -> Self {
        let group = state.group;
        Self {
            error: said(&group.error),
            error_type: said(&group.error_type),
            reason: said(&group.reason),
            first_at: group.first,
            last_at: group.last,
            failures: group.count,
            parked: group.parked,
            fingerprint: group.fingerprint,
            note: state.note.as_ref().map(Note::of),
            silence: state.silence.map(|silence| Silence {
                until: silence.until,
                by: line(&silence.author),
                why: line(&silence.why),
            }),
            incident_group: state.incident,
        }
    }
}
