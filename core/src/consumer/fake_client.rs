//! A client without a broker, for tests of what publishes and consumes.

use std::{
    any::Any,
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::Duration,
};

use tokio::{sync::Notify, time::timeout};

use super::{Message, Received, Trial, fake_consumer::FakeConsumer};
use crate::{
    Client, Error, ErrorKind, Publish, Result,
    client::BrokerSubstitute,
    connection::USUAL_HEADER_ROOM,
    retry::{Counting, DeliveryPast, RetryState},
};

/// How long [`FakeClient::deliver`] waits for a consumer.
const CONSUMER: Duration = Duration::from_secs(10);

/// A client without a broker, for tests: it keeps what is published, and delivers messages to handlers.
///
/// [`client`](Self::client) is a [`Client`] like any other, so it fits wherever one is expected, and it refuses the same arguments with the
/// same errors. What is published is confirmed at once, whether or not such a queue exists, and reaches no handler. Only
/// [`deliver`](Self::deliver) calls the handlers of its consumers.
///
/// ```
/// use retryrmq::{Client, ErrorKind, FakeClient, Message, Publish, Step};
///
/// async fn accept_order(rmq: &Client, order: &str) -> retryrmq::Result<()> {
///     rmq.publish(Publish::to_queue("orders", order)).await
/// }
///
/// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
/// let fake = FakeClient::new();
/// accept_order(&fake.client(), "7").await?;
/// assert_eq!(fake.published()[0].message.body(), b"7");
///
/// fake.set_publish_error(Some(ErrorKind::Unreachable));
/// assert!(accept_order(&fake.client(), "8").await.is_err());
///
/// let orders = fake.client().consumer("orders").dlx(true).retry("fixed(1m, retries=3)".parse()?);
/// orders.start(|_: Message| async { Err("no chair in stock") }).await?;
/// let trials = fake.deliver("orders", Publish::to_queue("orders", "7")).await?;
/// assert!(matches!(trials[3].step, Step::Parked { .. }) && trials[3].at.as_secs() == 180);
/// # Ok::<(), retryrmq::Error>(())
/// # }).unwrap();
/// ```
///
/// Handlers run as they do with a broker, also those of batches, of [`Messages`](crate::Messages) and of a
/// [`Subscription`](crate::Subscription), and their consumers have [`Stats`](crate::Stats). There are no events. What needs a broker, such
/// as [`Client::parked`] and [`Client::apply_plan`], returns [`ErrorKind::Closed`]. Clones share everything.
#[derive(Clone)]
pub struct FakeClient {
    client: Client,
    broker: Arc<FakeBroker>,
}

/// A message that was published through a [`FakeClient`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Published {
    /// The message, as a consumer would get it. Its queue is the routing key; through another exchange than the default one no queue is
    /// known, and its name is empty.
    pub message: Message,
    /// Its [delay](Publish::delay).
    pub delay: Option<Duration>,
}

impl FakeClient {
    /// A client to which nothing was published, and which has no consumers.
    #[must_use]
    pub fn new() -> Self {
        let broker = Arc::<FakeBroker>::default();
        let client = Client::without_broker(Arc::clone(&broker) as _);
        Self { client, broker }
    }

    /// The client to give to a program.
    #[must_use]
    pub fn client(&self) -> Client {
        self.client.clone()
    }

    /// The published messages, in their order.
    #[must_use]
    pub fn published(&self) -> Vec<Published> {
        self.broker.state().published.clone()
    }

    /// Makes every publish fail with an error of this kind; with `None` all are confirmed again. Meanwhile the client is not
    /// [healthy](Client::health). What is refused before it is sent is refused with its own error all the same.
    pub fn set_publish_error(&self, error: Option<ErrorKind>) {
        self.broker.state().publish_error = error;
    }

    /// Gives a message to the handler of `queue` until the message has ended, with the real policy, and without waiting. Returns the
    /// attempts in order.
    ///
    /// It is [`Simulation::run`](crate::Simulation::run) for one message: only the broker is simulated, and its clock jumps to the next
    /// attempt. A handler timeout is measured in real time. If no consumer of the queue runs yet, it waits for one, up to 10 seconds.
    ///
    /// # Errors
    /// Those of [`Client::publish`] for a message that cannot be published. [`ErrorKind::InvalidOption`] if no consumer of the queue starts.
    /// [`ErrorKind::Closed`] if the client is closed, or the consumer ends first: it takes nothing more once it is asked to close, and waits
    /// for a running attempt up to its [`drain_timeout`](crate::Consumer::drain_timeout).
    pub async fn deliver(&self, queue: &str, message: Publish) -> Result<Vec<Trial>> {
        let consumer = self.broker.consumer(queue).await?;
        consumer.deliver(message).await
    }
}

impl Default for FakeClient {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for FakeClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.broker.state();
        f.debug_struct("FakeClient")
            .field("published", &state.published.len())
            .field("publish_error", &state.publish_error)
            .finish_non_exhaustive()
    }
}

/// What a fake client has in the place of a broker.
#[derive(Default)]
pub(super) struct FakeBroker {
    state: Mutex<State>,
    /// Wakes those who wait for a consumer.
    changed: Notify,
}

#[derive(Default)]
struct State {
    published: Vec<Published>,
    publish_error: Option<ErrorKind>,
    /// Each lives as long as it runs.
    consumers: Vec<Weak<FakeConsumer>>,
    is_closed: bool,
}

impl State {
    fn health(&self) -> Result<()> {
        if self.is_closed {
            return Err(closed());
        }
        match self.publish_error {
            Some(kind) => Err(Error::new(
                kind,
                format!(
                    "the fake client has the publish error `{}`, which its test has set",
                    kind.code()
                ),
            )),
            None => Ok(()),
        }
    }

    /// Those that take deliveries.
    fn consumers(&self) -> impl Iterator<Item = Arc<FakeConsumer>> {
        let running = self.consumers.iter().filter_map(Weak::upgrade);
        running.filter(|consumer| !consumer.is_closing())
    }
}

impl FakeBroker {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The one of a client, if that has one.
    pub(super) fn of(client: &Client) -> Option<Arc<Self>> {
        let substitute: Arc<dyn Any + Send + Sync> = client.fake()?;
        substitute.downcast().ok()
    }

    /// A consumer starts.
    pub(super) fn consume(&self, consumer: &Arc<FakeConsumer>) -> Result<()> {
        let mut state = self.state();
        if state.is_closed {
            return Err(closed());
        }
        state.consumers.retain(|other| other.strong_count() > 0);
        state.consumers.push(Arc::downgrade(consumer));
        drop(state);
        self.changed.notify_waiters();
        Ok(())
    }

    /// The first consumer of the queue; waits for one.
    async fn consumer(&self, queue: &str) -> Result<Arc<FakeConsumer>> {
        let found = async {
            loop {
                let changed = self.changed.notified();
                if let Some(consumer) = self.find(queue)? {
                    return Ok(consumer);
                }
                changed.await;
            }
        };
        timeout(CONSUMER, found).await.unwrap_or_else(|_| {
            let state = self.state();
            let known: Vec<_> = state
                .consumers()
                .map(|consumer| format!("`{}`", consumer.queue()))
                .collect();
            let known = if known.is_empty() {
                "none".to_owned()
            } else {
                known.join(", ")
            };
            Err(Error::new(
                ErrorKind::InvalidOption,
                format!("the fake client has no consumer of `{queue}`; it has {known}"),
            ))
        })
    }

    fn find(&self, queue: &str) -> Result<Option<Arc<FakeConsumer>>> {
        let state = self.state();
        if state.is_closed {
            return Err(closed());
        }
        let found = state.consumers().find(|consumer| consumer.queue() == queue);
        Ok(found)
    }
}

impl BrokerSubstitute for FakeBroker {
    fn health(&self) -> Result<()> {
        self.state().health()
    }

    fn publish(&self, message: Publish) -> Result<()> {
        let (exchange, routing_key) = message.fitting(USUAL_HEADER_ROOM)?;
        let mut state = self.state();
        state.health()?;
        let delay = message.delay.filter(|delay| !delay.is_zero());
        let (_, _, properties, body) = message.into_parts();
        let queue = if exchange.as_str().is_empty() {
            routing_key.as_str()
        } else {
            ""
        };
        let read = RetryState::read(queue, Counting::Header, DeliveryPast::None, &properties);
        let message = Message(Arc::new(Received {
            queue: queue.into(),
            body,
            properties,
            exchange,
            state: read,
            redelivered: false,
            mended: None,
            routing_key,
        }));
        state.published.push(Published { message, delay });
        Ok(())
    }

    fn close(&self) {
        let mut state = self.state();
        state.is_closed = true;
        for consumer in state.consumers.drain(..).filter_map(|one| one.upgrade()) {
            consumer.abandon();
        }
        drop(state);
        self.changed.notify_waiters();
    }
}

fn closed() -> Error {
    Error::new(ErrorKind::Closed, "the client is closed; connect a new one")
}
