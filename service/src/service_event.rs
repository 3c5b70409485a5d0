//! What the service did with a message, or saw at a queue: what alerts, metrics and the history are made of.

use std::{
    ops::Deref,
    sync::Arc,
    time::{Duration, SystemTime},
};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::memory_budget::Reserved;

/// One thing that happened.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum ServiceEvent {
    /// A message waits for its next attempt.
    Retried(Box<RetryEvent>),
    /// A message was dropped, because the policy says so.
    Dropped {
        /// The queue in which it died.
        queue: String,
        /// The message's `message-id`.
        message_id: Option<String>,
        /// Why the broker dead-lettered it: `rejected`, `expired`, `delivery_limit`, `maxlen`; or `failed`: its consumer handed it over.
        reason: String,
        /// Its header `traceparent`.
        traceparent: Option<String>,
    },
    /// A message was parked.
    Parked(Box<ParkedReport>),
    /// A queue is in trouble, or out of it again.
    Troubled(QueueProblemReport),
}

/// A message that waits.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RetryEvent {
    /// The queue whose consumer failed.
    pub queue: String,
    /// The message's `message-id`.
    pub message_id: Option<String>,
    /// The attempt that failed; 1 is the first delivery.
    pub attempt: u32,
    /// How long it waits.
    pub delay: Duration,
    /// Why the broker dead-lettered it: `rejected`, `expired`, `delivery_limit`, `maxlen`.
    pub reason: String,
    /// What its consumer said, or why the broker dead-lettered it.
    pub error: String,
    /// The class of the error, if its consumer said so.
    pub error_type: String,
    /// Equal for equal failures.
    pub fingerprint: String,
    /// Names this one message while it waits.
    pub mark: String,
    /// The routing key it was first published with.
    pub routing_key: String,
    /// Its header `traceparent`.
    pub traceparent: Option<String>,
    /// Whether it waits in the store, and not in the broker.
    pub is_in_store: bool,
}

/// The record of a message that was given up.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ParkedReport {
    /// The queue whose consumer failed.
    pub queue: String,
    /// The word of the record, as `exhausted` or `fatal`.
    pub reason: String,
    /// The message's `message-id`.
    pub message_id: Option<String>,
    /// Where it was first published; empty is the default exchange.
    pub exchange: String,
    /// The routing key it was first published with.
    pub routing_key: String,
    /// The attempt that failed last; 1 is the first delivery.
    pub attempt: u32,
    /// What its consumer said, or why the broker dead-lettered it.
    pub error: String,
    /// The class of the error, if its consumer said so.
    pub error_type: String,
    /// Equal for equal failures.
    pub fingerprint: String,
    /// Names this one message in its parking queue.
    pub mark: String,
    /// Its header `traceparent`.
    pub traceparent: Option<String>,
    /// When it was parked.
    pub at: Option<SystemTime>,
    /// The message's own headers, as JSON.
    pub headers: Value,
    /// The type that a decoder found in the body, as `shop.Order`.
    pub type_name: Option<String>,
    /// The decoded body. Alerts send none of it unless they are told to.
    pub body: Option<DecodedBody>,
}

/// A decoded body. Clones share it, and the memory that is reserved for it.
#[derive(Clone, Debug)]
pub struct DecodedBody(Arc<(Value, Option<Reserved>)>);

impl DecodedBody {
    pub(crate) fn new(value: Value, reserved: Option<Reserved>) -> Self {
        Self(Arc::new((value, reserved)))
    }
}

impl From<Value> for DecodedBody {
    fn from(value: Value) -> Self {
        Self::new(value, None)
    }
}

impl Deref for DecodedBody {
    type Target = Value;

    fn deref(&self) -> &Value {
        &self.0.0
    }
}

impl PartialEq for DecodedBody {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

/// Something about a queue that no message says.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct QueueProblemReport {
    /// The virtual host.
    pub vhost: String,
    /// The queue.
    pub queue: String,
    /// What is wrong, one word: `no_consumer`, `parking_grows`, `work_queue_gone`, `unacknowledged`.
    pub kind: &'static str,
    /// One sentence for a person.
    pub text: String,
    /// Whether it has begun, lasts, or is over.
    pub state: QueueProblemState,
}

/// How far a trouble is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum QueueProblemState {
    /// It was seen now, or is seen still.
    Begun,
    /// It is not known when it began, nor whether people were told: an incident of it stays open, and none is opened.
    Lasting,
    /// It was seen to be over.
    Over,
}
