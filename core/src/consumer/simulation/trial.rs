//! Runs a handler in a simulation.

use std::{convert::Infallible, time::Duration};

use super::{Simulation, Step};
use crate::{
    Message,
    consumer::{Delivery, IntoOutcome, handler::HandlerRunner},
    retry::Outcome,
};

/// One attempt of a handler in a simulation.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Trial {
    /// The message, as the handler got it.
    pub message: Message,
    /// When the attempt began, on the simulated clock.
    pub at: Duration,
    /// What happened to the message.
    pub step: Step,
}

impl Simulation {
    /// Lets `handler` handle all messages, one at a time, until the queue is empty and nothing waits. Returns the attempts in order. A
    /// panic is a failed attempt, as with a real consumer. Waiting messages return at once: only the simulated clock moves.
    ///
    /// A handler timeout is measured in real time, and needs a tokio runtime with a timer.
    ///
    /// ```
    /// use retryrmq::{Consumer, Message, Publish, Simulation, Step};
    ///
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    /// let mut simulation = Simulation::new(Consumer::new("orders").dlx(true).retry("fixed(1m, retries=3)".parse()?))?;
    /// simulation.publish(Publish::to_queue("orders", "chair"))?;
    /// let trials = simulation.run(|_: Message| async { Err("no chair in stock") }).await;
    /// assert_eq!(trials.len(), 4);
    /// assert!(matches!(trials[3].step, Step::Parked { .. }) && trials[3].at.as_secs() == 180);
    /// # Ok::<(), retryrmq::Error>(())
    /// # }).unwrap();
    /// ```
    pub async fn run<F, R, By>(&mut self, handler: F) -> Vec<Trial>
    where
        F: Fn(Message) -> R,
        R: Future<Output: IntoOutcome<By>>,
    {
        let handling = HandlerRunner {
            handler,
            classifier: self.options.error_classifier.clone(),
            timeout: self.options.handler_timeout,
        };
        let handled = self.run_attempts(|message| {
            let attempt = handling.attempt(message);
            async { Ok::<_, Infallible>(attempt.await) }
        });
        let Ok(trials) = handled.await;
        trials
    }

    /// Like [`run`](Self::run), for whoever runs the attempts in another way. An error of theirs ends it.
    pub(in crate::consumer) async fn run_attempts<R, E>(
        &mut self,
        attempt: impl Fn(Message) -> R,
    ) -> Result<Vec<Trial>, E>
    where
        R: Future<Output = Result<Outcome, E>>,
    {
        let mut trials = Vec::new();
        while let Some(Delivery { token, message, .. }) = self.next() {
            let at = self.elapsed();
            let outcome = attempt(message.clone()).await?;
            if let Some(step) = self.settle(token, outcome) {
                trials.push(Trial { message, at, step });
            }
        }
        Ok(trials)
    }
}
