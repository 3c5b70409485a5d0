//! Jobs: begun, or only shown beforehand, and how far they are.

use axum::{extract::State, response::Response};
use retryrmq_operator::plural;

use super::super::{
    super::{
        Page,
        job_request::{self, Stage, preview},
        past_job::PastJob,
        refusal::RefusalKind,
        request::MAY_NOT,
    },
    new_job::{NewJob, Read},
    problem::Problem,
    query::{self, ResultsQuery},
    request::{ApiBody, ApiPath, ApiQuery, ApiRequest},
    resources::{DryRun, Job, JobResults, Jobs},
};

pub(in super::super) async fn list(State(page): State<Page>, request: ApiRequest) -> Response {
    let jobs = page.jobs.list();
    request.ok(&Jobs {
        jobs: jobs.iter().map(|job| Job::of(job, &job.state())).collect(),
    })
}

pub(in super::super) async fn create(
    State(page): State<Page>,
    request: ApiRequest,
    ApiBody(new_job): ApiBody<NewJob>,
) -> Result<Response, Problem> {
    let Read {
        request: asked,
        expected_count,
        dry_run,
    } = new_job.read()?;
    // A group has the messages that it has now.
    let is_group = asked.marks.is_empty() && ["replay", "drop"].contains(&asked.action.as_str());
    let stage = match is_group {
        true => Stage::Choosing,
        false => Stage::Complete,
    };
    let work = asked.kind(&request.user.name, stage)?;
    if request.user.role < work.role() {
        return Err(Problem::new(RefusalKind::Forbidden, MAY_NOT));
    }
    let work = match is_group || dry_run {
        true => {
            let preview = preview(&page, &asked, work).await?;
            if dry_run {
                expects(expected_count, preview.work.count())?;
                return Ok(request.ok(&DryRun::of(&asked.queue, &preview)));
            }
            preview.work
        }
        false => work,
    };
    let count = work.count();
    if expected_count.is_none() && (is_group || work.is_counted()) {
        return Err(Problem::count_mismatch(
            count,
            format!(
                "Nothing was done: the job is about {}. Look at them with `\"dry_run\": true`, then send `\"expected_count\": {count}`.",
                plural::messages(count as u64)
            ),
        ));
    }
    expects(expected_count, count)?;
    let queue = &asked.queue;
    let config = &request.web_config;
    let job = job_request::begin(&page, &request.user, config, queue, work, expected_count)?;
    let location = format!("/api/v1/jobs/{}", job.id);
    Ok(request.accepted(&location, &Job::of(&job, &job.state())))
}

fn expects(expected: Option<usize>, count: usize) -> Result<(), Problem> {
    match expected {
        Some(expected) if expected != count => Err(Problem::count_mismatch(
            count,
            format!(
                "Nothing was done: `expected_count` is {expected}, and the job is about {}. Look at them with `\"dry_run\": true`.",
                plural::messages(count as u64)
            ),
        )),
        _ => Ok(()),
    }
}

pub(in super::super) async fn one(
    State(page): State<Page>,
    request: ApiRequest,
    ApiPath(id): ApiPath<String>,
) -> Result<Response, Problem> {
    let job = match page.jobs.find(&id) {
        Some(job) => Job::of(&job, &job.state()),
        None => Job::past(&PastJob::find(&page, &id)?),
    };
    Ok(request.ok(&job))
}

pub(in super::super) async fn results(
    State(page): State<Page>,
    request: ApiRequest,
    ApiPath(id): ApiPath<String>,
    ApiQuery(asked): ApiQuery<ResultsQuery>,
) -> Result<Response, Problem> {
    let (offset, limit) = (query::offset(asked.offset)?, query::limit(asked.limit)?);
    let (outcomes, reported) = match page.jobs.find(&id) {
        Some(job) => {
            let state = job.state();
            (state.outcomes, state.reported)
        }
        None => {
            let outcomes = PastJob::find(&page, &id)?.outcomes();
            let reported = outcomes.len();
            (outcomes, reported)
        }
    };
    let part = JobResults::of(&outcomes, reported, offset, limit);
    Ok(request.ok(&part))
}
