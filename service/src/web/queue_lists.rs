//! What is parked and what waits, by queue, for the page and for the API.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, HashSet},
    sync::Arc,
};

use jiff::Timestamp;
use retryrmq::{Client, parking_queue};
use retryrmq_operator::note::{Note, Notes};

use super::Page;
use crate::{
    alerts::{GroupView, Silence, failure_id},
    history::{Group, QueueSummary},
    queue_names::DELAYED_QUEUE,
    store::{Destination, Store},
};

/// A queue in a list.
pub(super) struct QueueRow {
    pub(super) line: QueueSummary,
    pub(super) parked: Depth,
    pub(super) waiting: WaitingCounts,
}

/// How many messages are parked.
#[derive(Clone, Copy, Default)]
pub(super) struct Depth {
    /// As the broker says, if it does.
    pub(super) broker: Option<u64>,
    /// The broker said it in the last look of the queue watch, and not just now.
    pub(super) is_of_watch: bool,
    /// Those that the history knows by name.
    pub(super) history: u64,
}

impl Depth {
    pub(super) fn count(self) -> u64 {
        self.broker.unwrap_or(self.history)
    }

    pub(super) fn differs(self) -> bool {
        self.broker.is_some_and(|broker| broker != self.history)
    }
}

/// How many messages wait for a queue, by where they wait.
#[derive(Clone, Copy)]
pub(super) struct WaitingCounts {
    /// As the history says.
    pub(super) broker: u64,
    /// As the store says, or the history where it does not.
    pub(super) store: u64,
    pub(super) source: StoreSource,
}

/// Who says how many messages wait in the store.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum StoreSource {
    /// The store.
    Store,
    /// The history: the store does not answer.
    History,
    /// The history: this service has no store, and its policy had one before.
    NoStore,
}

impl WaitingCounts {
    pub(super) fn of(line: &QueueSummary, stored: &StoredCounts) -> Self {
        let (store, source) = match stored {
            StoredCounts::Known(counts) => {
                let count = counts.get(&line.name).copied().unwrap_or(0);
                (count, StoreSource::Store)
            }
            StoredCounts::Unknown => (line.stored as u64, StoreSource::History),
            StoredCounts::NoStore => (line.stored as u64, StoreSource::NoStore),
        };
        Self {
            broker: line.waiting as u64,
            store,
            source,
        }
    }

    pub(super) fn total(self) -> u64 {
        self.broker + self.store
    }

    pub(super) fn is_split(self) -> bool {
        self.broker > 0 && self.store > 0
    }

    pub(super) fn is_of_store(self) -> bool {
        self.source == StoreSource::Store
    }

    pub(super) fn has_store(self) -> bool {
        self.source != StoreSource::NoStore
    }
}

/// All queues, those with the most parked messages first.
pub(super) struct QueueList {
    pub(super) rows: Vec<QueueRow>,
    /// Every queue with parked messages is listed.
    pub(super) sees_all: bool,
    /// Messages with a delay wait in the store.
    pub(super) has_delayed: bool,
}

/// Asks the broker with that client how many messages are parked; without one, the history says.
pub(super) async fn queues(page: &Page, client: Option<Client>, now: Timestamp) -> QueueList {
    let mut lines = page.history.index().queues(now);
    let stored = stored_counts(page).await;
    let watched = page.running.parked();
    let mut known: HashSet<String> = lines.iter().map(|line| line.name.clone()).collect();
    let others = watched.iter().flatten().filter(|(_, count)| **count > 0);
    let others = others.map(|(name, _)| name).chain(stored.queues());
    lines.extend(
        others
            .filter(|name| known.insert((*name).clone()))
            .map(|name| QueueSummary {
                name: name.clone(),
                ..QueueSummary::default()
            }),
    );
    let names = lines.iter().map(|line| line.name.as_str());
    let depths = page.depths.parked(client, names).await;
    let row = |line: QueueSummary| {
        let known = || watched.as_ref()?.get(&line.name).copied();
        let fresh = depths.get(&line.name).copied();
        let broker = fresh.or_else(known);
        let parked = Depth {
            broker,
            is_of_watch: fresh.is_none() && broker.is_some(),
            history: line.parked as u64,
        };
        let waiting = WaitingCounts::of(&line, &stored);
        QueueRow {
            line,
            parked,
            waiting,
        }
    };
    let mut rows: Vec<QueueRow> = lines.into_iter().map(row).collect();
    rows.sort_by_key(|row| Reverse(row.parked.count()));
    QueueList {
        rows,
        sees_all: watched.is_some(),
        has_delayed: has_delayed(page, &stored),
    }
}

/// One queue, and whether messages with a delay wait in the store.
pub(super) async fn queue(
    page: &Page,
    client: Option<Client>,
    queue: &str,
    now: Timestamp,
) -> (QueueRow, bool) {
    let depths = page.depths.parked(client, [queue]).await;
    let index = page.history.index();
    let mut known = index.queues(now).into_iter();
    let known = known.find(|line| line.name == queue).unwrap_or_default();
    // The list leaves out a queue of which nothing but a long wait is known.
    let mut line = QueueSummary {
        name: queue.to_owned(),
        parked: index.parked_events(queue, None).len(),
        waiting: 0,
        stored: 0,
        ..known
    };
    let waits = index.waits(now);
    for (_, wait) in waits.iter().filter(|(_, wait)| wait.queue == queue) {
        match wait.in_store {
            true => line.stored += 1,
            false => line.waiting += 1,
        }
    }
    let stored = stored_counts(page).await;
    let row = QueueRow {
        parked: Depth {
            broker: depths.get(queue).copied(),
            is_of_watch: false,
            history: line.parked as u64,
        },
        waiting: WaitingCounts::of(&line, &stored),
        line,
    };
    (row, has_delayed(page, &stored))
}

/// How many messages wait in the store, by the queue that they go to.
pub(super) enum StoredCounts {
    /// The store's answer. What was published with a delay to an exchange is of the service's own queue.
    Known(BTreeMap<String, u64>),
    /// The store does not answer.
    Unknown,
    /// There is no store.
    NoStore,
}

impl StoredCounts {
    /// The queues that messages wait for.
    pub(super) fn queues(&self) -> impl Iterator<Item = &String> {
        let counts = match self {
            Self::Known(counts) => Some(counts),
            Self::Unknown | Self::NoStore => None,
        };
        let waited_for = counts
            .into_iter()
            .flatten()
            .filter(|(_, count)| **count > 0);
        waited_for.map(|(queue, _)| queue)
    }
}

pub(super) async fn stored_counts(page: &Page) -> StoredCounts {
    let Some(store) = &page.store else {
        return StoredCounts::NoStore;
    };
    let Ok(counts) = store.count().await else {
        return StoredCounts::Unknown;
    };
    let mut by_queue = BTreeMap::new();
    for (destination, count) in counts {
        let queue = match destination {
            Destination::Queue(queue) => queue,
            Destination::Exchange(..) => DELAYED_QUEUE.to_owned(),
        };
        *by_queue.entry(queue).or_insert(0) += count;
    }
    StoredCounts::Known(by_queue)
}

/// Whether some of what waits in the store may have been published with a delay. Counts do not tell a retry from a delayed message of the same queue.
pub(super) fn has_delayed(page: &Page, stored: &StoredCounts) -> bool {
    page.store.is_some()
        && (page.web_config().has_delayed_exchanges
            || stored.queues().any(|queue| queue == DELAYED_QUEUE))
}

/// What whoever asks for a group that is unknown is told.
pub(super) const NO_GROUP: &str =
    "The history has no such group in the last 24 hours: no failures and no parked messages.";

/// A group of equal failures, and what people said of it.
pub(super) struct GroupState {
    pub(super) group: Group,
    pub(super) silence: Option<Silence>,
    /// What operators noted.
    pub(super) note: Option<Note>,
    /// The id of its incident.
    pub(super) incident: String,
}

impl GroupState {
    pub(super) fn of(
        page: &Page,
        queue: &str,
        notes: &Notes,
        group: Group,
        now: Timestamp,
    ) -> Self {
        let silences = page.running.silences().into_iter();
        let silence = silences
            .filter(|silence| now < silence.until)
            .find(|silence| {
                silence.queue.as_deref() == Some(queue)
                    && silence.fingerprint.as_ref() == Some(&group.fingerprint)
            });
        Self {
            silence,
            note: notes.about(&group.fingerprint).cloned(),
            incident: failure_id(queue, &group.fingerprint),
            group,
        }
    }
}

/// What operators noted about the groups of a queue; without a client what is known of it already.
pub(super) async fn notes(page: &Page, client: Option<Client>, queue: &str) -> Arc<Notes> {
    page.notes_cache.about(client, queue).await
}

/// The open incidents of a queue, or of all, where this replica sends the notices.
pub(super) fn incidents(page: &Page, queue: Option<&str>) -> Vec<GroupView> {
    let of_queue = queue.map(|queue| [queue.to_owned(), parking_queue(queue)]);
    let mut incidents = page.running.incidents();
    incidents.retain(|incident| {
        of_queue
            .as_ref()
            .is_none_or(|names| names.contains(&incident.queue))
    });
    incidents
}
