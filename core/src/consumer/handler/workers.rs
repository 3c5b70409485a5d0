//! The tasks that run a consumer's handlers.

use std::{
    panic::AssertUnwindSafe,
    pin::pin,
    sync::Arc,
    time::{Duration, Instant},
};

use futures_util::FutureExt;
use tracing::Instrument;

use super::{IntoOutcome, Judge, names, panic_text, span};
use crate::{
    Result,
    consumer::{Delivery, Message, Subscription},
    retry::{Failure, Outcome, format_duration},
    telemetry::Stats,
};

/// A consumer that runs in the background. [`Consumer::start`](crate::Consumer::start) makes it. Dropping it does not end the consumer.
#[derive(Clone, Debug)]
pub struct Running {
    subscription: Arc<Subscription>,
}

impl Running {
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
    pub async fn closed(&self) -> Result<()> {
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

    /// The counters of this queue since the client was made.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.subscription.stats()
    }
}

/// Starts the workers of a consumer.
pub(in crate::consumer) fn run_workers<F, R, By>(
    subscription: Arc<Subscription>,
    handler: F,
    judge: Judge,
    concurrency: usize,
    timeout: Option<Duration>,
) -> Running
where
    F: Fn(Message) -> R + Send + Sync + 'static,
    R: Future<Output: IntoOutcome<By>> + Send + 'static,
    By: 'static,
{
    let handling = Arc::new(Handling {
        handler,
        judge,
        timeout,
    });
    for _ in 0..concurrency {
        tokio::spawn(work(Arc::clone(&subscription), Arc::clone(&handling)));
    }
    Running { subscription }
}

/// A handler that keeps its thread longer should not hold up others.
const QUICK: Duration = Duration::from_micros(100);

/// How many messages between two looks at the clock and yields to the runtime, so that handlers that never wait do not starve other tasks.
const STRETCH: u32 = 64;

/// One of the consumer's workers: takes a message, handles it, settles it.
///
/// A worker that finds more messages wakes another one only if its own handler waits or takes long. While handlers are quick, one worker
/// does everything, and no time is spent on waking others.
async fn work<F, R, By>(subscription: Arc<Subscription>, handling: Arc<Handling<F>>)
where
    F: Fn(Message) -> R,
    R: Future<Output: IntoOutcome<By>>,
{
    let mut stretch = 0;
    loop {
        let (delivery, more) = subscription.take_one();
        let Some(delivery) = delivery else {
            subscription.tell();
            if subscription.ready().await {
                continue;
            }
            return;
        };
        let Delivery { token, message } = delivery;
        let began = Instant::now();
        let mut attempt = pin!(handling.attempt(message));
        let outcome = match attempt.as_mut().now_or_never() {
            Some(outcome) => outcome,
            None => {
                if more {
                    subscription.wake_another();
                }
                subscription.tell();
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
            subscription.tell();
            // The engine runs before the next handler, which may block this thread.
            tokio::task::yield_now().await;
        }
    }
}

/// A handler, and everything needed to run it.
pub(in crate::consumer) struct Handling<F> {
    pub(in crate::consumer) handler: F,
    pub(in crate::consumer) judge: Judge,
    pub(in crate::consumer) timeout: Option<Duration>,
}

impl<F> Handling<F> {
    /// Runs one attempt, and catches everything that can go wrong in it.
    pub(in crate::consumer) async fn attempt<R, By>(&self, message: Message) -> Outcome
    where
        F: Fn(Message) -> R,
        R: Future<Output: IntoOutcome<By>>,
    {
        // It must also catch a handler that panics before it returns its future, and a future that panics when it is dropped at its
        // timeout.
        let attempt = AssertUnwindSafe(async {
            let span = span::of(&message);
            let handled = async {
                let answer = (self.handler)(message).await;
                answer.into_outcome(&self.judge)
            }
            .instrument(span);
            match self.timeout {
                None => handled.await,
                Some(limit) => match tokio::time::timeout(limit, handled).await {
                    Ok(outcome) => outcome,
                    Err(_) => Outcome::retry(too_long(limit)),
                },
            }
        });
        attempt.catch_unwind().await.unwrap_or_else(|panic| {
            let error = format!("panic: {}", panic_text(&*panic));
            Outcome::retry(Failure::new(error).of_type("panic"))
        })
    }
}

fn too_long(limit: Duration) -> Failure {
    let error = format!("the handler took longer than {}", format_duration(limit));
    Failure::new(error)
        .of_type("HandlerTimeout")
        .also([names::TIMEOUT])
}
