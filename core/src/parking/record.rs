//! What is known about a message that a consumer, or the broker itself, parked.

use std::{
    hash::{Hash, Hasher},
    sync::Arc,
    time::{Duration, SystemTime},
};

use lapin::{BasicProperties, types::FieldTable};
use ring::digest::{Context, SHA256};

use crate::{
    consumer::{Decision, FailedMessage, Message, Received},
    retry::{
        Counting, DeliveryPast, Failure, HistoryEntry, ParkReason, RetryState, fingerprint, headers,
    },
    topology::{DEAD_EXCHANGE, HANDOVER_QUEUE, INTAKE_QUEUE},
};

/// The record of a parked message.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Record {
    /// The walk that read it, and its delivery tag there.
    pub(super) place: (u64, u64),
    pub(crate) received: Arc<Received>,
    ours: bool,
    died_in_own_queue: bool,
    /// Why it was parked; `None` if neither a consumer nor the broker left a reason.
    pub reason: Option<ParkReason>,
    /// When it was parked, in whole seconds.
    pub parked_at: Option<SystemTime>,
    /// The last failure, one line.
    pub error: String,
    /// The error's type or class; empty when unknown.
    pub error_type: String,
    /// The stack trace or chain of causes of the last failure, if there is one.
    pub stack: Option<String>,
    /// Sixteen hexadecimal digits that equal failures share.
    pub fingerprint: String,
    /// How many attempts were made; 0 if the broker parked it and nothing counted.
    pub attempts: u32,
    /// The last failures, oldest first.
    pub history: Vec<HistoryEntry>,
    /// Whether the broker dead-lettered it. Otherwise a consumer parked it.
    pub by_broker: bool,
    /// The queue to which it is replayed: the work queue of this parking queue, or another queue from which the broker dead-lettered it.
    /// Empty in a [dead-letter queue](crate::Client::dead_letters) if the message names no queue.
    pub home: String,
    /// Sixteen hexadecimal digits that identify this one message. They are computed from its id, its body and the record of its parking, so
    /// only messages that are equal in all of these share it.
    pub mark: String,
}

impl Record {
    /// The message itself: body, properties, and where it was first published.
    #[must_use]
    pub fn message(&self) -> Message {
        Message(Arc::clone(&self.received))
    }

    /// The [`mark`](Self::mark) and the fingerprint that the copy of a decision will have when it is parked, or
    /// [waits](crate::WaitingMessage::mark) in its planned waiting queue.
    #[must_use]
    pub fn mark_and_fingerprint(failed: &FailedMessage, decision: &Decision) -> (String, String) {
        let record = Self::read(
            (0, 0),
            &Arc::from(failed.queue()),
            failed.body().to_vec(),
            decision.properties.clone(),
            Default::default(),
            Default::default(),
        );
        let alike = match record.ours {
            true => record.fingerprint,
            // A waiting message was not given up, but its headers have its failure too.
            false => {
                let table = record.received.properties.headers().as_ref();
                let text = |name| table.and_then(|table| headers::string(table, name));
                let of = |name| text(name).unwrap_or_default();
                text(headers::FINGERPRINT)
                    .unwrap_or_else(|| fingerprint(&of(headers::ERROR_TYPE), &of(headers::ERROR)))
            }
        };
        (record.mark, alike)
    }

    /// The same without the body, for callers that hold very many records and only drop them. A body that is needed to renew the message at
    /// the end of the walk is kept.
    #[doc(hidden)]
    #[must_use]
    pub fn without_body(mut self) -> Self {
        if let Some(received) = Arc::get_mut(&mut self.received) {
            received.body = Vec::new();
        }
        self
    }

    /// Whether a consumer of this library parked it. Otherwise the broker dead-lettered it, or another library put it there.
    #[must_use]
    pub fn is_ours(&self) -> bool {
        self.ours
    }

    /// Whether the broker dead-lettered it last out of the work queue of this parking queue, or out of one of its waiting or parking queues
    /// (there for another reason than that its time was over). It belongs to that work queue then, whatever its other headers say.
    #[must_use]
    pub fn died_in_own_queue(&self) -> bool {
        self.died_in_own_queue
    }

    /// Takes over what another library wrote on the message when it gave it up; that says more than the broker does. The fingerprint
    /// changes with it.
    pub fn explain(&mut self, failure: &Failure) {
        self.error.clone_from(&failure.error);
        self.error_type.clone_from(&failure.error_type);
        self.stack.clone_from(&failure.stack);
        self.fingerprint = fingerprint(&failure.error_type, &failure.error);
        self.by_broker = false;
    }

    /// For a dead-letter queue that belongs to no work queue: the message belongs to the queue that rejected it. A queue in which it only
    /// waited until it expired does not count.
    pub(super) fn comes_from_elsewhere(&mut self) {
        let table = self.received.properties.headers();
        let home = table.as_ref().and_then(|table| {
            let deaths: Vec<_> = headers::deaths(table)
                .into_iter()
                .filter_map(|death| {
                    let queue = headers::string(death, "queue")?;
                    let expired = headers::string(death, "reason").as_deref() == Some("expired");
                    (!queue.is_empty() && *queue != *self.received.queue)
                        .then_some((queue, expired))
                })
                .collect();
            let refused = deaths.iter().find(|(_, expired)| !expired);
            refused.or(deaths.first()).map(|(queue, _)| queue.clone())
        });
        (self.by_broker, self.died_in_own_queue) = (!self.ours && home.is_some(), false);
        self.home = home.filter(|_| !self.ours).unwrap_or_default();
    }

    /// For a waiting message: nobody has given it up, so its error is its last failure. A message that never failed, such as one published
    /// with a delay, gets a fingerprint that no other message has.
    pub(super) fn waits(&mut self) {
        let table = self.received.properties.headers().as_ref();
        let text = |name| table.and_then(|table| headers::string(table, name));
        let (error, alike) = (text(headers::ERROR), text(headers::FINGERPRINT));
        // With `dead-letter` a failure leaves no copy, and an earlier copy's error says nothing about it.
        let has_died = table.is_some_and(|table| !headers::deaths(table).is_empty());
        if !has_died && (error.is_some() || alike.is_some()) {
            let error = error.unwrap_or_default();
            self.error_type = text(headers::ERROR_TYPE).unwrap_or_default();
            // If its text was cut or left out, its fingerprint is in a header.
            self.fingerprint = alike.unwrap_or_else(|| fingerprint(&self.error_type, &error));
            (self.error, self.by_broker) = (error, false);
        } else if self.error.is_empty() {
            self.fingerprint.clear();
        }
    }

    /// Reads a record from `properties`.
    pub(crate) fn read(
        place: (u64, u64),
        queue: &Arc<str>,
        body: Vec<u8>,
        properties: BasicProperties,
        exchange: lapin::types::ShortString,
        routing_key: lapin::types::ShortString,
    ) -> Self {
        let mut state = RetryState::read(queue, Counting::Header, DeliveryPast::None, &properties);
        let empty = FieldTable::default();
        let table = properties.headers().as_ref().unwrap_or(&empty);
        let deaths = headers::deaths(table);
        let ours = is_ours(table, deaths.first().copied());
        let text = |name| headers::string(table, name);
        let time = |seconds: u64| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
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
            // The oldest death is the first one: its exchange and routing key are the publisher's.
            if let Some(oldest) = deaths.last() {
                state.exchange = headers::string(oldest, "exchange");
                state.routing_key = headers::first_routing_key(oldest);
            }
        }
        let error_type = if ours {
            text(headers::ERROR_TYPE).unwrap_or_default()
        } else {
            String::new()
        };
        let alike = text(headers::FINGERPRINT)
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
        let home = deaths
            .first()
            .filter(|_| !ours)
            .and_then(|death| {
                behind_the_service(table, &deaths).or_else(|| headers::string(death, "queue"))
            })
            .filter(|from| !is_of_family(from, queue))
            .unwrap_or_else(|| queue.to_string());
        // What ran out in a waiting queue had its life go on, and may have been given up elsewhere since.
        let died_in_own_queue = !ours
            && home == **queue
            && deaths.first().is_some_and(|death| {
                let text = |name| headers::string(death, name);
                text("queue").as_deref() == Some(&**queue)
                    || text("reason").as_deref() != Some("expired")
            });
        let received = Received {
            queue: Arc::clone(queue),
            body,
            exchange,
            routing_key,
            redelivered: false,
            state,
            mended: None,
            properties: headers::with_reply_to(properties),
        };
        let mark = mark(&received, parked_at, reason, &error);
        Self {
            place,
            received: Arc::new(received),
            ours,
            died_in_own_queue,
            reason,
            parked_at: parked_at.map(time),
            error,
            error_type,
            stack,
            fingerprint: alike,
            attempts,
            history,
            by_broker: !ours,
            home,
            mark,
        }
    }
}

/// Whether the last to give the message up was a consumer of ours, judged by its headers. If a broker gave it up later, it left our headers
/// and added a death. Our copies have no earlier deaths.
fn is_ours(table: &FieldTable, newest: Option<&FieldTable>) -> bool {
    if !table.contains_key(headers::PARKED_REASON) {
        return false;
    }
    let Some(death) = newest else {
        return true;
    };
    let died = headers::timestamp(death, "time").ok().flatten();
    let parked = headers::timestamp(table, headers::PARKED_AT).ok().flatten();
    match (died, parked) {
        // Nobody parks in the future: no consumer wrote such a time.
        (Some(died), Some(parked)) => parked > died && parked <= now().saturating_add(A_DAY),
        (_, None) => false,
        (None, Some(_)) => true,
    }
}

/// The work queue of a message that the broker gave up in a queue of a service. Replayed to the service's queue it would be unknown there.
/// See PROTOCOL, sections 11 and 12, for whose headers are believed.
fn behind_the_service(table: &FieldTable, deaths: &[&FieldTable]) -> Option<String> {
    let [newest, before @ ..] = deaths else {
        return None;
    };
    let exchange = headers::string(newest, "exchange")?;
    let work = match (
        headers::string(newest, "queue")?.as_str(),
        exchange.as_str(),
    ) {
        (HANDOVER_QUEUE, "") => headers::string(table, headers::QUEUE),
        (INTAKE_QUEUE, DEAD_EXCHANGE) => headers::string(before.first()?, "queue"),
        _ => None,
    };
    work.filter(|queue| !queue.is_empty() && !queue.starts_with("retryrmq."))
}

/// Clocks differ by less than that.
const A_DAY: u64 = 86_400;

fn now() -> u64 {
    SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .map_or(0, |since| since.as_secs())
}

/// Whether `from` is the work queue, or one of its waiting or parking queues: no message belongs to the latter.
fn is_of_family(from: &str, queue: &str) -> bool {
    let Some(rest) = from.strip_prefix(queue) else {
        return false;
    };
    let waits = rest.strip_prefix(".retry.");
    let is_delay =
        |delay: &str| !delay.is_empty() && delay.bytes().all(|byte| byte.is_ascii_digit());
    ["", ".parked", ".parked.dropped", ".unreadable"].contains(&rest) || waits.is_some_and(is_delay)
}

/// The first 64 bits of SHA-256 over everything that a renewal keeps: all that the publisher wrote, and the record of the parking. A
/// message is dropped by its mark, so no publisher may be able to forge another message's mark.
fn mark(
    received: &Received,
    parked_at: Option<u64>,
    reason: Option<ParkReason>,
    error: &str,
) -> String {
    let mut hasher = Sha::default();
    let properties = &received.properties;
    macro_rules! each {
        ($($get:ident),*) => {$(
            properties.$get().as_ref().map(|text| text.as_str()).hash(&mut hasher);
        )*};
    }
    each!(
        message_id,
        content_type,
        content_encoding,
        correlation_id,
        reply_to,
        kind,
        app_id,
        cluster_id
    );
    properties.priority().hash(&mut hasher);
    let empty = FieldTable::default();
    let table = properties.headers().as_ref().unwrap_or(&empty);
    // Copies have these two as headers: see `Stamp`.
    for (own, kept) in [
        (properties.expiration(), headers::EXPIRATION),
        (properties.user_id(), headers::USER_ID),
    ] {
        let own = own.as_ref().map(|text| text.as_str().to_owned());
        own.or_else(|| headers::string(table, kept))
            .hash(&mut hasher);
    }
    for (name, value) in table {
        let name = name.as_str();
        if !headers::is_reserved(name) {
            name.hash(&mut hasher);
            headers::hash(value, &mut hasher);
        }
    }
    received.body.hash(&mut hasher);
    received.exchange().hash(&mut hasher);
    received.routing_key().hash(&mut hasher);
    reason.map_or("", ParkReason::as_str).hash(&mut hasher);
    error.hash(&mut hasher);
    parked_at.hash(&mut hasher);
    properties.timestamp().hash(&mut hasher);
    received.state.replays.hash(&mut hasher);
    format!("{:016x}", hasher.finish())
}

/// Without a key: people type a mark into another process.
struct Sha(Context);

impl Default for Sha {
    fn default() -> Self {
        Self(Context::new(&SHA256))
    }
}

impl Hasher for Sha {
    fn write(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    fn finish(&self) -> u64 {
        let digest = self.0.clone().finish();
        let first = digest.as_ref().first_chunk().copied();
        first.map_or(0, u64::from_be_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lapin::types::{AMQPValue, FieldArray};

    #[test]
    fn what_was_refused_in_the_family_died_at_home_and_what_only_waited_there_did_not() {
        for (from, reason, is_so) in [
            ("orders", "rejected", true),
            ("orders", "expired", true),
            ("orders.retry.1000", "rejected", true),
            ("orders.retry.1000", "expired", false),
            ("billing", "rejected", false),
        ] {
            let mut death = FieldTable::default();
            for (name, value) in [("queue", from), ("reason", reason)] {
                death.insert(name.into(), AMQPValue::LongString(value.into()));
            }
            let deaths = FieldArray::from(vec![AMQPValue::FieldTable(death)]);
            let mut headers = FieldTable::default();
            headers.insert("x-death".into(), AMQPValue::FieldArray(deaths));
            let record = Record::read(
                (0, 0),
                &Arc::from("orders"),
                Vec::new(),
                BasicProperties::default().with_headers(headers),
                "".into(),
                "".into(),
            );
            assert_eq!(record.died_in_own_queue(), is_so, "{from}, {reason}");
        }
    }

    #[test]
    fn the_family_is_the_queue_and_where_its_messages_wait_and_are_parked() {
        for (from, is_one) in [
            ("orders", true),
            ("orders.parked", true),
            ("orders.retry.1000", true),
            ("orders.retry.emails", false),
            ("orders.retry.", false),
            ("orders.retry", false),
            ("orders.eu", false),
            ("billing", false),
            ("order", false),
        ] {
            assert_eq!(is_of_family(from, "orders"), is_one, "{from}");
        }
    }
}
