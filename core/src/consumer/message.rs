//! A message as a handler sees it.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use lapin::{
    BasicProperties,
    types::{FieldTable, ShortString},
};

use crate::retry::{HistoryEntry, RetryState};

/// A delivery, from its arrival to its settlement.
#[derive(Debug)]
pub(crate) struct Received {
    pub(crate) queue: Arc<str>,
    pub(crate) body: Vec<u8>,
    pub(crate) properties: BasicProperties,
    pub(crate) exchange: ShortString,
    pub(crate) routing_key: ShortString,
    pub(crate) redelivered: bool,
    pub(crate) state: RetryState,
    /// What had to be mended before it could be read at all.
    pub(crate) mended: Option<String>,
}

impl AsRef<[u8]> for Received {
    fn as_ref(&self) -> &[u8] {
        &self.body
    }
}

impl Received {
    /// The exchange it was first published to: a copy of ours comes through the default exchange.
    pub(crate) fn exchange(&self) -> &str {
        self.state
            .exchange
            .as_deref()
            .unwrap_or(self.exchange.as_str())
    }

    /// The routing key it was first published with.
    pub(crate) fn routing_key(&self) -> &str {
        self.state
            .routing_key
            .as_deref()
            .unwrap_or(self.routing_key.as_str())
    }

    pub(crate) fn message_id(&self) -> Option<String> {
        self.properties
            .message_id()
            .as_ref()
            .map(|id| id.as_str().to_owned())
    }

    #[cfg(test)]
    pub(crate) fn for_tests(queue: &str, body: &str) -> Self {
        Self {
            queue: queue.into(),
            body: body.as_bytes().to_vec(),
            properties: BasicProperties::default(),
            exchange: ShortString::default(),
            routing_key: ShortString::from(queue),
            redelivered: false,
            state: RetryState::default(),
            mended: None,
        }
    }
}

/// A message. Cheap to clone; nothing is copied.
#[derive(Clone, Debug)]
pub struct Message(pub(crate) Arc<Received>);

impl Message {
    /// The body, as it was published.
    #[must_use]
    pub fn body(&self) -> &[u8] {
        &self.0.body
    }

    /// The headers, if there are any; the broker's and ours among them.
    #[must_use]
    pub fn headers(&self) -> Option<&FieldTable> {
        self.0.properties.headers().as_ref()
    }

    /// All properties.
    #[must_use]
    pub fn properties(&self) -> &BasicProperties {
        &self.0.properties
    }

    /// The exchange it was first published to; empty for the default exchange.
    #[must_use]
    pub fn exchange(&self) -> &str {
        self.0.exchange()
    }

    /// The routing key it was first published with.
    #[must_use]
    pub fn routing_key(&self) -> &str {
        self.0.routing_key()
    }

    /// The exchange that handed it to the queue, by the broker's own word (AMQP `basic.deliver`): no publisher can say another. Of a
    /// copy that waited it is the default exchange, and of a dead letter the dead-letter exchange.
    #[must_use]
    pub fn delivery_exchange(&self) -> &str {
        self.0.exchange.as_str()
    }

    /// The routing key that came with it, by the broker's own word (AMQP `basic.deliver`). Of a copy that waited it is the queue's name.
    #[must_use]
    pub fn delivery_routing_key(&self) -> &str {
        self.0.routing_key.as_str()
    }

    /// The id its publisher gave it.
    #[must_use]
    pub fn message_id(&self) -> Option<&str> {
        self.0
            .properties
            .message_id()
            .as_ref()
            .map(ShortString::as_str)
    }

    /// Which attempt this is: 1 on first delivery.
    #[must_use]
    pub fn attempt(&self) -> u32 {
        self.0.state.attempt()
    }

    /// How many attempts failed: `attempt - 1`.
    #[must_use]
    pub fn retries(&self) -> u32 {
        self.0.state.retries
    }

    /// When the first attempt failed, to the second.
    #[must_use]
    pub fn first_failed_at(&self) -> Option<SystemTime> {
        self.0
            .state
            .first_failed_at
            .map(|seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds))
    }

    /// Why the last attempt failed.
    #[must_use]
    pub fn last_error(&self) -> Option<&str> {
        self.0.state.last_error.as_deref()
    }

    /// The last failures, oldest first.
    #[must_use]
    pub fn history(&self) -> Vec<HistoryEntry> {
        self.headers().map(HistoryEntry::read).unwrap_or_default()
    }

    /// How often it was replayed from the parking queue.
    #[must_use]
    pub fn replays(&self) -> u32 {
        self.0.state.replays
    }

    /// The queue it came from.
    #[must_use]
    pub fn queue(&self) -> &str {
        &self.0.queue
    }

    /// Whether the broker delivered it before (AMQP `redelivered`).
    #[must_use]
    pub fn redelivered(&self) -> bool {
        self.0.redelivered
    }

    /// What had to be mended before it could be read: names that are not UTF-8, tables nested without end. If the
    /// handler fails on such a message, it is parked as `undecodable` at once.
    #[must_use]
    pub fn mended(&self) -> Option<&str> {
        self.0.mended.as_deref()
    }

    /// How often a handler deferred it.
    #[must_use]
    pub fn deferrals(&self) -> u32 {
        self.0.state.deferrals
    }

    /// What its headers say of its past, for tests of this project.
    #[doc(hidden)]
    #[must_use]
    pub fn state(&self) -> &RetryState {
        &self.0.state
    }
}
