//! Notifications for the Go half: finished operations, events, log lines, requests for credentials. One goroutine fetches them, so that no
//! native thread ever calls into Go.

use std::{
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use retryrmq::log_buffer::{self, Level};
use retryrmq_bindings::{Events, json_rows};

use crate::logging::{self, Line};

/// An event and who listens to it.
#[derive(Debug, uniffi::Record)]
pub struct EventNotification {
    /// The listener, as it was named at the subscription.
    pub listener: u64,
    /// The event, as a row.
    pub row: String,
}

/// A request to a function of the Go half, or its end.
#[derive(Debug, uniffi::Record)]
pub struct CredentialRequest {
    /// The function, as it was named when its client connected.
    pub provider: u64,
    /// Which request: for the answer.
    pub number: u64,
    /// Whether nobody waits for the answer any more.
    pub over: bool,
}

/// Notifications, all at once.
#[derive(Debug, uniffi::Record)]
pub struct Notifications {
    /// Tickets of finished operations.
    pub finished: Vec<u64>,
    /// Events.
    pub events: Vec<EventNotification>,
    /// Log lines.
    pub lines: Vec<Line>,
    /// Events that were dropped because too many waited.
    pub missed: u64,
    /// Requests for credentials, in turn.
    pub credential_requests: Vec<CredentialRequest>,
}

#[derive(Default)]
struct Pending {
    finished: Vec<u64>,
    events: Events<u64>,
    credential_requests: Vec<CredentialRequest>,
    woken: bool,
}

static PENDING: Mutex<Pending> = Mutex::new(Pending {
    finished: Vec::new(),
    events: Events::new(),
    credential_requests: Vec::new(),
    woken: false,
});
static CHANGED: Condvar = Condvar::new();

fn pending() -> MutexGuard<'static, Pending> {
    PENDING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Says that the operation with this ticket is finished.
pub(crate) fn finished(ticket: u64) {
    pending().finished.push(ticket);
    CHANGED.notify_one();
}

/// Hands over an event for a listener.
pub(crate) fn event(listener: u64, event: &retryrmq::Event) {
    let has_room = pending().events.has_room(listener);
    let row = has_room.then(|| json_rows::event(event));
    pending().events.put(listener, row);
    CHANGED.notify_one();
}

/// Hands over a request, or its end.
pub(crate) fn credential_request(request: CredentialRequest) {
    pending().credential_requests.push(request);
    CHANGED.notify_one();
}

/// Has the log fetched.
pub(crate) fn log_lines_arrived() {
    pending().woken = true;
    CHANGED.notify_one();
}

/// Waits for notifications, `wait_ms` at most.
#[uniffi::export]
pub fn fetch_notifications(wait_ms: u32) -> Notifications {
    let deadline = Instant::now() + Duration::from_millis(u64::from(wait_ms));
    let mut pending = pending();
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let any = pending.woken
            || !pending.finished.is_empty()
            || !pending.events.is_empty()
            || !pending.credential_requests.is_empty();
        if any || left.is_zero() {
            break;
        }
        pending = CHANGED
            .wait_timeout(pending, left)
            .unwrap_or_else(PoisonError::into_inner)
            .0;
    }
    pending.woken = false;
    let finished = std::mem::take(&mut pending.finished);
    let (events, missed) = pending.events.take();
    let credential_requests = std::mem::take(&mut pending.credential_requests);
    drop(pending);
    Notifications {
        finished,
        events: events
            .into_iter()
            .map(|(listener, row)| EventNotification { listener, row })
            .collect(),
        lines: logging::take(),
        missed: missed.into(),
        credential_requests,
    }
}

/// Lets whoever waits for notifications go.
#[uniffi::export]
pub fn wake_fetcher() {
    log_lines_arrived();
}

/// The least level, as in `slog`, of the lines that are wanted.
#[uniffi::export]
pub fn log_lines(least: i8) {
    log_buffer::capture(log_lines_arrived);
    log_buffer::set_level(match least {
        i8::MIN..=-4 => Level::DEBUG,
        -3..=0 => Level::INFO,
        _ => Level::WARN,
    });
}
