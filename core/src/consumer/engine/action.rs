//! What follows from the end of an attempt, and from a message's past. A pure function of the message, the options and the time, for the
//! consumer and its simulation.

use std::{sync::Arc, time::Duration};

use super::{
    super::{Consumer, Received},
    command::{Copy, Return},
    delivery_state::{NextAction, PendingCopy, Purpose},
};
use crate::{
    BasicProperties, Strategy,
    mutants::{self, Mutant},
    retry::{
        Action, CopyHeaders, Failure, Handover, Origin, Outcome, ParkReason, decide, hand_over,
        headers,
    },
    telemetry::Event,
    topology::{self, Detour, HANDOVER_QUEUE, Route, Wait, parking_queue},
    types::{AMQPValue, ShortString},
};

/// How long a deferred message is held if there are no waiting queues: it occupies a place in the prefetch.
const LONGEST_HOLD: Duration = Duration::from_secs(60);

/// The most crashes that are written down. A message with so many is parked, and a count above a million would not be believed.
const MOST_CRASHES: u32 = 1_000;

/// A message, and everything that decides what happens to it.
pub(in crate::consumer) struct AttemptContext<'a> {
    pub(in crate::consumer) options: &'a Consumer,
    pub(in crate::consumer) origin: &'a Origin,
    pub(in crate::consumer) received: &'a Received,
    /// The most bytes that the headers and properties of a copy may take.
    pub(in crate::consumer) header_room: usize,
    /// Seconds since 1970.
    pub(in crate::consumer) now: u64,
    /// The work queue does not delay what is requeued, although the strategy has it do so: copies wait instead.
    pub(in crate::consumer) copies: bool,
}

impl AttemptContext<'_> {
    /// What follows from the end of an attempt. `draw` is any random number, for the jitter.
    pub(in crate::consumer) fn after(&self, outcome: &Outcome, draw: u64) -> NextAction {
        if *outcome == Outcome::Ack {
            return NextAction::Ack;
        }
        if !self.options.has_dlx() {
            self.rejected(outcome)
        } else if self.options.strategy.hands_over() {
            self.handed_over(outcome)
        } else {
            self.retried(outcome, draw)
        }
    }

    /// What a service must do with it.
    fn handed_over(&self, outcome: &Outcome) -> NextAction {
        let (state, is_mended) = (&self.received.state, self.received.mended.is_some());
        let Some((handover, failure)) = hand_over(state, outcome, &self.options.limits, is_mended)
        else {
            return NextAction::Ack;
        };
        let event = match handover {
            Handover::Park(reason) => return self.park(reason, &failure),
            Handover::Defer { delay } => self.deferred(delay),
            Handover::Retry { .. } | Handover::Detour => Event::HandedOver {
                queue: self.queue(),
                message_id: self.received.message_id(),
                attempt: state.attempt(),
                error: failure.written(),
                error_type: failure.written_type(),
            },
        };
        self.to_the_service(&handover, state.crashes, &failure, event, Purpose::Next)
    }

    fn to_the_service(
        &self,
        handover: &Handover,
        crashes: u32,
        failure: &Failure,
        event: Event,
        purpose: Purpose,
    ) -> NextAction {
        let queue = &self.options.queue;
        let copy = Copy {
            exchange: String::new(),
            routing_key: HANDOVER_QUEUE.to_owned(),
            properties: Arc::new(self.stamp().handed_over(queue, handover, crashes, failure)),
            mandatory: true,
        };
        pending_copy(copy, event, purpose)
    }

    fn retried(&self, outcome: &Outcome, draw: u64) -> NextAction {
        let (received, state) = (self.received, &self.received.state);
        let failure = failure_of(outcome);
        let policy = self.options.rules.policy(
            received.routing_key(),
            received.properties.headers().as_ref(),
            &failure,
        );
        let limits = &self.options.limits;
        let mut action = decide(state, outcome, policy, limits, self.now, draw);
        if received.mended.is_some() && matches!(action, Action::Retry { .. }) {
            action = Action::Park(ParkReason::Undecodable);
        }
        match action {
            Action::Ack => NextAction::Ack,
            Action::Retry {
                retry,
                delay,
                chosen,
            } => {
                let wait = if chosen {
                    Wait::DelayStep(delay)
                } else {
                    Wait::Policy(delay)
                };
                let event = Event::Retried {
                    queue: self.queue(),
                    message_id: received.message_id(),
                    attempt: state.attempt(),
                    delay,
                    error: failure.written(),
                    error_type: failure.written_type(),
                };
                self.wait(wait, event, |expiration| {
                    self.stamp().retry(retry, &failure, expiration)
                })
            }
            Action::Defer { deferral, delay } => {
                self.wait(Wait::DelayStep(delay), self.deferred(delay), |expiration| {
                    self.stamp().deferral(deferral, expiration)
                })
            }
            Action::Park(reason) => {
                let failure = match outcome {
                    Outcome::Defer { .. } if reason == ParkReason::TooOld => {
                        Failure::new("it was deferred until it was too old")
                    }
                    Outcome::Defer { .. } => self.deferred_too_often(),
                    _ => failure,
                };
                self.park(reason, &failure)
            }
        }
    }

    /// Without retries the queue's own dead-lettering decides. There are no waiting queues: a deferred message is held for a while, and
    /// then goes to the tail of its queue as a copy. A requeue would use up the broker's delivery limit.
    fn rejected(&self, outcome: &Outcome) -> NextAction {
        let state = &self.received.state;
        let failure = match outcome {
            Outcome::Defer { delay } => {
                if mutants::has(Mutant::PutsBackDeferred) {
                    return NextAction::Return(Return::Requeue, self.deferred(*delay));
                }
                let deferral = state.deferrals.saturating_add(1);
                if deferral <= self.options.limits.deferrals {
                    let pending_copy = self.to_its_own_queue(
                        self.stamp().deferral(deferral, None),
                        self.deferred(*delay),
                        Purpose::Deferral,
                    );
                    return NextAction::Later((*delay).min(LONGEST_HOLD), Box::new(pending_copy));
                }
                self.deferred_too_often()
            }
            _ => failure_of(outcome),
        };
        let event = Event::Rejected {
            queue: self.queue(),
            message_id: self.received.message_id(),
            error: failure.written(),
            error_type: failure.written_type(),
        };
        NextAction::Return(Return::Reject, event)
    }

    /// Parks the message, or drops it if `park` is off.
    pub(in crate::consumer) fn park(&self, reason: ParkReason, failure: &Failure) -> NextAction {
        let event = Event::Parked {
            queue: self.queue(),
            message_id: self.received.message_id(),
            attempt: self.received.state.attempt(),
            reason,
            error: failure.written(),
            error_type: failure.written_type(),
        };
        if !self.options.park {
            return NextAction::Drop(event);
        }
        if self.options.strategy.hands_over() {
            let crashes = self.received.state.crashes;
            let handover = Handover::Park(reason);
            return self.to_the_service(&handover, crashes, failure, event, Purpose::Next);
        }
        let copy = Copy {
            exchange: String::new(),
            routing_key: parking_queue(&self.options.queue),
            properties: Arc::new(self.stamp().parked(reason, failure)),
            mandatory: true,
        };
        pending_copy(copy, event, Purpose::Next)
    }

    /// Sends a message that never ran through a short wait, with this count of crashes.
    pub(in crate::consumer) fn detour(&self, crashes: u32, how: Detour) -> NextAction {
        let crashes = crashes.min(MOST_CRASHES);
        let event = Event::Detoured {
            queue: self.queue(),
            message_id: self.received.message_id(),
            crashes,
        };
        if self.options.strategy.hands_over() {
            let (handover, none) = (Handover::Detour, Failure::default());
            return self.to_the_service(&handover, crashes, &none, event, Purpose::Detour);
        }
        // Other strategies do not have a queue for each delay of the policy.
        let how = match self.options.strategy {
            Strategy::RetryQueues => how,
            _ => Detour::Shortest,
        };
        let delays = self.options.rules.otherwise.delays();
        match topology::detour(&self.options.queue, &delays, how) {
            Route::Copy {
                exchange,
                routing_key,
                expiration,
                mandatory,
                ..
            } => {
                let copy = Copy {
                    exchange,
                    routing_key,
                    properties: Arc::new(self.stamp().detour(crashes, expiration)),
                    mandatory,
                };
                pending_copy(copy, event, Purpose::Detour)
            }
            Route::DeadLetter | Route::Requeue => NextAction::Return(Return::Unstarted, event),
        }
    }

    /// Sends a message that its queue delivered too early to wait for the rest of its delay, before its next attempt.
    pub(super) fn send_to_remaining_wait(&self, left: Duration) -> NextAction {
        let crashes = self.received.state.crashes.min(MOST_CRASHES);
        let event = Event::Detoured {
            queue: self.queue(),
            message_id: self.received.message_id(),
            crashes,
        };
        let stamp = self.stamp();
        self.wait(Wait::DelayStep(left), event, |expiration| {
            stamp.detour(crashes, expiration)
        })
    }

    /// A copy to the tail of its own queue, with its crashes unchanged, for a message that never ran.
    pub(super) fn requeue_unstarted(&self) -> PendingCopy {
        let event = Event::Requeued {
            queue: self.queue(),
            message_id: self.received.message_id(),
        };
        let crashes = self.received.state.crashes.min(MOST_CRASHES);
        self.to_its_own_queue(self.stamp().detour(crashes, None), event, Purpose::PutBack)
    }

    fn to_its_own_queue(
        &self,
        properties: BasicProperties,
        event: Event,
        purpose: Purpose,
    ) -> PendingCopy {
        let copy = Copy {
            exchange: String::new(),
            routing_key: self.queue(),
            properties: Arc::new(properties),
            mandatory: true,
        };
        PendingCopy::new(copy, event, purpose)
    }

    /// Sends a message to its wait.
    fn wait(
        &self,
        wait: Wait,
        event: Event,
        stamped: impl FnOnce(Option<u64>) -> BasicProperties,
    ) -> NextAction {
        let queue = &self.options.queue;
        let route = self.options.strategy.scheme().route(queue, wait);
        let route = match (route, wait) {
            (Route::Requeue, Wait::Policy(delay)) if self.copies => {
                Route::delay_steps(queue, delay)
            }
            (route, _) => route,
        };
        match route {
            Route::Copy {
                exchange,
                routing_key,
                expiration,
                delay_header,
                mandatory,
            } => {
                let properties = match delay_header {
                    Some(ms) => with_delay(stamped(expiration), ms),
                    None => stamped(expiration),
                };
                let copy = Copy {
                    exchange,
                    routing_key,
                    properties: Arc::new(properties),
                    mandatory,
                };
                pending_copy(copy, event, Purpose::Next)
            }
            Route::DeadLetter => NextAction::Return(Return::DeadLetter, event),
            Route::Requeue => NextAction::Return(Return::Requeue, event),
        }
    }

    fn deferred(&self, delay: Duration) -> Event {
        Event::Deferred {
            queue: self.queue(),
            message_id: self.received.message_id(),
            delay,
        }
    }

    fn deferred_too_often(&self) -> Failure {
        Failure::new(format!(
            "it was deferred {} times",
            self.received.state.deferrals
        ))
    }

    fn stamp(&self) -> CopyHeaders<'_> {
        CopyHeaders {
            origin: self.origin,
            properties: &self.received.properties,
            exchange: self.received.exchange(),
            routing_key: self.received.routing_key(),
            state: &self.received.state,
            now: self.now,
            budget: self.header_room,
        }
    }

    fn queue(&self) -> String {
        self.options.queue.clone()
    }
}

fn pending_copy(copy: Copy, event: Event, purpose: Purpose) -> NextAction {
    NextAction::Copy(Box::new(PendingCopy::new(copy, event, purpose)))
}

fn failure_of(outcome: &Outcome) -> Failure {
    match outcome {
        Outcome::Retry { failure, .. } | Outcome::Park { failure, .. } => failure.clone(),
        Outcome::Defer { .. } => Failure::new("deferred"),
        Outcome::Ack => Failure::default(),
    }
}

fn with_delay(properties: BasicProperties, ms: i64) -> BasicProperties {
    let mut table = properties.headers().clone().unwrap_or_default();
    table.insert(
        ShortString::from(headers::DELAY),
        AMQPValue::LongLongInt(ms),
    );
    properties.with_headers(table)
}
