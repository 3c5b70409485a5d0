//! A consumer to be killed: handles the load, and tells on standard output what it does. See `retryrmq_faults::worker`.

use retryrmq::{Client, Message};
use retryrmq_faults::{load, tape::text, worker::Orders};
use std::io::Write;
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
    let Some(orders) = Orders::read() else {
        eprintln!(
            "usage: FAULTS_WORKER_URL=… faults-worker QUEUE PREFETCH CONCURRENCY MILLISECONDS|load [POISON]"
        );
        std::process::exit(64);
    };
    let mut end = signal(SignalKind::terminate()).expect("signals can be awaited");
    let client = Client::connect(&orders.url).await?;
    let (milliseconds, poison) = (orders.milliseconds, orders.poison);
    let running = client
        .consumer(orders.queue)
        .dlx(true)
        .retry(load::policy())
        .prefetch(orders.prefetch)
        .concurrency(orders.concurrency)
        .on_event(|event| tell(format_args!("event {}", event.name())))
        .start(move |message: Message| {
            let poison = poison.clone();
            async move { handle(&message, milliseconds, poison.as_deref()).await }
        })
        .await?;
    tell(format_args!("ready"));
    end.recv().await;
    running.close().await;
    client.close().await;
    Ok(())
}

async fn handle(
    message: &Message,
    milliseconds: Option<u64>,
    poison: Option<&str>,
) -> Result<(), String> {
    let (id, attempt) = (text(message), message.attempt());
    tell(format_args!("begin {id} {attempt}"));
    let time = milliseconds.map_or_else(|| load::duration(&id, attempt), Duration::from_millis);
    tokio::time::sleep(time).await;
    if poison == Some(&id) {
        std::process::exit(POISONED);
    }
    if milliseconds.is_none() && load::fails(&id, attempt) {
        return Err(format!("attempt {attempt} at {id} fails by rule"));
    }
    tell(format_args!("done {id}"));
    Ok(())
}

/// One line in one piece: a kill comes before or after it.
fn tell(line: std::fmt::Arguments<'_>) {
    let line = format!("{line}\n");
    // A reader that is gone has ended the test.
    let _ = std::io::stdout().lock().write_all(line.as_bytes());
}
