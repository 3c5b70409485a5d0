//! The two ways to write a handler: a function that returns a result, and an own [`Handler`] that names error types.

use std::sync::Arc;
use std::time::Duration;

use retryrmq::{
    Consumer, Failure, Handler, Message, Outcome, ParkReason, Result, Running, defer, fatal, park,
    retry_after,
};
use retryrmq_scenarios::script::{Act, Play, Script};

use crate::player::play;

/// Starts the play. A function's errors have one type in Rust, so scenarios about error types take the other way.
pub(crate) async fn start(consumer: Consumer, play: Play, by_type: bool) -> Result<Running> {
    let script = Arc::new(Script::new(play.handler, play.runs));
    if by_type {
        return consumer.start(Typed(script)).await;
    }
    consumer
        .start(move |message| {
            let script = Arc::clone(&script);
            async move { answer(play_on(&script, message).await) }
        })
        .await
}

async fn play_on(script: &Script, message: Message) -> Act {
    play(script, &message).await
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
        Act::Park { reason } => park(reason).into(),
        Act::Defer { delay_ms } => defer(Duration::from_millis(delay_ms)).into(),
        Act::Panic { message } => panic!("{message}"),
        Act::Exit => unreachable!("the process is gone"),
    })
}

struct Typed(Arc<Script>);

impl Handler for Typed {
    async fn handle(&self, message: Message) -> Outcome {
        match play(&self.0, &message).await {
            Act::Ok => Outcome::Ack,
            Act::Error { kind, message } => Outcome::retry(Failure::new(message).of_type(kind)),
            Act::Fatal { message } => Outcome::Park {
                reason: ParkReason::Fatal,
                failure: Failure::new(message),
            },
            Act::RetryAfter { delay_ms, message } => Outcome::Retry {
                failure: Failure::new(message),
                delay: Some(Duration::from_millis(delay_ms)),
            },
            Act::Park { reason } => Outcome::Park {
                reason: ParkReason::Requested,
                failure: Failure::new(reason),
            },
            Act::Defer { delay_ms } => Outcome::Defer {
                delay: Duration::from_millis(delay_ms),
            },
            Act::Panic { message } => panic!("{message}"),
            Act::Exit => unreachable!("the process is gone"),
        }
    }
}
