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
    history::{Event, Group, HistoryAction, QueueSummary},
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
}

/// A queue in a list.
struct QueueRow {
    line: QueueSummary,
    parked: Depth,
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

pub(in super::super) async fn queues(
    State(page): State<Page>,
    web_request: WebRequest,
) -> Response {
    let now = Timestamp::now();
    let index = page.history.index();
    let mut lines = index.queues(now);
    if let Some(counts) = stored_counts(&page).await {
        for line in &mut lines {
            line.waiting = counts.get(&line.name).copied().unwrap_or(0);
        }
    }
    let watched = page.running.parked();
    let known: HashSet<String> = lines.iter().map(|line| line.name.clone()).collect();
    let others = watched.iter().flatten().filter(|(_, count)| **count > 0);
    let others = others.map(|(name, _)| name);
    lines.extend(
        others
            .filter(|name| !known.contains(*name))
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
        QueueRow { line, parked }
    };
    let mut rows: Vec<QueueRow> = lines.into_iter().map(row).collect();
    rows.sort_by_key(|row| Reverse(row.parked.count()));
    web_request.show(&Queues {
        layout: web_request.layout("Queues"),
        rows,
        chart: Chart::of(&index.hours(None, now), now),
        is_on: page.history.is_on(),
        sees_all: watched.is_some(),
    })
}

/// How many messages wait for each queue in the store, if there is one that answers.
async fn stored_counts(page: &Page) -> Option<BTreeMap<String, usize>> {
    let counts = page.store.as_ref()?.count().await.ok()?;
    let of_queue = |(destination, count)| match destination {
        Destination::Queue(queue) => Some((queue, usize::try_from(count).unwrap_or(usize::MAX))),
        Destination::Exchange(..) => None,
    };
    Some(counts.into_iter().filter_map(of_queue).collect())
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
    waiting: usize,
    /// The store has counted them.
    is_waiting_of_store: bool,
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
    let known = || {
        let waits = index.waits(now);
        waits.iter().filter(|(_, wait)| wait.queue == queue).count()
    };
    let counts = stored_counts(&page).await;
    let waiting = match &counts {
        Some(counts) => counts.get(&queue).copied().unwrap_or(0),
        None => known(),
    };
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
        waiting,
        is_waiting_of_store: counts.is_some(),
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
    /// Where it goes, if not to the queue that it is listed with.
    to: Option<String>,
}

#[derive(Template)]
#[template(path = "waiting.html")]
struct Waiting {
    layout: Layout,
    queues: BTreeMap<String, Vec<WaitRow>>,
    total: usize,
    kept: Option<Kept>,
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
    let waits = match &kept {
        Some(_) => Vec::new(),
        None => page.history.index().waits(now),
    };
    let total = waits.len();
    for (due, wait) in waits.iter().take(MOST) {
        let row = WaitRow {
            row: Row::of(wait, now),
            due: RelativeTime::of(*due, now),
            to: None,
        };
        queues.entry(wait.queue.clone()).or_default().push(row);
    }
    web_request.show(&Waiting {
        layout: web_request.layout("Waiting"),
        queues,
        total,
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
        let draft = listed.message.draft();
        let exchange = Some(&draft.exchange).filter(|exchange| !exchange.is_empty());
        let row = WaitRow {
            row: Row::of(&event, now),
            due: RelativeTime::of(Timestamp::from_millisecond(due).unwrap_or(now), now),
            to: exchange.map(|exchange| {
                format!(
                    "to the exchange {}, routing key {}",
                    terminal_escape::line(exchange),
                    terminal_escape::line(&draft.routing_key)
                )
            }),
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
