//! Doing something: first what it would touch, then exactly that, as a job.

use std::{collections::HashSet, sync::Arc, time::Duration};

use askama::Template;
use axum::{
    Form,
    extract::{Path, State},
    http::StatusCode,
    response::{IntoResponse, Redirect, Response},
};
use jiff::Timestamp;
use retryrmq::terminal_escape;

use super::{
    super::{
        Page,
        jobs::{Job, JobKind, MessageOutcome, Progress, marks, taken_out},
        notes_cache::sentence,
        relative_time::RelativeTime,
        request::{Layout, WebRequest},
    },
    Row,
};
use crate::{
    alerts::Silence,
    history::{Event, HistoryAction},
    store::Store,
    stored_messages::walk,
};

/// Messages that a confirmation names one by one.
const SHOWN: usize = 50;
/// Somebody who drops more than these types their number.
const TYPED_ABOVE: usize = 10;
/// Results of a job on its page.
const RESULTS: usize = 1_000;
/// The longest silence.
const LONGEST: Duration = Duration::from_secs(90 * 86_400);

/// A form: `mark` may come several times.
type FormFields = Vec<(String, String)>;

fn first<'p>(pairs: &'p FormFields, name: &str) -> &'p str {
    let mut values = pairs.iter().filter(|(of, _)| of == name);
    values.next().map_or("", |(_, value)| value.as_str())
}

#[derive(Template)]
#[template(path = "confirm.html")]
struct Confirm {
    layout: Layout,
    work: &'static str,
    queue: String,
    fingerprint: String,
    /// All of them, for the form.
    marks: String,
    count: usize,
    is_count_typed: bool,
    /// How long a new queue keeps what is dropped.
    keep_dropped: String,
    rows: Vec<Row>,
    /// What operators noted about the group.
    note: Option<String>,
}

/// What would be done, and to which messages.
pub(in super::super) async fn confirm(
    State(page): State<Page>,
    web_request: WebRequest,
    Form(pairs): Form<FormFields>,
) -> Response {
    let work = match read(&pairs, web_request.web_user.name.as_str(), true) {
        Ok(work) => work,
        Err(why) => return web_request.refuse(StatusCode::BAD_REQUEST, &why),
    };
    if let Err(refused) = web_request.may(work.role(), first(&pairs, "word")) {
        return *refused;
    }
    let (queue, fingerprint) = (first(&pairs, "queue"), first(&pairs, "fingerprint"));
    let (index, now) = (page.history.index(), Timestamp::now());
    let known = match &work {
        JobKind::Replay(_) | JobKind::Drop(_) => {
            let print = Some(fingerprint).filter(|print| !print.is_empty());
            index.parked_events(queue, print)
        }
        JobKind::Cancel(marks) | JobKind::Flush(marks) => {
            let waits = index.waits(now).into_iter().map(|(_, wait)| wait);
            let mut waits: Vec<_> = waits.filter(|wait| wait.queue == queue).collect();
            if let Some(store) = &page.store {
                waits.extend(stored(store.as_ref(), queue, marks).await);
            }
            waits
        }
        _ => Vec::new(),
    };
    // Those that were ticked, or the whole group.
    let ticked = match &work {
        JobKind::Replay(marks)
        | JobKind::Drop(marks)
        | JobKind::Cancel(marks)
        | JobKind::Flush(marks) => marks.clone(),
        _ => Vec::new(),
    };
    let mut meant = ticked;
    if meant.is_empty() && !fingerprint.is_empty() {
        meant = known
            .iter()
            .filter_map(|event| event.mark.clone())
            .collect();
    }
    let is_of_messages = matches!(
        work,
        JobKind::Replay(_) | JobKind::Drop(_) | JobKind::Cancel(_) | JobKind::Flush(_)
    );
    if !is_of_messages && !matches!(work, JobKind::Silence(_)) {
        return web_request.refuse(StatusCode::BAD_REQUEST, "This needs no confirmation.");
    }
    if is_of_messages && meant.is_empty() {
        return web_request.refuse(
            StatusCode::BAD_REQUEST,
            "No message was chosen: tick some, or look through the queue first so that its messages are known by name.",
        );
    }
    let chosen: HashSet<&str> = meant.iter().map(String::as_str).collect();
    let named = known
        .iter()
        .filter(|event| chosen.contains(Event::text(&event.mark)));
    let notes = page.notes_cache.about(page.health.client(), queue).await;
    web_request.show(&Confirm {
        note: notes.about(fingerprint).map(sentence),
        layout: web_request.layout(format!(
            "{} in {}",
            work.word(),
            terminal_escape::line(queue)
        )),
        work: work.word(),
        queue: queue.to_owned(),
        fingerprint: fingerprint.to_owned(),
        rows: named.take(SHOWN).map(|event| Row::of(event, now)).collect(),
        count: meant.len(),
        keep_dropped: web_request.service_config.page().keep_dropped.to_string(),
        is_count_typed: is_count_typed(&work, meant.len()),
        marks: meant.join(","),
    })
}

/// Those of the marks that wait in the store, as far as they are shown; none where it does not answer.
async fn stored(store: &impl Store, queue: &str, marks: &[String]) -> Vec<Arc<Event>> {
    let mut found = Vec::new();
    let walked = walk(store, Some(queue), |listed| {
        let event = Event::to_stored_message(HistoryAction::Other, &listed.message);
        if event.mark.as_ref().is_some_and(|mark| marks.contains(mark)) {
            found.push(Arc::new(event));
        }
        found.len() < SHOWN.min(marks.len())
    });
    match walked.await {
        Ok(()) => found,
        Err(_) => Vec::new(),
    }
}

fn is_count_typed(work: &JobKind, count: usize) -> bool {
    matches!(work, JobKind::Drop(_)) && count > TYPED_ABOVE
}

/// Begins what was confirmed.
pub(in super::super) async fn begin(
    State(page): State<Page>,
    web_request: WebRequest,
    Form(pairs): Form<FormFields>,
) -> Response {
    let work = match read(&pairs, web_request.web_user.name.as_str(), false) {
        Ok(work) => work,
        Err(why) => return web_request.refuse(StatusCode::BAD_REQUEST, &why),
    };
    if let Err(refused) = web_request.may(work.role(), first(&pairs, "word")) {
        return *refused;
    }
    if let JobKind::Drop(marks) = &work
        && is_count_typed(&work, marks.len())
        && first(&pairs, "count").trim() != marks.len().to_string()
    {
        let count = marks.len();
        let why = format!(
            "Nothing was dropped: to drop {count} messages, type {count}. Go back, and do it once more."
        );
        return web_request.refuse(StatusCode::BAD_REQUEST, &why);
    }
    let Some(client) = page.health.client() else {
        return web_request.refuse(
            StatusCode::SERVICE_UNAVAILABLE,
            "The broker has not been reached yet.",
        );
    };
    let queue = first(&pairs, "queue");
    let service_config = Arc::clone(&web_request.service_config);
    let job = page.jobs.begin(
        client,
        work,
        queue,
        &web_request.web_user.name,
        service_config,
    );
    Redirect::to(&format!("/jobs/{}", job.id)).into_response()
}

/// What a form asks for.
fn read(pairs: &FormFields, author: &str, is_first: bool) -> Result<JobKind, String> {
    let queue = first(pairs, "queue");
    if queue.is_empty() || queue.len() > 255 {
        return Err("The form names no queue.".to_owned());
    }
    let all = pairs
        .iter()
        .filter(|(name, _)| name == "mark" || name == "marks");
    let all: Vec<&str> = all.map(|(_, value)| value.as_str()).collect();
    let marks = marks(&all.join(","));
    let named = |make: fn(Vec<String>) -> JobKind| match (marks.is_empty(), is_first) {
        (true, false) => Err("No message was chosen.".to_owned()),
        _ => Ok(make(marks.clone())),
    };
    match first(pairs, "work") {
        "replay" => named(JobKind::Replay),
        "drop" => named(JobKind::Drop),
        "restore" => named(JobKind::Restore),
        "cancel" => named(JobKind::Cancel),
        "flush" => named(JobKind::Flush),
        "look" => Ok(JobKind::Look),
        "search" => match first(pairs, "text").trim() {
            text if (3..=200).contains(&text.len()) => Ok(JobKind::Search(text.to_owned())),
            _ => Err("What is looked for must have 3 to 200 bytes.".to_owned()),
        },
        "close" => match first(pairs, "group") {
            group if group.len() == 16 => Ok(JobKind::Close {
                group: group.to_owned(),
                fingerprint: first(pairs, "fingerprint").chars().take(100).collect(),
            }),
            _ => Err("The form names no incident.".to_owned()),
        },
        "silence" if is_first => Ok(JobKind::Silence(Silence::default())),
        "silence" => {
            let length = retryrmq::parse_duration(first(pairs, "length"));
            let length = length
                .ok()
                .filter(|length| *length <= LONGEST)
                .ok_or("How long? Say it as 1h, 8h, 1d or 7d, up to 90d.")?;
            // Without one it would be the whole queue that nobody hears of.
            let fingerprint = first(pairs, "fingerprint");
            if fingerprint.is_empty() {
                return Err("The form names no group.".to_owned());
            }
            let silence = Silence {
                id: "page".to_owned(), // the job's takes its place
                queue: Some(queue.to_owned()),
                fingerprint: Some(fingerprint.to_owned()),
                until: Timestamp::now() + length,
                author: author.to_owned(),
                why: first(pairs, "why").trim().chars().take(200).collect(),
                ..Silence::default()
            };
            silence.check()?;
            Ok(JobKind::Silence(silence))
        }
        _ => Err("The form does not say what to do.".to_owned()),
    }
}

/// A job in a list.
struct JobRow {
    id: String,
    work: &'static str,
    queue: String,
    who: String,
    begun: RelativeTime,
    state: &'static str,
    total: usize,
    done: usize,
    well: usize,
}

impl JobRow {
    fn of(job: &Job, state: &Progress, now: Timestamp) -> Self {
        Self {
            id: job.id.clone(),
            work: job.word,
            queue: job.queue.clone(),
            who: terminal_escape::line(&job.who).into_owned(),
            begun: RelativeTime::of(job.begun, now),
            state: match (&state.ended, &state.fault) {
                (None, _) => "under way",
                (Some(_), None) => "done",
                (Some(_), Some(_)) => "failed",
            },
            total: state.total,
            done: state.done,
            well: state.well,
        }
    }
}

#[derive(Template)]
#[template(path = "jobs.html")]
struct List {
    layout: Layout,
    jobs: Vec<JobRow>,
    actions: Vec<Row>,
}

pub(in super::super) async fn jobs(State(page): State<Page>, web_request: WebRequest) -> Response {
    let now = Timestamp::now();
    let jobs = page.jobs.list();
    let actions = page.history.index().actions(|_| true, 100);
    web_request.show(&List {
        layout: web_request.layout("Jobs"),
        jobs: jobs
            .iter()
            .map(|job| JobRow::of(job, &job.state(), now))
            .collect(),
        actions: actions.iter().map(|action| Row::of(action, now)).collect(),
    })
}

#[derive(Template)]
#[template(path = "job.html")]
struct One {
    layout: Layout,
    job: JobRow,
    notes: Vec<String>,
    fault: Option<String>,
    outcomes: Vec<OutcomeRow>,
    rest: usize,
    is_search: bool,
    /// The marks of what it dropped, for the form that parks these again.
    dropped: String,
    /// It ran in another service, or before a restart: only the history tells of it.
    is_of_history: bool,
}

struct OutcomeRow {
    mark: String,
    name: String,
    went_well: bool,
    text: String,
}

impl OutcomeRow {
    fn of(outcome: &MessageOutcome) -> Self {
        let mark = &outcome.mark;
        Self {
            name: match &outcome.message_id {
                Some(id) if !id.is_empty() => terminal_escape::line(id).into_owned(),
                _ => mark.get(..8).unwrap_or(mark).to_owned(),
            },
            mark: mark.clone(),
            went_well: outcome.went_well,
            text: terminal_escape::line(&outcome.text).into_owned(),
        }
    }
}

pub(in super::super) async fn job(
    State(page): State<Page>,
    Path(id): Path<String>,
    web_request: WebRequest,
) -> Response {
    let now = Timestamp::now();
    let Some(job) = page.jobs.find(&id) else {
        return of_history(&page, &id, &web_request, now);
    };
    let state = job.state();
    let mut layout = web_request.layout(format!(
        "{} in {}",
        job.word,
        terminal_escape::line(&job.queue)
    ));
    layout.refresh = state.ended.is_none().then_some(1);
    let done = state.outcomes.iter().filter(|outcome| outcome.went_well);
    let dropped = done.filter(|_| job.word == "drop" && state.ended.is_some());
    let dropped: Vec<_> = dropped.map(|outcome| outcome.mark.as_str()).collect();
    web_request.show(&One {
        layout,
        dropped: dropped.join(","),
        job: JobRow::of(&job, &state, now),
        rest: state.told.saturating_sub(RESULTS),
        outcomes: state
            .outcomes
            .iter()
            .take(RESULTS)
            .map(OutcomeRow::of)
            .collect(),
        notes: state.notes,
        fault: state.fault,
        is_search: job.is_search,
        is_of_history: false,
    })
}

/// A job of another replica, or of before a restart.
fn of_history(page: &Page, id: &str, web_request: &WebRequest, now: Timestamp) -> Response {
    let actions = page
        .history
        .index()
        .actions(|action| action.job.as_deref() == Some(id), usize::MAX);
    let Some(last) = actions.first() else {
        return web_request.refuse(
            StatusCode::NOT_FOUND,
            "The history knows of nothing that this job did. It may run in another service: load this page again in a moment.",
        );
    };
    let outcomes: Vec<_> = actions
        .iter()
        .take(RESULTS)
        .map(|action| {
            OutcomeRow::of(&MessageOutcome {
                mark: Event::text(&action.mark).to_owned(),
                message_id: action.message_id.clone(),
                went_well: true,
                text: match action.event {
                    HistoryAction::Replayed => format!("replayed to {}", Event::text(&action.to)),
                    HistoryAction::Dropped => "dropped".to_owned(),
                    HistoryAction::Restored => "parked again".to_owned(),
                    HistoryAction::Cancelled | HistoryAction::Flushed => {
                        taken_out(action.event).to_owned()
                    }
                    _ => "done".to_owned(),
                },
            })
        })
        .collect();
    let count = actions.len();
    let dropped = actions
        .iter()
        .filter(|action| action.event == HistoryAction::Dropped);
    let dropped: Vec<_> = dropped.map(|action| Event::text(&action.mark)).collect();
    web_request.show(&One {
        dropped: dropped.join(","),
        layout: web_request.layout(format!("Job in {}", terminal_escape::line(&last.queue))),
        job: JobRow {
            id: id.to_owned(),
            work: "job",
            queue: last.queue.clone(),
            who: terminal_escape::line(&last.who).into_owned(),
            begun: RelativeTime::of(last.at, now),
            state: "done elsewhere",
            total: count,
            done: count,
            well: count,
        },
        notes: Vec::new(),
        fault: None,
        rest: count - outcomes.len(),
        outcomes,
        is_search: false,
        is_of_history: true,
    })
}
