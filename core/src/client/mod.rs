//! The client: two supervised connections, one to consume and acknowledge, one to publish.
//!
//! Two, because RabbitMQ stops reading from a publishing connection while it is short of memory or disk. On a shared connection the
//! acknowledgements would be stuck too.

use std::{
    any::Any,
    collections::HashMap,
    fmt,
    sync::{
        Arc, LazyLock, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use futures_util::FutureExt;
use prometheus_client::metrics::histogram::Histogram;
use tokio::{
    sync::{RwLock, Semaphore},
    time::{Instant, timeout},
};
use tracing::{debug, warn};

mod counts;
mod end;
mod parked_gauge;
mod runtime;
mod streams;
mod totals;

use self::{end::end_together, parked_gauge::ParkedGauge, runtime::same_process};
use crate::{
    Error, ErrorKind, Result,
    connection::{
        ANSWER, Addresses, BROKER_AWAY_PAUSE, Connection, Credentials, Link, LinkOptions,
        NameLimit, ProbeConnection, ReconnectSignal, Server,
    },
    publish::{Publish, Publisher},
    retry::format_duration,
    telemetry::{Counters, Metrics, WarnLimiter},
    topology::{
        DeadLetterProbes, DelayQueues, Finding, MissingItems, Mode, Plan, QueueType, Route,
        SAFE_AGE, Strategy, Wait, age_marker, apply_some, check_family, check_waiting,
        warn_of_parking, warn_of_unseen, work_queue_of,
    },
};

pub use runtime::runtime;
pub use totals::QueueTotals;

/// What the client of a test has in the place of a broker.
pub(crate) trait BrokerSubstitute: Any + Send + Sync {
    /// # Errors
    /// Why the client is not healthy.
    fn health(&self) -> Result<()>;

    /// Confirms a message.
    ///
    /// # Errors
    /// Why it is refused.
    fn publish(&self, message: Publish) -> Result<()>;

    /// Consumers end at once, as with a broker.
    fn close(&self);
}

/// How often the consumers of a client have found out why their connections were lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Reasons {
    /// How often messages were moved out of the way.
    pub(crate) moved: u64,
    /// How often one stopped in front of a message that it could not move.
    pub(crate) stopped: u64,
}

/// The options of a client, besides the URL.
///
/// ```
/// use retryrmq::{ClientOptions, QueueType};
///
/// let options = ClientOptions::new().queue_type(QueueType::Classic).wait(true);
/// # assert!(options.wait);
/// ```
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct ClientOptions {
    /// The version of your application. It is written into the history of failed messages (`x-retry-history`). Empty by default.
    pub app_version: String,
    /// The type of the waiting and parking queues: quorum by default. All consumers of one work queue must use the same type.
    pub queue_type: QueueType,
    /// A function that returns the login for each new connection, instead of the user and password of the URL.
    pub credentials: Option<Credentials>,
    /// Whether [`Client::connect_with`] waits for a broker that cannot be reached yet, instead of returning an error at once. It tries
    /// again with growing pauses, and logs each reason once a minute. A broker that answers and refuses is an error at once. Off by
    /// default. Subscribing waits as well, while the broker is away again or its queues have no leaders yet: see
    /// [`Consumer::wait`](crate::Consumer::wait).
    pub wait: bool,
    /// Whether the client ends when the broker refuses the login or the virtual host after a connection was lost. On: the consumers end,
    /// and [`Consumer::run`](crate::Consumer::run) returns the error. Off, the default: the client keeps trying, and reports it with
    /// [`Event::LoginRefused`](crate::Event) and [`Client::health`]. Unacknowledged messages are requeued either way.
    pub end_when_refused: bool,
}

impl ClientOptions {
    /// The defaults: quorum queues, the login of the URL, no waiting.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets [`app_version`](field@Self::app_version).
    #[must_use]
    pub fn app_version(mut self, app_version: impl Into<String>) -> Self {
        self.app_version = app_version.into();
        self
    }

    /// Sets [`queue_type`](field@Self::queue_type).
    #[must_use]
    pub fn queue_type(mut self, queue_type: QueueType) -> Self {
        self.queue_type = queue_type;
        self
    }

    /// Sets [`credentials`](field@Self::credentials).
    #[must_use]
    pub fn credentials(mut self, credentials: Credentials) -> Self {
        self.credentials = Some(credentials);
        self
    }

    /// Sets [`wait`](field@Self::wait).
    #[must_use]
    pub fn wait(mut self, wait: bool) -> Self {
        self.wait = wait;
        self
    }

    /// Sets [`end_when_refused`](field@Self::end_when_refused).
    #[must_use]
    pub fn end_when_refused(mut self, end: bool) -> Self {
        self.end_when_refused = end;
        self
    }
}

/// A client of one broker or cluster: it consumes, publishes and gives access to parked messages. Cheap to clone.
///
/// It holds two connections, one to consume and acknowledge, one to publish. When one is lost, the client reconnects it in the background.
///
/// ```no_run
/// # async fn example() -> retryrmq::Result<()> {
/// let rmq = retryrmq::Client::connect("amqp://localhost").await?;
/// rmq.consumer("orders").dlx(true).run(|message| async move {
///     println!("{:?}", message.body());
///     Ok::<(), std::io::Error>(())
/// }).await
/// # }
/// ```
#[derive(Clone)]
pub struct Client(Arc<Inner>);

struct Inner {
    /// The process that connected.
    pid: u32,
    addresses: Arc<Addresses>,
    options: ClientOptions,
    server: Server,
    consuming: Arc<Link>,
    publishing: Arc<Link>,
    publisher: Publisher,
    /// Each publish reads it until its message is answered. The end writes it.
    publishes: RwLock<()>,
    metrics: Metrics,
    /// `None` without a broker.
    parked_gauge: Option<Arc<ParkedGauge>>,
    probe_connection: Arc<ProbeConnection>,
    reconnects: Arc<AtomicU64>,
    /// Whether the broker has refused a second consumer on a channel.
    one_consumer: AtomicBool,
    /// How often messages that cannot be delivered were moved out of the way, and how often a consumer stopped in front of one.
    moves: AtomicU64,
    stops: AtomicU64,
    /// For those that wait in their queue for such a message, each with a connection of its own.
    unreadable_waits: Semaphore,
    probes: Arc<DeadLetterProbes>,
    /// Keyed by queue name.
    delayed: Mutex<HashMap<String, Arc<DelayQueues>>>,
    /// What the client of a test has in the place of a broker.
    fake: Option<Arc<dyn BrokerSubstitute>>,
}

impl Inner {
    /// With default options.
    fn new(
        addresses: Arc<Addresses>,
        server: Server,
        [consuming, publishing]: [Arc<Link>; 2],
        publisher: Publisher,
    ) -> Self {
        Self {
            pid: std::process::id(),
            probe_connection: Arc::new(ProbeConnection::new(&addresses)),
            addresses,
            options: ClientOptions::default(),
            server,
            consuming,
            publishing,
            publisher,
            publishes: RwLock::default(),
            metrics: Metrics::default(),
            parked_gauge: None,
            reconnects: Arc::default(),
            one_consumer: AtomicBool::default(),
            moves: AtomicU64::default(),
            stops: AtomicU64::default(),
            unreadable_waits: Semaphore::new(MOST_UNREADABLE_WAITS),
            probes: Arc::default(),
            delayed: Mutex::default(),
            fake: None,
        }
    }

    /// Whether this connection is open.
    fn is_open(&self, link: &Link) -> bool {
        let health = match &self.fake {
            Some(fake) => fake.health(),
            None => link.health(),
        };
        health.is_ok()
    }
}

/// The labels of the two connections.
const CONSUME: &str = "consume";
const PUBLISH: &str = "publish";

const SHORT_OF_RESOURCES: &str = "the broker reads nothing from publishers, because it is short of memory or disk (a memory or disk alarm)";

/// Channel numbers that one item of a plan can use up for good when the broker refuses it. A work queue whose owner set many arguments may
/// use up a few more.
const CHANNELS_OF_AN_ITEM: usize = 8;

/// How long a caller of [`Client::publish`] waits until a confirmed message is safe. Longer than for any answer, unless an alarm begins.
const LONGEST_YOUTH: Duration = SAFE_AGE.saturating_add(ANSWER).saturating_add(ANSWER);

/// The most queues whose waiting queues are remembered. Beyond that, all are forgotten and looked up again.
const DELAYED: usize = 1_000;
/// The most consumers that wait in their queues at a time for a message that ends connections. The others only leave it time.
const MOST_UNREADABLE_WAITS: usize = 8;

impl Client {
    /// Connects to the broker at `url`: `amqp://user:password@host:5672/vhost`, or `amqps://` for TLS. [`Address`](crate::Address) lists
    /// all parts of a URL. Several hosts of one cluster are separated by commas, as in `amqp://user:password@one,two,three/vhost`; the
    /// client uses any one that answers (see [`Addresses`]).
    ///
    /// Once connected, the client reconnects in the background whenever a connection is lost, as long as it lives.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidUrl`], [`ErrorKind::Unreachable`], [`ErrorKind::AuthenticationFailed`], [`ErrorKind::VhostNotFound`],
    /// [`ErrorKind::TlsFailed`], [`ErrorKind::Timeout`].
    pub async fn connect(url: &str) -> Result<Self> {
        Self::connect_with(url, ClientOptions::default()).await
    }

    /// Like [`connect`](Self::connect), with options.
    ///
    /// # Errors
    /// Those of [`connect`](Self::connect).
    pub async fn connect_with(url: &str, options: ClientOptions) -> Result<Self> {
        Self::connect_to(url.parse()?, options).await
    }

    /// Like [`connect_with`](Self::connect_with), with the URL from the environment variable `RETRYRMQ_URL`. If it is not set, the URL is
    /// `amqp://localhost`. The command and the other languages use the same default.
    ///
    /// # Errors
    /// Those of [`connect`](Self::connect).
    pub async fn from_env(options: ClientOptions) -> Result<Self> {
        Self::connect_to(Addresses::from_env()?, options).await
    }

    async fn connect_to(addresses: Addresses, options: ClientOptions) -> Result<Self> {
        let addresses = Arc::new(addresses.with_credentials(options.credentials.clone()));
        let reconnects = Arc::new(AtomicU64::new(0));
        let counted = |reconnects: &Arc<AtomicU64>| {
            let reconnects = Arc::clone(reconnects);
            move || {
                reconnects.fetch_add(1, Ordering::Relaxed);
            }
        };
        let reconnect_signal = ReconnectSignal::new();
        let keeping = |purpose| LinkOptions {
            purpose,
            ends_when_refused: options.end_when_refused,
            reconnect_signal: reconnect_signal.clone(),
        };
        let open = |purpose| {
            Link::open(
                Arc::clone(&addresses),
                keeping(purpose),
                counted(&reconnects),
            )
        };
        // For all tries.
        let are_in_env = LazyLock::new(Addresses::are_in_env);
        let (mut pause, mut warn_limiter) = (BROKER_AWAY_PAUSE, WarnLimiter::default());
        let (consuming, publishing, server) = loop {
            // One after the other: if the first is refused, the second need not try.
            let opened = async {
                let (consuming, server) = open(CONSUME).await?;
                let (publishing, _) = open(PUBLISH).await?;
                Ok::<_, Error>((Arc::new(consuming), Arc::new(publishing), server))
            };
            let opened = opened.await;
            match opened.map_err(|error| addresses.explained(error, || *are_in_env)) {
                Err(error) if options.wait && error.is_transient() => {
                    if warn_limiter.is_news(error.to_string()) {
                        warn!(address = %addresses, %error, "the broker is not there yet; trying again");
                    } else {
                        debug!(address = %addresses, %error, "the broker is not there yet; trying again");
                    }
                }
                opened => break opened?,
            }
            tokio::time::sleep(pause.next_pause()).await;
        };
        let publisher = Publisher::new(&publishing);
        if options.end_when_refused {
            tokio::spawn(end_together([
                Arc::downgrade(&consuming),
                Arc::downgrade(&publishing),
            ]));
        }
        let mut inner = Inner::new(addresses, server, [consuming, publishing], publisher);
        inner.options = options;
        inner.reconnects = reconnects;
        inner.parked_gauge = Some(ParkedGauge::new(
            inner.metrics.depth(),
            &inner.addresses,
            &inner.probe_connection,
        ));
        Ok(Self(Arc::new(inner)))
    }

    /// A client for tests, see [`FakeClient`](crate::FakeClient).
    pub(crate) fn without_broker(fake: Arc<dyn BrokerSubstitute>) -> Self {
        let link = || Arc::new(Link::without_broker());
        let (consuming, publishing) = (link(), link());
        let publisher = Publisher::without_broker(&publishing);
        let addresses = Arc::new(Addresses::none());
        let links = [consuming, publishing];
        let mut inner = Inner::new(addresses, Server::fake(), links, publisher);
        inner.fake = Some(fake);
        Self(Arc::new(inner))
    }

    /// Whether both connections are open, and the broker reads what is published. Use it for a health check. Nothing is sent to the broker.
    ///
    /// # Errors
    /// The error of the last try to connect, for example [`ErrorKind::AuthenticationFailed`] after a password was changed;
    /// [`ErrorKind::ConnectionLost`] while no try has ended yet; [`ErrorKind::Closed`] after [`close`](Self::close);
    /// [`ErrorKind::Forked`] in a process that was forked from the one that connected; [`ErrorKind::Timeout`] while the broker reads nothing
    /// because of a memory or disk alarm. RabbitMQ tells a connection of the alarm once it has published something.
    pub fn health(&self) -> Result<()> {
        self.same_process()?;
        if let Some(fake) = &self.0.fake {
            return fake.health();
        }
        self.0.consuming.health()?;
        self.0.publishing.health()?;
        if self.0.publishing.is_blocked() {
            return Err(Error::new(ErrorKind::Timeout, SHORT_OF_RESOURCES));
        }
        Ok(())
    }

    /// Publishes a message and waits until the broker has confirmed it (publisher confirms). The message is persistent and `mandatory`.
    /// With a [delay](Publish::delay) it first waits in a queue, and is confirmed when that queue is a safe place.
    ///
    /// # Errors
    /// | kind | the message |
    /// |---|---|
    /// | [`ErrorKind::Unroutable`] | was not stored: no queue takes it |
    /// | [`ErrorKind::NotConfirmed`], [`ErrorKind::Timeout`], [`ErrorKind::ConnectionLost`] | may have been stored; publish it again |
    /// | [`ErrorKind::TooLarge`], [`ErrorKind::AccessRefused`], [`ErrorKind::InvalidOption`] | was not stored; change something first |
    /// | [`ErrorKind::QueueNotFound`], [`ErrorKind::Mismatch`], [`ErrorKind::StrategyRefused`], only with a delay | was not stored; it has no queue to wait in |
    /// | [`ErrorKind::Closed`] | was not stored, unless [`close`](Self::close) gave up waiting for its confirm |
    /// | [`ErrorKind::Forked`] | was not sent; connect in this process |
    pub async fn publish(&self, message: Publish) -> Result<()> {
        self.same_process()?;
        message.validate()?;
        // While the end waits for others, nobody can read.
        let _begun = self.0.publishes.try_read().map_err(|why| {
            Error::new(ErrorKind::Closed, "the client is closed; connect a new one")
                .with_source(why)
        })?;
        let Some(limit) = message.timeout.filter(|_| self.0.fake.is_none()) else {
            return self.publish_now(message).await;
        };
        let published = async {
            self.0.publisher.connected().await?;
            self.publish_now(message).await
        };
        timeout(limit, published).await.unwrap_or_else(|_| {
            let why = match self.0.publishing.health() {
                Err(why) => format!("there is no connection to the broker: {why}"),
                Ok(()) if self.0.publishing.is_blocked() => SHORT_OF_RESOURCES.to_owned(),
                Ok(()) => "the broker has not confirmed it".to_owned(),
            };
            let limit = format_duration(limit);
            let error =
                format!("the message was not confirmed within its timeout of {limit}: {why}; it may have been stored");
            Err(Error::new(ErrorKind::Timeout, error))
        })
    }

    async fn publish_now(&self, message: Publish) -> Result<()> {
        let Some(delay) = message.delay.filter(|delay| !delay.is_zero()) else {
            return match &self.0.fake {
                Some(fake) => fake.publish(message),
                None => self.0.publisher.publish(message).await,
            };
        };
        let queue = message.queue().to_owned();
        let route = Strategy::RetryQueues
            .scheme()
            .route(&queue, Wait::DelayStep(delay));
        let Route::Copy {
            routing_key,
            expiration,
            ..
        } = route
        else {
            return Err(Error::new(
                ErrorKind::InvalidOption,
                "a delay needs a queue as its target; publish to the default exchange",
            ));
        };
        self.check_family(&queue)?;
        if let Some(fake) = &self.0.fake {
            return fake.publish(message);
        }
        check_waiting(&self.0.server, self.0.options.queue_type)?;
        let waits = self.waits(&queue);
        // A waiting queue routes to the work queue by name. If that does not exist, the message would be lost when its time is over.
        waits.ensure(&queue).await?;
        waits.ensure(&routing_key).await?;
        waits.find_marker(&routing_key);
        let connection = self.0.publisher.connection().await?;
        let sent = Instant::now();
        let published = self
            .0
            .publisher
            .publish(message.through(routing_key.clone(), expiration));
        if let Err(error) = published.await {
            if error.kind() == ErrorKind::Unroutable {
                waits.forget(&routing_key); // the queue was deleted; the next message makes it again
            }
            return Err(error);
        }
        let loss = "the message may have gone with it; publish it again";
        let wait_durable = waits.wait_durable(&routing_key, sent, &connection, loss);
        timeout(LONGEST_YOUTH, wait_durable)
            .await
            .unwrap_or_else(|_| {
                let why = format!("{SHORT_OF_RESOURCES}: {loss}");
                Err(Error::new(ErrorKind::Timeout, why))
            })
    }

    /// The waiting queues that messages published to `queue` with a delay use.
    pub(crate) fn waits(&self, queue: &str) -> Arc<DelayQueues> {
        let mut delayed = self
            .0
            .delayed
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(waits) = delayed.get(queue) {
            return Arc::clone(waits);
        }
        if delayed.len() >= DELAYED {
            delayed.clear();
        }
        let waits = Arc::new(DelayQueues::of_publisher(
            Arc::clone(&self.0.addresses),
            queue.to_owned(),
            self.0.options.queue_type,
            self.losses(),
            self.dead_letter_probes(),
        ));
        delayed.insert(queue.to_owned(), Arc::clone(&waits));
        waits
    }

    /// Checks that this process connected the client. A fork copies the client but none of its threads, so every call in the child would
    /// hang.
    ///
    /// # Errors
    /// [`ErrorKind::Forked`] in a process that was forked from the one that connected.
    pub fn same_process(&self) -> Result<()> {
        same_process(self.0.pid)
    }

    /// What the broker said about itself when this client connected: product, version and properties (AMQP `connection.start`).
    #[must_use]
    pub fn server(&self) -> &Server {
        &self.0.server
    }

    /// All metrics of this client in the OpenMetrics text format, which Prometheus reads. They are the counters of its consumers, the
    /// durations of handlers, the number of parked messages, and whether each connection is open. Serve them with the content type
    /// `application/openmetrics-text; version=1.0.0; charset=utf-8`.
    ///
    /// Each call asks the broker in the background how many messages are parked (AMQP `queue.declare`, passive), so that number is as old
    /// as the previous call.
    #[must_use]
    pub fn metrics_text(&self) -> String {
        if let Some(parked_gauge) = &self.0.parked_gauge {
            parked_gauge.refresh(&self.0.consuming);
        }
        self.0.metrics.text([
            (CONSUME, self.0.is_open(&self.0.consuming)),
            (PUBLISH, self.0.is_open(&self.0.publishing)),
        ])
    }

    /// How often a connection of this client was lost and reconnected.
    #[must_use]
    pub fn reconnects(&self) -> u64 {
        self.0.reconnects.load(Ordering::Relaxed)
    }

    /// The frame size of the connection that publishes (AMQP `connection.tune`), for
    /// [`Contract::frame_max`](crate::contract::Contract::frame_max).
    #[must_use]
    pub fn frame_max(&self) -> u32 {
        self.0.publishing.frame_max()
    }

    /// Compares a plan with what exists on the broker. Creates nothing.
    ///
    /// # Errors
    /// Those of [`apply_plan`](Self::apply_plan), except that a queue with other arguments is a [`Finding`], not an error.
    pub async fn compare_plan(&self, plan: &Plan) -> Result<Vec<Finding>> {
        self.examine(plan, Mode::Compare).await
    }

    /// Creates what the plan contains and the broker lacks (AMQP `queue.declare`, `exchange.declare`, `queue.bind`). Never changes or
    /// deletes anything that exists. Before it creates waiting queues, it tries out whether this broker keeps what waits in them.
    ///
    /// # Errors
    /// [`ErrorKind::Mismatch`] if a queue or exchange exists with other arguments; [`ErrorKind::AccessRefused`] if the user lacks a
    /// permission; [`ErrorKind::StrategyRefused`] if this broker or the queue cannot serve the strategy, or drops messages that wait; and those of a
    /// connection that cannot be made. What was created before the error stays.
    pub async fn apply_plan(&self, plan: &Plan) -> Result<Vec<Finding>> {
        self.examine(plan, Mode::Apply).await
    }

    /// Uses a connection of its own: every refusal closes a channel, and some close the connection.
    pub(crate) async fn examine(&self, plan: &Plan, mode: Mode) -> Result<Vec<Finding>> {
        self.same_process()?;
        // One alone may be a parking queue that somebody consumes.
        if plan.items.len() > 1 {
            let work_queues = plan
                .items
                .iter()
                .filter_map(|item| work_queue_of(item.name()));
            for work_queue in work_queues {
                self.check_family(work_queue)?;
            }
        }
        if mode == Mode::Apply {
            self.0.probes.check(&self.0.addresses, plan).await?;
        }
        let mut connection = Connection::open(&self.0.addresses, "topology").await?;
        let mut missing_items = MissingItems::default();
        let found = self
            .examined(&mut connection, plan, mode, &mut missing_items)
            .await;
        let findings = missing_items.or(found);
        if mode != Mode::Require
            && let Ok(findings) = &findings
        {
            warn_of_parking(&connection, findings).await;
        }
        if mode != Mode::Compare
            && let Ok(findings) = &findings
        {
            warn_of_unseen(findings);
        }
        if mode == Mode::Apply
            && let Ok(findings) = &findings
        {
            age_marker::mark_new(&connection, findings).await;
        }
        connection.close().await;
        findings
    }

    /// If the broker allows few channels per connection, uses several connections, one after the other.
    async fn examined(
        &self,
        connection: &mut Connection,
        plan: &Plan,
        mode: Mode,
        missing_items: &mut MissingItems,
    ) -> Result<Vec<Finding>> {
        let at_a_time = (connection.channels() / CHANNELS_OF_AN_ITEM).max(1);
        let mut findings = Vec::with_capacity(plan.items.len());
        for (number, items) in plan.items.chunks(at_a_time).enumerate() {
            if number > 0 {
                connection.close().await;
                *connection = Connection::open(&self.0.addresses, "topology").await?;
            }
            findings.extend(apply_some(connection, items, mode, missing_items).await?);
        }
        Ok(findings)
    }

    /// Checks the name of a work queue together with all names that may be made from it.
    ///
    /// # Errors
    /// [`ErrorKind::TooLarge`].
    pub(crate) fn check_family(&self, queue: &str) -> Result<()> {
        let names = NameLimit::new(&self.0.server, self.0.addresses.vhost());
        check_family(queue, names)
    }

    /// Counts the connections that were lost and reconnected.
    pub(crate) fn losses(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.0.reconnects)
    }

    /// What was found out about the waiting queues of its work queues.
    pub(crate) fn dead_letter_probes(&self) -> Arc<DeadLetterProbes> {
        Arc::clone(&self.0.probes)
    }

    /// What its consumers have found out about lost connections.
    pub(crate) fn reasons(&self) -> Reasons {
        Reasons {
            moved: self.0.moves.load(Ordering::Relaxed),
            stopped: self.0.stops.load(Ordering::Relaxed),
        }
    }

    /// Messages that cannot be delivered were moved out of the way.
    pub(crate) fn has_moved(&self) {
        self.0.moves.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn unreadable_waits(&self) -> &Semaphore {
        &self.0.unreadable_waits
    }

    /// A consumer has stopped in front of such a message.
    pub(crate) fn has_stopped(&self) {
        self.0.stops.fetch_add(1, Ordering::Relaxed);
    }

    /// What it has in the place of a broker, in a test.
    pub(crate) fn fake(&self) -> Option<Arc<dyn BrokerSubstitute>> {
        self.0.fake.clone()
    }

    pub(crate) fn addresses(&self) -> &Arc<Addresses> {
        &self.0.addresses
    }

    pub(crate) fn options(&self) -> &ClientOptions {
        &self.0.options
    }

    pub(crate) fn consuming(&self) -> &Link {
        &self.0.consuming
    }

    pub(crate) fn publishing(&self) -> &Link {
        &self.0.publishing
    }

    /// The connection for looks at queues that may be missing.
    pub(crate) fn probe_connection(&self) -> &ProbeConnection {
        &self.0.probe_connection
    }

    pub(crate) fn publisher(&self) -> &Publisher {
        &self.0.publisher
    }

    /// The most bytes that the headers and properties of a copy may take on the publishing connection.
    pub(crate) fn header_room(&self) -> usize {
        self.0.publishing.header_room()
    }

    /// The publishing connection, if it is open now.
    pub(crate) fn publishing_now(&self) -> Option<Arc<Connection>> {
        self.publishing().connection().now_or_never()?.ok()
    }

    /// Whether the broker allows one consumer on a channel, as far as is known.
    pub(crate) fn allows_one_consumer(&self) -> bool {
        self.0.one_consumer.load(Ordering::Relaxed)
    }

    /// The broker has refused a second consumer on a channel, and closed the connection.
    pub(crate) fn allow_one_consumer(&self) {
        if !self.0.one_consumer.swap(true, Ordering::Relaxed) {
            warn!(
                "the broker allows one consumer on a channel (`consumer_max_per_channel`): a consumer that changes its prefetch is cancelled \
                 first, and one whose queue may be deleted with its last consumer takes one message at a time; allow two"
            );
        }
    }

    /// The consuming connection, if it is open now.
    pub(crate) fn consuming_now(&self) -> Option<Arc<Connection>> {
        self.consuming().connection().now_or_never()?.ok()
    }

    pub(crate) fn counters(&self, queue: &str) -> Counters {
        self.0.metrics.of(queue)
    }

    /// How long handlers of `queue` take, in seconds.
    pub(crate) fn handling(&self, queue: &str) -> Histogram {
        self.0.metrics.handling(queue)
    }

    /// Adds the number of messages parked for `queue` to the metrics.
    pub(crate) fn watch_parked(&self, queue: &str) {
        if let Some(parked_gauge) = &self.0.parked_gauge {
            parked_gauge.watch(queue);
        }
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client")
            .field("addresses", &self.0.addresses)
            .field("server", &self.0.server)
            .finish_non_exhaustive()
    }
}
