//! What is known about a waiting message.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use lapin::{
    BasicProperties,
    message::Delivery,
    types::{AMQPValue, FieldTable},
};

use crate::{
    Message,
    consumer::Received,
    parking::Record,
    retry::{Counting, DeliveryPast, HistoryEntry, RetryState, headers, waited},
};

/// A waiting message. A [`WaitingWalk`](crate::WaitingWalk) shows it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct WaitingMessage {
    /// Its delivery tag.
    pub(super) tag: u64,
    /// The message as it will be after its wait: without the expiration that its wait may have.
    pub(super) received: Arc<Received>,
    /// Sixteen hexadecimal digits that identify this message in every waiting queue. Only equal messages share them.
    pub mark: String,
    /// How long it waits in all.
    pub delay: Duration,
    /// When it returns, in whole seconds, computed from its last failure. `None` if it was deferred or published with a delay; it then
    /// returns at the latest after [`delay`](Self::delay). A message behind one that waits longer returns together with that one.
    pub due: Option<SystemTime>,
    /// How often it was looked at since it waits, if its queue counts that as crashes: quorum queues of RabbitMQ 4.0 to 4.2. Elsewhere 0.
    /// After the third look it is a suspect, and runs alone.
    pub looks: u32,
    /// The last failure, one line; empty when there was none.
    pub error: String,
    /// The failure's type or class; empty when unknown.
    pub error_type: String,
    /// The last failures, oldest first.
    pub history: Vec<HistoryEntry>,
}

impl WaitingMessage {
    /// The message itself: body, properties, and where it was first published.
    #[must_use]
    pub fn message(&self) -> Message {
        Message(Arc::clone(&self.received))
    }

    /// Reads a delivery out of a waiting queue of `queue`, in which messages wait for `queue_delay`.
    pub(super) fn read(
        queue: &Arc<str>,
        queue_delay: Duration,
        walk: u64,
        delivery: Delivery,
    ) -> Self {
        let tag = delivery.delivery_tag;
        let redelivered = delivery.redelivered;
        let record = Record::read(
            (walk, tag),
            queue,
            delivery.data,
            delivery.properties,
            delivery.exchange,
            delivery.routing_key,
        );
        let (mark, received) = (record.mark, record.received);
        let empty = FieldTable::default();
        let table = received.properties.headers().as_ref().unwrap_or(&empty);
        let own = received.properties.expiration().as_ref();
        let own = own
            .and_then(|ms| ms.as_str().parse().ok())
            .map(Duration::from_millis);
        let delay = own.map_or(queue_delay, |own| own.min(queue_delay));
        let text = |name| headers::string(table, name).unwrap_or_default();
        let looks = redelivered
            .then(|| {
                headers::count(table, headers::DELIVERY_COUNT)
                    .ok()
                    .flatten()
            })
            .flatten();
        let mut waiting_message = Self {
            tag,
            mark,
            delay,
            due: began(table)
                .and_then(|began| time(began)?.checked_add(delay))
                .filter(|due| is_ahead(*due)),
            looks: looks.unwrap_or(0),
            error: text(headers::ERROR),
            error_type: text(headers::ERROR_TYPE),
            history: HistoryEntry::read(table),
            received: Arc::clone(&received),
        };
        // With `dead-letter` the broker counts, and the copy that goes on must say the sum.
        let counting = Counting::Deaths {
            carried: false,
            looks_redelivered: true,
            continues_foreign: false,
        };
        let mut state = RetryState::read(queue, counting, DeliveryPast::None, &received.properties);
        if state.exchange.is_none() {
            (state.exchange, state.routing_key) = origin(table, queue);
        }
        waiting_message.received = Arc::new(Received {
            queue: Arc::clone(queue),
            body: received.body.clone(),
            properties: without_its_wait(&received.properties),
            exchange: received.exchange.clone(),
            routing_key: received.routing_key.clone(),
            redelivered: false,
            state,
            mended: None,
        });
        waiting_message
    }
}

/// When it began to wait, in seconds since 1970: with its last failure, or when the broker dead-lettered it into the queue.
fn began(table: &FieldTable) -> Option<u64> {
    let deferred = headers::count(table, headers::DEFERRALS).ok().flatten();
    if deferred.is_some_and(|times| times > 0) {
        return None;
    }
    let failed = HistoryEntry::read(table).last().map(|last| last.at);
    let died = deaths(table)
        .first()
        .and_then(|death| headers::timestamp(death, "time").ok().flatten());
    failed.max(died)
}

/// Clocks differ, and a queue's head may hold others up: what is overdue by more is no time that means anything.
fn is_ahead(due: SystemTime) -> bool {
    due.checked_add(Duration::from_secs(10))
        .is_some_and(|due| due > SystemTime::now())
}

/// `None` for a time that no clock shows: whoever published the message may have written it.
fn time(seconds: u64) -> Option<SystemTime> {
    SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(seconds))
}

/// Where it was first published: what the broker dead-lettered says it in its oldest death, and what was published with a delay comes
/// back as one for the work queue.
fn origin(table: &FieldTable, queue: &str) -> (Option<String>, Option<String>) {
    let Some(oldest) = deaths(table).pop() else {
        return (Some(String::new()), Some(queue.to_owned()));
    };
    let key = match oldest.inner().get("routing-keys") {
        Some(AMQPValue::FieldArray(keys)) => keys.as_slice().first().and_then(headers::text),
        _ => None,
    };
    (headers::string(oldest, "exchange"), key)
}

fn deaths(table: &FieldTable) -> Vec<&FieldTable> {
    let Some(AMQPValue::FieldArray(deaths)) = table.inner().get(headers::DEATH) else {
        return Vec::new();
    };
    let deaths = deaths.as_slice().iter();
    deaths
        .filter_map(|death| match death {
            AMQPValue::FieldTable(death) => Some(death),
            _ => None,
        })
        .collect()
}

/// The expiration is that of the wait. A publisher's own is kept in a header, as his user id would be.
fn without_its_wait(properties: &BasicProperties) -> BasicProperties {
    let mut kept = waited(properties);
    if let Some(user) = properties.user_id() {
        kept = kept.with_user_id(user.clone());
    }
    if let Some(address) = properties.reply_to() {
        kept = kept.with_reply_to(address.clone());
    }
    kept
}
