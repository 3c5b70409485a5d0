//! Publishes: `cargo run --bin publish QUEUE BODY…`. Returns when the broker has confirmed.

use retryrmq::{Client, ClientOptions, Publish};

#[tokio::main]
async fn main() -> retryrmq::Result<()> {
    let rmq = Client::from_env(ClientOptions::new()).await?;
    let mut words = std::env::args().skip(1);
    let queue = words.next().unwrap_or_else(|| "orders".to_owned());
    for body in words {
        rmq.publish(Publish::to_queue(&queue, body)).await?;
    }
    rmq.close().await;
    Ok(())
}
