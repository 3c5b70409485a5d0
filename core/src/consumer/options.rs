//! The options of a consumer. The defaults of every language are defined here.

use std::{error::Error as StdError, fmt, sync::Arc, time::Duration};

use super::{
    Message, Messages, Pause, Subscription,
    delivery_queue::Batching,
    handler::{
        ErrorClassifier, HandlerRunner, IntoOutcome, IntoOutcomes, RunningConsumer, run_workers,
        work, work_in_batches,
    },
};
use crate::{
    Client, Error, ErrorKind, Result,
    retry::{Limits, Policy, Rule, Rules},
    telemetry::{Event, Listener},
    topology::{Plan, Strategy, WorkQueue},
};

/// The usual prefetch.
const PREFETCH: u16 = 64;

/// How long an incomplete batch usually waits.
const BATCH_WAIT: Duration = Duration::from_millis(200);

/// A consumer that is not running yet: a queue and its options.
///
/// [`Client::consumer`] makes one that can be run. [`new`](Self::new) makes one without a client. Options are checked, and the broker is
/// asked, only in [`subscribe`](Self::subscribe), [`messages`](Self::messages), [`start`](Self::start), [`run`](Self::run) or
/// [`run_until`](Self::run_until).
#[derive(Clone)]
#[must_use = "a consumer does nothing until it is run"]
pub struct Consumer {
    pub(super) client: Option<Client>,
    pub(super) queue: String,
    /// `None`: not said, which is off with a warning.
    pub(super) dlx: Option<bool>,
    pub(super) rules: Rules,
    pub(super) strategy: Strategy,
    /// `None`: as many as the handlers need.
    pub(super) prefetch: Option<u16>,
    /// `None`: no limit.
    pub(super) prefetch_bytes: Option<u64>,
    pub(super) priority: Option<i32>,
    pub(super) concurrency: usize,
    /// `None`: a handler gets single messages.
    pub(super) batch: Option<usize>,
    /// `None`: the default.
    pub(super) batch_wait: Option<Duration>,
    pub(super) handler_timeout: Option<Duration>,
    pub(super) drain_timeout: Duration,
    pub(super) park: bool,
    pub(super) pause: Option<Pause>,
    pub(super) declare: bool,
    pub(super) work_queue: Option<WorkQueue>,
    pub(super) reserved_name: bool,
    pub(super) requeue_unchanged: bool,
    pub(super) create_unreadable_queue: bool,
    /// `None`: as its client.
    pub(super) wait: Option<bool>,
    pub(super) limits: Limits,
    pub(super) listener: Listener,
    pub(super) error_classifier: ErrorClassifier,
    /// The first option given that says how to retry; it needs `dlx`.
    pub(super) retries_by: Option<&'static str>,
}

impl Client {
    /// A consumer of `queue` with default options. Nothing is sent to the broker until it is started.
    pub fn consumer(&self, queue: impl Into<String>) -> Consumer {
        Consumer::new(queue).client(self.clone())
    }
}

impl Consumer {
    /// A consumer of `queue` without a client. It can be checked, planned and [simulated](crate::Simulation) without a broker. Give it a
    /// [`client`](Self::client) before it is run.
    pub fn new(queue: impl Into<String>) -> Self {
        Self {
            client: None,
            queue: queue.into(),
            dlx: None,
            rules: Rules::default(),
            strategy: Strategy::default(),
            prefetch: None,
            prefetch_bytes: None,
            priority: None,
            concurrency: 16,
            batch: None,
            batch_wait: None,
            handler_timeout: None,
            drain_timeout: Duration::from_secs(25),
            park: true,
            pause: None,
            declare: true,
            work_queue: None,
            reserved_name: false,
            requeue_unchanged: false,
            create_unreadable_queue: false,
            wait: None,
            limits: Limits::default(),
            listener: Listener::default(),
            error_classifier: ErrorClassifier::default(),
            retries_by: None,
        }
    }

    /// Sets the client to consume with.
    pub fn client(mut self, client: Client) -> Self {
        self.client = Some(client);
        self
    }

    /// Whether failed messages are retried and parked. Off by default.
    ///
    /// Off: a failed message is rejected without requeue (AMQP `basic.reject`), and the queue's own dead-lettering decides. If the queue
    /// has no dead-letter exchange, the broker drops the message. The first rejection logs a warning.
    ///
    /// A consumer for which this was never called logs a warning when it starts. `dlx(false)` says that the queue decides, and silences it.
    pub fn dlx(mut self, dlx: bool) -> Self {
        self.dlx = Some(dlx);
        self
    }

    /// Sets the policy for failures that no rule matches. The default is `exponential(1s, factor=4, max=5m, retries=5)`. Needs
    /// [`dlx`](Self::dlx).
    pub fn retry(mut self, policy: Policy) -> Self {
        self.rules.otherwise = policy;
        self.retries_by = Some("retry");
        self
    }

    /// Sets how failed messages wait. The default is [`Strategy::RetryQueues`].
    pub fn strategy(mut self, strategy: Strategy) -> Self {
        self.strategy = strategy;
        self
    }

    /// Sets rules that choose another policy by routing key, header or error. The first rule that matches decides. Needs
    /// [`dlx`](Self::dlx).
    pub fn rules(mut self, rules: impl IntoIterator<Item = Rule>) -> Self {
        self.rules.rules = rules.into_iter().collect();
        if !self.rules.rules.is_empty() {
            self.retries_by.get_or_insert("rules");
        }
        self
    }

    /// Sets how many messages may be unacknowledged at a time (AMQP `basic.qos`): 1 to 65535. The default is 64; with [`batch`](Self::batch)
    /// it is `batch` × [`concurrency`](Self::concurrency), if that is more. It cannot be smaller than a batch.
    pub fn prefetch(mut self, prefetch: u16) -> Self {
        self.prefetch = Some(prefetch);
        self
    }

    /// Limits the bytes of the bodies of unsettled messages. No limit by default. RabbitMQ limits only their number, so 64 messages of 12 MiB
    /// take 768 MiB.
    ///
    /// The consumer then requests fewer messages than [`prefetch`](Self::prefetch) while they are large. The broker may send larger messages
    /// than expected. What does not fit is returned unchanged and comes again later, so its order may change and it may be marked as
    /// `redelivered`. A message larger than the limit is handled while no other one is.
    pub fn prefetch_bytes(mut self, bytes: u64) -> Self {
        self.prefetch_bytes = Some(bytes);
        self
    }

    /// Sets the priority of this consumer among the consumers of the queue (`x-priority` of AMQP `basic.consume`). It may be negative; the
    /// default is 0.
    ///
    /// While a consumer of a higher priority has room in its [`prefetch`](Self::prefetch), it gets the messages, and consumers of a lower
    /// priority get none. Messages already delivered stay where they are. On a queue with a single active consumer, RabbitMQ chooses the
    /// active one by priority only on quorum queues, from 4.0 on.
    pub fn priority(mut self, priority: i32) -> Self {
        self.priority = Some(priority);
        self
    }

    /// Sets how many handlers run at a time, from 1 to 100 000; 16 by default. With [`batch`](Self::batch) it counts batches.
    pub fn concurrency(mut self, concurrency: usize) -> Self {
        self.concurrency = concurrency;
        self
    }

    /// Lets a handler get several messages at once, at most `size`: 1 to 10 000. By default it gets single messages.
    ///
    /// The handler answers for each message or for all, see [`start_batches`](Self::start_batches). Every message keeps its own attempts,
    /// retries and limits: a batch is only what happens to be there at the same time, and a message that failed may come back in another.
    ///
    /// If the process crashes, the broker counts that for every message it held. So keep `size` × [`concurrency`](Self::concurrency) no
    /// larger than you need.
    pub fn batch(mut self, size: usize) -> Self {
        self.batch = Some(size);
        self
    }

    /// Sets how long an incomplete batch waits for more messages, from the arrival of its first one: 200 ms by default, at most one minute.
    /// With 0 a handler gets what is there. Needs [`batch`](Self::batch).
    ///
    /// Messages that wait are not acknowledged. When the consumer closes, they are requeued like all others that no handler has started.
    pub fn batch_wait(mut self, wait: Duration) -> Self {
        self.batch_wait = Some(wait);
        self
    }

    /// Sets how long a handler may run, at most 365 days. No limit by default. When the time is over, the handler's future is dropped, and
    /// the attempt has failed. A handler that blocks its thread cannot be stopped. What it returns after that time is ignored.
    pub fn handler_timeout(mut self, timeout: Duration) -> Self {
        self.handler_timeout = Some(timeout);
        self
    }

    /// Sets how long closing waits for running handlers, and for the confirms of copies: 25 seconds by default, at most 365 days. After that,
    /// the messages of handlers that still run are requeued, and those whose copies are not confirmed. For copies that are on their way it
    /// waits at least three seconds, so that their originals do not come again as duplicates.
    pub fn drain_timeout(mut self, timeout: Duration) -> Self {
        self.drain_timeout = timeout;
        self
    }

    /// Whether messages that are given up are parked. On by default. Off: they are acknowledged and dropped; only an event and a warning
    /// in the log remain. Turning it off needs [`dlx`](Self::dlx), because without it nothing is parked.
    ///
    /// With [`Strategy::Service`] this option covers what the consumer itself gives up: messages that a handler parks, and messages that
    /// crash their consumers. The service's policy covers what is given up after the last retry.
    pub fn park(mut self, park: bool) -> Self {
        self.park = park;
        self
    }

    /// Stops taking messages for a while when too many attempts fail. Off by default.
    pub fn pause(mut self, pause: Pause) -> Self {
        self.pause = Some(pause);
        self
    }

    /// Whether missing queues are created (AMQP `queue.declare`). On by default. Off: they must exist already
    /// (`retryrmq topology --apply`), and the user needs no `configure` permission.
    ///
    /// With [`Strategy::DelayedExchange`] the work queue is always bound to its exchange (AMQP `queue.bind`), which needs `write`
    /// permission on the queue and `read` permission on the exchange. If the user lacks them, each subscription logs a warning: without the
    /// binding, failed messages are lost.
    pub fn declare(mut self, declare: bool) -> Self {
        self.declare = declare;
        self
    }

    /// Sets the arguments with which a missing work queue is created, or says that it is never created. Needs [`dlx`](Self::dlx), unless it
    /// is [`WorkQueue::Existing`], because without `dlx` no queue is created.
    pub fn work_queue(mut self, work_queue: WorkQueue) -> Self {
        self.work_queue = Some(work_queue);
        self
    }

    /// Allows a queue whose name is reserved for the queues of another one: `*.parked`, `*.unreadable` or `*.retry.<number>`. Off by default: such a name
    /// is refused, because handling parked messages as new ones would acknowledge them, and waiting messages would not wait. To look at
    /// parked messages or replay them, use [`Client::parked`].
    pub fn reserved_name(mut self, reserved_name: bool) -> Self {
        self.reserved_name = reserved_name;
        self
    }

    /// Whether `<queue>.unreadable` may be created with `dlx` off as well, for messages that RabbitMQ cannot deliver over AMQP 0-9-1. For the
    /// service's own queues.
    #[doc(hidden)]
    pub fn create_unreadable_queue(mut self, create_unreadable_queue: bool) -> Self {
        self.create_unreadable_queue = create_unreadable_queue;
        self
    }

    /// Whether unstarted messages are always requeued unchanged (AMQP `basic.nack`). Off by default: when a requeue would look like a crash
    /// to the next consumer, a copy goes to the queue instead, and headers that the broker wrote on the original, such as `x-death`, are
    /// lost. Turn it on for a queue whose messages need these headers and which has no delivery limit.
    pub fn requeue_unchanged(mut self, requeue_unchanged: bool) -> Self {
        self.requeue_unchanged = requeue_unchanged;
        self
    }

    /// Sets whether subscribing keeps trying while the broker is away again or its queues have no leaders yet, with growing pauses and a
    /// line in the log for each reason once a minute, until the client is closed. By default it does if the client
    /// [waits](crate::ClientOptions::wait()) for its broker. Turn it off for a caller that tries again itself.
    pub fn wait(mut self, wait: bool) -> Self {
        self.wait = Some(wait);
        self
    }

    /// Sets the limits on crashes and deferrals, each at most 1 000 000. If `suspect` is larger than `crashes`, `crashes` is used for both.
    pub fn limits(mut self, limits: Limits) -> Self {
        self.limits = Limits {
            suspect: limits.suspect.min(limits.crashes),
            ..limits
        };
        self
    }

    /// Calls `listener` with every event. It runs on the task that acknowledges messages, so it must return quickly and must not block.
    pub fn on_event(mut self, listener: impl Fn(&Event) + Send + Sync + 'static) -> Self {
        self.listener = Listener::new(listener);
        self
    }

    /// Defines errors that no retry can fix. `says` gets the error that a handler returned, and each error in its chain of causes. If it
    /// returns true for one of them, the message is parked at once as `fatal`. May be called several times; any of the functions can
    /// decide.
    ///
    /// A [`Signal`](super::Signal) in the chain comes first. A function that panics decides nothing, and the panic is logged. Needs
    /// [`dlx`](Self::dlx).
    ///
    /// ```
    /// # use retryrmq::Consumer;
    /// let orders = Consumer::new("orders")
    ///     .dlx(true)
    ///     .fatal(|error| error.is::<std::str::Utf8Error>())
    ///     .fatal(|error| {
    ///         error
    ///             .downcast_ref::<std::io::Error>()
    ///             .is_some_and(|error| error.kind() == std::io::ErrorKind::NotFound)
    ///     });
    /// ```
    pub fn fatal(
        mut self,
        says: impl Fn(&(dyn StdError + 'static)) -> bool + Send + Sync + 'static,
    ) -> Self {
        self.error_classifier.add_fatal(says);
        self.retries_by.get_or_insert("fatal");
        self
    }

    /// Names types of errors for [rules](Rule::error) and for the record of a parked message. `names` gets the error that a handler
    /// returned, and each error in its chain of causes. The outermost name goes into the record. Rules see all names.
    ///
    /// A Rust error does not carry the name of its type. These are known without this function: the error type that a handler declares,
    /// errors of the standard library (an [`std::io::Error`] has the name of its [kind](std::io::ErrorKind), such as `TimedOut`), of tokio,
    /// and of this crate. Every timeout also has the name `TimeoutError`, as in the other languages. If a transparent enum or a boxed
    /// report hides an error, only its causes are seen.
    ///
    /// ```
    /// # use retryrmq::Consumer;
    /// # use std::fmt;
    /// #[derive(Debug)]
    /// enum ShopError { OutOfStock, Carrier(std::io::Error) }
    /// # impl fmt::Display for ShopError { fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result { f.write_str("shop") } }
    /// # impl std::error::Error for ShopError {}
    ///
    /// let orders = Consumer::new("orders")
    ///     .dlx(true)
    ///     .rules(["error=OutOfStock => fixed(10m)".parse()?])
    ///     .error_type(|error| match error.downcast_ref()? {
    ///         ShopError::OutOfStock => Some("OutOfStock"),
    ///         ShopError::Carrier(_) => None,
    ///     });
    /// # Ok::<(), retryrmq::Error>(())
    /// ```
    pub fn error_type<N: Into<String>>(
        mut self,
        names: impl Fn(&(dyn StdError + 'static)) -> Option<N> + Send + Sync + 'static,
    ) -> Self {
        self.error_classifier.add_error_type(names);
        self
    }

    /// What this consumer needs on the broker. Nothing is sent to the broker.
    ///
    /// # Errors
    /// Those of [`Strategy::plan`].
    pub fn plan(&self) -> Result<Plan> {
        if self.has_dlx() {
            let queue_type = self
                .client
                .as_ref()
                .map(|client| client.options().queue_type)
                .unwrap_or_default();
            self.strategy.plan(
                &self.queue,
                &self.rules,
                queue_type,
                self.work_queue.as_ref(),
            )
        } else {
            Ok(Plan {
                items: vec![crate::topology::existing(&self.queue)],
            })
        }
    }

    /// The number of handlers to run at a time ([`concurrency`](Self::concurrency)), for callers that run handlers themselves.
    #[must_use]
    pub fn configured_concurrency(&self) -> usize {
        self.concurrency
    }

    /// The [`handler_timeout`](Self::handler_timeout), for callers that run handlers themselves.
    #[must_use]
    pub fn configured_handler_timeout(&self) -> Option<Duration> {
        self.handler_timeout
    }

    /// The [`drain_timeout`](Self::drain_timeout), for callers that run handlers themselves.
    #[must_use]
    pub fn configured_drain_timeout(&self) -> Duration {
        self.drain_timeout
    }

    /// The [`ErrorClassifier`] of this consumer, for callers that run handlers themselves.
    #[must_use]
    pub fn error_classifier(&self) -> ErrorClassifier {
        self.error_classifier.clone()
    }

    /// The [`prefetch`](Self::prefetch).
    #[must_use]
    pub fn configured_prefetch(&self) -> u16 {
        self.prefetch.unwrap_or_else(|| {
            let needed = self.batch.unwrap_or(1).saturating_mul(self.concurrency);
            let needed = u16::try_from(needed).unwrap_or(u16::MAX);
            match self.batch {
                Some(_) => needed.max(PREFETCH),
                None => PREFETCH,
            }
        })
    }

    /// The [`prefetch_bytes`](Self::prefetch_bytes). `None` if there is no limit.
    #[must_use]
    pub fn configured_prefetch_bytes(&self) -> Option<u64> {
        self.prefetch_bytes
    }

    /// The [`batch`](Self::batch), for callers that run handlers themselves. `None` if a handler gets single messages.
    #[must_use]
    pub fn batch_size(&self) -> Option<usize> {
        self.batch
    }

    /// The [`batch_wait`](Self::batch_wait).
    #[must_use]
    pub fn configured_batch_wait(&self) -> Duration {
        self.batch_wait.unwrap_or(BATCH_WAIT)
    }

    /// Whether failed messages are retried: [`dlx`](Self::dlx) is on.
    pub(super) fn has_dlx(&self) -> bool {
        self.dlx == Some(true)
    }

    /// How its messages are combined.
    pub(super) fn batching(&self) -> Option<Batching> {
        let size = self.batch?;
        Some(Batching {
            size,
            wait: self.configured_batch_wait(),
        })
    }

    /// The fewest retries after which a message may be parked; `None` if no message is parked. A service may park any message.
    pub(super) fn fewest_retries(&self) -> Option<u32> {
        let known = || match self.strategy.hands_over() {
            true => 0,
            false => self.rules.fewest_retries(),
        };
        self.has_dlx().then(known)
    }

    /// Subscribes (AMQP `queue.declare`, `basic.qos`, `basic.consume`). The caller runs the handlers: it takes messages in batches and
    /// returns outcomes.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidOption`], [`ErrorKind::InvalidPolicy`], [`ErrorKind::StrategyRefused`], [`ErrorKind::QueueNotFound`],
    /// [`ErrorKind::Mismatch`], [`ErrorKind::AccessRefused`], [`ErrorKind::TooLarge`], [`ErrorKind::Closed`] without a client, and those of
    /// a lost connection. Then no message was taken.
    pub async fn subscribe(mut self) -> Result<Subscription> {
        let client = self.client.take().ok_or_else(|| {
            Error::new(
                ErrorKind::Closed,
                "this consumer has no client; give it one with `client`, or make it with `Client::consumer`",
            )
        })?;
        Subscription::open(self.client(client.clone()), client).await
    }

    /// Subscribes, and returns the messages one by one. The caller answers each of them. At most [`prefetch`](Self::prefetch) messages are
    /// unanswered at a time. [`concurrency`](Self::concurrency) and [`handler_timeout`](Self::handler_timeout) have no effect here.
    ///
    /// ```no_run
    /// # async fn example(rmq: retryrmq::Client) -> retryrmq::Result<()> {
    /// let mut orders = rmq.consumer("orders").dlx(true).messages().await?;
    /// while let Some(order) = orders.next().await {
    ///     let stored = std::fs::write("last-order", order.message().body());
    ///     order.settle(stored); // an error retries, Ok acknowledges
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// [`Attempt`](super::Attempt) says what happens to a message that is dropped without an answer.
    ///
    /// # Errors
    /// Those of [`subscribe`](Self::subscribe).
    pub async fn messages(self) -> Result<Messages> {
        self.handles("messages", "single messages", false)?;
        let (error_classifier, dlx) = (self.error_classifier(), self.has_dlx());
        Ok(Messages::new(
            self.subscribe().await?,
            error_classifier,
            dlx,
        ))
    }

    /// Starts to handle messages in the background, and returns when the consumer is subscribed.
    ///
    /// | the handler | the message |
    /// |---|---|
    /// | returns `Ok` | is acknowledged (AMQP `basic.ack`) |
    /// | returns `Err` | is retried by the policy, or parked after the last retry |
    /// | returns `Err` with a [`Signal`](super::Signal) or a [`fatal`](Self::fatal) error in its chain of causes | is treated as that says |
    /// | panics, or runs longer than the handler timeout | is treated as after an `Err` |
    ///
    /// Each attempt runs in its own `tracing` span: `attempt`, level INFO. Its fields are `queue`, `attempt` and `message_id`. If the
    /// message has a W3C trace context in its headers, the span also has `traceparent` and `tracestate`. With the cargo feature
    /// `opentelemetry`, that trace is the span's parent in a program whose subscriber has the layer of `tracing-opentelemetry` 0.34.
    /// Otherwise the span has no parent.
    ///
    /// # Errors
    /// Those of [`subscribe`](Self::subscribe).
    pub async fn start<F, R, By>(self, handler: F) -> Result<RunningConsumer>
    where
        F: Fn(Message) -> R + Send + Sync + 'static,
        R: Future<Output: IntoOutcome<By>> + Send + 'static,
        By: 'static,
    {
        self.handles("start", "single messages", false)?;
        self.run_handler(handler, work).await
    }

    /// Starts to handle batches of messages in the background, like [`start`](Self::start). Needs [`batch`](Self::batch).
    ///
    /// The handler gets 1 to `batch` messages. [`IntoOutcomes`] says what it may return: one answer for all, or one for each. If it panics
    /// or runs longer than the handler timeout, the attempts of all have failed.
    ///
    /// ```no_run
    /// # use retryrmq::Message;
    /// # async fn insert(_: &[&[u8]]) -> std::io::Result<()> { Ok(()) }
    /// # async fn example(rmq: retryrmq::Client) -> retryrmq::Result<()> {
    /// let running = rmq
    ///     .consumer("orders")
    ///     .dlx(true)
    ///     .batch(100)
    ///     .start_batches(|orders: Vec<Message>| async move {
    ///         let rows: Vec<&[u8]> = orders.iter().map(Message::body).collect();
    ///         insert(&rows).await // an error retries all of them
    ///     })
    ///     .await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// Each batch runs in its own `tracing` span: `batch`, level INFO, without a parent. Its fields are `queue`, `messages` (how many) and
    /// `message_ids` (the first ten). With the cargo feature `opentelemetry`, it is linked to the trace of each message.
    ///
    /// # Errors
    /// Those of [`subscribe`](Self::subscribe).
    pub async fn start_batches<F, R, By>(self, handler: F) -> Result<RunningConsumer>
    where
        F: Fn(Vec<Message>) -> R + Send + Sync + 'static,
        R: Future<Output: IntoOutcomes<By>> + Send + 'static,
        By: 'static,
    {
        self.handles("start_batches", "batches", true)?;
        self.run_handler(handler, work_in_batches).await
    }

    async fn run_handler<F, W>(
        self,
        handler: F,
        worker: impl Fn(Arc<Subscription>, Arc<HandlerRunner<F>>) -> W,
    ) -> Result<RunningConsumer>
    where
        W: Future<Output = ()> + Send + 'static,
    {
        let concurrency = self.concurrency;
        let handler_runner = HandlerRunner {
            handler,
            classifier: self.error_classifier(),
            timeout: self.handler_timeout,
        };
        let subscription = Arc::new(self.subscribe().await?);
        Ok(run_workers(
            subscription,
            handler_runner,
            concurrency,
            worker,
        ))
    }

    /// An error if this consumer's [`batch`](Self::batch) is not what `called` is for.
    fn handles(&self, called: &str, what: &str, batches: bool) -> Result<()> {
        if self.batch.is_some() == batches {
            return Ok(());
        }
        let change = if batches {
            "set `batch`"
        } else {
            "with `batch`, use `start_batches`, `run_batches` or `run_batches_until`"
        };
        Err(Error::new(
            ErrorKind::InvalidOption,
            format!("`{called}` is for {what}; {change}"),
        ))
    }

    /// Handles messages until the client is closed. It handles no signals: if one ends the process, there is no drain, and unacknowledged
    /// messages are delivered again. To drain at Ctrl-C, use [`run_until`](Self::run_until).
    ///
    /// If the future is dropped, the consumer starts to close and drains in the background, as after [`Subscription::close`].
    ///
    /// # Errors
    /// Those of [`subscribe`](Self::subscribe). Also the error with which the client ended by itself, see
    /// [`ClientOptions::end_when_refused`](crate::ClientOptions), and that of [`Subscription::wait_closed`].
    pub async fn run<F, R, By>(self, handler: F) -> Result<()>
    where
        F: Fn(Message) -> R + Send + Sync + 'static,
        R: Future<Output: IntoOutcome<By>> + Send + 'static,
        By: 'static,
    {
        self.run_until(std::future::pending(), handler).await
    }

    /// Handles messages until `end` resolves, then drains: it takes no more messages, waits for running handlers up to the
    /// [`drain_timeout`](Self::drain_timeout), and requeues the rest. Otherwise as [`start`](Self::start). If the future is dropped, as after
    /// [`run`](Self::run).
    ///
    /// ```no_run
    /// # async fn example(rmq: retryrmq::Client) -> retryrmq::Result<()> {
    /// let ctrl_c = async { let _ = tokio::signal::ctrl_c().await; };
    /// rmq.consumer("orders")
    ///     .dlx(true)
    ///     .run_until(ctrl_c, |_message| async { Ok::<(), std::io::Error>(()) })
    ///     .await
    /// # }
    /// ```
    ///
    /// # Errors
    /// Those of [`run`](Self::run).
    pub async fn run_until<F, R, By>(
        self,
        end: impl Future<Output = ()> + Send,
        handler: F,
    ) -> Result<()>
    where
        F: Fn(Message) -> R + Send + Sync + 'static,
        R: Future<Output: IntoOutcome<By>> + Send + 'static,
        By: 'static,
    {
        let client = self.client.clone();
        until(end, self.start(handler).await?, client).await
    }

    /// Like [`run`](Self::run), with batches as in [`start_batches`](Self::start_batches).
    ///
    /// # Errors
    /// Those of [`run`](Self::run).
    pub async fn run_batches<F, R, By>(self, handler: F) -> Result<()>
    where
        F: Fn(Vec<Message>) -> R + Send + Sync + 'static,
        R: Future<Output: IntoOutcomes<By>> + Send + 'static,
        By: 'static,
    {
        self.run_batches_until(std::future::pending(), handler)
            .await
    }

    /// Like [`run_until`](Self::run_until), with batches as in [`start_batches`](Self::start_batches). The messages of a batch that no
    /// handler has started are requeued.
    ///
    /// # Errors
    /// Those of [`run`](Self::run).
    pub async fn run_batches_until<F, R, By>(
        self,
        end: impl Future<Output = ()> + Send,
        handler: F,
    ) -> Result<()>
    where
        F: Fn(Vec<Message>) -> R + Send + Sync + 'static,
        R: Future<Output: IntoOutcomes<By>> + Send + 'static,
        By: 'static,
    {
        let client = self.client.clone();
        until(end, self.start_batches(handler).await?, client).await
    }
}

/// Waits for `end` and drains, or for the end that the consumer comes to by itself.
async fn until(
    end: impl Future<Output = ()> + Send,
    running: RunningConsumer,
    client: Option<Client>,
) -> Result<()> {
    let _wanted = running.closes_when_dropped();
    tokio::select! {
        () = end => running.close().await,
        ended = running.closed() => {
            ended?;
            if let Some(error) = client.and_then(|client| client.end()) {
                return Err(error);
            }
        }
    }
    Ok(())
}

impl fmt::Debug for Consumer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Consumer")
            .field("queue", &self.queue)
            .field("dlx", &self.dlx)
            .field("retry", &self.rules.otherwise.to_string())
            .field("strategy", &self.strategy)
            .field("prefetch", &self.configured_prefetch())
            .field("prefetch_bytes", &self.prefetch_bytes)
            .field("concurrency", &self.concurrency)
            .field("batch", &self.batch)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_is_a_suspect_later_than_it_is_parked() {
        let consumer = Consumer::new("orders").limits(Limits {
            crashes: 2,
            ..Limits::default()
        });
        assert_eq!((consumer.limits.suspect, consumer.limits.crashes), (2, 2));
    }
}
