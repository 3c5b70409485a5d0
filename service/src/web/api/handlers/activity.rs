//! Who asks, how much failed, what people are told, and what they did.

use axum::{extract::State, response::Response};
use jiff::Timestamp;

use super::super::{
    super::{Page, queue_lists},
    problem::Problem,
    query::{self, ActionsQuery, QueueQuery},
    request::{ApiQuery, ApiRequest},
    resources::{Action, Actions, Failures, Incident, Incidents, Session},
};

pub(in super::super) async fn session(request: ApiRequest) -> Response {
    request.ok(&Session::of(&request.user, request.csrf_token()))
}

pub(in super::super) async fn incidents(
    State(page): State<Page>,
    request: ApiRequest,
    ApiQuery(asked): ApiQuery<QueueQuery>,
) -> Result<Response, Problem> {
    let queue = query::queue(asked.queue.as_deref())?;
    let incidents = queue_lists::incidents(&page, queue).into_iter();
    Ok(request.ok(&Incidents {
        incidents: incidents.map(Incident::of).collect(),
    }))
}

pub(in super::super) async fn failures(
    State(page): State<Page>,
    request: ApiRequest,
    ApiQuery(asked): ApiQuery<QueueQuery>,
) -> Result<Response, Problem> {
    let queue = query::queue(asked.queue.as_deref())?;
    let now = Timestamp::now();
    let hours = page.history.index().hours(queue, now);
    Ok(request.ok(&Failures::of(&hours, now)))
}

pub(in super::super) async fn actions(
    State(page): State<Page>,
    request: ApiRequest,
    ApiQuery(asked): ApiQuery<ActionsQuery>,
) -> Result<Response, Problem> {
    let queue = query::queue(asked.queue.as_deref())?;
    let limit = query::limit(asked.limit)?;
    let index = page.history.index();
    let actions = index.actions(
        |action| queue.is_none_or(|queue| action.queue == queue),
        limit,
    );
    Ok(request.ok(&Actions {
        actions: actions.iter().map(|event| Action::of(event)).collect(),
    }))
}
