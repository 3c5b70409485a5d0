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

/// One delivery, from its arrival until it is settled.
#[derive(Debug)]
pub(crate) struct Received {
    pub(crate) queue: Arc<str>,
    pub(crate) body: Vec<u8>,
    pub(crate) properties: BasicProperties,
    pub(crate) exchange: ShortString,
    pub(crate) routing_key: ShortString,
    pub(crate) redelivered: bool,
    pub(crate) state: RetryState,
    /// What had to be repaired before the message could be read.
    pub(crate) mended: Option<String>,
}

impl AsRef<[u8]> for Received {
    fn as_ref(&self) -> &[u8] {
        &self.body
    }
}

impl Received {
    /// The exchange it was first published to. A copy of ours arrives through the default exchange.
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

/// A message as a handler gets it. Cheap to clone: the clones share the body.
#[derive(Clone, Debug)]
pub struct Message(pub(crate) Arc<Received>);

impl Message {
    /// The body, in bytes, as it was published.
    #[must_use]
    pub fn body(&self) -> &[u8] {
        &self.0.body
    }

    /// The headers, if there are any. They include the headers of the broker and the `x-retry-*` headers of this library.
    #[must_use]
    pub fn headers(&self) -> Option<&FieldTable> {
        self.0.properties.headers().as_ref()
    }

    /// All AMQP properties.
    #[must_use]
    pub fn properties(&self) -> &BasicProperties {
        &self.0.properties
    }

    /// The exchange the message was first published to; empty for the default exchange.
    #[must_use]
    pub fn exchange(&self) -> &str {
        self.0.exchange()
    }

    /// The routing key the message was first published with.
    #[must_use]
    pub fn routing_key(&self) -> &str {
        self.0.routing_key()
    }

    /// The exchange that routed this delivery to the queue (AMQP `basic.deliver`). The broker sets it, so no publisher can forge it. A copy
    /// that waited has the default exchange, a dead letter the dead-letter exchange.
    #[must_use]
    pub fn delivery_exchange(&self) -> &str {
        self.0.exchange.as_str()
    }

    /// The routing key of this delivery (AMQP `basic.deliver`). The broker sets it. A copy that waited has the name of the queue.
    #[must_use]
    pub fn delivery_routing_key(&self) -> &str {
        self.0.routing_key.as_str()
    }

    /// The id that the publisher gave it (AMQP property `message-id`).
    #[must_use]
    pub fn message_id(&self) -> Option<&str> {
        self.0
            .properties
            .message_id()
            .as_ref()
            .map(ShortString::as_str)
    }

    /// The number of this attempt: 1 on first delivery.
    #[must_use]
    pub fn attempt(&self) -> u32 {
        self.0.state.attempt()
    }

    /// How many attempts failed before this one: `attempt - 1`.
    #[must_use]
    pub fn retries(&self) -> u32 {
        self.0.state.retries
    }

    /// When the first attempt failed, in whole seconds; `None` if none has failed.
    #[must_use]
    pub fn first_failed_at(&self) -> Option<SystemTime> {
        self.0
            .state
            .first_failed_at
            .map(|seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds))
    }

    /// The error of the last failed attempt; `None` if none has failed.
    #[must_use]
    pub fn last_error(&self) -> Option<&str> {
        self.0.state.last_error.as_deref()
    }

    /// The last failures, at most ten, oldest first.
    #[must_use]
    pub fn history(&self) -> Vec<HistoryEntry> {
        self.headers().map(HistoryEntry::read).unwrap_or_default()
    }

    /// How often the message was replayed from the parking queue.
    #[must_use]
    pub fn replays(&self) -> u32 {
        self.0.state.replays
    }

    /// The work queue it came from.
    #[must_use]
    pub fn queue(&self) -> &str {
        &self.0.queue
    }

    /// Whether the broker has delivered this message before (AMQP `redelivered`).
    #[must_use]
    pub fn redelivered(&self) -> bool {
        self.0.redelivered
    }

    /// Damage that was repaired so that the message could be read, such as names that are not UTF-8 or tables nested too deeply; `None` if
    /// there was none. If the handler fails on such a message, it is parked as `undecodable` at once.
    #[must_use]
    pub fn mended(&self) -> Option<&str> {
        self.0.mended.as_deref()
    }

    /// How often a handler has deferred it.
    #[must_use]
    pub fn deferrals(&self) -> u32 {
        self.0.state.deferrals
    }

    /// What its headers say about its past. For tests of this project only.
    #[doc(hidden)]
    #[must_use]
    pub fn state(&self) -> &RetryState {
        &self.0.state
    }
}
