//! Plays scenarios with the crate `retryrmq`: the driver contract of `tests/scenarios/README.md`.

mod handler;
mod player;

use std::process::ExitCode;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use retryrmq::log_buffer::{self, Level};
use retryrmq::types::{AMQPValue, FieldTable, ShortString};
use retryrmq::{Client, ClientOptions, Consumer, Limits, Publish};
use retryrmq_scenarios::script::{Options, Order, Outgoing, Play, now_ms, say};
use serde_json::{Value, json};
use tokio::signal::unix::{SignalKind, signal};

use crate::handler::Consuming;

type Failed = Box<dyn std::error::Error + Send + Sync>;

/// All steps and options that the crate has.
const CAN: [&str; 26] = [
    "error",
    "error_type",
    "fatal",
    "retry_after",
    "park",
    "defer",
    "panic",
    "exit",
    "rules",
    "handler_timeout",
    "batch",
    "pause",
    "declare",
    "queue_type",
    "prefetch_bytes",
    "crash_limit",
    "defer_limit",
    "no_park",
    "wrapped_park",
    "log",
    "mended",
    "replay",
    "records",
    "whole_headers",
    "publish",
    "events",
];

#[tokio::main]
async fn main() -> ExitCode {
    match obey().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

async fn obey() -> Result<(), Failed> {
    match Order::read()? {
        Order::Describe => {
            let can: Vec<&str> = CAN.into_iter().chain(["refused"]).collect();
            say(&json!({"line": "driver", "name": "rust", "can": can}));
        }
        Order::Consume(play) => consume(*play).await?,
        Order::Replay { url, queue } => replay(&url, &queue).await?,
        Order::Publish { url, messages } => publish(&url, messages).await?,
    }
    Ok(())
}

async fn consume(play: Play) -> Result<(), Failed> {
    log_buffer::capture(tell_lines);
    log_buffer::set_level(Level::DEBUG);
    let mut end = signal(SignalKind::terminate())?;
    let (client, consuming) = match subscribe(play).await {
        Ok(started) => started,
        Err(error) => {
            let error = error.downcast::<retryrmq::Error>()?;
            say(&json!({"line": "refused", "code": error.code(), "message": error.to_string()}));
            return Ok(());
        }
    };
    say(&json!({"line": "ready"}));
    tokio::select! {
        _ = end.recv() => consuming.close().await,
        () = consuming.closed() => return Err("the consumer ended by itself".into()),
    }
    client.close().await;
    // The last line, whoever still logs.
    *LOG_IS_OVER.lock().unwrap_or_else(PoisonError::into_inner) = true;
    say(&json!({"line": "done"}));
    Ok(())
}

static LOG_IS_OVER: Mutex<bool> = Mutex::new(false);

/// The crate's log, as whoever installs no subscriber of their own may have it.
fn tell_lines() {
    let is_over = LOG_IS_OVER.lock().unwrap_or_else(PoisonError::into_inner);
    if *is_over {
        return;
    }
    for line in log_buffer::take() {
        let level = line.level.to_string().to_lowercase();
        say(&json!({"line": "log", "level": level, "text": line.to_string()}));
    }
}

async fn subscribe(play: Play) -> Result<(Client, Consuming), Failed> {
    let queue_type = play
        .consume
        .queue_type
        .as_deref()
        .map(str::parse)
        .transpose()?;
    let options = ClientOptions::new().queue_type(queue_type.unwrap_or_default());
    let client = Client::connect_with(&play.url, options).await?;
    let consumer = with_options(client.consumer(&play.queue), &play.consume)?;
    let by_type = play
        .consume
        .rules
        .iter()
        .any(|rule| rule.contains("error="));
    let consuming = Consuming::start(consumer, play, by_type).await?;
    Ok((client, consuming))
}

fn with_options(mut consumer: Consumer, options: &Options) -> Result<Consumer, Failed> {
    consumer = consumer.dlx(options.dlx).on_event(|event| {
        let fields = event.fields();
        say(&json!({
            "line": "event", "kind": event.name(), "queue": fields.queue, "error": fields.error,
            "to": fields.to, "count": fields.count, "cause": fields.cause,
        }));
    });
    if options.fatal == Some(true) {
        consumer = consumer.fatal(|_| false);
    }
    if let Some(policy) = &options.retry {
        consumer = consumer.retry(policy.parse()?);
    }
    if let Some(strategy) = &options.strategy {
        consumer = consumer.strategy(strategy.parse()?);
    }
    if !options.rules.is_empty() {
        let rules = options
            .rules
            .iter()
            .map(|rule| rule.parse())
            .collect::<Result<Vec<_>, _>>()?;
        consumer = consumer.rules(rules);
    }
    if let Some(prefetch) = options.prefetch {
        consumer = consumer.prefetch(prefetch);
    }
    if let Some(bytes) = options.prefetch_bytes {
        consumer = consumer.prefetch_bytes(bytes);
    }
    if let Some(concurrency) = options.concurrency {
        consumer = consumer.concurrency(concurrency.into());
    }
    if let Some(batch) = options.batch {
        consumer = consumer.batch(batch);
    }
    if let Some(ms) = options.batch_wait_ms {
        consumer = consumer.batch_wait(Duration::from_millis(ms));
    }
    if let Some(ms) = options.handler_timeout_ms {
        consumer = consumer.handler_timeout(Duration::from_millis(ms));
    }
    if let Some(pause) = options.pause {
        consumer = consumer.pause(
            retryrmq::Pause::default()
                .failures(pause.share)
                .window(usize::try_from(pause.window)?)
                .pause(Duration::from_millis(pause.for_ms)),
        );
    }
    if let Some(park) = options.park {
        consumer = consumer.park(park);
    }
    if let Some(declare) = options.declare {
        consumer = consumer.declare(declare);
    }
    let mut limits = Limits::default();
    limits.crashes = options.crash_limit.unwrap_or(limits.crashes);
    limits.deferrals = options.defer_limit.unwrap_or(limits.deferrals);
    Ok(consumer.limits(limits))
}

async fn replay(url: &str, queue: &str) -> Result<(), Failed> {
    let client = Client::connect(url).await?;
    let mut parked = client.parked(queue).browse().await?;
    while let Some(record) = parked.next().await? {
        say(&json!({
            "line": "parked",
            "id": player::id(&record.message()),
            "reason": record.reason.map(|reason| reason.as_str()),
            "by_broker": record.by_broker,
            "home": record.home,
            "error": record.error,
            "error_type": record.error_type,
            "attempts": record.attempts,
        }));
        parked.replay(&record).await?;
    }
    parked.close().await?;
    client.close().await;
    Ok(())
}

async fn publish(url: &str, messages: Vec<Outgoing>) -> Result<(), Failed> {
    let client = Client::connect(url).await?;
    for message in messages {
        let mut headers = FieldTable::default();
        for (key, value) in &message.headers {
            let value = match value {
                Value::Bool(flag) => AMQPValue::Boolean(*flag),
                Value::Number(number) => {
                    AMQPValue::LongLongInt(number.as_i64().ok_or("not an integer")?)
                }
                other => AMQPValue::LongString(other.as_str().ok_or("not a text")?.into()),
            };
            headers.insert(ShortString::try_new(key.as_str())?, value);
        }
        let mut outgoing =
            Publish::to_exchange(message.exchange, message.routing_key, message.body)
                .headers(headers);
        if let Some(ms) = message.delay_ms {
            outgoing = outgoing.delay(Duration::from_millis(ms));
        }
        let at_ms = now_ms();
        client.publish(outgoing).await?;
        say(&json!({"line": "published", "id": message.id, "at_ms": at_ms}));
    }
    client.close().await;
    Ok(())
}
