//! A queue and its consumer without a broker: the real engine, on a simulated clock.

mod broker;
mod queue;
mod step;
mod trial;

use std::{
    collections::VecDeque,
    fmt,
    time::{Duration, SystemTime},
};

pub use step::Step;
pub use trial::Trial;

use self::queue::Queue;
use super::{
    Consumer, Delivery, IntoOutcome, Message, Token,
    delivery_queue::HandlerEnd,
    engine::{Commands, Engine, IncomingDelivery, Input, Now, Setup},
};
use crate::{
    BasicProperties, Publish, Result, Strategy,
    connection::USUAL_HEADER_ROOM,
    retry::{Counting, Origin, Outcome},
    telemetry::{Counters, HOST},
    types::ShortString,
};

/// The only channel.
const SESSION: u64 = 1;

/// A simulated work queue and its consumer, for tests without a broker. Policy, rules, limits and headers work as in the real consumer. The
/// clock is simulated, so nothing waits.
///
/// With [`Strategy::Service`] the messages are retried and parked as by a service that has this consumer's policy in its file. Without a
/// policy, it is that of a service without a file. Only here may such a consumer have a policy.
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
pub struct Simulation {
    options: Consumer,
    engine: Engine,
    wanted: Commands,
    began: SystemTime,
    elapsed: Duration,
    queue: Queue,
    /// Delivered messages that were not taken yet, in order.
    ready: VecDeque<Delivery>,
    /// Parked copies that were not reported as a step yet.
    parked: VecDeque<Message>,
    /// The steps that followed the last input.
    steps: VecDeque<Step>,
    counters: Counters,
}

impl Simulation {
    /// An empty queue and its consumer.
    ///
    /// # Errors
    /// Those of [`Consumer::validate`].
    pub fn new(consumer: Consumer) -> Result<Self> {
        Self::counted(consumer, Counters::default())
    }

    /// Like [`new`](Self::new), and what happens is counted.
    pub(super) fn counted(consumer: Consumer, counters: Counters) -> Result<Self> {
        consumer.validate()?;
        let setup = Setup {
            origin: Origin {
                host: HOST.clone(),
                app_version: String::new(),
            },
            counters: counters.clone(),
            counting: Counting::Header,
            nack_is_uncounted: true,
            is_classic: false,
            queues_sleep: false,
            header_room: USUAL_HEADER_ROOM,
            // The same jitter in every run of a test.
            seed: 0,
            // How a message returns is up to the broker, and there is none. There is no service either; it would decide as this consumer
            // does with its policy.
            options: consumer.clone().strategy(Strategy::RetryQueues),
        };
        let mut simulation = Self {
            options: consumer,
            engine: Engine::new(setup),
            wanted: Commands::default(),
            began: SystemTime::now(),
            elapsed: Duration::ZERO,
            queue: Queue::default(),
            ready: VecDeque::new(),
            parked: VecDeque::new(),
            steps: VecDeque::new(),
            counters,
        };
        simulation.feed(Input::Opened { session: SESSION });
        Ok(simulation)
    }

    /// Publishes to the queue. Every exchange and routing key leads to it.
    ///
    /// # Errors
    /// Those of [`Client::publish`](crate::Client::publish) for a message that cannot be published.
    pub fn publish(&mut self, message: Publish) -> Result<()> {
        let (exchange, routing_key) = message.fitting(USUAL_HEADER_ROOM)?;
        let delay = message.delay.unwrap_or_default();
        let (_, _, properties, body) = message.into_parts();
        self.send(delay, body, properties, exchange, routing_key);
        Ok(())
    }

    /// The next message, in the order of the queue. If messages are only waiting, the clock moves on to the next one's return. `None` if
    /// the queue is empty and nothing waits, or if as many messages as the prefetch allows are not settled yet.
    #[expect(
        clippy::should_implement_trait,
        reason = "`publish` and `settle` are called between two messages"
    )]
    pub fn next(&mut self) -> Option<Delivery> {
        loop {
            if let Some(delivery) = self.ready.pop_front() {
                return Some(delivery);
            }
            // What is kept back for a while, above all a suspect, arrives at its time. Acknowledgements are collected, which shows only
            // when they hold up the next message.
            let timer = if self.queue.is_held_up(self.elapsed) {
                self.engine.wake_at()
            } else {
                self.engine.next_timer()
            };
            match (self.queue.next_at(), timer) {
                (Some(due), timer) if timer.is_none_or(|timer| due <= timer) => {
                    let (consumer, arrival) = self.queue.hand_out()?;
                    self.elapsed = self.elapsed.max(due);
                    self.feed(Input::Delivered {
                        session: SESSION,
                        consumer,
                        arrival: Box::new(arrival),
                    });
                }
                (_, Some(timer)) => {
                    self.elapsed = self.elapsed.max(timer);
                    self.turn();
                }
                (_, None) => return None,
            }
        }
    }

    /// Like [`Subscription::may_park`](crate::Subscription::may_park): whether the message may be parked if this attempt fails.
    #[must_use]
    pub fn may_park(&self, message: &Message) -> bool {
        let fewest_retries = self.options.fewest_retries();
        fewest_retries.is_some_and(|fewest_retries| {
            message.retries() >= fewest_retries || message.mended().is_some()
        })
    }

    /// Moves the clock forward, for example by the time a handler takes.
    pub fn advance(&mut self, by: Duration) {
        self.elapsed = self.elapsed.saturating_add(by);
    }

    /// How far the clock has moved since the simulation was made.
    #[must_use]
    pub fn elapsed(&self) -> Duration {
        self.elapsed
    }

    /// The time on the simulated clock.
    #[must_use]
    pub fn now(&self) -> SystemTime {
        self.began + self.elapsed
    }

    /// Ends an attempt with what a handler returned, or with an [`Outcome`]. Returns what happened to the message; `None` for a token that
    /// was settled before.
    ///
    /// ```
    /// # use retryrmq::{Consumer, Publish, Simulation, Step, park};
    /// let mut simulation = Simulation::new(Consumer::new("orders").dlx(true))?;
    /// simulation.publish(Publish::to_queue("orders", "7"))?;
    /// let delivery = simulation.next().unwrap();
    /// let step = simulation.settle(delivery.token, Err(park("no such customer")));
    /// assert!(matches!(step, Some(Step::Parked { .. })));
    /// # Ok::<(), retryrmq::Error>(())
    /// ```
    ///
    /// [`Outcome`]: crate::Outcome
    pub fn settle<By>(&mut self, token: Token, answer: impl IntoOutcome<By>) -> Option<Step> {
        if !self.engine.is_handed_out(token) {
            return None;
        }
        let outcome = answer.into_outcome(&self.options.error_classifier);
        let acked = outcome == Outcome::Ack;
        self.steps.clear();
        self.feed(Input::Ended {
            token,
            ending: HandlerEnd::Settled(outcome),
        });
        // Steps of other messages come after it.
        let step = self.steps.pop_front();
        step.or(acked.then_some(Step::Acked))
    }

    fn now_for_the_engine(&self) -> Now {
        Now {
            at: self.elapsed,
            unix: self
                .now()
                .duration_since(SystemTime::UNIX_EPOCH)
                .map_or(0, |since| since.as_secs()),
        }
    }

    fn feed(&mut self, input: Input) {
        let now = self.now_for_the_engine();
        self.engine.on(input, now, &mut self.wanted);
        self.turn();
    }

    /// Carries out the engine's commands as a broker that never fails and answers at once.
    fn turn(&mut self) {
        loop {
            let now = self.now_for_the_engine();
            self.engine.turn(now, &mut self.wanted);
            self.ready.extend(self.wanted.deliveries.drain(..));
            let commands = std::mem::take(&mut self.wanted.list);
            if commands.is_empty() {
                return;
            }
            for command in commands {
                if let Some(answer) = self.perform(command) {
                    self.engine.on(answer, now, &mut self.wanted);
                }
            }
        }
    }

    fn send(
        &mut self,
        delay: Duration,
        body: Vec<u8>,
        properties: BasicProperties,
        exchange: ShortString,
        routing_key: ShortString,
    ) {
        let arrival = IncomingDelivery {
            exchange,
            routing_key,
            properties,
            body,
            ..IncomingDelivery::default()
        };
        self.queue.send(self.elapsed.saturating_add(delay), arrival);
    }
}

impl Drop for Simulation {
    /// Others may count on.
    fn drop(&mut self) {
        let left = i64::try_from(self.engine.outstanding()).unwrap_or(0);
        self.counters.outstanding.dec_by(left);
    }
}

impl fmt::Debug for Simulation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Simulation")
            .field("consumer", &self.options)
            .field("elapsed", &self.elapsed)
            .field("waiting", &self.queue.len())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
