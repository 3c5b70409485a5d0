//! Publishes: `cargo run --bin publish QUEUE BODY…`. Returns when the broker has confirmed.

use retryrmq::{Client, Publish};

#[tokio::main]
async fn main() -> retryrmq::Result<()> {
    let url = std::env::var("RETRYRMQ_URL").unwrap_or_else(|_| "amqp://localhost".to_owned());
    let rmq = Client::connect(&url).await?;
    let mut words = std::env::args().skip(1);
    let queue = words.next().unwrap_or_else(|| "orders".to_owned());
    for body in words {
        rmq.publish(Publish::to_queue(&queue, body)).await?;
    }
    rmq.close().await;
    Ok(())
}
