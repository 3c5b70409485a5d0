//! Lists: queues, groups, messages, what waits. Drawn from the history, but for how many messages are parked: that the broker says.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, HashSet},
    sync::Arc,
};

use askama::Template;
use axum::{
    extract::{Path, Query, State},
    http::StatusCode,
    response::Response,
};
use jiff::Timestamp;
use retryrmq::{Client, parking_queue, terminal_escape};
use retryrmq_operator::note::Notes;

use super::{
    super::{
        Page,
        chart::Chart,
        notes_cache::sentence,
        relative_time::RelativeTime,
        request::{Layout, WebRequest},
    },
    Row,
};
use crate::{
    alerts::failure_id,
    delayed::DELAYED_QUEUE,
    history::{Event, Group, HistoryAction, QueueSummary},
    intake::WaitReason,
    store::{Destination, Page as Part, Store},
};

/// Rows of a list.
const MOST: usize = 200;

#[derive(Template)]
#[template(path = "queues.html")]
struct Queues {
    layout: Layout,
    rows: Vec<QueueRow>,
    chart: Chart,
    is_on: bool,
    /// Every queue with parked messages is listed.
    sees_all: bool,
    /// Messages with a delay wait in the store.
    has_delayed: bool,
}

/// A queue in a list.
struct QueueRow {
    line: QueueSummary,
    parked: Depth,
    waiting: WaitingCounts,
}

/// How many messages are parked.
#[derive(Clone, Copy, Default)]
struct Depth {
    /// As the broker says, if it does.
    broker: Option<u64>,
    /// Those that the history knows by name.
    history: u64,
}

impl Depth {
    fn count(self) -> u64 {
        self.broker.unwrap_or(self.history)
    }

    fn differs(self) -> bool {
        self.broker.is_some_and(|broker| broker != self.history)
    }
}

/// How many messages wait for a queue, by where they wait.
#[derive(Clone, Copy)]
struct WaitingCounts {
    /// As the history says.
    broker: u64,
    /// As the store says, or the history where it does not.
    store: u64,
    source: StoreSource,
}

/// Who says how many messages wait in the store.
#[derive(Clone, Copy, PartialEq, Eq)]
enum StoreSource {
    /// The store.
    Store,
    /// The history: the store does not answer.
    History,
    /// The history: this service has no store, and its policy had one before.
    NoStore,
}

impl WaitingCounts {
    fn of(line: &QueueSummary, stored: &StoredCounts) -> Self {
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

    fn total(self) -> u64 {
        self.broker + self.store
    }

    fn is_split(self) -> bool {
        self.broker > 0 && self.store > 0
    }

    fn is_of_store(self) -> bool {
        self.source == StoreSource::Store
    }

    fn has_store(self) -> bool {
        self.source != StoreSource::NoStore
    }
}

pub(in super::super) async fn queues(
    State(page): State<Page>,
    web_request: WebRequest,
) -> Response {
    let now = Timestamp::now();
    let index = page.history.index();
    let mut lines = index.queues(now);
    let stored = stored_counts(&page).await;
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
    let depths = page.depths.parked(client(&page, &web_request), names).await;
    let row = |line: QueueSummary| {
        let known = || watched.as_ref()?.get(&line.name).copied();
        let broker = depths.get(&line.name).copied().or_else(known);
        let history = line.parked as u64;
        let parked = Depth { broker, history };
        let waiting = WaitingCounts::of(&line, &stored);
        QueueRow {
            line,
            parked,
            waiting,
        }
    };
    let mut rows: Vec<QueueRow> = lines.into_iter().map(row).collect();
    rows.sort_by_key(|row| Reverse(row.parked.count()));
    web_request.show(&Queues {
        layout: web_request.layout("Queues"),
        rows,
        chart: Chart::of(&index.hours(None, now), now),
        is_on: page.history.is_on(),
        sees_all: watched.is_some(),
        has_delayed: has_delayed(&page, &stored),
    })
}

/// How many messages wait in the store, by the queue that they go to.
enum StoredCounts {
    /// The store's answer. What was published with a delay to an exchange is of the service's own queue.
    Known(BTreeMap<String, u64>),
    /// The store does not answer.
    Unknown,
    /// There is no store.
    NoStore,
}

impl StoredCounts {
    /// The queues that messages wait for.
    fn queues(&self) -> impl Iterator<Item = &String> {
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

async fn stored_counts(page: &Page) -> StoredCounts {
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
fn has_delayed(page: &Page, stored: &StoredCounts) -> bool {
    page.store.is_some()
        && (!page.service_config().delayed().is_empty()
            || stored.queues().any(|queue| queue == DELAYED_QUEUE))
}

/// A group in a list.
struct GroupRow {
    group: Group,
    error: String,
    first: RelativeTime,
    last: RelativeTime,
    silence: Option<String>,
    /// What operators noted.
    note: Option<String>,
    /// The id of its incident.
    incident: String,
}

impl GroupRow {
    fn of(page: &Page, queue: &str, notes: &Notes, mut group: Group, now: Timestamp) -> Self {
        group.error_type = terminal_escape::line(&group.error_type).into_owned();
        let silences = page.running.silences().into_iter();
        let silence = silences
            .filter(|silence| now < silence.until)
            .find(|silence| {
                silence.queue.as_deref() == Some(queue)
                    && silence.fingerprint.as_ref() == Some(&group.fingerprint)
            })
            .map(|silence| {
                format!(
                    "silenced by {} until {}: {}",
                    terminal_escape::line(&silence.author),
                    RelativeTime::of(silence.until, now).iso,
                    terminal_escape::line(&silence.why)
                )
            });
        Self {
            error: match group.error.as_str() {
                "" => "(no error)".to_owned(),
                error => terminal_escape::line(error).into_owned(),
            },
            first: RelativeTime::of(group.first, now),
            last: RelativeTime::of(group.last, now),
            silence,
            note: notes.about(&group.fingerprint).map(sentence),
            incident: failure_id(queue, &group.fingerprint),
            group,
        }
    }
}

/// What is known of the notes already, where another site asks: they stand in a queue.
async fn notes(page: &Page, web_request: &WebRequest, queue: &str) -> Arc<Notes> {
    page.notes_cache
        .about(client(page, web_request), queue)
        .await
}

/// Another site does not make the service ask the broker.
fn client(page: &Page, web_request: &WebRequest) -> Option<Client> {
    let client = page.health.client();
    client.filter(|_| !web_request.context.is_of_another_site())
}

/// An incident that is open.
struct IncidentRow {
    group: String,
    fingerprint: String,
    text: String,
    last: RelativeTime,
}

#[derive(Template)]
#[template(path = "queue.html")]
struct Queue {
    layout: Layout,
    queue: String,
    groups: Vec<GroupRow>,
    chart: Chart,
    actions: Vec<Row>,
    incidents: Vec<IncidentRow>,
    parked: Depth,
    waiting: WaitingCounts,
    /// Messages with a delay wait in the store.
    has_delayed: bool,
}

impl Queue {
    fn is_of_delayed(&self) -> bool {
        self.queue == DELAYED_QUEUE
    }
}

pub(in super::super) async fn queue(
    State(page): State<Page>,
    Path(queue): Path<String>,
    web_request: WebRequest,
) -> Response {
    // Before anything else is read: it takes a moment.
    let notes = notes(&page, &web_request, &queue).await;
    let now = Timestamp::now();
    let index = page.history.index();
    let depths = page
        .depths
        .parked(client(&page, &web_request), [queue.as_str()]);
    let parked = Depth {
        broker: depths.await.get(&queue).copied(),
        history: index.parked_events(&queue, None).len() as u64,
    };
    let of_queue = [queue.as_str(), &parking_queue(&queue)];
    let incidents = page.running.incidents().into_iter();
    let incidents = incidents.filter(|incident| of_queue.contains(&incident.queue.as_str()));
    let groups = index.groups(&queue, now).into_iter();
    let actions = index.actions(|action| action.queue == queue, 20);
    let mut line = QueueSummary {
        name: queue.clone(),
        ..QueueSummary::default()
    };
    for (_, wait) in index
        .waits(now)
        .iter()
        .filter(|(_, wait)| wait.queue == queue)
    {
        match wait.in_store {
            true => line.stored += 1,
            false => line.waiting += 1,
        }
    }
    let stored = stored_counts(&page).await;
    web_request.show(&Queue {
        layout: web_request.layout(terminal_escape::line(&queue)),
        groups: groups
            .map(|group| GroupRow::of(&page, &queue, &notes, group, now))
            .collect(),
        chart: Chart::of(&index.hours(Some(&queue), now), now),
        actions: actions.iter().map(|action| Row::of(action, now)).collect(),
        incidents: incidents
            .map(|incident| IncidentRow {
                text: format!(
                    "{} ({})",
                    terminal_escape::line(&incident.error),
                    terminal_escape::line(&incident.reason)
                ),
                last: RelativeTime::of(incident.last, now),
                group: incident.id,
                fingerprint: incident.fingerprint,
            })
            .collect(),
        parked,
        waiting: WaitingCounts::of(&line, &stored),
        has_delayed: has_delayed(&page, &stored),
        queue,
    })
}

#[derive(Template)]
#[template(path = "group.html")]
struct OneGroup {
    layout: Layout,
    queue: String,
    row: GroupRow,
    rows: Vec<Row>,
    parked: usize,
}

pub(in super::super) async fn group(
    State(page): State<Page>,
    Path((queue, fingerprint)): Path<(String, String)>,
    web_request: WebRequest,
) -> Response {
    let notes = notes(&page, &web_request, &queue).await;
    let now = Timestamp::now();
    let index = page.history.index();
    let mut groups = index.groups(&queue, now).into_iter();
    let Some(group) = groups.find(|group| group.fingerprint == fingerprint) else {
        return web_request.refuse(
            StatusCode::NOT_FOUND,
            "The last day knows of no such group: nothing of it failed, and nothing of it is parked.",
        );
    };
    let parked_events = index.parked_events(&queue, Some(&fingerprint));
    let rows = parked_events
        .iter()
        .take(MOST)
        .map(|death| Row::of(death, now));
    web_request.show(&OneGroup {
        layout: web_request.layout(format!(
            "{} in {}",
            &fingerprint.chars().take(8).collect::<String>(),
            terminal_escape::line(&queue)
        )),
        rows: rows.collect(),
        parked: parked_events.len(),
        row: GroupRow::of(&page, &queue, &notes, group, now),
        queue,
    })
}

/// A message that waits.
struct WaitRow {
    row: Row,
    due: RelativeTime,
    /// The same, to sort by.
    due_at: Timestamp,
    place: Place,
    /// Where it goes, if not to the queue that it is listed with.
    to: Option<String>,
}

/// Where a message waits.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Broker,
    Store,
    /// A store that the policy had before.
    FormerStore,
}

impl Place {
    fn word(self) -> &'static str {
        match self {
            Self::Broker => "broker",
            Self::Store => "store",
            Self::FormerStore => "a store that this service does not use",
        }
    }

    /// Whether this service can move what waits there.
    fn is_used(self) -> bool {
        self != Self::FormerStore
    }
}

#[derive(Template)]
#[template(path = "waiting.html")]
struct Waiting {
    layout: Layout,
    queues: BTreeMap<String, Vec<WaitRow>>,
    /// Messages that the history knows to wait in the broker.
    in_broker: usize,
    /// Messages that the history knows to wait in a store that the policy had before.
    in_former_store: usize,
    /// Not all that the history knows are listed.
    is_cut: bool,
    kept: Option<Kept>,
}

impl Waiting {
    /// Whether each row says where its message waits.
    fn says_where(&self) -> bool {
        self.kept.is_some() || self.in_former_store > 0
    }

    fn is_of_delayed(queue: &str) -> bool {
        queue == DELAYED_QUEUE
    }
}

/// What waits in a store.
struct Kept {
    total: u64,
    shown: usize,
    is_cut: bool,
    fault: Option<String>,
}

pub(in super::super) async fn waiting(
    State(page): State<Page>,
    web_request: WebRequest,
) -> Response {
    let now = Timestamp::now();
    let mut queues: BTreeMap<String, Vec<WaitRow>> = BTreeMap::new();
    let kept = match &page.store {
        Some(store) => Some(in_store(store.as_ref(), &mut queues, now).await),
        None => None,
    };
    let place = |wait: &Event| match (wait.in_store, &kept) {
        (false, _) => Some(Place::Broker),
        (true, None) => Some(Place::FormerStore),
        // The store has said so itself, or will when it answers.
        (true, Some(_)) => None,
    };
    let waits = page.history.index().waits(now).into_iter();
    let waits: Vec<_> = waits
        .filter_map(|(due, wait)| Some((place(&wait)?, due, wait)))
        .collect();
    for (place, due, wait) in waits.iter().take(MOST) {
        let row = WaitRow {
            row: Row::of(wait, now),
            due: RelativeTime::of(*due, now),
            due_at: *due,
            place: *place,
            to: None,
        };
        queues.entry(wait.queue.clone()).or_default().push(row);
    }
    for rows in queues.values_mut() {
        rows.sort_by_key(|row| row.due_at);
    }
    let count = |of: Place| waits.iter().filter(|(place, ..)| *place == of).count();
    web_request.show(&Waiting {
        layout: web_request.layout("Waiting"),
        in_broker: count(Place::Broker),
        in_former_store: count(Place::FormerStore),
        is_cut: waits.len() > MOST,
        queues,
        kept,
    })
}

async fn in_store(
    store: &impl Store,
    queues: &mut BTreeMap<String, Vec<WaitRow>>,
    now: Timestamp,
) -> Kept {
    let part = Part {
        from: None,
        limit: MOST,
        destination: None,
    };
    let listing = match store.list(&part).await {
        Ok(listing) => listing,
        Err(why) => {
            return Kept {
                total: 0,
                shown: 0,
                is_cut: false,
                fault: Some(why.to_string()),
            };
        }
    };
    for listed in &listing.messages {
        let event = Event::to_stored_message(HistoryAction::Other, &listed.message);
        // What was brought back early is due now, whatever it was to be.
        let left = i64::try_from(listed.remaining.as_millis()).unwrap_or(i64::MAX);
        let due = now.as_millisecond().saturating_add(left);
        let due = Timestamp::from_millisecond(due).unwrap_or(now);
        let draft = listed.message.draft();
        let key = terminal_escape::line(&draft.routing_key);
        let to = match (draft.exchange.as_str(), WaitReason::of(draft)) {
            ("", WaitReason::Delayed(_)) => Some(format!("to the queue {key}")),
            ("", WaitReason::Next | WaitReason::Same) => None,
            (exchange, _) => {
                let exchange = terminal_escape::line(exchange);
                Some(format!("to the exchange {exchange}, routing key {key}"))
            }
        };
        let row = WaitRow {
            row: Row::of(&event, now),
            due: RelativeTime::of(due, now),
            due_at: due,
            place: Place::Store,
            to,
        };
        queues.entry(event.queue).or_default().push(row);
    }
    let shown = listing.messages.len();
    Kept {
        total: listing.total,
        shown,
        is_cut: listing.total > shown as u64,
        fault: None,
    }
}

#[derive(Template)]
#[template(path = "search.html")]
struct Search {
    layout: Layout,
    text: String,
    rows: Vec<Row>,
    queues: Vec<String>,
    is_cut: bool,
}

/// What is looked for.
#[derive(Debug, Default, serde::Deserialize)]
pub(in super::super) struct SearchQuery {
    #[serde(default)]
    q: String,
}

pub(in super::super) async fn search(
    State(page): State<Page>,
    Query(asked): Query<SearchQuery>,
    web_request: WebRequest,
) -> Response {
    let now = Timestamp::now();
    let text = asked.q.trim().to_owned();
    let index = page.history.index();
    let found = match text.is_empty() {
        true => Vec::new(),
        false => index.search(&text, MOST),
    };
    let queues = index.queues(now).into_iter();
    web_request.show(&Search {
        layout: web_request.layout("Search"),
        is_cut: found.len() == MOST,
        rows: found.iter().map(|death| Row::of(death, now)).collect(),
        queues: queues
            .filter(|line| line.parked > 0)
            .map(|line| line.name)
            .collect(),
        text,
    })
}
