//! Lists: queues, groups, messages, what waits. Drawn from the history, but for how many messages are parked: that the broker says.

use std::collections::BTreeMap;

use askama::Template;
use axum::{
    extract::{Path, Query, State},
    http::StatusCode,
    response::Response,
};
use jiff::Timestamp;
use retryrmq::{Client, terminal_escape};

use super::{
    super::{
        Page,
        chart::Chart,
        notes_cache::sentence,
        queue_lists::{self, Depth, GroupState, QueueList, QueueRow, WaitingCounts},
        relative_time::RelativeTime,
        request::{Layout, WebRequest},
        waiting_list::{self, Kept, Place, WaitRow},
    },
    Row,
};
use crate::{history::Group, queue_names::DELAYED_QUEUE};

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

pub(in super::super) async fn queues(
    State(page): State<Page>,
    web_request: WebRequest,
) -> Response {
    let now = Timestamp::now();
    let client = client(&page, &web_request);
    let QueueList {
        rows,
        sees_all,
        has_delayed,
    } = queue_lists::queues(&page, client, now).await;
    web_request.show(&Queues {
        layout: web_request.layout("Queues"),
        rows,
        chart: Chart::of(&page.history.index().hours(None, now), now),
        is_on: page.history.is_on(),
        sees_all,
        has_delayed,
    })
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
    fn of(state: GroupState, now: Timestamp) -> Self {
        let mut group = state.group;
        group.error_type = terminal_escape::line(&group.error_type).into_owned();
        let silence = state.silence.map(|silence| {
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
            note: state.note.as_ref().map(sentence),
            incident: state.incident,
            group,
        }
    }
}

/// Another site does not make the service ask the broker: what is known already is shown.
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
    let asked = || client(&page, &web_request);
    // Before anything else is read: it takes a moment.
    let notes = queue_lists::notes(&page, asked(), &queue).await;
    let now = Timestamp::now();
    let (row, has_delayed) = queue_lists::queue(&page, asked(), &queue, now).await;
    let index = page.history.index();
    let incidents = queue_lists::incidents(&page, Some(&queue)).into_iter();
    let groups = index.groups(&queue, now).into_iter();
    let actions = index.actions(|action| action.queue == queue, 20);
    web_request.show(&Queue {
        layout: web_request.layout(terminal_escape::line(&queue)),
        groups: groups
            .map(|group| GroupState::of(&page, &queue, &notes, group, now))
            .map(|state| GroupRow::of(state, now))
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
        parked: row.parked,
        waiting: row.waiting,
        has_delayed,
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
    let notes = queue_lists::notes(&page, client(&page, &web_request), &queue).await;
    let now = Timestamp::now();
    let index = page.history.index();
    let mut groups = index.groups(&queue, now).into_iter();
    let Some(group) = groups.find(|group| group.fingerprint == fingerprint) else {
        return web_request.refuse(StatusCode::NOT_FOUND, queue_lists::NO_GROUP);
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
        row: GroupRow::of(GroupState::of(&page, &queue, &notes, group, now), now),
        queue,
    })
}

/// A message that waits.
struct WaitLine {
    row: Row,
    due: RelativeTime,
    place: Place,
    /// Where it goes, if not to the queue that it is listed with.
    to: Option<String>,
}

impl WaitLine {
    fn of(wait: &WaitRow, now: Timestamp) -> Self {
        Self {
            row: Row::of(&wait.event, now),
            due: RelativeTime::of(wait.due, now),
            place: wait.place,
            to: wait.to.as_ref().map(|to| match to.exchange.as_str() {
                "" => format!("to the queue {}", to.routing_key),
                exchange => {
                    format!("to the exchange {exchange}, routing key {}", to.routing_key)
                }
            }),
        }
    }
}

#[derive(Template)]
#[template(path = "waiting.html")]
struct Waiting {
    layout: Layout,
    queues: BTreeMap<String, Vec<WaitLine>>,
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

pub(in super::super) async fn waiting(
    State(page): State<Page>,
    web_request: WebRequest,
) -> Response {
    let now = Timestamp::now();
    let list = waiting_list::waiting(&page, now).await;
    let mut queues: BTreeMap<String, Vec<WaitLine>> = BTreeMap::new();
    for wait in &list.rows {
        let lines = queues.entry(wait.event.queue.clone()).or_default();
        lines.push(WaitLine::of(wait, now));
    }
    web_request.show(&Waiting {
        layout: web_request.layout("Waiting"),
        queues,
        in_broker: list.in_broker,
        in_former_store: list.in_former_store,
        is_cut: list.is_cut,
        kept: list.kept,
    })
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
