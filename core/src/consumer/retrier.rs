//! Retries and parks messages that the caller did not consume from their queue.
//!
//! ```text
//! FailedMessage, Outcome ──► decide (engine/action.rs) ──► Decision ──► store: a copy, confirmed ──► let go of the original
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
use lapin::{
    BasicProperties,
    types::{FieldTable, ShortString},
};
use tokio::{sync::oneshot, time::Instant};

use super::{
    Consumer, FailedMessage,
    engine::{AttemptContext, NextAction},
};
use crate::{
    Client, Error, ErrorKind, Result,
    connection::{no_broker, passive_declare},
    publish::Job,
    retry::{CopyHeaders, Origin, Outcome, ParkReason, Policy, Rule, headers, waiting_headers_cut},
    telemetry::{Event, HOST},
    topology::{self, DelayQueues, Detour, check_waiting},
};

/// How long the result of a look at the work queue is used.
const FRESH: Duration = Duration::from_secs(5);

/// Retries and parks messages of one work queue as its consumer with `dlx` would. It is for a program that got the messages in another way:
/// from a dead-letter exchange, or from another program. [`Client::retrier`] makes it. Cheap to clone.
///
/// The messages wait in the waiting queues of that consumer (section 1 of PROTOCOL). Missing ones are created when they are first needed.
/// The work queue itself is never created.
///
/// Keep the original until [`store`](Self::store) or [`after`](Self::after) has returned `Ok`, and only then acknowledge it. Then no
/// message is lost; after an interruption it may exist twice.
///
/// ```no_run
/// # async fn example(rmq: retryrmq::Client, message: retryrmq::BasicProperties) -> retryrmq::Result<()> {
/// use retryrmq::{FailedMessage, Failure, Outcome};
///
/// let orders = rmq.retrier("orders")?.retry("list(1s, 1m)".parse()?);
/// let failed = FailedMessage::new("orders", "shop", "eu.de", message, b"a body")?;
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
    waits: DelayQueues,
    wire_queue: ShortString,
    /// When the last look at the work queue was, and whether the queue existed.
    seen: Mutex<Option<(Instant, bool)>>,
    /// The look that runs now.
    looking: Mutex<Option<WeakShared<QueueLookup>>>,
}

/// A look at the work queue, shared by everyone who asks meanwhile: each look takes a channel, and the broker limits those.
type QueueLookup = BoxFuture<'static, Result<bool, Arc<Error>>>;

/// What happens to a failed message: a copy goes to a queue.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Decision {
    /// The event once the copy is stored: [`Event::Retried`], [`Event::Deferred`], [`Event::Detoured`] or [`Event::Parked`].
    pub event: Event,
    /// The waiting or parking queue of the copy.
    pub queue: String,
    /// The properties of the copy. Its headers have the count, or the record of a parked message.
    pub properties: BasicProperties,
    /// How long the copy waits; `None` if it is parked.
    pub delay: Option<Duration>,
}

impl Decision {
    /// The decision for a message of the work queue `queue`; `None` if no copy follows.
    pub(super) fn of(queue: &str, next_action: NextAction) -> Option<Self> {
        match next_action {
            NextAction::Copy(pending_copy) => {
                let (to, properties) =
                    (pending_copy.copy.routing_key, pending_copy.copy.properties);
                let delay = match &pending_copy.event {
                    Event::Retried { delay, .. } | Event::Deferred { delay, .. } => Some(*delay),
                    _ => topology::waits_for(queue, &to),
                };
                Some(Self {
                    event: pending_copy.event,
                    queue: to,
                    properties: Arc::unwrap_or_clone(properties),
                    delay,
                })
            }
            // These belong to other strategies, and to a consumer that does not park.
            NextAction::Ack
            | NextAction::Drop(_)
            | NextAction::Later(..)
            | NextAction::Return(..) => None,
        }
    }
}

impl Client {
    /// A [`Retrier`] for `queue`: it retries and parks messages that the caller did not consume from that queue. Nothing is sent to the
    /// broker yet.
    ///
    /// # Errors
    /// Those of [`Consumer::validate`] for the name of the queue, and [`ErrorKind::StrategyRefused`] if this broker cannot keep waiting
    /// messages safely.
    pub fn retrier(&self, queue: impl Into<String>) -> Result<Retrier> {
        if self.fake().is_some() {
            return Err(no_broker());
        }
        Retrier::new(self.clone(), queue.into())
    }
}

impl Retrier {
    pub(crate) fn new(client: Client, queue: String) -> Result<Self> {
        let options = Consumer::new(queue).dlx(true);
        options.validate()?;
        check_waiting(client.server(), client.options().queue_type)?;
        client.check_family(&options.queue)?;
        let waits = DelayQueues::new(
            Arc::clone(client.addresses()),
            options.queue.clone(),
            client.options().queue_type,
            true,
            client.losses(),
            client.dead_letter_probes(),
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

    /// Sets the policy for failures that no rule matches; [`Policy::default`] by default.
    #[must_use]
    pub fn retry(mut self, policy: Policy) -> Self {
        self.options = self.options.retry(policy);
        self
    }

    /// Sets rules that come before the policy. The first rule that matches decides.
    #[must_use]
    pub fn rules(mut self, rules: impl IntoIterator<Item = Rule>) -> Self {
        self.options = self.options.rules(rules);
        self
    }

    /// The name of the work queue.
    #[must_use]
    pub fn queue(&self) -> &str {
        &self.options.queue
    }

    /// Whether the work queue exists. The answer may be up to five seconds old (AMQP `queue.declare`, passive). If it does not exist,
    /// nobody would take the messages that come back. A queue that this user may not look at counts as existing.
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
        self.queue_lookup().await.map_err(|error| error.duplicate())
    }

    /// The look that runs now, or a new one.
    fn queue_lookup(&self) -> future::Shared<QueueLookup> {
        let looking = self.shared.looking.lock();
        let mut looking = looking.unwrap_or_else(PoisonError::into_inner);
        let under_way = looking.as_ref().and_then(WeakShared::upgrade);
        if let Some(look) = under_way.filter(|look| look.peek().is_none()) {
            return look;
        }
        let retrier = self.clone();
        let look = async move { retrier.check_queue().await.map_err(Arc::new) };
        let look = look.boxed().shared();
        *looking = look.downgrade();
        look
    }

    async fn check_queue(&self) -> Result<bool> {
        let Shared {
            client, wire_queue, ..
        } = &*self.shared;
        // Do not wait for a connection if there is none now.
        let open = client.consuming().connection().now_or_never();
        open.unwrap_or_else(|| {
            let why = "the connection to the broker was lost; the client reconnects";
            Err(Error::new(ErrorKind::ConnectionLost, why))
        })?;
        let channel = client.probe_connection().channel().await?;
        let looked = passive_declare(&channel, wire_queue.clone()).await;
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

    /// Decides what happens to a message after this outcome, as its consumer would. Sends nothing to the broker. `None` for
    /// [`Outcome::Ack`].
    #[must_use]
    pub fn decide(&self, failed: &FailedMessage, outcome: &Outcome) -> Option<Decision> {
        self.decided(failed, |case| case.after(outcome, fastrand::u64(..)))
    }

    /// Decides the detour of a message that never ran: a short wait with its crashes unchanged
    /// ([`Handover::Detour`](crate::Handover::Detour)). Sends nothing to the broker.
    #[must_use]
    pub fn detour(&self, failed: &FailedMessage) -> Option<Decision> {
        let crashes = failed.received.state.own_crashes;
        self.decided(failed, |case| case.detour(crashes, Detour::Shortest))
    }

    /// Decides to park a message that waits outside the broker, as [`WaitingWalk::cancel`](crate::WaitingWalk::cancel) parks one that waits in
    /// it: as `requested`, with the record that it has. Sends nothing to the broker: [`store`](Self::store) the decision, and only then
    /// delete the message where it waits.
    ///
    /// # Errors
    /// [`ErrorKind::TooLarge`] for headers that do not fit a complete copy.
    pub fn cancel(&self, waiting: &FailedMessage) -> Result<Decision> {
        let client = &self.shared.client;
        let origin = Origin::default();
        let received = &waiting.received;
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let properties = CopyHeaders {
            origin: &origin,
            properties: &received.properties,
            exchange: received.exchange(),
            routing_key: received.routing_key(),
            state: &received.state,
            now: now.map_or(0, |now| now.as_secs()),
            budget: client.header_room(),
        }
        .cancelled()
        .map_err(|lost| waiting_headers_cut(&lost))?;
        let empty = FieldTable::default();
        let written = properties.headers().as_ref().unwrap_or(&empty);
        let event = Event::Parked {
            queue: self.options.queue.clone(),
            message_id: received.message_id(),
            attempt: received.state.attempt(),
            reason: ParkReason::Requested,
            error: headers::string(written, headers::ERROR).unwrap_or_default(),
            error_type: headers::string(written, headers::ERROR_TYPE),
        };
        Ok(Decision {
            event,
            queue: topology::parking_queue(&self.options.queue),
            properties,
            delay: None,
        })
    }

    fn decided(
        &self,
        failed: &FailedMessage,
        decide: impl FnOnce(AttemptContext<'_>) -> NextAction,
    ) -> Option<Decision> {
        let client = &self.shared.client;
        let origin = Origin {
            host: HOST.clone(),
            app_version: client.options().app_version.clone(),
        };
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let case = AttemptContext {
            options: &self.options,
            origin: &origin,
            received: &failed.received,
            header_room: client.header_room(),
            now: now.map_or(0, |now| now.as_secs()),
            copies: false,
        };
        Decision::of(&self.options.queue, decide(case))
    }

    /// Stores the copy of a decision. It creates the queue if it is missing, publishes the copy (persistent, `mandatory`) and waits for the
    /// confirm. Before it publishes, it waits until two seconds have passed since this client created or found the queue, because a younger
    /// queue can lose messages when its broker crashes. It does not wait if the queue's marker tells that it is old. It tries once; on an
    /// error, call it again after a pause that grows.
    ///
    /// If the future is dropped before the copy was sent, as during a memory or disk alarm, the copy is not stored.
    ///
    /// # Errors
    /// Those of creating a queue ([`ErrorKind::AccessRefused`], [`ErrorKind::Mismatch`]) and of publishing to it
    /// ([`ErrorKind::Unroutable`], [`ErrorKind::NotConfirmed`], [`ErrorKind::Timeout`], [`ErrorKind::ConnectionLost`],
    /// [`ErrorKind::TooLarge`]). Then the copy may not be stored: keep the original.
    pub async fn store(&self, failed: &FailedMessage, decision: &Decision) -> Result<()> {
        let Shared { client, waits, .. } = &*self.shared;
        client.same_process()?;
        let properties = Arc::new(decision.properties.clone());
        let (queue, properties) = waits.adapt(decision.queue.clone(), properties);
        waits.ensure(&queue).await?;
        waits.find_marker(&queue);
        let connection = client.publisher().connection().await?;
        // Not before: its original could not be settled, and a service that is killed would leave both.
        if !waits.is_safe(&queue) {
            waits
                .wait_durable(&queue, Instant::now(), &connection, "no copy was made")
                .await?;
        }
        let sent = Instant::now();
        let (done, answer) = oneshot::channel();
        let job = Job {
            exchange: ShortString::default(),
            routing_key: topology::name(&queue)?,
            properties,
            body: Arc::clone(&failed.body),
            mandatory: true,
            done: Box::new(move |result| {
                let _ = done.send(result); // the caller may have gone
            }),
        };
        let asker = Arc::new(());
        client.publisher().submit_for(job, Arc::downgrade(&asker));
        let closed = || {
            Err(Error::new(
                ErrorKind::Closed,
                "the client is closed; connect a new one",
            ))
        };
        let published = answer.await.unwrap_or_else(|_| closed());
        if let Err(error) = published {
            if error.kind() == ErrorKind::Unroutable {
                waits.forget(&queue); // the queue was deleted; the next try makes it again
            }
            return Err(error);
        }
        waits
            .wait_durable(&queue, sent, &connection, "the copy may have gone with it")
            .await
    }

    /// [Decides](Self::decide) and [stores](Self::store). `None` for [`Outcome::Ack`].
    ///
    /// # Errors
    /// Those of [`store`](Self::store).
    pub async fn after(
        &self,
        failed: &FailedMessage,
        outcome: &Outcome,
    ) -> Result<Option<Decision>> {
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
