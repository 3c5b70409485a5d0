//! The two ways to use the crate: a handler function, and the boundary below it that other languages use.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use retryrmq::{
    Consumer, Delivery, Failure, Message, Outcome, ParkReason, Result, RunningConsumer, Signal,
    Subscription, defer, fatal, park, retry_after,
};
use retryrmq_scenarios::script::{Act, Play, Script};

use crate::player;

/// What consumes, until it is closed.
pub(crate) enum Consuming {
    Handler(RunningConsumer),
    Boundary(Arc<Subscription>),
}

impl Consuming {
    /// Starts the play. All errors of a function have one type in Rust, so scenarios about error types take the other
    /// way.
    pub(crate) async fn start(consumer: Consumer, play: Play, by_type: bool) -> Result<Self> {
        let script = Arc::new(Script::new(play.handler, play.runs));
        if by_type {
            let subscription = Arc::new(consumer.subscribe().await?);
            tokio::spawn(pump(Arc::clone(&subscription), script));
            return Ok(Self::Boundary(subscription));
        }
        if play.consume.batch.is_some() {
            let handler = move |batch: Vec<Message>| {
                let script = Arc::clone(&script);
                async move {
                    let played = batch.iter().map(|message| player::play(&script, message));
                    let acts = join_all(played).await;
                    acts.into_iter().map(answer).collect::<Vec<_>>()
                }
            };
            return Ok(Self::Handler(consumer.start_batches(handler).await?));
        }
        let handler = move |message: Message| {
            let script = Arc::clone(&script);
            async move { answer(player::play(&script, &message).await) }
        };
        Ok(Self::Handler(consumer.start(handler).await?))
    }

    pub(crate) async fn close(&self) {
        match self {
            Self::Handler(running) => running.close().await,
            Self::Boundary(subscription) => {
                subscription.close();
                subscription.wait_closed().await.expect("it has no defect");
            }
        }
    }

    pub(crate) async fn closed(&self) {
        match self {
            Self::Handler(running) => running.closed().await.expect("it has no defect"),
            Self::Boundary(subscription) => {
                subscription.wait_closed().await.expect("it has no defect")
            }
        }
    }
}

/// An error that has a signal among its causes.
#[derive(Debug)]
struct Wrapped(String, Signal);

impl std::fmt::Display for Wrapped {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Wrapped {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.1)
    }
}

/// The end of a run as a service would write it.
fn answer(act: Act) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    Err(match act {
        Act::Ok => return Ok(()),
        Act::Error { message, .. } => message.into(),
        Act::Fatal { message } => fatal(message).into(),
        Act::RetryAfter { delay_ms, message } => {
            retry_after(Duration::from_millis(delay_ms), message).into()
        }
        Act::Park { reason, within } => match within {
            None => park(reason).into(),
            Some(text) => Wrapped(text, park(reason)).into(),
        },
        Act::Defer { delay_ms } => defer(Duration::from_millis(delay_ms)).into(),
        Act::Panic { message } => panic!("{message}"),
        Act::Exit => unreachable!("the process is gone"),
    })
}

/// Takes batches and settles them, as a binding does.
async fn pump(subscription: Arc<Subscription>, script: Arc<Script>) {
    while subscription.ready().await {
        for Delivery { token, message, .. } in subscription.try_next_batch(16) {
            let (subscription, script) = (Arc::clone(&subscription), Arc::clone(&script));
            tokio::spawn(async move {
                let outcome = outcome(player::play(&script, &message).await);
                subscription.settle([(token, outcome)]);
            });
        }
    }
}

/// The end of a run as it crosses the boundary.
fn outcome(act: Act) -> Outcome {
    let failure = |message: String| Failure::new(message);
    match act {
        Act::Ok => Outcome::Ack,
        Act::Error { kind, message } => Outcome::retry(failure(message).of_type(kind)),
        Act::Fatal { message } => Outcome::Park {
            reason: ParkReason::Fatal,
            failure: failure(message),
        },
        Act::RetryAfter { delay_ms, message } => Outcome::Retry {
            failure: failure(message),
            delay: Some(Duration::from_millis(delay_ms)),
        },
        Act::Park { reason, .. } => Outcome::Park {
            reason: ParkReason::Requested,
            failure: failure(reason),
        },
        Act::Defer { delay_ms } => Outcome::Defer {
            delay: Duration::from_millis(delay_ms),
        },
        Act::Panic { message } => Outcome::retry(failure(message)),
        Act::Exit => unreachable!("the process is gone"),
    }
}
