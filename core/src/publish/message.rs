//! A message to publish.

use std::{sync::Arc, time::Duration};

use lapin::{
    BasicProperties,
    types::{AMQPValue, FieldTable, ShortString},
};

use super::{Body, Job};
use crate::{
    Error, ErrorKind, Result,
    retry::{DIRECT_REPLY_TO, MAX_DELAY, asks_for_direct_replies, encoded_size},
    topology,
};

/// A message to publish. By default it is persistent and `mandatory`, so that [`Client::publish`](crate::Client::publish) returns an error
/// if no queue takes it.
///
/// ```
/// use retryrmq::{Publish, SECOND};
///
/// let message = Publish::to_queue("orders", "{\"id\": 7}").message_id("7").delay(30 * SECOND);
/// ```
#[derive(Clone, Debug)]
pub struct Publish {
    exchange: String,
    routing_key: String,
    properties: BasicProperties,
    body: Vec<u8>,
    mandatory: bool,
    pub(crate) delay: Option<Duration>,
    pub(crate) timeout: Option<Duration>,
}

impl Publish {
    /// A message for one queue, through the default exchange.
    #[must_use]
    pub fn to_queue(queue: impl Into<String>, body: impl Into<Vec<u8>>) -> Self {
        Self::to_exchange("", queue, body)
    }

    /// A message for an exchange.
    #[must_use]
    pub fn to_exchange(
        exchange: impl Into<String>,
        routing_key: impl Into<String>,
        body: impl Into<Vec<u8>>,
    ) -> Self {
        Self {
            exchange: exchange.into(),
            routing_key: routing_key.into(),
            properties: BasicProperties::default().with_delivery_mode(2),
            body: body.into(),
            mandatory: true,
            delay: None,
            timeout: None,
        }
    }

    /// Sets all properties, including `delivery_mode` (2 is persistent).
    #[must_use]
    pub fn properties(mut self, properties: BasicProperties) -> Self {
        self.properties = properties;
        self
    }

    /// Sets the headers; replaces earlier ones.
    #[must_use]
    pub fn headers(mut self, headers: FieldTable) -> Self {
        self.properties = self.properties.with_headers(headers);
        self
    }

    /// Sets the message's id. A consumer recognises a redelivery of a handled message by it. An id longer than 255 bytes is cut.
    #[must_use]
    pub fn message_id(mut self, id: &str) -> Self {
        let cut = (0..=id.len().min(255))
            .rev()
            .find(|at| id.is_char_boundary(*at))
            .unwrap_or(0);
        self.properties = self.properties.with_message_id(id[..cut].into());
        self
    }

    /// Whether it is an error if no queue takes the message (AMQP `mandatory`). On by default. Off: the broker drops such a message and
    /// confirms it.
    #[must_use]
    pub fn mandatory(mut self, mandatory: bool) -> Self {
        self.mandatory = mandatory;
        self
    }

    /// Delivers the message after `delay`, at most 365 days. It waits in the waiting queues of its target queue, which are created if
    /// needed. Only for a message [to a queue](Self::to_queue), without an `expiration` and without the headers `CC` and `BCC`, which would
    /// deliver it to other queues at once.
    #[must_use]
    pub fn delay(mut self, delay: Duration) -> Self {
        self.delay = Some(delay);
        self
    }

    /// How long [`Client::publish`](crate::Client::publish) takes at most: it waits that long for a connection, for the end of a memory or disk alarm,
    /// and for the confirm. Then it returns [`ErrorKind::Timeout`], and a message that was not sent yet will not be. By default it waits 5 seconds for
    /// a connection, and 20 seconds in an alarm and for the confirm. At most 365 days.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    pub(crate) fn queue(&self) -> &str {
        &self.routing_key
    }

    /// Checks what can be checked without a broker. [`Client::publish`](crate::Client::publish) does this first.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidOption`] for a delay, an expiration or a header that cannot work.
    pub fn validate(&self) -> Result<()> {
        if let Some(delay) = self.delay {
            let bad = |why: &str| {
                Err(Error::new(
                    ErrorKind::InvalidOption,
                    format!("this message cannot be delayed: {why}"),
                ))
            };
            if !self.exchange.is_empty() {
                return bad("a delay needs a queue as its target, not an exchange");
            }
            if self.properties.expiration().is_some() {
                return bad("it has an `expiration`, which would end the wait");
            }
            let headers = self.properties.headers().as_ref();
            let is_set = |name: &str| headers.is_some_and(|table| table.contains_key(name));
            if let Some(name) = ["CC", "BCC"].into_iter().find(|name| is_set(name)) {
                return bad(&format!(
                    "its header `{name}` would deliver it to other queues at once; publish a message of its own for each queue"
                ));
            }
            if delay > MAX_DELAY {
                return bad("the delay is longer than 365d");
            }
        }
        if let Some(timeout) = self.timeout
            && (timeout.is_zero() || timeout > MAX_DELAY)
        {
            return Err(Error::new(
                ErrorKind::InvalidOption,
                "`timeout` must be longer than 0 and at most 365d",
            ));
        }
        if asks_for_direct_replies(&self.properties) {
            return Err(Error::new(
                ErrorKind::InvalidOption,
                format!(
                    "`reply_to` is `{DIRECT_REPLY_TO}`, which RabbitMQ takes only from a channel that consumes the replies, and this client has \
                     none; name a queue of your own"
                ),
            ));
        }
        check_numbers(&self.properties)?;
        // With a bad expiration the broker closes the channel, and every unconfirmed message on it is in doubt.
        if let Some(expiration) = self.properties.expiration()
            && !expiration
                .as_str()
                .parse::<u64>()
                .is_ok_and(|ms| ms <= 315_360_000_000)
        {
            return Err(Error::new(
                ErrorKind::InvalidOption,
                "`expiration` must be a whole number of milliseconds, at most 315360000000, as text",
            ));
        }
        Ok(())
    }

    /// The same message sent to a waiting queue.
    pub(crate) fn through(mut self, waiting_queue: String, expiration: Option<u64>) -> Self {
        self.routing_key = waiting_queue;
        if let Some(ms) = expiration {
            self.properties = self.properties.with_expiration(ms.to_string().into());
        }
        self.delay = None;
        self
    }

    /// Exchange, routing key, properties, body.
    pub(crate) fn into_parts(self) -> (String, String, BasicProperties, Vec<u8>) {
        (self.exchange, self.routing_key, self.properties, self.body)
    }

    /// Its exchange and routing key for AMQP, if it is valid and the headers and properties fit into `room` bytes.
    ///
    /// # Errors
    /// Those of [`validate`](Self::validate), and [`ErrorKind::TooLarge`].
    pub(crate) fn fitting(&self, room: usize) -> Result<(ShortString, ShortString)> {
        self.validate()?;
        let size = content_header_size(&self.properties);
        // A content header larger than one frame closes the connection, and everything unconfirmed on it is in doubt.
        if size > room {
            return Err(Error::new(
                ErrorKind::TooLarge,
                format!(
                    "the headers and properties take {size} bytes and must fit one frame, which has room for \
                     {room}; put large values into the body"
                ),
            ));
        }
        Ok((
            topology::name(&self.exchange)?,
            topology::name(&self.routing_key)?,
        ))
    }

    /// The job, if the headers and properties fit into `room` bytes.
    pub(super) fn into_job(
        self,
        room: usize,
        done: Box<dyn FnOnce(Result<()>) + Send + Sync>,
    ) -> Result<Job> {
        let (exchange, routing_key) = self.fitting(room)?;
        let body: Body = Arc::new(self.body);
        Ok(Job {
            exchange,
            routing_key,
            properties: Arc::new(self.properties),
            body,
            mandatory: self.mandatory,
            done,
        })
    }
}

/// The bytes that the properties take on the wire, including class, body size and flags before them.
pub(super) fn content_header_size(properties: &BasicProperties) -> usize {
    const BEFORE: usize = 2 + 2 + 8 + 2;
    let texts: usize = [
        properties.content_type(),
        properties.content_encoding(),
        properties.correlation_id(),
        properties.reply_to(),
        properties.expiration(),
        properties.message_id(),
        properties.kind(),
        properties.user_id(),
        properties.app_id(),
        properties.cluster_id(),
    ]
    .into_iter()
    .flatten()
    .map(|text| 1 + text.as_str().len())
    .sum();
    let numbers = 2 + 8; // delivery mode and priority, timestamp
    BEFORE + texts + numbers + properties.headers().as_ref().map_or(0, encoded_size)
}

/// Checks that no header is NaN or infinite: RabbitMQ cannot read such a number, and closes the connection (541).
///
/// # Errors
/// [`ErrorKind::InvalidOption`] if one is.
pub(crate) fn check_numbers(properties: &BasicProperties) -> Result<()> {
    if !properties.headers().as_ref().is_some_and(holds_no_number) {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::InvalidOption,
        "a header is NaN or infinite, which RabbitMQ cannot read; leave it out or write it as text",
    ))
}

/// Whether a header contains NaN or an infinite number.
fn holds_no_number(headers: &FieldTable) -> bool {
    let mut rest: Vec<&AMQPValue> = headers.inner().values().collect();
    while let Some(value) = rest.pop() {
        match value {
            AMQPValue::Float(number) if !number.is_finite() => return true,
            AMQPValue::Double(number) if !number.is_finite() => return true,
            AMQPValue::FieldArray(items) => rest.extend(items.as_slice()),
            AMQPValue::FieldTable(table) => rest.extend(table.inner().values()),
            _ => {}
        }
    }
    false
}
