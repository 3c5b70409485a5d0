//! Sees one message after the other out of the intake.

use std::{future, sync::Arc, time::Duration};

use retryrmq::{
    Client, Decision, Error, Event, FailedMessage, Failure, Handover, Message, Outcome, ParkReason,
    Retrier, XDeath, terminal_escape,
};
use tokio::{sync::watch, time::Instant};
use tracing::{debug, info, warn};

use super::{
    classify::{Classified, classify, taken_over},
    parked_event::{ParkedReporter, message_id, retry, traceparent},
    per_queue_limit::{HeldPermit, PerQueueLimit},
    retry_schedule::{FailureCause, RetryContext, RetrySchedule},
    store_tasks::{StoreHandle, draft},
};
use crate::{
    Action, EventBus, Metrics, PolicyRules, Reason, ServiceEvent,
    queue_names::{HANDOVER_QUEUE, INTAKE_QUEUE},
    retrier_cache::RetrierCache,
    store::{self, StoredMessage},
};

/// Before a message that could not even be parked is given back.
const PAUSE: Duration = Duration::from_secs(5);
/// RabbitMQ's patience with a delivery that is not settled ends after 30 minutes (`consumer_timeout`), and costs the whole channel. Given
/// back before, the message comes again.
const LONGEST_KEPT: Duration = Duration::from_secs(600);

/// How long to wait, after a channel is lost, for confirms that are on their way: they may belong to another channel.
pub(crate) const ON_ITS_WAY: Duration = Duration::from_secs(5);
/// How long the end of the service waits for what is under way.
pub(crate) const FAREWELL: Duration = Duration::from_secs(20);

/// What the caller does with the delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Disposition {
    /// Its copy is stored, or it is to be dropped: acknowledge it.
    Done,
    /// Give it back: it comes again, here or at another service.
    Returned,
}

/// What ends the patience with a message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ChannelState {
    /// The service ends.
    pub(crate) ends: bool,
    /// Channels of the intake that were lost so far: what came on one comes again on the next, and must not be stored twice.
    pub(crate) losses: u64,
    /// When the last of them was lost.
    pub(crate) lost: Option<Instant>,
}

impl ChannelState {
    /// A channel of the intake was lost.
    pub(crate) fn lose(&mut self) {
        self.losses += 1;
        self.lost = Some(Instant::now());
    }
}

/// The dead-letter handler, shared by all messages in flight.
#[derive(Debug)]
pub(crate) struct DeadLetterHandler {
    retrier_cache: RetrierCache,
    rules: watch::Receiver<PolicyRules>,
    metrics: Arc<Metrics>,
    event_bus: EventBus,
    parked_reporter: ParkedReporter,
    per_queue_limit: Arc<PerQueueLimit>,
    channel_state: watch::Receiver<ChannelState>,
    /// Where messages wait; in waiting queues without it.
    store_handle: Option<StoreHandle>,
}

/// A message that is to be stored.
struct PendingStore {
    retrier: Retrier,
    failed: FailedMessage,
    next: NextAction,
    /// Why it died, for logs and metrics.
    reason: String,
    /// The broker may have delivered it before.
    redelivered: bool,
    /// How many channels had been lost when the message arrived. After the next loss it is delivered again.
    losses: u64,
    /// Its queue is what its headers say, which may be any name.
    is_handed_over: bool,
}

/// What is to become of a message.
enum NextAction {
    /// What follows from an attempt that ended so.
    After(Outcome),
    /// It never ran, and comes back soon.
    Detour,
}

/// A message that is to wait in a store: the same at each try, so that it is stored once.
struct StoredDraft {
    kept: StoredMessage,
    decision: Decision,
}

/// Why a copy was not stored.
#[derive(Debug, thiserror::Error)]
enum StoreError {
    #[error(transparent)]
    Broker(#[from] Error),
    #[error(transparent)]
    Store(#[from] store::Error),
    #[error("the queue that it was handed over for does not exist")]
    Gone,
}

impl StoreError {
    fn cause(&self) -> FailureCause {
        match self {
            Self::Broker(error) => FailureCause::of(error.kind(), error.is_permanent()),
            // All that waits goes there.
            Self::Store(_) => FailureCause::AllAway,
            Self::Gone => FailureCause::Lasting,
        }
    }
}

/// How a message was stored, or why it was not.
enum StoreOutcome {
    There(Box<Decision>),
    /// Others of its queue are held already, and it is not worth another place.
    NoRoom(Error),
    /// It was handed over for a queue that does not exist: none is made for a name that anybody may write.
    Gone,
    /// It was kept for long enough, or the service ends.
    Kept,
}

impl DeadLetterHandler {
    pub(crate) fn new(
        client: Client,
        rules: watch::Receiver<PolicyRules>,
        metrics: Arc<Metrics>,
        event_bus: EventBus,
        parked_reporter: ParkedReporter,
        prefetch: u16,
        channel_state: watch::Receiver<ChannelState>,
    ) -> Self {
        Self {
            retrier_cache: RetrierCache::new(client),
            rules,
            metrics,
            event_bus,
            parked_reporter,
            per_queue_limit: Arc::new(PerQueueLimit::new(prefetch)),
            channel_state,
            store_handle: None,
        }
    }

    /// What comes back waits there, and not in waiting queues.
    pub(crate) fn store_handle(mut self, store_handle: Option<StoreHandle>) -> Self {
        self.store_handle = store_handle;
        self
    }

    /// Sees a message out: returns when its copy is confirmed, or when it is to go back. `losses` are those of the [`ChannelState`] before it was taken
    /// out of the subscription.
    pub(crate) async fn handle(&self, message: &Message, losses: u64) -> Disposition {
        if message.queue() == HANDOVER_QUEUE {
            return self.take_over(message, losses).await;
        }
        let death = match classify(message.delivery_exchange(), message.headers()) {
            Classified::Dead(death) => death,
            Classified::LetGo(death) => return self.release_for_alerts(&death),
            Classified::Unroutable(why) => {
                return self.park_unroutable(message, &why, losses).await;
            }
        };
        let made = FailedMessage::dead_letter(message, &death)
            .and_then(|failed| Ok((self.retrier_cache.of(&death.queue)?, failed)));
        let (retrier, failed) = match made {
            Ok(made) => made,
            Err(error) => {
                let queue = terminal_escape::line(&death.queue);
                let why =
                    format!("it died in {queue}, and cannot wait or be parked for it: {error}");
                return self.park_unroutable(message, &why, losses).await;
            }
        };
        for (header, why) in failed.distrusted() {
            warn!(queue = %terminal_escape::line(&death.queue), header, why, "a header is not believed and counts as absent");
        }
        let reason = Reason::parse(&death.reason);
        let action = self.rules.borrow().action(
            failed.queue(),
            failed.routing_key(),
            failed.properties().headers().as_ref(),
            reason,
            &Failure::default(),
        );
        let failure = failure(&death.queue, reason, &death.reason);
        let (retrier, outcome) = match action {
            Action::Drop => return self.drop(&failed, &death.reason),
            Action::Retry(policy) => (retrier.retry(policy), Outcome::retry(failure)),
            Action::Park => {
                let reason = ParkReason::parse(&death.reason).unwrap_or(ParkReason::Requested);
                (retrier, Outcome::Park { reason, failure })
            }
        };
        let case = PendingStore {
            retrier,
            failed,
            next: NextAction::After(outcome),
            reason: death.reason,
            redelivered: message.redelivered(),
            losses,
            is_handed_over: false,
        };
        self.settle(&case, message).await
    }

    /// Sees out what a client handed over.
    async fn take_over(&self, message: &Message, losses: u64) -> Disposition {
        let (failed, handover) = match taken_over(message) {
            Ok(taken) => taken,
            Err(why) => {
                return self
                    .park_unroutable(message, &terminal_escape::line(&why), losses)
                    .await;
            }
        };
        let retrier = match self.retrier_cache.of(failed.queue()) {
            Ok(retrier) => retrier,
            Err(error) => {
                let why = format!("it was handed over, and cannot wait or be parked: {error}");
                return self
                    .park_unroutable(message, &terminal_escape::line(&why), losses)
                    .await;
            }
        };
        let failure = failed.failure();
        // What was put off, or never ran, has no error; one of before may stand on it.
        let none = Failure::default();
        let asked_about = match handover {
            Handover::Retry { .. } | Handover::Park(_) => &failure,
            _ => &none,
        };
        let action = self.rules.borrow().action(
            failed.queue(),
            failed.routing_key(),
            failed.properties().headers().as_ref(),
            Some(Reason::Failed),
            asked_about,
        );
        // What the handler itself decides is no failure for the policy, which only says how old a message may become.
        let next = match (handover, &action) {
            (Handover::Retry { .. }, Action::Drop) => return self.drop(&failed, Reason::FAILED),
            (Handover::Retry { .. }, Action::Park) => {
                let reason = ParkReason::Exhausted; // of no retries
                NextAction::After(Outcome::Park { reason, failure })
            }
            _ => handover
                .outcome(failure)
                .map_or(NextAction::Detour, NextAction::After),
        };
        let case = PendingStore {
            retrier: match action {
                Action::Retry(policy) => retrier.retry(policy),
                Action::Park | Action::Drop => retrier,
            },
            failed,
            next,
            reason: Reason::FAILED.to_owned(),
            redelivered: message.redelivered(),
            losses,
            is_handed_over: true,
        };
        self.settle(&case, message).await
    }

    /// Parked, it would be told; and what is told makes the queues of the alerts let go of the next.
    fn release_for_alerts(&self, death: &XDeath) -> Disposition {
        self.metrics.dropped(&death.queue, &death.reason);
        debug!(
            queue = death.queue,
            reason = %terminal_escape::line(&death.reason),
            "dropped: a queue of the alerts lets go of what is old, and a policy dead-letters that"
        );
        Disposition::Done
    }

    fn drop(&self, failed: &FailedMessage, reason: &str) -> Disposition {
        self.metrics.dropped(failed.queue(), reason);
        info!(
            queue = %terminal_escape::line(failed.queue()),
            message_id = message_id(failed),
            reason = %terminal_escape::line(reason),
            "dropped, because the policy says so"
        );
        self.event_bus.publish(|| ServiceEvent::Dropped {
            queue: failed.queue().to_owned(),
            message_id: message_id(failed),
            reason: reason.to_owned(),
            traceparent: traceparent(failed),
        });
        Disposition::Done
    }

    async fn settle(&self, case: &PendingStore, message: &Message) -> Disposition {
        match self.store(case).await {
            StoreOutcome::There(decision) => self.report_decision(case, &decision).await,
            StoreOutcome::Kept => return Disposition::Returned,
            StoreOutcome::NoRoom(error) => return self.overflow(case, message, &error).await,
            StoreOutcome::Gone => {
                let queue = terminal_escape::line(case.failed.queue());
                let why = format!(
                    "it failed in {queue}, and that queue does not exist any more: declare it, and replay this with \
                     `retryrmq parked replay {INTAKE_QUEUE} MESSAGE --to {queue}`, where `retryrmq parked ls {INTAKE_QUEUE}` shows MESSAGE"
                );
                return self.park_unroutable(message, &why, case.losses).await;
            }
        }
        Disposition::Done
    }

    /// Parks what belongs to no work queue.
    async fn park_unroutable(&self, message: &Message, why: &str, losses: u64) -> Disposition {
        let disposition = self.park_here(message, why, "Stray", losses).await;
        if disposition == Disposition::Done {
            self.metrics.unroutable();
        }
        disposition
    }

    /// Parks for the intake what its own queue does not take while too many of that are held already.
    async fn overflow(&self, case: &PendingStore, message: &Message, error: &Error) -> Disposition {
        let queue = terminal_escape::line(case.failed.queue()).into_owned();
        let why = format!(
            "it died in {queue} ({}), and neither waits nor is parked for it, because {error}; once that is mended, replay it: \
             `retryrmq parked replay {INTAKE_QUEUE} MESSAGE --to {queue}`, where `retryrmq parked ls {INTAKE_QUEUE}` shows MESSAGE",
            terminal_escape::line(&case.reason)
        );
        let disposition = self
            .park_here(message, &why, "NotStored", case.losses)
            .await;
        if disposition == Disposition::Done {
            self.metrics.overflowed(case.failed.queue());
        }
        disposition
    }

    async fn park_here(
        &self,
        message: &Message,
        why: &str,
        kind: &str,
        losses: u64,
    ) -> Disposition {
        let retrier = match self.retrier_cache.of(INTAKE_QUEUE) {
            Ok(retrier) => retrier,
            Err(error) => {
                warn!(%error, "a message cannot be parked for the intake, and is given back to it");
                self.pause(PAUSE, losses).await;
                return Disposition::Returned;
            }
        };
        let case = PendingStore {
            retrier,
            // Also of what was handed over: that is where people find it.
            failed: FailedMessage::of_queue(message, INTAKE_QUEUE),
            next: NextAction::After(Outcome::fatal(Failure::new(why).of_type(kind))),
            reason: kind.to_owned(),
            redelivered: message.redelivered(),
            losses,
            is_handed_over: false,
        };
        match self.store(&case).await {
            StoreOutcome::There(decision) => {
                self.report_decision(&case, &decision).await;
                Disposition::Done
            }
            StoreOutcome::Kept | StoreOutcome::NoRoom(_) | StoreOutcome::Gone => {
                Disposition::Returned
            }
        }
    }

    /// Stores the copy of a message, trying again with pauses that grow.
    async fn store(&self, case: &PendingStore) -> StoreOutcome {
        let since = Instant::now();
        let queue = case.failed.queue();
        let (mut schedule, mut place, mut waiting) = (RetrySchedule::default(), None, None);
        loop {
            if self.channel_state.borrow().losses != case.losses {
                return StoreOutcome::Kept;
            }
            let tried = tokio::select! {
                biased;
                tried = self.try_to_store(case, &mut waiting) => tried,
                () = self.cancelled(case.losses, since) => return StoreOutcome::Kept,
            };
            let fault = match tried {
                Ok(Some(decision)) => {
                    self.per_queue_limit.note_stored(queue);
                    return StoreOutcome::There(Box::new(decision));
                }
                // Only an acknowledgement decides nothing, and there is none here.
                Ok(None) => return StoreOutcome::Kept,
                Err(StoreError::Gone) => return StoreOutcome::Gone,
                Err(fault) => fault,
            };
            self.metrics.failed(queue);
            warn!(
                queue = %terminal_escape::line(queue),
                message_id = message_id(&case.failed),
                error = %fault,
                "a copy could not be stored; its original is kept, and it is tried again"
            );
            let now = Instant::now();
            let context = RetryContext {
                calm_for: (self.channel_state.borrow().lost)
                    .map_or(Duration::MAX, |lost| now.saturating_duration_since(lost)),
                troubled_for: self.per_queue_limit.note_failed(queue, now),
            };
            let advice = schedule.after(fault.cause(), context);
            if advice.takes_place && place.is_none() {
                place = self.place(queue);
                // What has no other place than the intake's own parking queue stays until that takes it.
                if place.is_none()
                    && advice.may_leave
                    && queue != INTAKE_QUEUE
                    && let StoreError::Broker(error) = fault
                {
                    return StoreOutcome::NoRoom(error);
                }
            }
            if self.pause(advice.pause, case.losses).await || since.elapsed() > LONGEST_KEPT {
                return StoreOutcome::Kept;
            }
        }
    }

    fn place(&self, queue: &str) -> Option<HeldSlot> {
        let hold = self.per_queue_limit.take(queue)?;
        let gauge = self.metrics.held(queue);
        gauge.inc();
        Some(HeldSlot { gauge, _hold: hold })
    }

    /// `None` where nothing is to be stored.
    async fn try_to_store(
        &self,
        case: &PendingStore,
        waiting: &mut Option<StoredDraft>,
    ) -> Result<Option<Decision>, StoreError> {
        if let (Some(store_handle), Some(waiting)) = (&self.store_handle, &*waiting) {
            store_handle.keep(&waiting.kept).await?;
            return Ok(Some(waiting.decision.clone()));
        }
        if case.is_handed_over && !case.retrier.exists().await? {
            return Err(StoreError::Gone);
        }
        // Nobody would take what comes back, and where it waits nobody would look.
        let gone;
        let outcome = match &case.next {
            NextAction::After(Outcome::Retry { failure, .. }) if !case.retrier.exists().await? => {
                let error = format!(
                    "{}; and that queue does not exist any more: declare it, and replay this",
                    failure.error
                );
                gone = Outcome::fatal(Failure::new(error).of_type(failure.error_type.clone()));
                Some(&gone)
            }
            NextAction::After(outcome) => Some(outcome),
            NextAction::Detour => None,
        };
        let decision = match outcome {
            Some(outcome) => case.retrier.decide(&case.failed, outcome),
            None => case.retrier.detour(&case.failed),
        };
        let Some(decision) = decision else {
            return Ok(None);
        };
        if let (Some(store_handle), Some(draft)) = (
            &self.store_handle,
            draft(&case.failed, &decision, case.redelivered),
        ) {
            let kept = match StoredMessage::new(draft) {
                Ok(kept) => kept,
                Err(why) => {
                    let failure = Failure::new(format!("it cannot wait: {why}"));
                    let outcome = Outcome::fatal(failure.of_type("NotKept"));
                    return Ok(case.retrier.after(&case.failed, &outcome).await?);
                }
            };
            store_handle
                .keep(&waiting.insert(StoredDraft { kept, decision }).kept)
                .await?;
            return Ok(waiting.take().map(|waiting| waiting.decision));
        }
        case.retrier.store(&case.failed, &decision).await?;
        Ok(Some(decision))
    }

    /// Waits; whether it is over with the message here, because the service ends or its channel was lost since there were so many losses.
    async fn pause(&self, pause: Duration, losses: u64) -> bool {
        let mut channel_state = self.channel_state.clone();
        tokio::select! {
            biased;
            _ = channel_state.wait_for(|channel_state| channel_state.ends || channel_state.losses != losses) => true,
            () = tokio::time::sleep(pause) => false,
        }
    }

    /// Resolves when a try that is still under way is of no use any more: its message comes again, because its channel was lost since there
    /// were so many losses, or is to be given back, as at the end of the service. An alarm of the broker's holds tries up for hours; each would add
    /// a copy at its end.
    async fn cancelled(&self, losses: u64, since: Instant) {
        let (mut channel_state, mut last) =
            (self.channel_state.clone(), self.channel_state.clone());
        let lost = async {
            if channel_state
                .wait_for(|channel_state| channel_state.losses != losses)
                .await
                .is_err()
            {
                future::pending::<()>().await;
            }
            tokio::time::sleep(ON_ITS_WAY).await;
        };
        let ends = async {
            if last
                .wait_for(|channel_state| channel_state.ends)
                .await
                .is_err()
            {
                future::pending::<()>().await;
            }
            tokio::time::sleep(FAREWELL).await;
        };
        tokio::select! {
            () = lost => {}
            () = ends => {}
            () = tokio::time::sleep_until(since + LONGEST_KEPT) => {}
        }
    }

    async fn report_decision(&self, case: &PendingStore, decision: &Decision) {
        let (queue, reason) = (case.failed.queue(), &case.reason);
        match &decision.event {
            Event::Retried { delay, attempt, .. } => {
                self.metrics.retried(queue, reason);
                info!(
                    queue = %terminal_escape::line(queue),
                    message_id = message_id(&case.failed),
                    attempt,
                    reason = %terminal_escape::line(reason),
                    delay = %retryrmq::format_duration(*delay),
                    "an attempt failed; it comes back"
                );
                let in_store = self.store_handle.is_some() && decision.delay.is_some();
                self.event_bus.publish(|| {
                    let event = retry(&case.failed, decision, reason, *attempt, *delay, in_store);
                    ServiceEvent::Retried(Box::new(event))
                });
            }
            Event::Parked {
                reason,
                error,
                attempt,
                ..
            } => {
                self.metrics.parked(queue, reason.as_str());
                warn!(
                    queue = %terminal_escape::line(queue),
                    message_id = message_id(&case.failed),
                    attempt,
                    reason = reason.as_str(),
                    error = %terminal_escape::line(error),
                    "parked"
                );
                self.parked_reporter
                    .publish(&case.failed, decision, *reason)
                    .await;
            }
            other => debug!(event = other.name(), "done"),
        }
    }
}

/// A place among those that are held, and its number in the metrics.
struct HeldSlot {
    gauge: prometheus_client::metrics::gauge::Gauge,
    _hold: HeldPermit,
}

impl Drop for HeldSlot {
    fn drop(&mut self) {
        self.gauge.dec();
    }
}

/// Why it died, as its record tells it.
fn failure(queue: &str, reason: Option<Reason>, word: &str) -> Failure {
    let queue = terminal_escape::line(queue);
    let (error, kind) = match reason {
        Some(Reason::Rejected) => (format!("a consumer of {queue} rejected it"), "Rejected"),
        Some(Reason::Expired) => (format!("its time to live ran out in {queue}"), "Expired"),
        Some(Reason::Maxlen) => (format!("{queue} was full and pushed it out"), "QueueFull"),
        Some(Reason::DeliveryLimit) => (
            format!(
                "it came back to {queue} more often than that allows: its consumers went away, or put it back"
            ),
            "DeliveryLimit",
        ),
        // No queue says that it failed.
        Some(Reason::Failed) | None => (
            format!(
                "{queue} dead-lettered it for a reason that is not known here: {}",
                terminal_escape::line(word)
            ),
            "Unknown",
        ),
    };
    Failure::new(error).of_type(kind)
}
