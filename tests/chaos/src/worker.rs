//! A consumer in a process of its own, to be harmed. It tells what it does a line each, as [`retryrmq_faults::worker`] says:
//! `ready`, `begin NUMBER ATTEMPT.DEFERRALS`, `done NUMBER`, `end NUMBER`, `event NAME`, and `failed WHY` before it ends by itself.

use std::fs::File;
use std::path::PathBuf;
use std::time::Duration;

use futures_util::future::join_all;
use retryrmq::types::{AMQPValue, FieldTable};
use retryrmq::{Client, ClientOptions, Message, QueueType, defer, park, retry_after};
use retryrmq_faults::worker::{tell, until_the_end};
use serde::{Deserialize, Serialize};
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::timeout;

use crate::handler_script::{AttemptEnd, HandlerScript};

/// The exit status of a handler that ends its process.
pub const CRASHED: i32 = 3;
/// The environment variable with the [`WorkerOptions`] in it.
pub const ORDERS: &str = "CHAOS_ORDERS";
/// The header with a message's number.
pub const NUMBER: &str = "number";
/// How long a handler may take: much longer than any but the one that hangs, whatever else the machine does.
const HANDLER_TIMEOUT: Duration = Duration::from_secs(4);

/// What a worker is to be like.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct WorkerOptions {
    /// The broker's URL.
    pub url: String,
    /// The queue it consumes.
    pub queue: String,
    /// The strategy, as text.
    pub strategy: String,
    /// The policy, as text.
    pub policy: String,
    /// Whether messages wait in classic queues.
    pub classic: bool,
    /// How many messages it prefetches.
    pub prefetch: u16,
    /// How many handlers it runs.
    pub concurrency: usize,
    /// How many messages a handler gets at most; `None` for single ones.
    pub batch: Option<usize>,
    /// Where handlers remember what they have done once.
    pub scratch: PathBuf,
    /// Whether it is a consumer of another make, one that acknowledges before its copy is confirmed.
    pub loses_copies: bool,
}

/// Consumes until it is told to end. For the program that the tests start.
pub async fn work() {
    let orders = std::env::var(ORDERS).unwrap_or_default();
    let orders: WorkerOptions = match serde_json::from_str(&orders) {
        Ok(orders) => orders,
        Err(_) => {
            eprintln!("{ORDERS} does not say what to consume: chaos starts its workers itself");
            std::process::exit(64);
        }
    };
    let outcome = if orders.loses_copies {
        crate::broken_consumer::consume(orders).await
    } else {
        consume(orders).await.map_err(Into::into)
    };
    if let Err(error) = outcome {
        tell(format_args!("failed {error}"));
        std::process::exit(1);
    }
}

/// What all clients of a work queue must agree on.
pub fn options(classic: bool) -> ClientOptions {
    let queue_type = if classic {
        QueueType::Classic
    } else {
        QueueType::Quorum
    };
    ClientOptions::new().queue_type(queue_type)
}

async fn consume(orders: WorkerOptions) -> retryrmq::Result<()> {
    let end = signal(SignalKind::terminate()).expect("signals can be awaited");
    let client = Client::connect_with(&orders.url, options(orders.classic)).await?;
    let scratch = orders.scratch;
    let consumer = client
        .consumer(orders.queue)
        .dlx(true)
        .strategy(orders.strategy.parse()?)
        .retry(orders.policy.parse()?)
        .prefetch(orders.prefetch)
        .concurrency(orders.concurrency)
        .handler_timeout(HANDLER_TIMEOUT)
        .on_event(|event| {
            let error = event.fields().error.unwrap_or_default().replace('\n', " ");
            tell(format_args!("event {} {error}", event.name()));
        });
    let one = move |message: Message| {
        let scratch = scratch.clone();
        async move { handle(&message, &scratch).await }
    };
    let running = match orders.batch {
        None => consumer.start(one).await?,
        Some(batch) => {
            let each = move |batch: Vec<Message>| {
                // One that hangs keeps no other from its end.
                let all: Vec<_> = batch
                    .into_iter()
                    .map(|message| timeout(HANDLER_TIMEOUT / 2, one(message)))
                    .collect();
                async move {
                    let all = join_all(all).await.into_iter();
                    all.map(|handled| handled.unwrap_or_else(|late| Err(late.into())))
                        .collect::<Vec<_>>()
                }
            };
            consumer.batch(batch).start_batches(each).await?
        }
    };
    until_the_end(end, running, client).await;
    Ok(())
}

async fn handle(
    message: &Message,
    scratch: &std::path::Path,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let number = message.headers().and_then(number).ok_or("no number")?;
    let kind: HandlerScript = String::from_utf8_lossy(message.body()).parse()?;
    let (attempt, deferrals) = (message.attempt(), message.state().deferrals);
    match act(number, kind, attempt, deferrals, scratch).await {
        AttemptEnd::Succeed => Ok(()),
        AttemptEnd::Fail => Err(format!("attempt {attempt} at {number} fails by rule").into()),
        AttemptEnd::FailAndWait(delay) => Err(retry_after(delay, "it chooses its delay").into()),
        AttemptEnd::Defer(delay) => Err(defer(delay).into()),
        AttemptEnd::Park => Err(park("it is told to").into()),
    }
}

/// One attempt, told line by line. Of whatever make the consumer is, this is its handler.
pub async fn act(
    number: u32,
    kind: HandlerScript,
    attempt: u32,
    deferrals: u32,
    scratch: &std::path::Path,
) -> AttemptEnd {
    tell(format_args!("begin {number} {attempt}.{deferrals}"));
    let ended = ReportOnDrop(number);
    let first = || File::create_new(scratch.join(number.to_string())).is_ok();
    let milliseconds = if kind == HandlerScript::Slow {
        1_000
    } else {
        fastrand::u64(0..20)
    };
    tokio::time::sleep(Duration::from_millis(milliseconds)).await;
    match kind {
        HandlerScript::Poison => std::process::exit(CRASHED),
        HandlerScript::CrashesOnce if first() => std::process::exit(CRASHED),
        HandlerScript::HangsOnce if first() => std::future::pending::<()>().await,
        _ => {}
    }
    let attempt_end = kind.attempt_end(attempt, deferrals);
    if attempt_end == AttemptEnd::Succeed {
        tell(format_args!("done {number}"));
    }
    drop(ended);
    attempt_end
}

/// Tells the end of an attempt, also of one that was given up.
struct ReportOnDrop(u32);

impl Drop for ReportOnDrop {
    fn drop(&mut self) {
        tell(format_args!("end {}", self.0));
    }
}

/// The number that a message was published with.
pub fn number(headers: &FieldTable) -> Option<u32> {
    match headers.inner().get(NUMBER)? {
        AMQPValue::LongLongInt(number) => (*number).try_into().ok(),
        _ => None,
    }
}
