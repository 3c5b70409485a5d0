//! What the page shows and does, as JSON for programs: the same people, the same masks, the same jobs.
//!
//! ```text
//!  a request ─► ApiRequest (who asks, may they) ─► a handler ─► the functions that the page calls as well
//!                                                     │
//!  operations: a table ─┬─► the addresses             └─► resources, or a problem
//!                       └─► openapi.json
//! ```

mod document;
mod handlers;
mod new_job;
mod operation;
mod problem;
mod query;
mod request;
mod resources;

use axum::{
    Router,
    extract::Request,
    middleware::{Next, from_fn},
    response::{IntoResponse, Response},
};

use super::{
    Page,
    refusal::{Refusal, RefusalKind},
};
use operation::operations;
pub(super) use problem::Problem;

/// Where it is.
pub(super) const ROOT: &str = "/api/v1";

/// The addresses below [`ROOT`].
pub(super) fn routes() -> Router<Page> {
    let routes = operations()
        .into_iter()
        .fold(Router::new(), |routes, operation| {
            let handler = match operation.query {
                Some(_) => operation.handler,
                None => operation.handler.layer(from_fn(refuse_query)),
            };
            routes.route(operation.path, handler)
        });
    routes
        .fallback(|| async {
            Problem::from(Refusal::not_found(
                "The API has no such address: GET /api/v1/openapi.json lists all of them.",
            ))
        })
        .method_not_allowed_fallback(|| async {
            Problem::new(
                RefusalKind::MethodNotAllowed,
                "This address has no such method: the header Allow names those that it has.",
            )
        })
}

/// A query that nobody reads would be taken for a filter that holds.
async fn refuse_query(request: Request, next: Next) -> Response {
    match request.uri().query() {
        None | Some("") => next.run(request).await,
        Some(_) => {
            Problem::invalid("This address has no query: leave out the `?` and what follows it.")
                .into_response()
        }
    }
}
