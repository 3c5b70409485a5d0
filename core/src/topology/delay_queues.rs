//! The waiting and parking queues that are known to exist, and since when each is a safe place.
//!
//! ```text
//!            ensure                    found, or made          2 s, or its marker
//! unknown ───────────► being made ─────────────────────► known, young ────────► known, safe
//!    ▲                     │ ▲                                  │                   │
//!    │             refused ▼ │ after a pause                    │                   │
//!    │                  refused                                 │                   │
//!    └──────────────────────────── returned, or reconnected ────┴───────────────────┘
//! ```

mod markers;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeSet, HashMap},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use lapin::{BasicProperties, types::ShortString};
use tokio::{
    sync::{Semaphore, watch},
    time::{Instant, sleep_until},
};
use tracing::warn;

use self::markers::Unmarked;
use super::{
    DeadLetterProbes, Finding, Item, Mode, Plan, QueueType, SAFE_AGE, Status,
    declare_backoff::DeclareBackoff,
    declarer::{Declarer, Make},
    delayed_exchange::{exchange, exchange_and_binding},
    fallback_queue::fallback,
    plan,
    queue_age::QueueAge,
};
use crate::{
    Error, ErrorKind, Result,
    connection::{Addresses, Connection},
    queue_names::{HANDOVER_QUEUE, waiting_queue, waits_for},
};

/// How many queues are looked for or created at a time. One that does not answer holds up only its own messages.
const AT_A_TIME: usize = 8;

/// The waiting and parking queues of one work queue. Each is created once, however many copies ask for it meanwhile.
pub(crate) struct DelayQueues<M = Declarer>(Arc<Inner<M>>);

struct Inner<M> {
    maker: M,
    queue: String,
    queue_type: QueueType,
    declare: bool,
    backoff: DeclareBackoff,
    /// Counts lost connections: after a loss, what was known about queues may no longer be true.
    losses: Arc<AtomicU64>,
    /// Keyed by name: the policies' queues, those of the delay steps, the parking queue, the work queue itself, and the plugin's exchange.
    states: Mutex<HashMap<String, QueueState>>,
    permits: Semaphore,
    /// Queues for whose markers the broker refuses to look, and those that it refuses to mark.
    unseen: Mutex<Unmarked>,
    unmarked: Mutex<Unmarked>,
    /// The broker refuses the clock for new queues.
    no_clock: AtomicBool,
}

/// How often it is asked whether a queue is still young, and whether it can be marked.
const SHORT: Duration = Duration::from_millis(200);

/// What is known of one queue.
enum QueueState {
    Known {
        age: QueueAge<Instant>,
        losses: u64,
        look: MarkerLookup,
        /// Whether somebody will mark it when it is old.
        is_to_be_marked: bool,
    },
    Making {
        answer: watch::Receiver<Option<Result<Instant>>>,
        before: Option<QueueError>,
    },
    Refused(QueueError),
}

impl QueueState {
    /// A queue that was found or created. One that is new has no marker.
    fn found(age: QueueAge<Instant>, losses: u64, is_new: bool) -> Self {
        Self::Known {
            age,
            losses,
            look: if is_new {
                MarkerLookup::Answered
            } else {
                MarkerLookup::Open
            },
            is_to_be_marked: false,
        }
    }
}

/// A look for the marker of a queue.
enum MarkerLookup {
    Open,
    Asked(watch::Receiver<bool>),
    Answered,
}

/// Why a queue cannot be used, and when to try again.
struct QueueError {
    error: Error,
    until: Instant,
    times: u32,
}

impl QueueError {
    fn after(before: Option<Self>, error: Error, backoff: DeclareBackoff) -> Self {
        let times = before.map_or(1, |before| before.times.saturating_add(1));
        let until = Instant::now() + backoff.pause(error.kind(), times);
        Self {
            error,
            until,
            times,
        }
    }
}

impl DelayQueues {
    /// The queues of a consumer. With `declare` off, none is created. `losses` counts the client's lost connections.
    pub(crate) fn new(
        addresses: Arc<Addresses>,
        queue: String,
        queue_type: QueueType,
        declare: bool,
        losses: Arc<AtomicU64>,
        probes: Arc<DeadLetterProbes>,
    ) -> Self {
        let maker = Declarer::new(addresses, probes);
        Self::with(
            maker,
            queue,
            queue_type,
            declare,
            losses,
            DeclareBackoff::Consumer,
        )
    }

    /// The queues for messages that are published to `queue` with a delay.
    pub(crate) fn of_publisher(
        addresses: Arc<Addresses>,
        queue: String,
        queue_type: QueueType,
        losses: Arc<AtomicU64>,
        probes: Arc<DeadLetterProbes>,
    ) -> Self {
        let maker = Declarer::new(addresses, probes);
        Self::with(
            maker,
            queue,
            queue_type,
            true,
            losses,
            DeclareBackoff::Publisher,
        )
    }
}

impl<M: Make> DelayQueues<M> {
    fn with(
        maker: M,
        queue: String,
        queue_type: QueueType,
        declare: bool,
        losses: Arc<AtomicU64>,
        backoff: DeclareBackoff,
    ) -> Self {
        Self(Arc::new(Inner {
            maker,
            queue,
            queue_type,
            declare,
            backoff,
            losses,
            states: Mutex::default(),
            permits: Semaphore::new(AT_A_TIME),
            unseen: Mutex::default(),
            unmarked: Mutex::default(),
            no_clock: AtomicBool::default(),
        }))
    }

    /// Records what a plan found or created. A queue that was found counts as young even if it was known before: it may have been deleted
    /// and created again. Its [marker](Self::find_marker) may tell that it is old.
    pub(crate) fn note(&self, findings: &[Finding]) {
        for finding in findings {
            let (Item::Queue { name, .. } | Item::Exchange { name, .. }) = &finding.item else {
                continue;
            };
            let place = match finding.status {
                Status::Present => self.0.young(false),
                Status::Created => self.0.young(true),
                Status::Missing => {
                    let why = format!("the queue `{name}` does not exist");
                    let error = Error::new(ErrorKind::QueueNotFound, why);
                    QueueState::Refused(QueueError::after(None, error, self.0.backoff))
                }
                Status::Differs(_) | Status::Unknown => continue,
            };
            self.0.states().insert(name.clone(), place);
        }
    }

    /// Forgets a queue or an exchange that is missing.
    pub(crate) fn forget(&self, name: &str) {
        let mut states = self.0.states();
        if let Some(QueueState::Known { .. }) = states.get(name) {
            states.remove(name);
        }
    }

    /// From when on a message in the queue `name` survives a crash of the broker; `None` if the queue must be [looked for](Self::ensure)
    /// first.
    pub(crate) fn safe_from(&self, name: &str) -> Option<Instant> {
        self.0.known(name)
    }

    /// Whether a copy should be sent to the queue `name` now: it is known to exist, and what is stored in it survives a crash of the broker.
    /// Where nobody may set a marker, waiting would help a consumer that ends soon again and again as little as a copy.
    pub(crate) fn is_safe(&self, name: &str) -> bool {
        let age = self.0.age(name);
        age.is_some_and(|age| {
            age.sends_at(Instant::now()).is_none() || !self.0.is_to_wait_for(name)
        })
    }

    /// Waits until a copy should be sent to the queue `name`, which exists.
    ///
    /// # Errors
    /// [`ErrorKind::ConnectionLost`] if a connection was lost meanwhile, or the queue was: the original comes again, or the copy is tried again.
    pub(crate) async fn until_safe(&self, name: &str) -> Result<()> {
        let (losses, now) = (self.0.losses(), Instant::now());
        loop {
            if self.0.losses() != losses || self.0.known(name).is_none() {
                let why = format!("the connection was lost while the queue `{name}` was young");
                return Err(Error::new(ErrorKind::ConnectionLost, why));
            }
            match self.age_from_marker(name, now).await {
                Some(safe) if safe > Instant::now() && self.0.is_to_wait_for(name) => {
                    sleep_until(safe.min(Instant::now() + SHORT)).await;
                }
                _ => return Ok(()),
            }
        }
    }

    /// How often a connection was lost and made again: what waits for a queue since another number of them belongs to an earlier session.
    pub(crate) fn losses(&self) -> u64 {
        self.0.losses()
    }

    /// When a copy that was confirmed just now in the queue `name` is safe; its original must be kept until then. `None` for a queue that
    /// is neither a waiting nor the parking queue, such as the work queue itself.
    pub(crate) fn durable_after(&self, name: &str) -> Option<Instant> {
        let is_ours = self.0.is_markable(name) || name == HANDOVER_QUEUE;
        is_ours.then(|| {
            self.safe_from(name)
                .unwrap_or_else(|| Instant::now() + SAFE_AGE)
        })
    }

    /// Waits until a copy is safe in the queue `name`. It was passed on at `sent` to be published on this connection, and was confirmed just
    /// now. Until it is safe a crash of the broker may empty the queue, and nobody may be told that the copy is safe. A queue that was old at
    /// `sent` costs no time.
    ///
    /// # Errors
    /// Those of [`Connection::lives_until`]; `loss` says what may have happened to the message.
    pub(crate) async fn wait_durable(
        &self,
        name: &str,
        sent: Instant,
        connection: &Connection,
        loss: &str,
    ) -> Result<()> {
        let Some(safe) = self.age_from_marker(name, sent).await else {
            return Ok(());
        };
        connection.lives_until(safe).await.map_err(|error| {
            let why = format!("{error} while the queue `{name}` was young: {loss}");
            Error::new(error.kind(), why)
        })?;
        let (inner, name) = (Arc::clone(&self.0), name.to_owned());
        // Nobody waits for that.
        tokio::spawn(async move { inner.mark(vec![name]).await });
        Ok(())
    }

    /// Makes sure that the queue `name` exists, or the plugin's exchange with its binding. A queue is a waiting or parking queue, or one that
    /// is never created: the work queue and the service's. All who ask for the same queue at the same time share one try and its error. After a refusal, the next try waits for a
    /// pause to end.
    ///
    /// # Errors
    /// Those of [`apply`](super::apply), [`Connection::open`](crate::connection::Connection::open) and [`DeadLetterProbes::check`].
    pub(crate) async fn ensure(&self, name: &str) -> Result<Instant> {
        let mut answer = match self.0.ask(name) {
            QueueAnswer::Known(safe_from) => return Ok(safe_from),
            QueueAnswer::Refused(error) => return Err(error),
            QueueAnswer::Making(answer) => answer,
            QueueAnswer::Begin(answer, answer_sender) => {
                let (inner, name) = (Arc::clone(&self.0), name.to_owned());
                // A task of its own: it runs to its end even if nobody waits any more.
                tokio::spawn(async move { inner.make(&name, &answer_sender).await });
                answer
            }
        };
        match answer.wait_for(Option::is_some).await.as_deref() {
            Ok(Some(Ok(safe_from))) => Ok(*safe_from),
            Ok(Some(Err(error))) => Err(error.duplicate()),
            Ok(None) | Err(_) => Err(Error::new(
                ErrorKind::ConnectionLost,
                format!("declaring the queue `{name}` was interrupted; try again"),
            )),
        }
    }

    /// The queue in which a copy for the queue `routing_key` waits, and its properties there. If that queue cannot be used, another one
    /// that exists takes its place.
    pub(crate) fn adapt(
        &self,
        routing_key: String,
        properties: Arc<BasicProperties>,
    ) -> (String, Arc<BasicProperties>) {
        let Some(delay) = waits_for(&self.0.queue, &routing_key) else {
            return (routing_key, properties);
        };
        let expiration = properties
            .expiration()
            .as_ref()
            .and_then(|ms| ms.as_str().parse().ok());
        let wanted = expiration.map_or(delay, Duration::from_millis);
        let Some(there_is) = self.fallback(&routing_key, wanted) else {
            return (routing_key, properties);
        };
        let name = waiting_queue(&self.0.queue, there_is);
        if there_is < wanted {
            warn!(
                queue = %self.0.queue,
                ?wanted,
                ?there_is,
                "the queue `{routing_key}` cannot be had, and no waiting queue is as long: a message comes back early"
            );
        }
        let expiration = ShortString::from(wanted.as_millis().to_string());
        let properties = Arc::unwrap_or_clone(properties).with_expiration(expiration);
        (name, Arc::new(properties))
    }

    /// The delay of the queue that replaces `name`; `None` if `name` can be used.
    fn fallback(&self, name: &str, wanted: Duration) -> Option<Duration> {
        let worth_a_try = {
            let states = self.0.states();
            let refusal = match states.get(name)? {
                QueueState::Refused(refusal) => refusal,
                QueueState::Making {
                    before: Some(refusal),
                    ..
                } => refusal,
                _ => return None,
            };
            if refusal.error.is_transient() {
                return None;
            }
            refusal.until <= Instant::now()
        };
        let there_is = fallback(wanted, &self.0.known_delays())?;
        if worth_a_try {
            // Somebody may have created it since. Nobody waits for the answer; it helps the next message.
            let (waits, name) = (Self(Arc::clone(&self.0)), name.to_owned());
            tokio::spawn(async move { waits.ensure(&name).await });
        }
        Some(there_is)
    }
}

/// The result of asking for a queue.
enum QueueAnswer {
    Known(Instant),
    Refused(Error),
    Making(watch::Receiver<Option<Result<Instant>>>),
    Begin(
        watch::Receiver<Option<Result<Instant>>>,
        watch::Sender<Option<Result<Instant>>>,
    ),
}

impl<M: Make> Inner<M> {
    fn ask(&self, name: &str) -> QueueAnswer {
        if let Some(safe_from) = self.known(name) {
            return QueueAnswer::Known(safe_from);
        }
        let mut states = self.states();
        match states.get(name) {
            // Without a sender the task that creates it is gone, and would never answer.
            Some(QueueState::Making { answer, .. }) if answer.has_changed().is_ok() => {
                return QueueAnswer::Making(answer.clone());
            }
            Some(QueueState::Refused(refusal)) if refusal.until > Instant::now() => {
                return QueueAnswer::Refused(refusal.error.duplicate());
            }
            _ => {}
        }
        let before = match states.remove(name) {
            Some(QueueState::Refused(refusal)) => Some(refusal),
            Some(QueueState::Making { before, .. }) => before,
            Some(QueueState::Known { .. }) | None => None,
        };
        let (answer_sender, answer) = watch::channel(None);
        let making = QueueState::Making {
            answer: answer.clone(),
            before,
        };
        states.insert(name.to_owned(), making);
        QueueAnswer::Begin(answer, answer_sender)
    }

    async fn make(&self, name: &str, answer_sender: &watch::Sender<Option<Result<Instant>>>) {
        let permit = self.permits.acquire().await;
        let losses = self.losses();
        let made = self.maker.make(self.plan(name), self.mode(name)).await;
        drop(permit);
        let is_new = matches!(made, Ok(true));
        let answer = {
            let mut states = self.states();
            let before = match states.remove(name) {
                Some(QueueState::Making { before, .. }) => before,
                _ => None,
            };
            match made {
                Ok(is_new) => {
                    let age = QueueAge::found(Instant::now());
                    states.insert(name.to_owned(), QueueState::found(age, losses, is_new));
                    Ok(age.safe_from())
                }
                Err(error) => {
                    let answer = Err(error.duplicate());
                    let refusal = QueueError::after(before, error, self.backoff);
                    if refusal.until > Instant::now() {
                        states.insert(name.to_owned(), QueueState::Refused(refusal));
                    }
                    answer
                }
            }
        };
        answer_sender.send_replace(Some(answer));
        if is_new {
            self.mark_young(vec![name.to_owned()]).await;
        }
    }

    fn plan(&self, name: &str) -> Plan {
        let items = match waits_for(&self.queue, name) {
            Some(delay) => vec![plan::waiting(&self.queue, delay, self.queue_type)],
            None if name == self.queue => vec![plan::existing(name)],
            None if name == HANDOVER_QUEUE => vec![plan::handover()],
            None if name == exchange(&self.queue) => exchange_and_binding(&self.queue).into(),
            None => vec![plan::parking(&self.queue, self.queue_type)],
        };
        Plan { items }
    }

    fn mode(&self, name: &str) -> Mode {
        if name == self.queue || name == HANDOVER_QUEUE {
            Mode::Exist
        } else if self.declare {
            Mode::Apply
        } else {
            Mode::Require
        }
    }

    fn young(&self, is_new: bool) -> QueueState {
        QueueState::found(QueueAge::found(Instant::now()), self.losses(), is_new)
    }

    fn known(&self, name: &str) -> Option<Instant> {
        self.age(name).map(QueueAge::safe_from)
    }

    fn age(&self, name: &str) -> Option<QueueAge<Instant>> {
        let now = self.losses();
        match self.states().get(name) {
            Some(QueueState::Known { age, losses, .. }) if *losses == now => Some(*age),
            _ => None,
        }
    }

    /// The delays of the waiting queues that are known to exist.
    fn known_delays(&self) -> BTreeSet<Duration> {
        let now = self.losses();
        self.states()
            .iter()
            .filter(
                |(_, place)| matches!(place, QueueState::Known { losses, .. } if *losses == now),
            )
            .filter_map(|(name, _)| waits_for(&self.queue, name))
            .collect()
    }

    fn losses(&self) -> u64 {
        self.losses.load(Ordering::Acquire)
    }

    fn states(&self) -> MutexGuard<'_, HashMap<String, QueueState>> {
        lock(&self.states)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
