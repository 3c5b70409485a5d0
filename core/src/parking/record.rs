//! What is known of a parked message, whoever parked it: we, or the broker itself.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use lapin::{
    BasicProperties,
    types::{AMQPValue, FieldTable},
};

use crate::{
    consumer::{Message, Received},
    retry::{Counting, HistoryEntry, ParkReason, RetryState, fingerprint, headers},
};

/// The record of a parked message.
#[derive(Clone, Debug)]
pub struct Record {
    /// The walk it was seen on, and its delivery tag there.
    pub(super) place: (u64, u64),
    pub(super) received: Arc<Received>,
    /// Why it was parked; `None` when neither we nor the broker left a reason.
    pub reason: Option<ParkReason>,
    /// When, to the second.
    pub parked_at: Option<SystemTime>,
    /// The last failure, one line.
    pub error: String,
    /// The error's type or class; empty when unknown.
    pub error_type: String,
    /// The stack trace or chain of causes of the last failure.
    pub stack: Option<String>,
    /// Sixteen hexadecimal digits that equal failures share.
    pub fingerprint: String,
    /// Attempts that were made; 0 when the broker parked it and nobody counted.
    pub attempts: u32,
    /// The last failures, oldest first.
    pub history: Vec<HistoryEntry>,
    /// Whether the broker dead-lettered it, rather than a consumer of ours parking it.
    pub by_broker: bool,
}

impl Record {
    /// The message itself: body, properties, and where it was first published.
    #[must_use]
    pub fn message(&self) -> Message {
        Message(Arc::clone(&self.received))
    }

    /// Reads what `properties` say.
    pub(super) fn read(
        place: (u64, u64),
        queue: &Arc<str>,
        body: Vec<u8>,
        properties: BasicProperties,
        exchange: lapin::types::ShortString,
        routing_key: lapin::types::ShortString,
    ) -> Self {
        let mut state = RetryState::read(queue, Counting::Header, false, &properties);
        let empty = FieldTable::default();
        let table = properties.headers().as_ref().unwrap_or(&empty);
        let ours = table.contains_key(headers::PARKED_REASON);
        let text = |name| headers::string(table, name);
        let time = |seconds: u64| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        let deaths = deaths(table);
        let (reason, parked_at, error) = if ours {
            (
                text(headers::PARKED_REASON)
                    .as_deref()
                    .and_then(ParkReason::parse),
                headers::timestamp(table, headers::PARKED_AT).ok().flatten(),
                text(headers::ERROR).unwrap_or_default(),
            )
        } else {
            let newest = deaths.first();
            let word = newest.and_then(|death| headers::string(death, "reason"));
            let error = match (
                &word,
                newest.and_then(|death| headers::string(death, "queue")),
            ) {
                (Some(word), Some(from)) => {
                    format!("dead-lettered by the broker out of {from} ({word})")
                }
                _ => String::new(),
            };
            (
                word.as_deref().and_then(ParkReason::parse),
                newest.and_then(|death| headers::timestamp(death, "time").ok().flatten()),
                error,
            )
        };
        if !ours && state.exchange.is_none() {
            // The oldest death is the first: its exchange and key are the publisher's.
            if let Some(oldest) = deaths.last() {
                state.exchange = headers::string(oldest, "exchange");
                state.routing_key = match oldest.inner().get("routing-keys") {
                    Some(AMQPValue::FieldArray(keys)) => {
                        keys.as_slice().first().and_then(headers::text)
                    }
                    _ => None,
                };
            }
        }
        let error_type = if ours {
            text(headers::ERROR_TYPE).unwrap_or_default()
        } else {
            String::new()
        };
        let mark = text(headers::FINGERPRINT)
            .filter(|_| ours)
            .unwrap_or_else(|| fingerprint(&error_type, &error));
        let history = HistoryEntry::read(table);
        let attempts = if ours {
            history
                .last()
                .map_or(state.attempt(), |last| last.attempt.max(state.retries))
        } else {
            state.retries
        };
        let stack = text(headers::ERROR_STACK).filter(|_| ours);
        let received = Received {
            queue: Arc::clone(queue),
            body,
            exchange,
            routing_key,
            redelivered: false,
            state,
            mended: None,
            properties,
        };
        Self {
            place,
            received: Arc::new(received),
            reason,
            parked_at: parked_at.map(time),
            error,
            error_type,
            stack,
            fingerprint: mark,
            attempts,
            history,
            by_broker: !ours,
        }
    }
}

/// The tables in `x-death`, newest first; none where it is something else.
fn deaths(table: &FieldTable) -> Vec<&FieldTable> {
    match table.inner().get(headers::DEATH) {
        Some(AMQPValue::FieldArray(deaths)) => deaths
            .as_slice()
            .iter()
            .filter_map(|death| match death {
                AMQPValue::FieldTable(death) => Some(death),
                _ => None,
            })
            .collect(),
        _ => Vec::new(),
    }
}
