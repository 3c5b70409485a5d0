//! What follows from the end of an attempt.

use std::sync::Arc;

use lapin::types::ShortString;
use tokio::time::Instant;
use tracing::warn;

use super::{
    super::{Received, Token, agenda::Task, session::Return},
    Copying, Engine, LONGEST_HOLD, Phase, now,
};
use crate::{
    retry::{Action, Failure, Outcome, ParkReason, decide},
    telemetry::Event,
    topology::{Route, Wait},
};

impl Engine {
    /// A message that was handed out and comes back without any handler having begun with it.
    pub(super) async fn take_back(&mut self, token: Token) {
        match self.entries.get_mut(token) {
            Some(entry) if matches!(entry.phase, Phase::Out) => {
                let known = Some(entry.session) == self.session.as_ref().map(|session| session.id);
                if known {
                    self.put_back(token).await;
                } else {
                    self.forget(token);
                }
            }
            _ => {
                self.counters.stale.inc();
            }
        }
    }

    pub(super) async fn settle(&mut self, token: Token, outcome: Outcome) {
        let Some(entry) = self.entries.get_mut(token) else {
            self.counters.stale.inc();
            return;
        };
        if !matches!(entry.phase, Phase::Out) {
            self.counters.stale.inc();
            return;
        }
        if self.session.as_ref().map(|session| session.id) != Some(entry.session) {
            // The message comes again. If it is known by then that it was handled, it does not run again.
            if outcome == Outcome::Ack {
                self.release(token);
            } else {
                self.counters.stale.inc();
                self.forget(token);
            }
            return;
        }
        let received = Arc::clone(&entry.received);
        match outcome {
            Outcome::Ack => {
                self.counters.acked.inc();
                self.release(token);
                self.note_attempt(false).await;
            }
            Outcome::Defer { .. } if self.options.dlx => {
                self.follow(token, &received, &outcome).await
            }
            Outcome::Defer { delay } => {
                let event = Event::Deferred {
                    queue: self.queue(),
                    message_id: received.message_id(),
                    delay,
                };
                self.happened(&event);
                self.set_phase(token, Phase::Held);
                let until = Instant::now() + delay.min(LONGEST_HOLD);
                self.agenda.add(until, token, Task::Requeue);
            }
            outcome => {
                self.counters.failed.inc();
                if self.options.dlx {
                    self.follow(token, &received, &outcome).await;
                } else {
                    self.reject(token, &received, &outcome).await;
                }
                self.note_attempt(true).await;
            }
        }
    }

    /// Without retries: the queue's own dead-lettering decides.
    pub(super) async fn reject(&mut self, token: Token, received: &Received, outcome: &Outcome) {
        let failure = failure_of(outcome);
        if !self.warned_without_dlx {
            self.warned_without_dlx = true;
            warn!(
                queue = %self.name,
                error = failure.error,
                "a message failed and dlx is off: it is rejected, and dropped unless its queue dead-letters"
            );
        }
        self.counters.rejected.inc();
        let (queue, message_id, error) = (self.queue(), received.message_id(), failure.error);
        self.options.listener.tell(|| Event::Rejected {
            queue,
            message_id,
            error,
        });
        self.give_back(token, Return::Reject).await;
    }

    /// Decides what follows from a failed or deferred attempt, and does it.
    pub(super) async fn follow(
        &mut self,
        token: Token,
        received: &Arc<Received>,
        outcome: &Outcome,
    ) {
        let failure = failure_of(outcome);
        let headers = received.properties.headers().as_ref();
        let policy = self
            .options
            .rules
            .policy(received.routing_key(), headers, &failure);
        let state = &received.state;
        let mut action = decide(
            state,
            outcome,
            policy,
            &self.options.limits,
            now(),
            fastrand::u64(..),
        );
        if received.mended.is_some() && matches!(action, Action::Retry { .. }) {
            action = Action::Park(ParkReason::Undecodable);
        }
        let stamp = self.stamp(received);
        let (queue, message_id) = (self.queue(), received.message_id());
        match action {
            Action::Ack => self.release(token),
            Action::Retry {
                retry,
                delay,
                chosen,
            } => {
                let wait = if chosen {
                    Wait::Ladder(delay)
                } else {
                    Wait::Policy(delay)
                };
                let event = Event::Retried {
                    queue,
                    message_id,
                    attempt: state.attempt(),
                    delay,
                    error: failure.error.clone(),
                };
                let route = self.options.strategy.scheme().route(&self.name, wait);
                let properties = stamp.retry(retry, &failure, expiration(&route));
                self.wait_by(token, route, properties, event).await;
            }
            Action::Defer { deferral, delay } => {
                let event = Event::Deferred {
                    queue,
                    message_id,
                    delay,
                };
                let route = self
                    .options
                    .strategy
                    .scheme()
                    .route(&self.name, Wait::Ladder(delay));
                let properties = stamp.deferral(deferral, expiration(&route));
                self.wait_by(token, route, properties, event).await;
            }
            Action::Park(reason) => {
                let failure = match outcome {
                    Outcome::Defer { .. } => {
                        Failure::new(format!("it was deferred {} times", state.deferrals))
                    }
                    _ => failure,
                };
                self.park(token, reason, &failure).await;
            }
        }
    }

    /// Sends a message to where it waits.
    pub(super) async fn wait_by(
        &mut self,
        token: Token,
        route: Route,
        properties: lapin::BasicProperties,
        event: Event,
    ) {
        match route {
            Route::Copy {
                exchange,
                routing_key,
                mandatory,
                delay_header,
                ..
            } => {
                let properties = match delay_header {
                    Some(ms) => with_delay(properties, ms),
                    None => properties,
                };
                self.copy(
                    token,
                    Copying {
                        exchange,
                        routing_key,
                        properties,
                        mandatory,
                        event,
                        tries: 0,
                    },
                );
            }
            Route::DeadLetter => {
                self.happened(&event);
                self.give_back(token, Return::DeadLetter).await;
            }
            Route::Requeue => {
                self.happened(&event);
                self.give_back(token, Return::Requeue).await;
            }
        }
    }
}

fn failure_of(outcome: &Outcome) -> Failure {
    match outcome {
        Outcome::Retry { failure, .. } | Outcome::Park { failure, .. } => failure.clone(),
        Outcome::Defer { .. } => Failure::new("deferred"),
        Outcome::Ack => Failure::default(),
    }
}

fn expiration(route: &Route) -> Option<u64> {
    match route {
        Route::Copy { expiration, .. } => *expiration,
        Route::DeadLetter | Route::Requeue => None,
    }
}

fn with_delay(properties: lapin::BasicProperties, ms: i64) -> lapin::BasicProperties {
    let mut headers = properties.headers().clone().unwrap_or_default();
    headers.insert(
        ShortString::from("x-delay"),
        lapin::types::AMQPValue::LongLongInt(ms),
    );
    properties.with_headers(headers)
}
