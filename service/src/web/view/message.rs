//! One parked message: the only page that looks into a parking queue.

use askama::Template;
use axum::{
    extract::{Path, State},
    response::Response,
};
use jiff::Timestamp;
use retryrmq::terminal_escape;

use super::super::{
    Page,
    body::ShownBody,
    parked_message::{ParkedMessage, parked_message},
    relative_time::RelativeTime,
    request::{Layout, WebRequest},
};

#[derive(Template)]
#[template(path = "parked.html")]
struct Parked {
    layout: Layout,
    queue: String,
    mark: String,
    name: String,
    facts: Vec<(&'static str, String)>,
    fingerprint: String,
    error: String,
    history: Vec<Attempt>,
    stack: Option<String>,
    headers: Vec<(String, String)>,
    body: ShownBody,
}

/// A failed attempt.
struct Attempt {
    number: u32,
    at: RelativeTime,
    error: String,
    host: String,
}

/// Characters of a stack trace.
const STACK: usize = 20_000;

pub(in super::super) async fn parked(
    State(page): State<Page>,
    Path((queue, mark)): Path<(String, String)>,
    web_request: WebRequest,
) -> Response {
    // A look may spend deliveries, and holds the messages up meanwhile.
    if web_request.context.is_of_another_site() {
        return web_request.ask_again();
    }
    match parked_message(&page, &web_request.web_config, &queue, &mark).await {
        Ok(message) => web_request.show(&of(&web_request, queue, message)),
        Err(refusal) => web_request.refuse_with(&refusal),
    }
}

fn of(web_request: &WebRequest, queue: String, message: ParkedMessage) -> Parked {
    let ParkedMessage {
        record,
        body,
        headers,
    } = message;
    let now = Timestamp::now();
    let message = record.message();
    let line = |text: &str| terminal_escape::line(text).into_owned();
    let moment = |at| {
        Timestamp::try_from(at)
            .ok()
            .map(|at| RelativeTime::of(at, now))
    };
    let mut facts = Vec::new();
    let reason = record.reason.map_or("unknown", |reason| reason.as_str());
    facts.push(("reason", reason.to_owned()));
    if let Some(at) = record.parked_at.and_then(moment) {
        facts.push(("parked", format!("{} ({})", at.text, at.iso)));
    }
    if let Some(at) = message.first_failed_at().and_then(moment) {
        facts.push(("first failed", format!("{} ({})", at.text, at.iso)));
    }
    facts.push((
        "attempts",
        match record.attempts {
            0 => "not counted".to_owned(),
            count => count.to_string(),
        },
    ));
    if message.replays() > 0 {
        facts.push(("replayed before", message.replays().to_string()));
    }
    let exchange = match message.exchange() {
        "" => "the default exchange".to_owned(),
        name => format!("exchange {}", line(name)),
    };
    facts.push((
        "published",
        format!("to {exchange}, routing key {}", line(message.routing_key())),
    ));
    if record.home != queue {
        facts.push(("belongs to", line(&record.home)));
    }
    let properties = message.properties();
    for (name, value) in [
        ("type", properties.kind()),
        ("content type", properties.content_type()),
        ("app id", properties.app_id()),
        ("correlation id", properties.correlation_id()),
    ] {
        if let Some(value) = value {
            facts.push((name, line(value.as_str())));
        }
    }
    if let Some(mended) = message.mended() {
        facts.push(("mended", line(mended)));
    }
    let time = |seconds: u64| {
        let seconds = i64::try_from(seconds).unwrap_or(0);
        RelativeTime::of(Timestamp::from_second(seconds).unwrap_or(now), now)
    };
    let name = message
        .message_id()
        .map_or_else(|| "(no id)".to_owned(), line);
    Parked {
        layout: web_request.layout(format!("{name} in {}", line(&queue))),
        queue,
        mark: record.mark.clone(),
        name,
        facts,
        fingerprint: record.fingerprint.clone(),
        error: line(&match record.error_type.as_str() {
            "" => record.error.clone(),
            kind => format!("{kind}: {}", record.error),
        }),
        history: record
            .history
            .iter()
            .map(|entry| Attempt {
                number: entry.attempt,
                at: time(entry.at),
                error: line(&entry.error),
                host: line(&entry.host),
            })
            .collect(),
        stack: record
            .stack
            .as_ref()
            .map(|stack| terminal_escape::block(stack).chars().take(STACK).collect()),
        headers,
        body,
    }
}
