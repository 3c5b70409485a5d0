//! A failed message that the caller did not consume from the queue where it failed.

use std::{fmt, sync::Arc};

use lapin::{BasicProperties, types::ShortString};

use super::{Message, Received};
use crate::{
    Result,
    publish::Body,
    retry::{Counting, DeliveryPast, Failure, Handover, RetryState, XDeath, headers},
    topology,
};

/// A failed message of a work queue that this client did not consume from that queue: a dead letter collected elsewhere, or one that
/// another program handed over. It is the input of a [`Retrier`](crate::Retrier). Cheap to clone: the clones share the body.
#[derive(Clone)]
pub struct FailedMessage {
    /// Its own body is empty and not used.
    pub(in crate::consumer) received: Arc<Received>,
    pub(super) body: Body,
}

impl FailedMessage {
    /// A message that failed in `queue`. Its headers say how often it failed before and where it was first published (section 5 of
    /// PROTOCOL). `exchange` and `routing_key` are those with which it came to the queue.
    ///
    /// # Errors
    /// [`ErrorKind::TooLarge`](crate::ErrorKind::TooLarge) for an exchange or a routing key longer than 255 bytes.
    pub fn new(
        queue: &str,
        exchange: &str,
        routing_key: &str,
        properties: BasicProperties,
        body: impl AsRef<[u8]> + Send + Sync + 'static,
    ) -> Result<Self> {
        let state = RetryState::read(queue, Counting::Header, DeliveryPast::None, &properties);
        let (exchange, routing_key) = (topology::name(exchange)?, topology::name(routing_key)?);
        let (properties, body) = (properties, Arc::new(body));
        Ok(Self::of(
            queue,
            exchange,
            routing_key,
            properties,
            state,
            None,
            body,
        ))
    }

    /// A dead letter from a dead-letter queue, with one of its deaths (header `x-death`). This death is the failure to handle, not an
    /// earlier one: after the first rejection, attempt 1 has failed.
    ///
    /// # Errors
    /// Those of [`new`](Self::new).
    pub fn dead_letter(message: &Message, death: &XDeath) -> Result<Self> {
        let received = &message.0;
        let mut properties = received.properties.clone();
        if let Some(expiration) = &death.expiration {
            properties = properties.with_expiration(topology::name(expiration)?);
        }
        let mut state = RetryState::read(
            &death.queue,
            Counting::Header,
            DeliveryPast::None,
            &properties,
        );
        if !state.is_counted && death.reason == "rejected" {
            state.retries = state.retries.saturating_sub(1);
        }
        let exchange = topology::name(&death.exchange)?;
        let routing_key = topology::name(&death.routing_key)?;
        let body = Arc::clone(received) as Body;
        let mended = received.mended.clone();
        Ok(Self::of(
            &death.queue,
            exchange,
            routing_key,
            properties,
            state,
            mended,
            body,
        ))
    }

    /// A message that a consumer with [`Strategy::Service`](crate::Strategy::Service) handed over, and what it asks for. `message` was
    /// consumed from [`HANDOVER_QUEUE`](crate::HANDOVER_QUEUE). [`failure`](Self::failure) is the failure that came with it.
    ///
    /// All of this comes from its headers, which any publisher can write. The caller must decide whether to believe them, for example by
    /// [`Message::delivery_exchange`].
    ///
    /// # Errors
    /// An error message that names the header that is missing or cannot be read. Such a message belongs to no queue.
    pub fn handed_over(message: &Message) -> std::result::Result<(Self, Handover), String> {
        let received = &message.0;
        let table = message.headers().ok_or("it has no headers")?;
        let handover = Handover::read(table)?;
        let queue = headers::string(table, headers::QUEUE).filter(|queue| !queue.is_empty());
        let queue = queue.ok_or_else(|| format!("{} is missing", headers::QUEUE))?;
        let wire_queue = topology::name(&queue).map_err(|why| why.to_string())?;
        if !matches!(headers::count(table, headers::COUNT), Ok(Some(_))) {
            return Err(format!("{} is no count", headers::COUNT));
        }
        let properties = received.properties.clone();
        let state = RetryState::read(&queue, Counting::Header, DeliveryPast::None, &properties);
        let (mended, body) = (received.mended.clone(), Arc::clone(received) as Body);
        let exchange = ShortString::default();
        let failed = Self::of(
            &queue, exchange, wire_queue, properties, state, mended, body,
        );
        Ok((failed, handover))
    }

    /// A message that its consumer parks for another queue than the one it came from.
    #[must_use]
    pub fn of_queue(message: &Message, queue: &str) -> Self {
        let received = &message.0;
        Self::of(
            queue,
            received.exchange.clone(),
            received.routing_key.clone(),
            received.properties.clone(),
            received.state.clone(),
            received.mended.clone(),
            Arc::clone(received) as Body,
        )
    }

    /// The failure that the consumer of a message that was [handed over](Self::handed_over) wrote on it. Copies made from it keep it
    /// unchanged.
    #[must_use]
    pub fn failure(&self) -> Failure {
        let table = self.received.properties.headers().as_ref();
        table.map(Handover::failure).unwrap_or_default()
    }

    fn of(
        queue: &str,
        exchange: ShortString,
        routing_key: ShortString,
        properties: BasicProperties,
        state: RetryState,
        mended: Option<String>,
        body: Body,
    ) -> Self {
        let received = Received {
            queue: queue.into(),
            body: Vec::new(),
            properties,
            exchange,
            routing_key,
            redelivered: false,
            state,
            mended,
        };
        Self {
            received: Arc::new(received),
            body,
        }
    }

    /// The queue in which it failed.
    #[must_use]
    pub fn queue(&self) -> &str {
        &self.received.queue
    }

    /// The number of the attempt that failed; 1 is the first delivery.
    #[must_use]
    pub fn attempt(&self) -> u32 {
        self.received.state.attempt()
    }

    /// The exchange it was first published to; empty for the default exchange.
    #[must_use]
    pub fn exchange(&self) -> &str {
        self.received.exchange()
    }

    /// The routing key it was first published with.
    #[must_use]
    pub fn routing_key(&self) -> &str {
        self.received.routing_key()
    }

    /// All AMQP properties, including headers.
    #[must_use]
    pub fn properties(&self) -> &BasicProperties {
        &self.received.properties
    }

    /// The body, in bytes.
    #[must_use]
    pub fn body(&self) -> &[u8] {
        (*self.body).as_ref()
    }

    /// Headers that are ignored because their values are not believable, each with the reason.
    #[must_use]
    pub fn distrusted(&self) -> &[(&'static str, &'static str)] {
        &self.received.state.distrusted
    }
}

/// A message of a consumer, for example to park it in another way.
impl From<&Message> for FailedMessage {
    fn from(message: &Message) -> Self {
        Self {
            received: Arc::clone(&message.0),
            body: Arc::clone(&message.0) as Body,
        }
    }
}

impl fmt::Debug for FailedMessage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FailedMessage")
            .field("queue", &self.queue())
            .field("attempt", &self.attempt())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use lapin::types::{AMQPValue, FieldArray, FieldTable};
    use proptest::prelude::*;

    use super::*;

    fn letter(count: Option<i64>, reason: &str, deaths: i64) -> FailedMessage {
        let mut death = FieldTable::default();
        for (name, text) in [
            ("queue", "orders"),
            ("reason", reason),
            ("exchange", "shop"),
        ] {
            death.insert(name.into(), AMQPValue::LongString(text.into()));
        }
        death.insert("count".into(), AMQPValue::LongLongInt(deaths));
        death.insert(
            "original-expiration".into(),
            AMQPValue::LongString("60000".into()),
        );
        let mut table = FieldTable::default();
        let deaths = vec![AMQPValue::FieldTable(death)];
        table.insert(
            "x-death".into(),
            AMQPValue::FieldArray(FieldArray::from(deaths)),
        );
        if let Some(count) = count {
            table.insert("x-retry-count".into(), AMQPValue::LongLongInt(count));
        }
        let death = XDeath::all(&table).remove(0);
        let mut received = Received::for_tests("intake", "x");
        received.properties = BasicProperties::default().with_headers(table);
        FailedMessage::dead_letter(&Message(Arc::new(received)), &death).unwrap()
    }

    #[test]
    fn a_rejection_is_the_failure_and_no_earlier_one() {
        assert_eq!(letter(None, "rejected", 1).attempt(), 1);
        assert_eq!(letter(None, "rejected", 3).attempt(), 3);
        assert_eq!(letter(Some(0), "rejected", 1).attempt(), 1);
        assert_eq!(letter(Some(4), "rejected", 1).attempt(), 5);
        assert_eq!(letter(None, "expired", 1).attempt(), 1);
        let failed = letter(None, "rejected", 1);
        assert_eq!((failed.queue(), failed.exchange()), ("orders", "shop"));
        let expiration = failed.properties().expiration().clone();
        assert_eq!(expiration.unwrap().as_str(), "60000");
        assert_eq!(failed.body(), b"x");
    }

    proptest! {
        #[test]
        fn our_own_count_decides_where_there_is_one(own in 0i64..1_000, deaths in 0i64..1_000) {
            prop_assert_eq!(letter(Some(own), "rejected", deaths).attempt() as i64, own + 1);
            prop_assert_eq!(letter(None, "rejected", deaths).attempt() as i64, deaths.max(1));
        }
    }
}
