//! What this half has to tell the Go half: finished operations, events, log lines, and what it asks. One goroutine fetches them, so that no
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
pub struct Told {
    /// The listener, as it was named at the subscription.
    pub listener: u64,
    /// The event, as a row.
    pub row: String,
}

/// A question to a function of the Go half, or its end.
#[derive(Debug, uniffi::Record)]
pub struct Question {
    /// The function, as it was named when its client connected.
    pub credentials: u64,
    /// Which question: for the answer.
    pub number: u64,
    /// Whether nobody waits for the answer any more.
    pub over: bool,
}

/// News, all at once.
#[derive(Debug, uniffi::Record)]
pub struct News {
    /// Tickets of finished operations.
    pub finished: Vec<u64>,
    /// Events.
    pub events: Vec<Told>,
    /// Log lines.
    pub lines: Vec<Line>,
    /// Events that were dropped because too many waited.
    pub missed: u64,
    /// Questions about the login, in turn.
    pub questions: Vec<Question>,
}

#[derive(Default)]
struct Waiting {
    finished: Vec<u64>,
    events: Events<u64>,
    questions: Vec<Question>,
    nudged: bool,
}

static WAITING: Mutex<Waiting> = Mutex::new(Waiting {
    finished: Vec::new(),
    events: Events::new(),
    questions: Vec::new(),
    nudged: false,
});
static CHANGED: Condvar = Condvar::new();

fn waiting() -> MutexGuard<'static, Waiting> {
    WAITING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Says that the operation with this ticket is finished.
pub(crate) fn finished(ticket: u64) {
    waiting().finished.push(ticket);
    CHANGED.notify_one();
}

/// Hands over an event for a listener.
pub(crate) fn told(listener: u64, event: &retryrmq::Event) {
    let has_room = waiting().events.has_room(listener);
    let row = has_room.then(|| json_rows::event(event));
    waiting().events.put(listener, row);
    CHANGED.notify_one();
}

/// Hands over a question, or its end.
pub(crate) fn question(question: Question) {
    waiting().questions.push(question);
    CHANGED.notify_one();
}

/// Has the log fetched.
pub(crate) fn nudge() {
    waiting().nudged = true;
    CHANGED.notify_one();
}

/// Waits for news, `wait_ms` at most.
#[uniffi::export]
pub fn news(wait_ms: u32) -> News {
    let deadline = Instant::now() + Duration::from_millis(u64::from(wait_ms));
    let mut waiting = waiting();
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let any = waiting.nudged
            || !waiting.finished.is_empty()
            || !waiting.events.is_empty()
            || !waiting.questions.is_empty();
        if any || left.is_zero() {
            break;
        }
        waiting = CHANGED
            .wait_timeout(waiting, left)
            .unwrap_or_else(PoisonError::into_inner)
            .0;
    }
    waiting.nudged = false;
    let finished = std::mem::take(&mut waiting.finished);
    let (events, missed) = waiting.events.take();
    let questions = std::mem::take(&mut waiting.questions);
    drop(waiting);
    News {
        finished,
        events: events
            .into_iter()
            .map(|(listener, row)| Told { listener, row })
            .collect(),
        lines: logging::take(),
        missed: missed.into(),
        questions,
    }
}

/// Lets whoever waits for news go.
#[uniffi::export]
pub fn wake_news() {
    nudge();
}

/// The least level, as in `slog`, of the lines that are wanted.
#[uniffi::export]
pub fn log_lines(least: i8) {
    log_buffer::capture(nudge);
    log_buffer::set_level(match least {
        i8::MIN..=-4 => Level::DEBUG,
        -3..=0 => Level::INFO,
        _ => Level::WARN,
    });
}
