//! Errors that a retry cannot fix: the message is parked at once.

use retryrmq::{Client, ClientOptions, Event, Message, Publish, park};
use tokio::sync::mpsc;

const QUEUE: &str = "example.fatal";

#[derive(Debug, thiserror::Error)]
#[error("nobody has the number 0")]
struct UnknownCustomer;

type Failed = Box<dyn std::error::Error + Send + Sync>;

async fn handle(message: Message) -> Result<(), Failed> {
    let order: serde_json::Value = serde_json::from_slice(message.body())?;
    if order["customer"] == 0 {
        Err(UnknownCustomer)?;
    }
    if order["total"].as_i64() < Some(0) {
        Err(park("a negative total: ask the customer"))?;
    }
    Err("the database is restarting".into()) // worth another try
}

#[tokio::main]
async fn main() -> retryrmq::Result<()> {
    let rmq = Client::from_env(ClientOptions::new()).await?;
    let (parked, mut all) = mpsc::unbounded_channel();
    let running = rmq
        .consumer(QUEUE)
        .dlx(true)
        .retry("fixed(500ms, retries=2)".parse()?)
        .fatal(|error| error.is::<UnknownCustomer>() || error.is::<serde_json::Error>())
        .error_type(|error| error.is::<UnknownCustomer>().then_some("UnknownCustomer"))
        .on_event(move |event| {
            if let Event::Parked {
                message_id,
                attempt,
                reason,
                error,
                ..
            } = event
            {
                let id = message_id.as_deref().unwrap_or_default();
                println!("{id} is parked after attempt {attempt}, {reason}: {error}");
                let _ = parked.send(()); // main may have ended
            }
        })
        .start(handle)
        .await?;
    let orders = [
        ("garbage", "not json"),
        ("unknown", r#"{"customer": 0, "total": 5}"#),
        ("negative", r#"{"customer": 1, "total": -5}"#),
        ("unlucky", r#"{"customer": 1, "total": 5}"#),
    ];
    for (id, body) in orders {
        rmq.publish(Publish::to_queue(QUEUE, body).message_id(id))
            .await?;
    }
    for _ in orders {
        all.recv().await;
    }
    running.close().await;

    let mut parked = rmq.parked(QUEUE).browse().await?;
    while let Some(record) = parked.next().await? {
        let message = record.message();
        let id = message.message_id().unwrap_or_default();
        println!(
            "drop {id}: {}, attempts: {}",
            record.error_type, record.attempts
        );
        parked.discard(&record).await?;
    }
    parked.close().await?;
    rmq.close().await;
    Ok(())
}
