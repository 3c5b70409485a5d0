//! Retries and parks messages that are held by other means than a consumer of their queue.
//!
//! ```text
//! Failed, Outcome ──► decide (engine/consequence.rs) ──► Decision ──► store: a copy, confirmed ──► let go of the original
//! ```

use std::{
    fmt,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, SystemTime},
};

use futures_util::{
    FutureExt,
    future::{self, BoxFuture, WeakShared},
};
use lapin::{BasicProperties, types::ShortString};
use tokio::{sync::oneshot, time::Instant};

use super::{
    Consumer, Failed,
    engine::{Case, Consequence},
};
use crate::{
    Client, Error, ErrorKind, Result,
    connection::look,
    publish::Job,
    retry::{Origin, Outcome, Policy, Rule},
    telemetry::{Event, HOST},
    topology::{self, Detour, Waits, check_waiting},
};

/// How long a look at the work queue holds.
const FRESH: Duration = Duration::from_secs(5);

/// Retries and parks messages of one work queue as its consumer with `dlx` does, for a program that holds them by other means: it
/// collected them from a dead-letter exchange, or another program handed them over. Made by [`Client::retrier`]; cheap to clone.
///
/// The messages wait in the queues of that consumer (section 1 of PROTOCOL), which are made when they are first needed, and never the work
/// queue itself. The caller keeps the original until [`store`](Self::store) or [`after`](Self::after) has returned `Ok`, and only then lets
/// go of it: so nothing is lost, and what is broken off in between comes twice at worst.
///
/// ```no_run
/// # async fn example(rmq: retryrmq::Client, message: retryrmq::BasicProperties) -> retryrmq::Result<()> {
/// use retryrmq::{Failed, Failure, Outcome};
///
/// let orders = rmq.retrier("orders")?.retry("list(1s, 1m)".parse()?);
/// let failed = Failed::new("orders", "shop", "eu.de", message, b"a body")?;
/// orders.after(&failed, &Outcome::retry(Failure::new("the till is closed"))).await?;
/// // It waits in `orders.retry.1000`, or is parked in `orders.parked`. Let go of the original now.
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Retrier {
    options: Consumer,
    shared: Arc<Shared>,
}

struct Shared {
    client: Client,
    waits: Waits,
    wire_queue: ShortString,
    /// When the work queue was last looked at, and whether it was there.
    seen: Mutex<Option<(Instant, bool)>>,
    /// The look that is under way.
    looking: Mutex<Option<WeakShared<Look>>>,
}

/// A look at the work queue, for all who ask meanwhile: each takes a channel, of which a connection has no more than the broker allows.
type Look = BoxFuture<'static, Result<bool, Arc<Error>>>;

/// What becomes of a failed message: a copy for a queue.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Decision {
    /// What has happened once the copy is stored: [`Event::Retried`], [`Event::Deferred`], [`Event::Detoured`] or [`Event::Parked`].
    pub event: Event,
    /// The waiting or parking queue that the copy is for.
    pub queue: String,
    /// The properties of the copy, with its count or record in the headers.
    pub properties: BasicProperties,
    /// How long the copy waits; `None` of one that is parked.
    pub delay: Option<Duration>,
}

impl Retrier {
    pub(crate) fn new(client: Client, queue: String) -> Result<Self> {
        let options = Consumer::new(queue).dlx(true);
        options.validate()?;
        check_waiting(client.server(), client.options().queue_type)?;
        let waits = Waits::new(
            Arc::clone(client.addresses()),
            options.queue.clone(),
            client.options().queue_type,
            true,
            client.losses(),
        );
        let wire_queue = topology::name(&options.queue)?;
        Ok(Self {
            options,
            shared: Arc::new(Shared {
                client,
                waits,
                wire_queue,
                seen: Mutex::default(),
                looking: Mutex::default(),
            }),
        })
    }

    /// The policy where no rule holds; [`Policy::default`] unless given.
    #[must_use]
    pub fn retry(mut self, policy: Policy) -> Self {
        self.options = self.options.retry(policy);
        self
    }

    /// Rules that come before the policy; the first that holds decides.
    #[must_use]
    pub fn rules(mut self, rules: impl IntoIterator<Item = Rule>) -> Self {
        self.options = self.options.rules(rules);
        self
    }

    /// The work queue.
    #[must_use]
    pub fn queue(&self) -> &str {
        &self.options.queue
    }

    /// Whether the work queue exists, by a look of the last five seconds: of a queue that is gone nobody takes what comes back. A queue that
    /// this user may not look at counts as there.
    ///
    /// # Errors
    /// [`ErrorKind::ConnectionLost`], [`ErrorKind::Timeout`], [`ErrorKind::Closed`].
    pub async fn exists(&self) -> Result<bool> {
        let seen = *self.seen();
        if let Some((at, there)) = seen
            && at.elapsed() < FRESH
        {
            return Ok(there);
        }
        self.shared.client.same_process()?;
        self.look().await.map_err(|error| error.duplicate())
    }

    /// The look that is under way, or another one.
    fn look(&self) -> future::Shared<Look> {
        let looking = self.shared.looking.lock();
        let mut looking = looking.unwrap_or_else(PoisonError::into_inner);
        let under_way = looking.as_ref().and_then(WeakShared::upgrade);
        if let Some(look) = under_way.filter(|look| look.peek().is_none()) {
            return look;
        }
        let retrier = self.clone();
        let look = async move { retrier.look_now().await.map_err(Arc::new) };
        let look = look.boxed().shared();
        *looking = look.downgrade();
        look
    }

    async fn look_now(&self) -> Result<bool> {
        let Shared {
            client, wire_queue, ..
        } = &*self.shared;
        // While there is none, a connection to look on is not waited for.
        let open = client.consuming().connection().now_or_never();
        open.unwrap_or_else(|| {
            let why = "the connection to the broker was lost, and is being re-made";
            Err(Error::new(ErrorKind::ConnectionLost, why))
        })?;
        let channel = client.looks().channel().await?;
        let looked = look(channel.lapin(), wire_queue.clone()).await;
        channel.close().await;
        let there = match looked {
            Ok(_) => true,
            Err(error) if error.kind() == ErrorKind::QueueNotFound => false,
            Err(error) if error.is_transient() || error.kind() == ErrorKind::Closed => {
                return Err(error);
            }
            Err(_) => true,
        };
        *self.seen() = Some((Instant::now(), there));
        Ok(there)
    }

    fn seen(&self) -> std::sync::MutexGuard<'_, Option<(Instant, bool)>> {
        let seen = self.shared.seen.lock();
        seen.unwrap_or_else(PoisonError::into_inner)
    }

    /// Decides what becomes of a message whose attempt ended so: the decision of a consumer, and nothing is done yet. `None` for
    /// [`Outcome::Ack`].
    #[must_use]
    pub fn decide(&self, failed: &Failed, outcome: &Outcome) -> Option<Decision> {
        self.decided(failed, |case| case.after(outcome, fastrand::u64(..)))
    }

    /// Decides what becomes of a message that never ran, and that its consumer would send through a short wait with its crashes on it
    /// ([`Handover::Detour`](crate::Handover::Detour)): nothing is done yet.
    #[must_use]
    pub fn detour(&self, failed: &Failed) -> Option<Decision> {
        let crashes = failed.received.state.own_crashes;
        self.decided(failed, |case| case.detour(crashes, Detour::Shortest))
    }

    fn decided(
        &self,
        failed: &Failed,
        decide: impl FnOnce(Case<'_>) -> Consequence,
    ) -> Option<Decision> {
        let client = &self.shared.client;
        let origin = Origin {
            host: HOST.clone(),
            app_version: client.options().app_version.clone(),
        };
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let case = Case {
            options: &self.options,
            origin: &origin,
            received: &failed.received,
            header_room: client.header_room(),
            now: now.map_or(0, |now| now.as_secs()),
        };
        match decide(case) {
            Consequence::Copy(copying) => {
                let (queue, properties) = (copying.copy.routing_key, copying.copy.properties);
                let delay = match &copying.event {
                    Event::Retried { delay, .. } | Event::Deferred { delay, .. } => Some(*delay),
                    _ => topology::waits_for(&self.options.queue, &queue),
                };
                Some(Decision {
                    event: copying.event,
                    queue,
                    properties,
                    delay,
                })
            }
            // Those of other strategies, and of a consumer that does not park.
            Consequence::Ack
            | Consequence::Drop(_)
            | Consequence::Later(..)
            | Consequence::Return(..) => None,
        }
    }

    /// Stores the copy of a decision: makes its queue where it is missing, publishes (persistent, `mandatory`), awaits the confirm, and that
    /// the queue is old enough to survive a crash of its broker (two seconds after this client made or found it). One try: the caller
    /// repeats it, with pauses that grow. Dropped before the copy is on its way to the broker, as in an alarm, it stores nothing any more.
    ///
    /// # Errors
    /// Those of making a queue ([`ErrorKind::AccessRefused`], [`ErrorKind::Mismatch`]) and of publishing to it
    /// ([`ErrorKind::Unroutable`], [`ErrorKind::NotConfirmed`], [`ErrorKind::Timeout`], [`ErrorKind::ConnectionLost`],
    /// [`ErrorKind::TooLarge`]). Then the message may not be stored, and its original must be kept.
    pub async fn store(&self, failed: &Failed, decision: &Decision) -> Result<()> {
        let Shared { client, waits, .. } = &*self.shared;
        client.same_process()?;
        let (queue, properties) = waits.adapt(decision.queue.clone(), decision.properties.clone());
        waits.ensure(&queue).await?;
        let connection = client.publisher().connection().await?;
        let (done, answer) = oneshot::channel();
        let job = Job {
            exchange: ShortString::default(),
            routing_key: topology::name(&queue)?,
            properties,
            body: Arc::clone(&failed.body),
            mandatory: true,
            done: Box::new(move |result| {
                let _ = done.send(result); // who asked may have gone
            }),
        };
        let asker = Arc::new(());
        client.publisher().submit_for(job, Arc::downgrade(&asker));
        let closed = || Err(Error::new(ErrorKind::Closed, "the client was closed"));
        let published = answer.await.unwrap_or_else(|_| closed());
        if let Err(error) = published {
            if error.kind() == ErrorKind::Unroutable {
                waits.forget(&queue); // deleted since: the next try makes it again
            }
            return Err(error);
        }
        waits
            .mature(&queue, &connection, "the copy may have gone with it")
            .await
    }

    /// [Decides](Self::decide) and [stores](Self::store).
    ///
    /// # Errors
    /// As [`store`](Self::store).
    pub async fn after(&self, failed: &Failed, outcome: &Outcome) -> Result<Option<Decision>> {
        let decision = self.decide(failed, outcome);
        if let Some(decision) = &decision {
            self.store(failed, decision).await?;
        }
        Ok(decision)
    }
}

impl fmt::Debug for Retrier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Retrier")
            .field("queue", &self.options.queue)
            .field("retry", &self.options.rules.otherwise.to_string())
            .finish_non_exhaustive()
    }
}
