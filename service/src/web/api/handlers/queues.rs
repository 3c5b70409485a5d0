//! Queues and the groups of failures in them.

use axum::{extract::State, response::Response};
use jiff::Timestamp;

use super::super::{
    super::{
        Page,
        queue_lists::{self, GroupState},
        refusal::RefusalKind,
    },
    problem::Problem,
    request::{ApiPath, ApiRequest, QueueName},
    resources::{Group, Groups, Queue, Queues},
};

pub(in super::super) async fn list(State(page): State<Page>, request: ApiRequest) -> Response {
    let list = queue_lists::queues(&page, page.health.client(), Timestamp::now()).await;
    request.ok(&Queues::of(list))
}

pub(in super::super) async fn one(
    State(page): State<Page>,
    request: ApiRequest,
    ApiPath(QueueName(queue)): ApiPath<QueueName>,
) -> Response {
    let client = page.health.client();
    let (row, _) = queue_lists::queue(&page, client, &queue, Timestamp::now()).await;
    request.ok(&Queue::of(row))
}

pub(in super::super) async fn groups(
    State(page): State<Page>,
    request: ApiRequest,
    ApiPath(QueueName(queue)): ApiPath<QueueName>,
) -> Response {
    request.ok(&Groups {
        groups: of_queue(&page, &queue).await.map(Group::of).collect(),
    })
}

pub(in super::super) async fn group(
    State(page): State<Page>,
    request: ApiRequest,
    ApiPath((QueueName(queue), fingerprint)): ApiPath<(QueueName, String)>,
) -> Result<Response, Problem> {
    let mut groups = of_queue(&page, &queue).await;
    match groups.find(|state| state.group.fingerprint == fingerprint) {
        Some(state) => Ok(request.ok(&Group::of(state))),
        None => Err(Problem::new(RefusalKind::NotFound, queue_lists::NO_GROUP)),
    }
}

async fn of_queue(page: &Page, queue: &str) -> impl Iterator<Item = GroupState> {
    let notes = queue_lists::notes(page, page.health.client(), queue).await;
    let now = Timestamp::now();
    let groups = page.history.index().groups(queue, now).into_iter();
    groups.map(move |group| GroupState::of(page, queue, &notes, group, now))
}
