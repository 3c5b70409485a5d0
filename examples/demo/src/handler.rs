//! The service of the demo: an ordinary handler, with every way out of it.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use retryrmq::{Message, Signal, defer, fatal, park, retry_after};

use crate::{
    orders,
    story::{Chronicle, Step},
};

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// What one handler panics with.
pub(crate) const PLANNED_PANIC: &str = "index out of bounds";

/// The delays that handlers choose: retry after, and put off.
pub(crate) const CHOSEN_DELAYS: [Duration; 2] =
    [Duration::from_millis(800), Duration::from_millis(600)];

/// Handles one order.
pub(crate) async fn handle(
    message: Message,
    chronicle: Arc<Chronicle>,
    mended: Arc<AtomicBool>,
) -> Result<(), Failure> {
    let id = message.message_id().unwrap_or_default().to_owned();
    chronicle.note(&id, Step::Attempt(message.attempt()));
    let outcome = work(&message, &mended).await;
    if outcome.is_ok() {
        chronicle.note(&id, Step::Succeeded);
    }
    outcome
}

async fn work(message: &Message, mended: &AtomicBool) -> Result<(), Failure> {
    let first = message.attempt() == 1;
    match message.body() {
        b"flaky" if message.attempt() <= 2 => Err("the database is restarting".into()),
        b"busy" if first => Err(signal(retry_after(
            CHOSEN_DELAYS[0],
            "the partner asks for 800 ms",
        ))),
        b"early" if message.state().deferrals == 0 => Err(signal(defer(CHOSEN_DELAYS[1]))),
        b"crash" if first => std::panic::panic_any(PLANNED_PANIC),
        b"slow" if first => {
            tokio::time::sleep(Duration::from_secs(3600)).await;
            Ok(())
        }
        b"junk" => Err(signal(park("no such customer"))),
        b"broken" => Err(signal(fatal("the signature does not match"))),
        b"euro" if !mended.load(Ordering::SeqCst) => Err(orders::BUG.into()),
        _ => Ok(()),
    }
}

fn signal(signal: Signal) -> Failure {
    Box::new(signal)
}
