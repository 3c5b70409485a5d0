//! The pages: what is shown on each, and what its forms begin.

mod actions;
mod lists;
mod message;
mod sign_in;

use axum::{
    http::header::{CACHE_CONTROL, CONTENT_TYPE},
    response::IntoResponse,
};
use retryrmq::terminal_escape;

pub(super) use actions::{begin, confirm, job, jobs};
pub(super) use lists::{group, queue, queues, search, waiting};
pub(super) use message::parked;
pub(super) use sign_in::{sign_in, sign_out, signed_in};

use super::relative_time::RelativeTime;
use crate::history::Event;

/// The style sheet.
pub(super) async fn style() -> impl IntoResponse {
    let headers = [
        (CONTENT_TYPE, "text/css; charset=utf-8"),
        (CACHE_CONTROL, "max-age=300"),
    ];
    (headers, include_str!("../../../templates/style.css"))
}

/// A message in a list. Texts of strangers are one visible line each.
#[derive(Debug)]
struct Row {
    queue: String,
    mark: String,
    name: String,
    reason: String,
    error: String,
    error_type: String,
    attempt: u32,
    at: RelativeTime,
    who: String,
    /// For what people did.
    action: String,
}

impl Row {
    fn of(event: &Event, now: jiff::Timestamp) -> Self {
        let line = |text: &str| terminal_escape::line(text).into_owned();
        let mark = Event::text(&event.mark).to_owned();
        Self {
            queue: event.queue.clone(),
            name: match &event.message_id {
                Some(id) if !id.is_empty() => line(id),
                _ => format!("(no id) {}", mark.get(..8).unwrap_or(&mark)),
            },
            mark,
            reason: line(Event::text(&event.reason)),
            error: line(Event::text(&event.error)),
            error_type: line(Event::text(&event.error_type)),
            attempt: event.attempt.unwrap_or(0),
            at: RelativeTime::of(event.at, now),
            who: line(&event.who),
            action: format!("{:?}", event.event).to_lowercase(),
        }
    }
}
