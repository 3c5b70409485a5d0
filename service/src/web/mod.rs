//! A page for people, and an API for programs: what failed, what waits, what was parked, and what to do about it.
//!
//! ```text
//!  history's index ─► lists, groups, plot          (no message is read to draw them)
//!  the broker      ─► how many are parked
//!  one message     ─► a look at its parking queue, when somebody opens it
//!  a form ─► confirmation: these messages ─► job ─► progress, a result for each
//! ```
//!
//! The page is made on the server and needs no script; the API (`api`) says the same as JSON. Whoever may not do something does not see its
//! button, and is refused all the same.

mod api;
mod auth;
mod body;
mod chart;
mod configuration;
mod csrf;
mod job_request;
mod jobs;
mod notes_cache;
mod parked_depths_cache;
mod parked_message;
mod past_job;
mod queue_lists;
mod refusal;
mod relative_time;
mod request;
mod sign_in_limiter;
mod view;
mod waiting_list;

use std::sync::Arc;

use axum::{
    Router,
    extract::{DefaultBodyLimit, Request, State},
    http::{StatusCode, header::RETRY_AFTER},
    middleware::{Next, from_fn_with_state},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use retryrmq::Client;
use tokio::sync::{Semaphore, watch};

pub(crate) use configuration::WebConfig;
pub use configuration::{Configuration, Mask, Proxy, Role, Token};
use jobs::Jobs;
use notes_cache::NotesCache;
use parked_depths_cache::ParkedDepthsCache;
use refusal::{Refusal, RefusalKind};
use sign_in_limiter::SignInLimiter;

use crate::{
    Health, alerting_runtime::RunningTasks, history::History, memory_budget::MemoryBudget,
    store::redis::RedisStore,
};

/// What the page is made of.
#[derive(Clone, Debug)]
pub(crate) struct Page {
    config: watch::Receiver<Arc<WebConfig>>,
    health: Health,
    history: History,
    running: RunningTasks,
    jobs: Jobs,
    notes_cache: NotesCache,
    depths: ParkedDepthsCache,
    sign_ins: SignInLimiter,
    memory: MemoryBudget,
    store: Option<Arc<RedisStore>>,
}

impl Page {
    pub(crate) fn new(
        config: watch::Receiver<Arc<WebConfig>>,
        health: Health,
        history: History,
        running: RunningTasks,
        store: Option<Arc<RedisStore>>,
        memory: MemoryBudget,
    ) -> Self {
        Self {
            config,
            health,
            jobs: Jobs::new(
                history.clone(),
                running.clone(),
                memory.clone(),
                store.clone(),
            ),
            notes_cache: NotesCache::default(),
            depths: ParkedDepthsCache::default(),
            sign_ins: SignInLimiter::default(),
            memory,
            history,
            running,
            store,
        }
    }

    /// Lets what people asked for come to a good end.
    pub(crate) async fn end(&self) {
        self.jobs.end().await;
    }

    fn web_config(&self) -> Arc<WebConfig> {
        Arc::clone(&self.config.borrow())
    }

    fn client(&self) -> Result<Client, Refusal> {
        let client = self.health.client();
        client.ok_or_else(|| Refusal::unavailable("Not connected to the broker yet."))
    }
}

/// Bytes of a form, but for the messages that it names.
const FORM: usize = 2 << 20;
/// Bytes of a form that anybody may send.
const SMALL_FORM: usize = 4 << 10;
/// Requests for pages that are answered at the same time. Probes need no such place, and neither does signing in.
const MAX_REQUESTS: usize = 32;
/// Bytes by which a form names one message: `&mark=` and the mark.
const NAMED: usize = 22;

/// The addresses of the page.
pub(crate) fn routes(page: Page) -> Router {
    // A form may name all messages that are known by name.
    let most = FORM + page.history.records().saturating_mul(NAMED);
    let sign_in = Router::new()
        .route("/sign-in", get(view::sign_in).post(view::signed_in))
        .route("/sign-out", post(view::sign_out))
        .layer(DefaultBodyLimit::max(SMALL_FORM));
    let places = Arc::new(Semaphore::new(MAX_REQUESTS));
    Router::new()
        .route("/", get(view::queues))
        .route("/style.css", get(view::style))
        .route("/search", get(view::search))
        .route("/waiting", get(view::waiting))
        .route("/queues/{queue}", get(view::queue))
        .route("/queues/{queue}/groups/{fingerprint}", get(view::group))
        .route("/queues/{queue}/parked/{mark}", get(view::parked))
        .route("/confirm", post(view::confirm))
        .route("/jobs", get(view::jobs).post(view::begin))
        .route("/jobs/{id}", get(view::job))
        .nest(api::ROOT, api::routes())
        .layer(DefaultBodyLimit::max(most))
        .layer(from_fn_with_state(places, limit_requests))
        .merge(sign_in)
        .with_state(page)
}

/// Answers a request at once, or not at all: one that waits would keep its body in memory.
async fn limit_requests(
    State(places): State<Arc<Semaphore>>,
    request: Request,
    next: Next,
) -> Response {
    match places.try_acquire() {
        Ok(_place) => next.run(request).await,
        Err(_) if request.uri().path().starts_with(api::ROOT) => {
            let why = "Too many requests at a time. Try again in a moment.";
            api::Problem::new(RefusalKind::Unavailable, why).into_response()
        }
        Err(_) => {
            let why = "Too many requests at a time. Reload the page in a moment.\n";
            (StatusCode::SERVICE_UNAVAILABLE, [(RETRY_AFTER, "1")], why).into_response()
        }
    }
}
