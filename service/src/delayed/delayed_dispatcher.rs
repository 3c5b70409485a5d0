//! Takes messages with a delay in, has them wait, and publishes them when they are due.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use retryrmq::{
    BasicProperties, Client, Error, ErrorKind, Event, FailedMessage, Failure, Message, Outcome,
    ParkReason, Publish, Subscription, doubling_pause::DoublingPause, terminal_escape,
};
use tokio::{
    sync::watch,
    task::JoinSet,
    time::{Instant, MissedTickBehavior, interval, sleep, sleep_until},
};
use tracing::{error, info, warn};

use super::{
    DelayedSections,
    delay_headers::{DelayHeaders, as_published, plain},
    exchange_limiter::{AdmitResult, ExchangeLimiter},
    next_action::{DelayedMessage, NextAction, OutgoingMessage, next_delay_step, order},
    topology::plan,
};
use crate::{
    Health, Metrics,
    intake::{
        Disposition, FAREWELL, FailureCause, ON_ITS_WAY, ParkedReporter, RetryContext,
        RetrySchedule, StoreHandle, original,
    },
    queue_names::DELAYED_QUEUE,
    retrier_cache::RetrierCache,
    store::{self, MessageDraft, StoredMessage},
};

/// How often the exchanges and queues are looked for, and made where somebody deleted them.
const LOOK: Duration = Duration::from_secs(15);
const PAUSE: DoublingPause =
    DoublingPause::new(Duration::from_millis(500), Duration::from_secs(15));
/// The most messages in flight.
const BATCH: usize = 64;
/// What an exchange or its queues do not take now waits for so long, and holds nobody up.
const AGAIN: Duration = Duration::from_secs(10);
/// Until a way that is busy is looked at again.
const BUSY: Duration = Duration::from_millis(20);
/// RabbitMQ's patience with a delivery that is not settled ends after 30 minutes (`consumer_timeout`).
const LONGEST_KEPT: Duration = Duration::from_secs(600);
/// What the probes and the log call this part.
const NAME: &str = "messages with a delay";

/// Sees messages with a delay through. It does nothing while the policy has no section `[delayed]`, unless messages of an earlier one may be left.
#[derive(Debug)]
pub(crate) struct DelayedDispatcher {
    client: Client,
    sections: watch::Receiver<DelayedSections>,
    metrics: Arc<Metrics>,
    parked_reporter: ParkedReporter,
    health: Health,
    prefetch: u16,
    retrier_cache: RetrierCache,
    exchange_limiter: Arc<ExchangeLimiter>,
    /// Where messages wait; in waiting queues without it.
    store_handle: Option<StoreHandle>,
}

#[derive(Debug, thiserror::Error)]
enum DispatchError {
    #[error(transparent)]
    Broker(#[from] Error),
    #[error(transparent)]
    Store(#[from] store::Error),
}

/// What may end the patience with a message.
#[derive(Clone)]
struct CancelConditions {
    stop: watch::Receiver<bool>,
    /// Channels that were lost so far.
    losses: watch::Receiver<u64>,
    /// How many channels had been lost when the message arrived.
    lost: u64,
}

impl CancelConditions {
    fn is_lost(&self) -> bool {
        *self.losses.borrow() != self.lost
    }

    /// Waits; whether it is over with the message here.
    async fn pause(&mut self, pause: Duration) -> bool {
        let lost = self.lost;
        tokio::select! {
            biased;
            _ = self.stop.wait_for(|stop| *stop) => true,
            _ = self.losses.wait_for(|losses| *losses != lost) => true,
            () = sleep(pause) => false,
        }
    }

    /// Resolves when a try that is still under way is of no use any more: its message comes again, or is to be given back. An alarm of the
    /// broker's holds tries up for hours; each would add a copy at its end.
    async fn cancelled(&self, since: Instant) {
        let (mut stop, mut losses, lost) = (self.stop.clone(), self.losses.clone(), self.lost);
        let again = async {
            let _ = losses.wait_for(|losses| *losses != lost).await;
            sleep(ON_ITS_WAY).await;
        };
        let ends = async {
            let _ = stop.wait_for(|stop| *stop).await;
            sleep(FAREWELL).await;
        };
        tokio::select! {
            () = again => {}
            () = ends => {}
            () = sleep_until(since + LONGEST_KEPT) => {}
        }
    }

    /// What a try comes to; nothing where it is [in vain](Self::cancelled) first. `since` is when the message was taken.
    async fn unless_cancelled<T>(
        &self,
        since: Instant,
        tried: impl Future<Output = T>,
    ) -> Option<T> {
        tokio::select! {
            biased;
            done = tried => Some(done),
            () = self.cancelled(since) => None,
        }
    }
}

impl DelayedDispatcher {
    pub(crate) fn new(
        client: &Client,
        sections: watch::Receiver<DelayedSections>,
        metrics: &Arc<Metrics>,
        parked_reporter: ParkedReporter,
        health: &Health,
        prefetch: u16,
    ) -> Self {
        Self {
            client: client.clone(),
            sections,
            metrics: Arc::clone(metrics),
            parked_reporter,
            health: health.clone(),
            prefetch,
            retrier_cache: RetrierCache::new(client.clone()),
            exchange_limiter: Arc::new(ExchangeLimiter::new(prefetch)),
            store_handle: None,
        }
    }

    /// What is delayed waits there, and not in waiting queues.
    pub(crate) fn store_handle(mut self, store_handle: Option<StoreHandle>) -> Self {
        self.store_handle = store_handle;
        self
    }

    /// Runs until `stop` says so, and lets what is on its way come to its end.
    pub(crate) async fn run(self: Arc<Self>, mut stop: watch::Receiver<bool>) {
        let mut sections = self.sections.clone();
        sections.mark_unchanged();
        let wanted = sections.wait_for(|sections| !sections.is_empty());
        tokio::select! {
            _ = stop.wait_for(|stop| *stop) => return,
            _ = wanted => {}
            () = self.is_left_alone() => {
                info!("the policy has no section [delayed] any more: what waits for one is parked when it is due");
            }
        }
        let (lost, losses) = watch::channel(0u64);
        let subscription = tokio::select! {
            _ = stop.wait_for(|stop| *stop) => return,
            subscription = self.begin(&lost) => Arc::new(subscription),
        };
        info!("messages with a delay are kept until they are due");
        let mut on_their_way = JoinSet::new();
        let mut looks = interval(LOOK);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        looks.reset();
        loop {
            // What it borrows must not be held while the look goes on.
            let stopped = async {
                let _ = stop.wait_for(|stop| *stop).await;
            };
            let more = tokio::select! {
                biased;
                () = stopped => break,
                Some(_) = on_their_way.join_next() => continue,
                _ = looks.tick() => {
                    self.declare_exchanges().await;
                    continue;
                }
                Ok(()) = sections.changed() => {
                    self.declare_exchanges().await;
                    continue;
                }
                more = subscription.ready() => more,
            };
            if !more {
                break; // the client was closed
            }
            // Before they are taken: one that is lost meanwhile comes again.
            let bounds = CancelConditions {
                stop: stop.clone(),
                losses: losses.clone(),
                lost: *losses.borrow(),
            };
            for delivery in subscription.try_next_batch(BATCH) {
                let (dispatcher, subscription) = (Arc::clone(&self), Arc::clone(&subscription));
                let bounds = bounds.clone();
                on_their_way.spawn(async move {
                    if let Some(parked) = dispatcher.refuse(&delivery.message).await {
                        return subscription.settle([(delivery.token, parked)]);
                    }
                    match dispatcher.handle(&delivery.message, bounds).await {
                        Disposition::Done => subscription.settle([(delivery.token, Outcome::Ack)]),
                        Disposition::Returned => subscription.give_back([delivery.token]),
                    }
                });
            }
        }
        subscription.close();
        while on_their_way.join_next().await.is_some() {}
        if let Err(error) = subscription.wait_closed().await {
            error!(%error, "what keeps messages with a delay has ended");
        }
    }

    /// Returns when nobody reads the queue of an earlier section, that is in two looks in a row: whoever reads it may be starting anew. A queue that
    /// is not there at the beginning is not looked for again, because a broker logs each such look as an error.
    async fn is_left_alone(&self) {
        let mut looks_alone = 0;
        while looks_alone < 2 {
            let totals = self.client.queue_totals([DELAYED_QUEUE]).await;
            looks_alone = match totals.map(|mut totals| totals.pop()) {
                Ok(Some(Ok(Some(totals)))) if totals.consumers == 0 => looks_alone + 1,
                Ok(Some(Ok(None))) => return std::future::pending().await,
                // Nothing of it is this user's.
                Ok(Some(Err(why))) if why.is_permanent() => return std::future::pending().await,
                _ => 0,
            };
            sleep(LOOK).await;
        }
    }

    /// Declares and consumes, trying again until it succeeds. What waits is due whatever becomes of the exchanges.
    async fn begin(&self, lost: &watch::Sender<u64>) -> Subscription {
        let mut pause = PAUSE;
        loop {
            let subscribed = async {
                self.client
                    .apply_plan(&plan(&DelayedSections::new()))
                    .await?;
                let lost = lost.clone();
                let consumer = self
                    .client
                    .consumer(DELAYED_QUEUE)
                    .dlx(false)
                    .prefetch(self.prefetch);
                // A copy would come by another exchange.
                let consumer = consumer
                    .requeue_unchanged(true)
                    .create_unreadable_queue(true)
                    .wait(false);
                let consumer = consumer.on_event(move |event| {
                    if let Event::Disconnected { .. } = event {
                        lost.send_modify(|lost| *lost += 1);
                    }
                });
                consumer.subscribe().await
            };
            match subscribed.await {
                Ok(subscription) => {
                    self.declare_exchanges().await;
                    return subscription;
                }
                Err(error) => self.troubled(&error),
            }
            sleep(pause.next_pause()).await;
        }
    }

    async fn declare_exchanges(&self) {
        let sections = self.sections.borrow().clone();
        let Err(error) = self.client.apply_plan(&plan(&sections)).await else {
            self.health.ended(NAME, None);
            return;
        };
        // An exchange that is there as another type is in nobody else's way.
        if !error.is_transient() {
            for (name, section) in &sections {
                let one: DelayedSections = [(name.clone(), section.clone())].into();
                let _ = self.client.apply_plan(&plan(&one)).await; // the first error is told
            }
        }
        self.troubled(&error);
    }

    fn troubled(&self, error: &Error) {
        warn!(%error, "the exchanges of [delayed] cannot be served; it is tried again");
        let why = format!("{NAME} are not all taken: {error}");
        self.health.ended(NAME, Some(why));
    }

    /// The end of a message that could not be read as it is; nothing for any other. A copy would be another message, for other queues: so it is
    /// rejected, and its queue dead-letters it to the parking queue byte for byte.
    async fn refuse(&self, message: &Message) -> Option<Outcome> {
        let mended = message.mended()?;
        let why = format!(
            "it cannot be published as it is ({mended}); let its publisher write names in UTF-8 and flatter headers, and send it again"
        );
        let outcome = Outcome::Park {
            reason: ParkReason::Undecodable,
            failure: Failure::new(why).of_type("NotDelayed"),
        };
        let failed = FailedMessage::of_queue(message, DELAYED_QUEUE);
        if let Ok(retrier) = self.retrier_cache.of(DELAYED_QUEUE)
            && let Some(decision) = retrier.decide(&failed, &outcome)
        {
            self.parked_reporter.report(&failed, &decision).await;
        }
        self.metrics.delayed("parked");
        Some(outcome)
    }

    /// Returns when the message is published, waits or is parked, or when it is to go back.
    async fn handle(&self, message: &Message, mut bounds: CancelConditions) -> Disposition {
        let own = match message.delivery_exchange() {
            "" => message.properties().clone(),
            _ => as_published(message.properties()),
        };
        let arrival = DelayedMessage {
            through: message.delivery_exchange(),
            exchange: message.exchange(),
            routing_key: match message.delivery_exchange() {
                "" => message.routing_key(),
                _ => message.delivery_routing_key(),
            },
            properties: &own,
        };
        let mut what = order(&arrival, &self.sections.borrow(), now());
        let (since, mut schedule, mut kept) = (Instant::now(), RetrySchedule::default(), None);
        loop {
            if bounds.is_lost() {
                return Disposition::Returned;
            }
            let done = match &what {
                NextAction::Publish(out) => match self
                    .exchange_limiter
                    .enter(&limited_by(out), Instant::now())
                {
                    AdmitResult::Open(permit) => {
                        let done = bounds.unless_cancelled(since, self.publish(out, message));
                        let done = done.await;
                        if let Some(Ok(())) = done {
                            permit.arrived(Instant::now());
                        }
                        done
                    }
                    AdmitResult::Busy => {
                        if bounds.pause(BUSY).await || since.elapsed() > LONGEST_KEPT {
                            return Disposition::Returned;
                        }
                        continue;
                    }
                    AdmitResult::Stuck => {
                        what = put_off(out);
                        continue;
                    }
                },
                NextAction::Park(stamp, why) => {
                    let parked = self.park(stamp, why, &own, message);
                    bounds.unless_cancelled(since, parked).await
                }
                NextAction::Wait(out, _) => {
                    let rest = rest(&out.stamp);
                    if rest.is_zero() {
                        what = NextAction::Publish(out.clone());
                        continue;
                    }
                    if self.store_handle.is_none() && next_delay_step(rest).is_none() {
                        if bounds.pause(rest).await {
                            return Disposition::Returned;
                        }
                        continue;
                    }
                    let waits = self.wait(out, rest, (&own, message), &mut kept);
                    match bounds.unless_cancelled(since, waits).await {
                        Some(Err(DispatchError::Store(store::Error::Unkeepable(why)))) => {
                            what = NextAction::Park(
                                out.stamp.clone(),
                                format!("it cannot wait: {why}"),
                            );
                            continue;
                        }
                        // What is wrong with it is wrong at every try: it would keep its place among those on their way for good.
                        Some(Err(DispatchError::Broker(error))) if is_its_own(error.kind()) => {
                            let why = format!("it cannot wait: {error}");
                            what = NextAction::Park(out.stamp.clone(), why);
                            continue;
                        }
                        done => done,
                    }
                }
            };
            let Some(done) = done else {
                return Disposition::Returned;
            };
            let Err(fault) = done else {
                self.metrics.delayed(match what {
                    NextAction::Publish(_) => "published",
                    NextAction::Wait(..) => "waits",
                    NextAction::Park(..) => "parked",
                });
                return Disposition::Done;
            };
            warn!(
                message_id = message.message_id(),
                error = %fault,
                "a message with a delay could not be passed on; it is kept, and tried again"
            );
            let cause = match &fault {
                DispatchError::Broker(error) => {
                    FailureCause::of(error.kind(), error.is_permanent())
                }
                DispatchError::Store(_) => FailureCause::AllAway,
            };
            let advice = schedule.after(cause, CALM);
            if let (NextAction::Publish(out), DispatchError::Broker(error)) = (&what, &fault) {
                if needs_operator(error) {
                    let why = format!(
                        "it was due, and cannot be published to {} with the routing key {}: {error}; once that is mended, replay it",
                        exchange(&out.to),
                        terminal_escape::line(&out.stamp.key)
                    );
                    what = NextAction::Park(out.stamp.clone(), why);
                    schedule = RetrySchedule::default();
                    continue;
                }
                if advice.takes_place {
                    what = put_off(out);
                    schedule = RetrySchedule::default();
                    continue;
                }
            }
            if bounds.pause(advice.pause).await || since.elapsed() > LONGEST_KEPT {
                return Disposition::Returned;
            }
        }
    }

    /// To the real exchange.
    async fn publish(&self, out: &OutgoingMessage, message: &Message) -> Result<(), DispatchError> {
        let outgoing = Publish::to_exchange(&out.to, &out.stamp.key, message.body())
            .properties(out.properties.clone());
        Ok(self.client.publish(outgoing).await?)
    }

    async fn wait(
        &self,
        out: &OutgoingMessage,
        rest: Duration,
        (own, message): (&BasicProperties, &Message),
        kept: &mut Option<StoredMessage>,
    ) -> Result<(), DispatchError> {
        if let Some(store_handle) = &self.store_handle {
            // The same at each try, so that it is stored once.
            let kept = match kept {
                Some(kept) => kept,
                None => kept.insert(StoredMessage::new(draft(out, rest, message))?),
            };
            return Ok(store_handle.keep(kept).await?);
        }
        let Some(step) = next_delay_step(rest) else {
            return Ok(());
        };
        let copy = Publish::to_queue(DELAYED_QUEUE, message.body())
            .properties(out.stamp.put_on(own))
            .delay(step);
        Ok(self.client.publish(copy).await?)
    }

    async fn park(
        &self,
        stamp: &DelayHeaders,
        why: &str,
        own: &BasicProperties,
        message: &Message,
    ) -> Result<(), DispatchError> {
        let failed = FailedMessage::new(
            DELAYED_QUEUE,
            &stamp.from,
            &stamp.key,
            plain(own),
            message.body().to_vec(),
        )?;
        let outcome = Outcome::fatal(Failure::new(why).of_type("NotDelayed"));
        let retrier = self.retrier_cache.of(DELAYED_QUEUE)?;
        if let Some(decision) = retrier.after(&failed, &outcome).await? {
            self.parked_reporter.report(&failed, &decision).await;
        }
        Ok(())
    }
}

/// The dispatcher has no work queues whose trouble would be told from a restart: what is not taken waits.
const CALM: RetryContext = RetryContext {
    calm_for: Duration::ZERO,
    troubled_for: Duration::ZERO,
};

/// What a message waits for the answer of: its exchange, or its queue where that is the default one. Both may have one name.
fn limited_by(out: &OutgoingMessage) -> String {
    match out.to.as_str() {
        "" => format!("queue {}", out.stamp.key),
        exchange => format!("exchange {exchange}"),
    }
}

/// It waits a little more, rather than stand in the way of others.
fn put_off(out: &OutgoingMessage) -> NextAction {
    let mut later = out.clone();
    later.stamp.until = now().saturating_add(AGAIN.as_millis() as u64);
    NextAction::Wait(later, AGAIN)
}

/// Whether the exchange would refuse it again until somebody acts.
fn needs_operator(error: &Error) -> bool {
    error.is_permanent() || error.kind() == ErrorKind::Unroutable || is_its_own(error.kind())
}

/// Whether the message itself is what cannot be published, wherever it goes.
fn is_its_own(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::TooLarge | ErrorKind::InvalidOption)
}

fn exchange(name: &str) -> String {
    match name {
        "" => "the default exchange".to_owned(),
        name => format!("the exchange {}", terminal_escape::line(name)),
    }
}

fn draft(out: &OutgoingMessage, rest: Duration, message: &Message) -> MessageDraft {
    MessageDraft {
        exchange: out.to.clone(),
        routing_key: out.stamp.key.clone(),
        delay: rest,
        properties: out.properties.clone(),
        body: message.body().to_vec(),
        // Where it came from; what has failed has no record.
        record: out.stamp.from.clone().into_bytes(),
        redelivered: message.redelivered(),
        named_by: Some(original(message.properties())),
    }
}

/// What is left of a wait.
fn rest(stamp: &DelayHeaders) -> Duration {
    Duration::from_millis(stamp.until.saturating_sub(now()))
}

/// Milliseconds since 1970.
fn now() -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    now.map_or(0, |now| u64::try_from(now.as_millis()).unwrap_or(u64::MAX))
}
