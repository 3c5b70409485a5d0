//! The client: two supervised connections, one to consume and acknowledge, one to publish.
//!
//! Two, because RabbitMQ stops reading from a connection that publishes while it is short of memory or disk, and
//! acknowledgements would be stuck behind that.

use std::{
    collections::HashMap,
    fmt,
    sync::{
        Arc, Mutex, PoisonError, Weak,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use futures_util::FutureExt;
use prometheus_client::metrics::histogram::Histogram;
use tracing::warn;

mod depths;
mod runtime;
mod totals;

use self::{depths::Depths, runtime::same_process};
use crate::{
    Error, ErrorKind, Result,
    connection::{Addresses, Bell, Connection, Credentials, Keeping, Link, Looks, Server},
    consumer::{Consumer, Retrier},
    parking::Parked,
    publish::{Publish, Publisher},
    telemetry::{Counters, Metrics},
    topology::{
        Finding, Mode, Plan, QueueType, Route, Strategy, Wait, Waits, apply, check_waiting,
        warn_of_parking, warn_of_unseen,
    },
    waiting::Waiting,
};

pub use runtime::runtime;
pub use totals::QueueTotals;

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
    /// The version of the application, as the history of a failed message shows it.
    pub app_version: String,
    /// The type of the queues in which messages wait and are parked.
    pub queue_type: QueueType,
    /// A function that gives the login at every connection, instead of the URL.
    pub credentials: Option<Credentials>,
    /// Whether to wait for a broker that cannot be reached yet, instead of failing at once: with a growing pause, and a line in
    /// the log for each try. A broker that refuses is not waited for. Subscribing waits as well, for a broker that went again or whose
    /// queues have no leaders yet: see [`Consumer::wait`].
    pub wait: bool,
    /// Whether a broker that refuses the login or the virtual host, after a connection was lost, ends the client: consumers end, and
    /// [`Consumer::run`] returns the error. Otherwise the client goes on trying, and says so by
    /// [`Event::LoginRefused`](crate::Event) and [`Client::health`].
    pub end_when_refused: bool,
}

impl ClientOptions {
    /// Nothing but the URL: quorum queues, no function for the login, no waiting.
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

/// A connection to a broker, cheap to clone: consumers, publishing and parked messages all start here.
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
    metrics: Metrics,
    depths: Arc<Depths>,
    looks: Arc<Looks>,
    reconnects: Arc<AtomicU64>,
    /// By queue name.
    delayed: Mutex<HashMap<String, Arc<Waits>>>,
}

/// Between two tries to reach a broker that is waited for.
pub(crate) const FIRST_PAUSE: Duration = Duration::from_millis(500);
pub(crate) const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// What the two connections are for.
const CONSUME: &str = "consume";
const PUBLISH: &str = "publish";

/// So many channels the refusals about one item of a plan cost its connection for good. A work queue with many arguments of its owner's may cost
/// some more.
const CHANNELS_OF_AN_ITEM: usize = 8;

/// For more queues than this what is known of their waiting queues is forgotten, and looked up again.
const DELAYED: usize = 1_000;

impl Client {
    /// Connects to the broker at `url`: `amqp://user:password@host:5672/vhost`.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidUrl`], [`ErrorKind::Unreachable`], [`ErrorKind::AuthenticationFailed`],
    /// [`ErrorKind::VhostNotFound`], [`ErrorKind::TlsFailed`], [`ErrorKind::Timeout`]. Once connected, a lost
    /// connection is re-made in the background for as long as the client lives. Of several hosts, as in
    /// `amqp://user:password@one,two,three/vhost`, any will do: see [`Addresses`].
    pub async fn connect(url: &str) -> Result<Self> {
        Self::connect_with(url, ClientOptions::default()).await
    }

    /// Connects with options.
    ///
    /// # Errors
    /// As [`connect`](Self::connect).
    pub async fn connect_with(url: &str, options: ClientOptions) -> Result<Self> {
        Self::connect_to(url.parse()?, options).await
    }

    /// Connects to the broker at the URL in the environment variable `RETRYRMQ_URL`, or at `amqp://localhost` without it, as the
    /// command and every other language do without a URL.
    ///
    /// # Errors
    /// As [`connect`](Self::connect).
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
        let bell = Bell::new();
        let keeping = |purpose| Keeping {
            purpose,
            ends_when_refused: options.end_when_refused,
            bell: bell.clone(),
        };
        let open = |purpose| {
            Link::open(
                Arc::clone(&addresses),
                keeping(purpose),
                counted(&reconnects),
            )
        };
        let mut pause = FIRST_PAUSE;
        let (consuming, publishing, server) = loop {
            // One after the other: where one is refused, the other need not ask.
            let opened = async {
                let (consuming, server) = open(CONSUME).await?;
                let (publishing, _) = open(PUBLISH).await?;
                Ok::<_, Error>((Arc::new(consuming), Arc::new(publishing), server))
            };
            match opened.await {
                Err(error) if options.wait && error.is_transient() => {
                    warn!(address = %addresses, %error, "the broker is not there yet; trying again");
                }
                opened => break opened?,
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        };
        let publisher = Publisher::new(&publishing);
        if options.end_when_refused {
            tokio::spawn(end_together([
                Arc::downgrade(&consuming),
                Arc::downgrade(&publishing),
            ]));
        }
        let metrics = Metrics::default();
        let looks = Arc::new(Looks::new(&addresses));
        Ok(Self(Arc::new(Inner {
            pid: std::process::id(),
            depths: Depths::new(metrics.depth(), &addresses, &looks),
            looks,
            addresses,
            options,
            server,
            consuming,
            publishing,
            publisher,
            metrics,
            reconnects,
            delayed: Mutex::default(),
        })))
    }

    /// Whether both connections are open; otherwise why not. For a health check, and for gauges of your own.
    ///
    /// # Errors
    /// Why the last try to connect failed, above all [`ErrorKind::AuthenticationFailed`] after a password was changed;
    /// [`ErrorKind::ConnectionLost`] before there was one; [`ErrorKind::Closed`] after [`close`](Self::close).
    pub fn health(&self) -> Result<()> {
        self.same_process()?;
        self.0.consuming.health()?;
        self.0.publishing.health()
    }

    /// Whether the client ended by itself, and why: see [`ClientOptions::end_when_refused`].
    #[must_use]
    pub fn end(&self) -> Option<Error> {
        self.0.consuming.end().or_else(|| self.0.publishing.end())
    }

    /// A consumer of `queue`, to be given its options and run.
    pub fn consumer(&self, queue: impl Into<String>) -> Consumer {
        Consumer::new(queue).client(self.clone())
    }

    /// Retries and parks messages of `queue` that its caller holds by other means than a consumer of that queue.
    ///
    /// # Errors
    /// As [`Consumer::validate`] for the name of the queue, and [`ErrorKind::StrategyRefused`] where the broker cannot let messages wait.
    pub fn retrier(&self, queue: impl Into<String>) -> Result<Retrier> {
        Retrier::new(self.clone(), queue.into())
    }

    /// The messages in `queue`, somebody else's dead-letter queue: filled by the broker, or by another library. They
    /// are walked through with the same care as parked ones, see [`Parked::browse`]. What has no `x-death` of another queue has an
    /// empty [`Record::home`](crate::Record::home), and is replayed with [`Browse::replay_to`](crate::Browse::replay_to) only.
    #[must_use]
    pub fn dead_letters(&self, queue: impl Into<String>) -> Parked {
        Parked::dead_letters(self.clone(), queue.into())
    }

    /// The messages parked for `queue`.
    #[must_use]
    pub fn parked(&self, queue: impl Into<String>) -> Parked {
        Parked::new(self.clone(), queue.into())
    }

    /// The messages that wait for their retry to `queue`.
    #[must_use]
    pub fn waiting(&self, queue: impl Into<String>) -> Waiting {
        Waiting::new(self.clone(), queue.into())
    }

    /// Publishes a message and waits until the broker has confirmed it.
    ///
    /// # Errors
    /// [`ErrorKind::Unroutable`] when no queue takes it, [`ErrorKind::NotConfirmed`], [`ErrorKind::Timeout`] and
    /// [`ErrorKind::ConnectionLost`] when it may or may not have been stored, [`ErrorKind::TooLarge`],
    /// [`ErrorKind::AccessRefused`], [`ErrorKind::InvalidOption`].
    pub async fn publish(&self, message: Publish) -> Result<()> {
        self.same_process()?;
        message.validate()?;
        let Some(delay) = message.delay.filter(|delay| !delay.is_zero()) else {
            return self.0.publisher.publish(message).await;
        };
        let queue = message.queue().to_owned();
        let route = Strategy::RetryQueues
            .scheme()
            .route(&queue, Wait::Ladder(delay));
        let Route::Copy {
            routing_key,
            expiration,
            ..
        } = route
        else {
            return Err(Error::new(
                ErrorKind::InvalidOption,
                "this message cannot be delayed",
            ));
        };
        check_waiting(&self.0.server, self.0.options.queue_type)?;
        let waits = self.waits(&queue);
        // A waiting queue routes to a queue by name: one that is not there would lose the message at the end.
        waits.ensure(&queue).await?;
        waits.ensure(&routing_key).await?;
        let connection = self.0.publisher.connection().await?;
        let published = self
            .0
            .publisher
            .publish(message.through(routing_key.clone(), expiration));
        if let Err(error) = published.await {
            if error.kind() == ErrorKind::Unroutable {
                waits.forget(&routing_key); // deleted since: the next message makes it again
            }
            return Err(error);
        }
        let loss = "the message may have gone with it; publish it again";
        waits.mature(&routing_key, &connection, loss).await
    }

    /// The waiting queues of `queue` for messages that are published with a delay.
    pub(crate) fn waits(&self, queue: &str) -> Arc<Waits> {
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
        let waits = Arc::new(Waits::of_publisher(
            Arc::clone(&self.0.addresses),
            queue.to_owned(),
            self.0.options.queue_type,
            self.losses(),
        ));
        delayed.insert(queue.to_owned(), Arc::clone(&waits));
        waits
    }

    /// Whether this process connected it. A fork copies the client but none of its threads: every call on the copy would wait for
    /// ever.
    ///
    /// # Errors
    /// [`ErrorKind::Forked`] otherwise.
    pub fn same_process(&self) -> Result<()> {
        same_process(self.0.pid)
    }

    /// What the broker said of itself when this client connected.
    #[must_use]
    pub fn server(&self) -> &Server {
        &self.0.server
    }

    /// All counters of this client's consumers, how long their handlers take, how many messages are parked, and whether its
    /// connections are open, in the OpenMetrics text format, which Prometheus reads; serve them with the content type
    /// `application/openmetrics-text; version=1.0.0; charset=utf-8`. The broker is asked how many are parked after each call
    /// (AMQP `queue.declare`, passive), so that figure is as old as the previous call.
    #[must_use]
    pub fn metrics_text(&self) -> String {
        self.0.depths.refresh(&self.0.consuming);
        let open = |link: &Link| link.health().is_ok();
        self.0.metrics.text([
            (CONSUME, open(&self.0.consuming)),
            (PUBLISH, open(&self.0.publishing)),
        ])
    }

    /// How often a connection was re-made.
    #[must_use]
    pub fn reconnects(&self) -> u64 {
        self.0.reconnects.load(Ordering::Relaxed)
    }

    /// Compares a plan with the broker, making nothing.
    ///
    /// # Errors
    /// As [`apply_plan`](Self::apply_plan), but a queue with other arguments is a finding, not an error.
    pub async fn compare_plan(&self, plan: &Plan) -> Result<Vec<Finding>> {
        self.examine(plan, Mode::Compare).await
    }

    /// Makes what a plan says and the broker lacks. Never changes or deletes what is there.
    ///
    /// # Errors
    /// [`ErrorKind::Mismatch`] for a queue with other arguments, [`ErrorKind::AccessRefused`],
    /// [`ErrorKind::StrategyRefused`].
    pub async fn apply_plan(&self, plan: &Plan) -> Result<Vec<Finding>> {
        self.examine(plan, Mode::Apply).await
    }

    /// Closes both connections. Consumers should be closed first; what they hold goes back to its queue.
    pub async fn close(&self) {
        self.0.looks.close().await;
        self.0.consuming.close().await;
        self.0.publishing.close().await;
    }

    /// On a connection of its own: every refusal closes a channel, and some close the connection.
    pub(crate) async fn examine(&self, plan: &Plan, mode: Mode) -> Result<Vec<Finding>> {
        self.same_process()?;
        let mut connection = Connection::open(&self.0.addresses, "topology").await?;
        // Where a connection may have few channels, on several.
        let at_a_time = (connection.channels() / CHANNELS_OF_AN_ITEM).max(1);
        let mut findings = Ok(Vec::with_capacity(plan.items.len()));
        for (number, items) in plan.items.chunks(at_a_time).enumerate() {
            if number > 0 {
                connection.close().await;
                connection = Connection::open(&self.0.addresses, "topology").await?;
            }
            let items = Plan {
                items: items.to_vec(),
            };
            let found = apply(&connection, &items, mode).await;
            findings = findings.and_then(|mut findings: Vec<_>| {
                findings.extend(found?);
                Ok(findings)
            });
            if findings.is_err() {
                break;
            }
        }
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
        connection.close().await;
        findings
    }

    /// Counts the connections that were lost and re-made.
    pub(crate) fn losses(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.0.reconnects)
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

    /// Where queues are looked for that may be missing.
    pub(crate) fn looks(&self) -> &Looks {
        &self.0.looks
    }

    pub(crate) fn publisher(&self) -> &Publisher {
        &self.0.publisher
    }

    /// Bytes that the headers and properties of a copy may take on the connection that publishes.
    pub(crate) fn header_room(&self) -> usize {
        self.0.publishing.header_room()
    }

    /// The connection to publish on, if there is one now.
    pub(crate) fn publishing_now(&self) -> Option<Arc<Connection>> {
        self.publishing().connection().now_or_never()?.ok()
    }

    /// Waits for so long; whether the connection that a message was published on was there all the time.
    ///
    /// # Errors
    /// [`ErrorKind::ConnectionLost`]: what its node had in memory alone is gone.
    pub(crate) async fn outlives(
        &self,
        published_on: Option<Arc<Connection>>,
        time: Duration,
    ) -> Result<()> {
        let lost = async {
            if let Some(connection) = published_on {
                connection.gone().await;
            }
        };
        tokio::select! {
            biased;
            () = lost => Err(Error::new(
                ErrorKind::ConnectionLost,
                "the connection was lost before the delayed-message plugin had stored the message",
            )),
            () = tokio::time::sleep(time) => Ok(()),
        }
    }

    pub(crate) fn counters(&self, queue: &str) -> Counters {
        self.0.metrics.of(queue)
    }

    /// How long handlers of `queue` take, in seconds.
    pub(crate) fn handling(&self, queue: &str) -> Histogram {
        self.0.metrics.handling(queue)
    }

    /// The metrics show from now on how many messages are parked for `queue`.
    pub(crate) fn watch_parked(&self, queue: &str) {
        self.0.depths.watch(queue, &self.0.consuming);
    }
}

/// When one of the two ends by itself, so does the other: who consumes and cannot publish could settle nothing.
async fn end_together(links: [Weak<Link>; 2]) {
    let ended = |link: &Weak<Link>| {
        let link = link.clone();
        async move {
            match link.upgrade().map(|link| link.ends()) {
                Some(end) => end.await,
                None => std::future::pending().await,
            }
        }
    };
    let (error, other) = tokio::select! {
        error = ended(&links[0]) => (error, &links[1]),
        error = ended(&links[1]) => (error, &links[0]),
    };
    if let Some(other) = other.upgrade() {
        other.end_as(&error).await;
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
