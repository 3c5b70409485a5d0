//! The tasks that run a consumer's handlers.

use std::{
    panic::AssertUnwindSafe,
    pin::pin,
    sync::Arc,
    time::{Duration, Instant},
};

use futures_util::FutureExt;
use tracing::Instrument;

use super::{
    ErrorClassifier, IntoOutcome, IntoOutcomes, batch_answer::one_for_each, names, panic_text, span,
};
use crate::{
    consumer::{Delivery, Message, Subscription},
    retry::{Failure, Outcome, format_duration},
    telemetry::Stats,
};

/// A consumer that runs in the background. [`Consumer::start`](crate::Consumer::start) makes it. Dropping it does not end the consumer.
#[derive(Clone, Debug)]
pub struct RunningConsumer {
    subscription: Arc<Subscription>,
}

impl RunningConsumer {
    /// Drains: takes no more messages, waits for running handlers up to the [`drain_timeout`](crate::Consumer::drain_timeout), and requeues
    /// the rest. Returns when everything is settled.
    pub async fn close(&self) {
        self.subscription.close();
        let _ = self.closed().await; // there is nothing left to close either way
    }

    /// Waits until the consumer has ended. Does not close it.
    ///
    /// # Errors
    /// Those of [`Subscription::wait_closed`].
    pub async fn closed(&self) -> crate::Result<()> {
        self.subscription.wait_closed().await
    }

    /// Starts to close it when the returned value is dropped. Nobody else could.
    pub(in crate::consumer) fn closes_when_dropped(&self) -> impl Drop + use<'_> {
        struct Wanted<'a>(&'a Subscription);
        impl Drop for Wanted<'_> {
            fn drop(&mut self) {
                self.0.close();
            }
        }
        Wanted(&self.subscription)
    }

    /// The counters of this queue since the client was made. All consumers of the queue on that client share them.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.subscription.stats()
    }
}

/// Starts the workers of a consumer: each is a task that runs `worker`, [`work`] or [`work_in_batches`].
pub(in crate::consumer) fn run_workers<F, W>(
    subscription: Arc<Subscription>,
    handler_runner: HandlerRunner<F>,
    concurrency: usize,
    worker: impl Fn(Arc<Subscription>, Arc<HandlerRunner<F>>) -> W,
) -> RunningConsumer
where
    W: Future<Output = ()> + Send + 'static,
{
    let handler_runner = Arc::new(handler_runner);
    for _ in 0..concurrency {
        tokio::spawn(worker(
            Arc::clone(&subscription),
            Arc::clone(&handler_runner),
        ));
    }
    RunningConsumer { subscription }
}

/// A handler that keeps its thread longer should not hold up others.
const QUICK: Duration = Duration::from_micros(100);

/// How many messages between two looks at the clock and yields to the runtime, so that handlers that never wait do not starve other tasks.
const STRETCH: u32 = 64;

/// One of the consumer's workers: takes a message, handles it, settles it.
///
/// A worker that finds more messages wakes another one only if its own handler waits or takes long. While handlers are quick, one worker
/// does everything, and no time is spent on waking others.
pub(in crate::consumer) async fn work<F, R, By>(
    subscription: Arc<Subscription>,
    handling: Arc<HandlerRunner<F>>,
) where
    F: Fn(Message) -> R,
    R: Future<Output: IntoOutcome<By>>,
{
    let mut stretch = 0;
    loop {
        let (delivery, more) = subscription.take_one();
        let Some(delivery) = delivery else {
            subscription.wake_engine();
            if subscription.ready().await {
                continue;
            }
            return;
        };
        let Delivery { token, message, .. } = delivery;
        let began = Instant::now();
        let mut attempt = pin!(handling.attempt(message));
        let outcome = match attempt.as_mut().now_or_never() {
            Some(outcome) => outcome,
            None => {
                if more {
                    subscription.wake_another();
                }
                subscription.wake_engine();
                attempt.await
            }
        };
        let is_slow = began.elapsed() > QUICK;
        if more && is_slow {
            subscription.wake_another();
        }
        subscription.settle_quietly(token, outcome);
        stretch += 1;
        if is_slow || stretch % STRETCH == 0 {
            subscription.wake_engine();
            // The engine runs before the next handler, which may block this thread.
            tokio::task::yield_now().await;
        }
    }
}

/// One of the consumer's workers: takes a batch, handles it, settles it.
pub(in crate::consumer) async fn work_in_batches<F, R, By>(
    subscription: Arc<Subscription>,
    handling: Arc<HandlerRunner<F>>,
) where
    F: Fn(Vec<Message>) -> R,
    R: Future<Output: IntoOutcomes<By>>,
{
    loop {
        let batch = subscription.try_next_batch(usize::MAX);
        if batch.is_empty() {
            if subscription.ready().await {
                continue;
            }
            return;
        }
        subscription.wake_for_the_rest();
        let (tokens, messages): (Vec<_>, _) = batch
            .into_iter()
            .map(|delivery| (delivery.token, delivery.message))
            .unzip();
        let outcomes = handling.attempts(messages).await;
        subscription.settle(tokens.into_iter().zip(outcomes));
        // The engine runs before the next handler, which may block this thread.
        tokio::task::yield_now().await;
    }
}

/// A handler, and everything needed to run it.
pub(in crate::consumer) struct HandlerRunner<F> {
    pub(in crate::consumer) handler: F,
    pub(in crate::consumer) classifier: ErrorClassifier,
    pub(in crate::consumer) timeout: Option<Duration>,
}

impl<F> HandlerRunner<F> {
    /// Runs one attempt, and catches everything that can go wrong in it.
    pub(in crate::consumer) async fn attempt<R, By>(&self, message: Message) -> Outcome
    where
        F: Fn(Message) -> R,
        R: Future<Output: IntoOutcome<By>>,
    {
        let handled = async {
            let span = span::of(&message);
            let handled = async {
                let answer = (self.handler)(message).await;
                answer.into_outcome(&self.classifier)
            };
            handled.instrument(span).await
        };
        let outcome = guarded(self.timeout, handled).await;
        outcome.unwrap_or_else(Outcome::retry)
    }

    /// Runs one attempt of each of these messages, all in one call of the handler. What goes wrong there is the failure of all.
    async fn attempts<R, By>(&self, messages: Vec<Message>) -> Vec<Outcome>
    where
        F: Fn(Vec<Message>) -> R,
        R: Future<Output: IntoOutcomes<By>>,
    {
        let count = messages.len();
        let handled = async {
            let span = span::of_batch(&messages);
            let handled = async {
                let answer = (self.handler)(messages).await;
                one_for_each(answer.into_outcomes(count, &self.classifier), count)
            };
            handled.instrument(span).await
        };
        let outcomes = guarded(self.timeout, handled).await;
        outcomes.unwrap_or_else(|failure| vec![Outcome::retry(failure); count])
    }
}

/// What becomes of a call of a handler, or the failure if it panics or takes longer than `timeout`.
///
/// It also catches a handler that panics before it returns its future, and a future that panics when it is dropped at its timeout.
async fn guarded<T>(
    timeout: Option<Duration>,
    handled: impl Future<Output = T>,
) -> Result<T, Failure> {
    let guarded = AssertUnwindSafe(async {
        let Some(limit) = timeout else {
            return Ok(handled.await);
        };
        let began = tokio::time::Instant::now();
        match tokio::time::timeout(limit, handled).await {
            // A handler that blocks its thread ends before the timeout is noticed.
            Ok(outcome) if began.elapsed() < limit => Ok(outcome),
            _ => Err(too_long(limit)),
        }
    });
    guarded.catch_unwind().await.unwrap_or_else(|panic| {
        let error = format!("panic: {}", panic_text(&*panic));
        Err(Failure::new(error).of_type("panic"))
    })
}

fn too_long(limit: Duration) -> Failure {
    let error = format!("the handler took longer than {}", format_duration(limit));
    Failure::new(error)
        .of_type("HandlerTimeout")
        .also([names::TIMEOUT])
}
