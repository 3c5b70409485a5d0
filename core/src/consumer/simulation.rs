//! A queue and its consumer without a broker, on a clock of their own: the same decisions, the same headers, no waiting.

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, SystemTime},
};

use lapin::{BasicProperties, types::ShortString};

use super::{Consumer, Delivery, Message, Received, Token, slab::Slab};
use crate::{
    Error, ErrorKind, Publish, Result,
    retry::{Action, Counting, Failure, Origin, Outcome, ParkReason, RetryState, Stamp, decide},
    telemetry::HOST,
};

/// What became of a message after an attempt.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Step {
    /// Handled: acknowledged and gone.
    Acked,
    /// It waits for another attempt.
    Retried {
        /// How long.
        delay: Duration,
    },
    /// It was put off; no attempt is spent.
    Deferred {
        /// For how long.
        delay: Duration,
    },
    /// It is parked.
    Parked {
        /// Why.
        reason: ParkReason,
        /// The parked copy, with the record that a person would read.
        message: Message,
    },
    /// It was given up and dropped, because `park` is off.
    Dropped {
        /// Why.
        reason: ParkReason,
    },
    /// It was rejected, because `dlx` is off: the queue's own dead-lettering decides.
    Rejected,
}

/// A work queue and its consumer, simulated for tests: the policy, the rules, the limits and the headers are those of the
/// real consumer, and time passes only when nothing else is to be done.
///
/// ```
/// use retryrmq::{Consumer, Failure, Outcome, Publish, Simulation, Step};
///
/// let consumer = Consumer::new("orders").dlx(true).retry("list(1s, 1m)".parse()?);
/// let mut simulation = Simulation::new(consumer)?;
/// simulation.publish(Publish::to_queue("orders", "7"))?;
/// let mut attempts = 0;
/// while let Some(delivery) = simulation.next() {
///     attempts = delivery.message.attempt();
///     simulation.settle(delivery.token, Outcome::retry(Failure::new("no")));
/// }
/// assert_eq!((attempts, simulation.elapsed().as_secs()), (3, 61));
/// # Ok::<(), retryrmq::Error>(())
/// ```
#[derive(Debug)]
pub struct Simulation {
    options: Consumer,
    name: Arc<str>,
    origin: Origin,
    began: SystemTime,
    elapsed: Duration,
    /// What is in the queue or on its way there, by when it is there and in the order in which it was sent.
    waiting: BTreeMap<(Duration, u64), Received>,
    sent: u64,
    running: Slab<Arc<Received>>,
    /// The same jitter in every run of a test.
    draws: fastrand::Rng,
}

impl Simulation {
    /// An empty queue, and `consumer`'s options.
    ///
    /// # Errors
    /// As [`Consumer::validate`].
    pub fn new(consumer: Consumer) -> Result<Self> {
        consumer.validate()?;
        Ok(Self {
            name: consumer.queue.as_str().into(),
            options: consumer,
            origin: Origin {
                host: HOST.clone(),
                app_version: String::new(),
            },
            began: SystemTime::now(),
            elapsed: Duration::ZERO,
            waiting: BTreeMap::new(),
            sent: 0,
            running: Slab::new(),
            draws: fastrand::Rng::with_seed(0),
        })
    }

    /// Publishes to the queue, by whatever exchange and routing key: in a simulation everything is routed to it.
    ///
    /// # Errors
    /// As [`Client::publish`](crate::Client::publish) for a message that cannot be published.
    pub fn publish(&mut self, message: Publish) -> Result<()> {
        message.validate()?;
        let delay = message.delay.unwrap_or_default();
        let (exchange, routing_key, properties, body) = message.into_parts();
        let name = |text: &str| {
            ShortString::try_new(text).map_err(|_| {
                Error::new(
                    ErrorKind::TooLarge,
                    "the names of an exchange and a routing key must be at most 255 bytes",
                )
            })
        };
        self.send(
            delay,
            body,
            properties,
            name(&exchange)?,
            name(&routing_key)?,
        );
        Ok(())
    }

    /// The next message, in the order of a queue; the clock moves on to its arrival if it is still on its way. `None`
    /// when nothing is in the queue or on its way.
    #[expect(
        clippy::should_implement_trait,
        reason = "`publish` and `settle` are called between two messages"
    )]
    pub fn next(&mut self) -> Option<Delivery> {
        let ((due, _), received) = self.waiting.pop_first()?;
        self.elapsed = self.elapsed.max(due);
        let received = Arc::new(received);
        let token = self.running.insert(Arc::clone(&received));
        Some(Delivery {
            token,
            message: Message(received),
        })
    }

    /// Whether the message may be parked if this attempt fails, as a
    /// [`Subscription`](crate::Subscription::may_park) says it.
    #[must_use]
    pub fn may_park(&self, message: &Message) -> bool {
        self.options.dlx
            && (message.retries() >= self.options.rules.patience() || message.mended().is_some())
    }

    /// Lets time pass, a handler's for example.
    pub fn advance(&mut self, by: Duration) {
        self.elapsed = self.elapsed.saturating_add(by);
    }

    /// How much time has passed since the simulation was made.
    #[must_use]
    pub fn elapsed(&self) -> Duration {
        self.elapsed
    }

    /// The time on the simulation's clock.
    #[must_use]
    pub fn now(&self) -> SystemTime {
        self.began + self.elapsed
    }

    /// Ends an attempt. `None` for a token that was settled before.
    pub fn settle(&mut self, token: Token, outcome: Outcome) -> Option<Step> {
        let received = self.running.remove(token)?;
        Some(self.follow(&received, &outcome))
    }

    fn follow(&mut self, received: &Received, outcome: &Outcome) -> Step {
        let failure = match outcome {
            Outcome::Ack => return Step::Acked,
            Outcome::Retry { failure, .. } | Outcome::Park { failure, .. } => failure.clone(),
            Outcome::Defer { .. } => Failure::new("deferred"),
        };
        if !self.options.dlx {
            return match outcome {
                Outcome::Defer { delay } => {
                    self.send(
                        *delay,
                        received.body.clone(),
                        received.properties.clone(),
                        received.exchange.clone(),
                        received.routing_key.clone(),
                    );
                    Step::Deferred { delay: *delay }
                }
                _ => Step::Rejected,
            };
        }
        let now = self
            .now()
            .duration_since(SystemTime::UNIX_EPOCH)
            .map_or(0, |since| since.as_secs());
        let policy = self.options.rules.policy(
            received.routing_key(),
            received.properties.headers().as_ref(),
            &failure,
        );
        let action = decide(
            &received.state,
            outcome,
            policy,
            &self.options.limits,
            now,
            self.draws.u64(..),
        );
        let stamp = Stamp {
            origin: &self.origin,
            properties: &received.properties,
            exchange: received.exchange(),
            routing_key: received.routing_key(),
            state: &received.state,
            now,
        };
        match action {
            Action::Ack => Step::Acked,
            Action::Retry { retry, delay, .. } => {
                let copy = stamp.retry(retry, &failure, None);
                self.come_back(delay, received, copy);
                Step::Retried { delay }
            }
            Action::Defer { deferral, delay } => {
                let copy = stamp.deferral(deferral, None);
                self.come_back(delay, received, copy);
                Step::Deferred { delay }
            }
            Action::Park(reason) if !self.options.park => Step::Dropped { reason },
            Action::Park(reason) => {
                let properties = stamp.parked(reason, &failure);
                let parked = crate::topology::parking_queue(&self.name);
                let copy = self.received(
                    received.body.clone(),
                    properties,
                    ShortString::default(),
                    ShortString::from(parked),
                );
                Step::Parked {
                    reason,
                    message: Message(Arc::new(copy)),
                }
            }
        }
    }

    fn come_back(&mut self, delay: Duration, received: &Received, copy: BasicProperties) {
        let queue = ShortString::from(&*self.name);
        self.send(
            delay,
            received.body.clone(),
            copy,
            ShortString::default(),
            queue,
        );
    }

    fn send(
        &mut self,
        delay: Duration,
        body: Vec<u8>,
        properties: BasicProperties,
        exchange: ShortString,
        routing_key: ShortString,
    ) {
        let received = self.received(body, properties, exchange, routing_key);
        self.sent += 1;
        self.waiting
            .insert((self.elapsed.saturating_add(delay), self.sent), received);
    }

    fn received(
        &self,
        body: Vec<u8>,
        properties: BasicProperties,
        exchange: ShortString,
        routing_key: ShortString,
    ) -> Received {
        Received {
            queue: Arc::clone(&self.name),
            body,
            state: RetryState::read(&self.name, Counting::Header, false, &properties),
            properties,
            exchange,
            routing_key,
            redelivered: false,
            mended: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{MINUTE, Policy, SECOND};

    fn simulation(policy: &str) -> Simulation {
        let policy: Policy = policy.parse().unwrap();
        let mut simulation =
            Simulation::new(Consumer::new("orders").dlx(true).retry(policy)).unwrap();
        simulation
            .publish(Publish::to_exchange("shop", "eu.new", "7").message_id("a"))
            .unwrap();
        simulation
    }

    fn no() -> Outcome {
        Outcome::retry(Failure::new("no").of_type("Timeout"))
    }

    #[test]
    fn a_name_that_no_broker_takes_is_refused_first() {
        for (queue, dlx) in [("q".repeat(249), true), ("q".repeat(256), false)] {
            let error = Simulation::new(Consumer::new(queue).dlx(dlx)).unwrap_err();
            assert_eq!(error.code(), "too_large");
        }
        assert!(Simulation::new(Consumer::new("q".repeat(255))).is_ok());
    }

    #[test]
    fn a_message_waits_counts_and_is_parked_with_its_record() {
        let mut simulation = simulation("list(1s, 1m)");
        let (mut seen, mut last) = (Vec::new(), None);
        while let Some(Delivery { token, message }) = simulation.next() {
            assert_eq!(
                (message.exchange(), message.routing_key()),
                ("shop", "eu.new")
            );
            seen.push((message.attempt(), simulation.elapsed()));
            last = simulation.settle(token, no());
            assert!(simulation.settle(token, no()).is_none());
        }
        assert_eq!(
            seen,
            [(1, Duration::ZERO), (2, SECOND), (3, SECOND + MINUTE)]
        );
        let Some(Step::Parked { reason, message }) = last else {
            panic!("not parked: {last:?}")
        };
        assert_eq!(reason, ParkReason::Exhausted);
        assert_eq!(message.last_error(), Some("no"));
        assert_eq!(message.history().len(), 3);
    }

    #[test]
    fn who_comes_back_comes_back_at_the_tail() {
        let mut simulation = simulation("fixed(1s)");
        simulation
            .publish(
                Publish::to_queue("orders", "8")
                    .message_id("b")
                    .delay(SECOND),
            )
            .unwrap();
        let first = simulation.next().unwrap();
        simulation.settle(first.token, no());
        let order: Vec<_> = std::iter::from_fn(|| simulation.next())
            .map(|delivery| delivery.message.message_id().map(str::to_owned).unwrap())
            .collect();
        assert_eq!(order, ["b", "a"]);
    }

    #[test]
    fn putting_off_spends_no_attempt_and_age_is_counted_on_the_virtual_clock() {
        let mut simulation = simulation("fixed(1s, max_age=1h)");
        let first = simulation.next().unwrap();
        simulation.settle(first.token, Outcome::Defer { delay: MINUTE });
        let second = simulation.next().unwrap();
        assert_eq!(second.message.attempt(), 1);
        simulation.settle(second.token, no());
        let third = simulation.next().unwrap();
        simulation.advance(61 * MINUTE);
        let step = simulation.settle(third.token, no());
        assert!(
            matches!(
                step,
                Some(Step::Parked {
                    reason: ParkReason::TooOld,
                    ..
                })
            ),
            "{step:?}"
        );
    }

    #[test]
    fn without_dlx_a_failure_is_rejected_and_without_park_it_is_dropped() {
        let ends = |consumer: Consumer| {
            let mut simulation = Simulation::new(consumer).unwrap();
            simulation
                .publish(Publish::to_queue("orders", "7"))
                .unwrap();
            let delivery = simulation.next().unwrap();
            simulation.settle(delivery.token, no()).unwrap()
        };
        assert!(matches!(ends(Consumer::new("orders")), Step::Rejected));
        let once: Policy = "fixed(1s, retries=0)".parse().unwrap();
        let dropped = ends(Consumer::new("orders").dlx(true).retry(once).park(false));
        assert!(matches!(dropped, Step::Dropped { .. }), "{dropped:?}");
    }
}
