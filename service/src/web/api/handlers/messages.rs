//! Messages that are parked, and messages that wait.

use std::cmp::Reverse;

use axum::{extract::State, response::Response};
use jiff::Timestamp;

use super::super::{
    super::{Page, parked_message::parked_message, waiting_list},
    problem::Problem,
    query::{self, MessagesQuery, SearchQuery},
    request::{ApiPath, ApiQuery, ApiRequest, QueueName},
    resources::{FoundMessages, Message, MessageList, MessageSummary, WaitingMessages},
};
use crate::history::Event;

pub(in super::super) async fn list(
    State(page): State<Page>,
    request: ApiRequest,
    ApiPath(QueueName(queue)): ApiPath<QueueName>,
    ApiQuery(asked): ApiQuery<MessagesQuery>,
) -> Result<Response, Problem> {
    let limit = query::limit(asked.limit)?;
    let after = asked.cursor.as_deref().map(Place::read).transpose()?;
    let index = page.history.index();
    let mut events = index.parked_events(&queue, asked.fingerprint.as_deref());
    if let Some(after) = after {
        events.retain(|event| Place::of(event) > after);
    }
    let next = match events.len() > limit {
        true => events.get(limit - 1).map(|last| Place::of(last).text()),
        false => None,
    };
    let messages = events.iter().take(limit);
    Ok(request.ok(&MessageList {
        messages: messages.map(|event| MessageSummary::of(event)).collect(),
        next,
    }))
}

/// Where a message stands in the list: the latest first. It is the same after others have come and gone.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Place(Reverse<i128>, String);

impl Place {
    fn of(event: &Event) -> Self {
        let mark = Event::text(&event.mark).to_owned();
        Self(Reverse(event.at.as_nanosecond()), mark)
    }

    fn text(&self) -> String {
        format!("{}.{}", self.0.0, self.1)
    }

    fn read(text: &str) -> Result<Self, Problem> {
        let read = text.split_once('.');
        let read = read.and_then(|(at, mark)| Some(Self(Reverse(at.parse().ok()?), mark.into())));
        read.ok_or_else(|| {
            Problem::invalid("`cursor` must be the `next` of the part before, as it was answered.")
        })
    }
}

pub(in super::super) async fn one(
    State(page): State<Page>,
    request: ApiRequest,
    ApiPath((QueueName(queue), mark)): ApiPath<(QueueName, String)>,
) -> Result<Response, Problem> {
    let message = parked_message(&page, &request.web_config, &queue, &mark).await?;
    Ok(request.ok(&Message::of(queue, message)))
}

pub(in super::super) async fn search(
    State(page): State<Page>,
    request: ApiRequest,
    ApiQuery(asked): ApiQuery<SearchQuery>,
) -> Result<Response, Problem> {
    let limit = query::limit(asked.limit)?;
    let text = asked.q.trim();
    if text.is_empty() || text.len() > 200 {
        return Err(Problem::invalid(
            "What is looked for (`q`) must have 1 to 200 bytes.",
        ));
    }
    let found = page.history.index().search(text, limit);
    Ok(request.ok(&FoundMessages {
        is_cut: found.len() == limit,
        messages: found
            .iter()
            .map(|event| MessageSummary::of(event))
            .collect(),
    }))
}

pub(in super::super) async fn waiting(State(page): State<Page>, request: ApiRequest) -> Response {
    let list = waiting_list::waiting(&page, Timestamp::now()).await;
    request.ok(&WaitingMessages::of(list))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_is_the_place_of_a_message() {
        let event = |at: &str, mark: &str| Event {
            at: at.parse().unwrap(),
            mark: Some(mark.to_owned()),
            ..Event::default()
        };
        let late = Place::of(&event("2026-01-05T10:00:00.000000002Z", "b"));
        let early = Place::of(&event("2026-01-05T10:00:00.000000001Z", "a"));
        let beside = Place::of(&event("2026-01-05T10:00:00.000000001Z", "b"));
        assert!(late < early && early < beside);
        assert_eq!(Place::read(&early.text()).unwrap(), early);
        for text in ["", "7", "x.b"] {
            assert!(Place::read(text).is_err(), "{text}");
        }
    }
}
