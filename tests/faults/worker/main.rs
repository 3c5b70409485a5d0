//! A consumer to be killed: handles the load, and tells on standard output what it does. See `retryrmq_faults::worker`.

use retryrmq::{Client, Message, park};
use retryrmq_faults::{
    load,
    recorder::text,
    worker::{HandlerScript, WorkerOptions, tell, until_the_end},
};
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};

/// The exit status of a handler that ends its process.
const POISONED: i32 = 3;

#[tokio::main(worker_threads = 2)]
async fn main() -> retryrmq::Result<()> {
    tracing_subscriber::fmt()
        .with_env_filter(
            tracing_subscriber::EnvFilter::try_from_default_env().unwrap_or_else(|_| "off".into()),
        )
        .with_writer(std::io::stderr)
        .init();
    let Some(orders) = WorkerOptions::read() else {
        eprintln!(
            "usage: FAULTS_WORKER_URL=… faults-worker QUEUE PREFETCH CONCURRENCY MILLISECONDS|load [POISON]"
        );
        std::process::exit(64);
    };
    let end = signal(SignalKind::terminate()).expect("signals can be awaited");
    let client = Client::connect(&orders.url).await?;
    let (milliseconds, poison, handles) = (orders.milliseconds, orders.poison, orders.handles);
    let policy = match handles {
        HandlerScript::Delays => "fixed(1m)".parse()?,
        HandlerScript::ByRule | HandlerScript::Parks => load::policy(),
    };
    let running = client
        .consumer(orders.queue)
        .dlx(true)
        .retry(policy)
        .prefetch(orders.prefetch)
        .concurrency(orders.concurrency)
        .on_event(|event| tell(format_args!("event {}", event.name())))
        .start(move |message: Message| {
            let poison = poison.clone();
            async move {
                match handles {
                    HandlerScript::ByRule => {
                        handle(&message, milliseconds, poison.as_deref()).await
                    }
                    HandlerScript::Parks => Err(park("it is told to").into()),
                    HandlerScript::Delays => Err("it is told to".into()),
                }
            }
        })
        .await?;
    until_the_end(end, running, client).await;
    Ok(())
}

async fn handle(
    message: &Message,
    milliseconds: Option<u64>,
    poison: Option<&str>,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let (id, attempt) = (text(message), message.attempt());
    tell(format_args!("begin {id} {attempt}"));
    let time = milliseconds.map_or_else(|| load::duration(&id, attempt), Duration::from_millis);
    tokio::time::sleep(time).await;
    if poison == Some(&id) {
        std::process::exit(POISONED);
    }
    if milliseconds.is_none() && load::fails(&id, attempt) {
        return Err(format!("attempt {attempt} at {id} fails by rule").into());
    }
    tell(format_args!("done {id}"));
    Ok(())
}
