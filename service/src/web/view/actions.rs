//! Doing something: first what it would touch, then exactly that, as a job.

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
        job_request::{self, JobRequest, Stage, preview},
        jobs::{Job, JobKind, MessageOutcome, Progress, marks},
        notes_cache::sentence,
        past_job::PastJob,
        relative_time::RelativeTime,
        request::{Layout, WebRequest},
    },
    Row,
};

/// Results of a job on its page.
const RESULTS: usize = 1_000;

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
    let request = read(&pairs);
    let work = match request.kind(&web_request.web_user.name, Stage::Choosing) {
        Ok(work) => work,
        Err(refusal) => return web_request.refuse_with(&refusal),
    };
    if let Err(refused) = web_request.may(work.role(), first(&pairs, "word")) {
        return *refused;
    }
    let is_confirmed = matches!(
        work,
        JobKind::Replay(_)
            | JobKind::Drop(_)
            | JobKind::Cancel(_)
            | JobKind::Flush(_)
            | JobKind::Silence(_)
    );
    if !is_confirmed {
        return web_request.refuse(StatusCode::BAD_REQUEST, "This needs no confirmation.");
    }
    let preview = match preview(&page, &request, work).await {
        Ok(preview) => preview,
        Err(refusal) => return web_request.refuse_with(&refusal),
    };
    let (work, now) = (preview.work, Timestamp::now());
    let messages = preview.messages.iter();
    web_request.show(&Confirm {
        note: preview.note.as_ref().map(sentence),
        layout: web_request.layout(format!(
            "{} in {}",
            work.word(),
            terminal_escape::line(&request.queue)
        )),
        work: work.word(),
        rows: messages.map(|event| Row::of(event, now)).collect(),
        count: work.count(),
        keep_dropped: web_request.web_config.page.keep_dropped.to_string(),
        is_count_typed: work.is_counted(),
        marks: work.marks().unwrap_or_default().join(","),
        queue: request.queue,
        fingerprint: request.fingerprint,
    })
}

/// Begins what was confirmed.
pub(in super::super) async fn begin(
    State(page): State<Page>,
    web_request: WebRequest,
    Form(pairs): Form<FormFields>,
) -> Response {
    let request = read(&pairs);
    let work = match request.kind(&web_request.web_user.name, Stage::Complete) {
        Ok(work) => work,
        Err(refusal) => return web_request.refuse_with(&refusal),
    };
    if let Err(refused) = web_request.may(work.role(), first(&pairs, "word")) {
        return *refused;
    }
    let (user, web_config) = (&web_request.web_user, &web_request.web_config);
    let count = first(&pairs, "count").trim().parse().ok();
    match job_request::begin(&page, user, web_config, &request.queue, work, count) {
        Ok(job) => Redirect::to(&format!("/jobs/{}", job.id)).into_response(),
        Err(refusal) => web_request.refuse_with(&refusal),
    }
}

/// What a form asks for.
fn read(pairs: &FormFields) -> JobRequest {
    let all = pairs
        .iter()
        .filter(|(name, _)| name == "mark" || name == "marks");
    let all: Vec<&str> = all.map(|(_, value)| value.as_str()).collect();
    let text = |name: &str| first(pairs, name).to_owned();
    JobRequest {
        action: text("work"),
        queue: text("queue"),
        fingerprint: text("fingerprint"),
        marks: marks(&all.join(",")),
        group: text("group"),
        text: text("text"),
        length: text("length"),
        why: text("why"),
    }
}

/// A job in a list.
struct JobRow {
    id: String,
    work: &'static str,
    queue: String,
    who: String,
    started: RelativeTime,
    state: &'static str,
    total: usize,
    done: usize,
    succeeded: usize,
}

impl JobRow {
    fn of(job: &Job, state: &Progress, now: Timestamp) -> Self {
        Self {
            id: job.id.clone(),
            work: job.word,
            queue: job.queue.clone(),
            who: terminal_escape::line(&job.who).into_owned(),
            started: RelativeTime::of(job.started, now),
            state: match (&state.ended, &state.fault) {
                (None, _) => "under way",
                (Some(_), None) => "done",
                (Some(_), Some(_)) => "failed",
            },
            total: state.total,
            done: state.done,
            succeeded: state.succeeded,
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
        rest: state.reported.saturating_sub(RESULTS),
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
    let past = match PastJob::find(page, id) {
        Ok(past) => past,
        Err(refusal) => return web_request.refuse_with(&refusal),
    };
    let outcomes = past.outcomes();
    let shown: Vec<_> = outcomes.iter().take(RESULTS).map(OutcomeRow::of).collect();
    let count = outcomes.len();
    let last = &past.last;
    web_request.show(&One {
        dropped: past.dropped().join(","),
        layout: web_request.layout(format!("Job in {}", terminal_escape::line(&last.queue))),
        job: JobRow {
            id: id.to_owned(),
            work: "job",
            queue: last.queue.clone(),
            who: terminal_escape::line(&last.who).into_owned(),
            started: RelativeTime::of(last.at, now),
            state: "done elsewhere",
            total: count,
            done: count,
            succeeded: count,
        },
        notes: Vec::new(),
        fault: None,
        rest: count - shown.len(),
        outcomes: shown,
        is_search: false,
        is_of_history: true,
    })
}
