//! A consumer of a client without a broker. What is delivered to it runs through its real handlers; a simulation of its queue decides what
//! follows.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::{
    sync::oneshot,
    time::{Instant, sleep_until},
};

use super::{
    Consumer, Delivery, Message, Simulation, Token, Trial,
    delivery_queue::{DeliveryQueue, HandlerEnd},
    tokens::Tokens,
};
use crate::{Error, ErrorKind, Publish, Result, retry::Outcome, telemetry::Counters};

/// How long an outcome may wait that its worker settled quietly, before a handler that blocks.
const QUIETLY: Duration = Duration::from_millis(100);

/// The attempts that handlers make now.
struct Attempts {
    running: Tokens<oneshot::Sender<HandlerEnd>>,
    /// No more begin.
    ended: bool,
}

pub(crate) struct FakeConsumer {
    /// Without the client, which knows this consumer.
    options: Consumer,
    counters: Counters,
    delivery_queue: Arc<DeliveryQueue>,
    attempts: Mutex<Attempts>,
}

impl FakeConsumer {
    /// # Errors
    /// Those of [`Consumer::subscribe`] that need no broker.
    pub(super) fn new(
        mut options: Consumer,
        delivery_queue: Arc<DeliveryQueue>,
        counters: Counters,
    ) -> Result<Self> {
        options.validate()?;
        options.plan()?;
        options.client = None;
        Ok(Self {
            options,
            counters,
            delivery_queue,
            attempts: Mutex::new(Attempts {
                running: Tokens::new(),
                ended: false,
            }),
        })
    }

    pub(crate) fn queue(&self) -> &str {
        &self.options.queue
    }

    /// Whether it takes nothing more.
    pub(crate) fn is_closing(&self) -> bool {
        self.delivery_queue.is_closing()
    }

    /// Ends without waiting for its handlers.
    pub(crate) fn abandon(&self) {
        self.delivery_queue.abandon();
    }

    /// Lets its handlers have a message until that has ended. Returns the attempts in order.
    ///
    /// # Errors
    /// Those of [`Simulation::publish`], and [`ErrorKind::Closed`] if the consumer ends first.
    pub(crate) async fn deliver(&self, message: Publish) -> Result<Vec<Trial>> {
        let mut simulation = Simulation::counted(self.options.clone(), self.counters.clone())?;
        simulation.publish(message)?;
        simulation
            .run_attempts(|message| self.attempt(message))
            .await
    }

    async fn attempt(&self, message: Message) -> Result<Outcome> {
        loop {
            match self.begin(message.clone())?.await {
                Ok(HandlerEnd::Settled(outcome)) => return Ok(outcome),
                // It was given back, and comes again.
                Ok(HandlerEnd::Unstarted) => tokio::task::yield_now().await,
                Err(_) => return Err(self.ended()),
            }
        }
    }

    /// Passes a message to the handlers.
    fn begin(&self, message: Message) -> Result<oneshot::Receiver<HandlerEnd>> {
        let mut attempts = self.attempts();
        if attempts.ended || self.is_closing() {
            return Err(self.ended());
        }
        let (end_sender, end) = oneshot::channel();
        let delivery = Delivery {
            token: attempts.running.insert(end_sender),
            message,
            // Whatever else comes does not belong to it.
            alone: true,
            ends_batch: true,
        };
        // Under the lock: after the end nobody would take it.
        self.delivery_queue.deliver(&mut vec![delivery]);
        Ok(end)
    }

    fn ended(&self) -> Error {
        let queue = self.queue();
        Error::new(
            ErrorKind::Closed,
            format!("the consumer of `{queue}` ended before the message did"),
        )
    }

    /// Until it is asked to end and no handler runs, or until its drain timeout.
    pub(super) async fn run(self: Arc<Self>) {
        let mut outcomes = Vec::new();
        let mut drained_by = None;
        loop {
            self.delivery_queue.outcomes(&mut outcomes);
            self.answer(&mut outcomes);
            if self.is_closing() && drained_by.is_none() {
                self.end_intake();
                drained_by = Some(Instant::now() + self.options.drain_timeout);
            }
            let is_idle = self.attempts().running.len() == 0;
            let until = match drained_by {
                Some(by) if is_idle || by <= Instant::now() => break,
                Some(_) if self.delivery_queue.is_abandoned() => break,
                None if is_idle => None,
                by => Some(by.into_iter().fold(Instant::now() + QUIETLY, Instant::min)),
            };
            tokio::select! {
                biased;
                () = self.delivery_queue.wait_for_engine_work() => {}
                () = sleep_until(until.unwrap_or_else(Instant::now)), if until.is_some() => {
                    self.delivery_queue.wake_for_the_rest();
                }
            }
        }
        // Nobody waits for them any more.
        self.attempts().running = Tokens::new();
    }

    fn answer(&self, outcomes: &mut Vec<(Token, HandlerEnd)>) {
        let mut attempts = self.attempts();
        for (token, end) in outcomes.drain(..) {
            match attempts.running.remove(token) {
                Some(end_sender) => {
                    // Whoever delivers may have gone.
                    let _ = end_sender.send(end);
                }
                None => {
                    self.counters.stale.inc();
                }
            }
        }
    }

    /// Takes back what no handler has begun, and lets none begin.
    fn end_intake(&self) {
        let mut attempts = self.attempts();
        attempts.ended = true;
        for unstarted in self.delivery_queue.take_back() {
            drop(attempts.running.remove(unstarted.token));
        }
        self.delivery_queue.end();
    }

    fn attempts(&self) -> MutexGuard<'_, Attempts> {
        self.attempts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
