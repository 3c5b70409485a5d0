//! Many messages in one call: a bulk insert, in which each order keeps its own end.

use std::{io, time::Duration};

use retryrmq::{Client, ClientOptions, Event, Message, Publish, Signal, park};
use tokio::sync::mpsc;

const QUEUE: &str = "example.batches";

/// Stores all orders at once, or none.
async fn store(orders: &[&Message]) -> io::Result<()> {
    if orders.iter().any(|order| order.attempt() == 1) {
        return Err(io::Error::other("the database is restarting")); // retries all orders of the batch
    }
    let names: Vec<_> = orders
        .iter()
        .filter_map(|order| order.message_id())
        .collect();
    println!("stored {}", names.len());
    Ok(())
}

async fn handle(batch: Vec<Message>) -> io::Result<Vec<Result<(), Signal>>> {
    let good: Vec<_> = batch
        .iter()
        .filter(|order| !order.body().is_empty())
        .collect();
    if !good.is_empty() {
        store(&good).await?;
    }
    let ends = batch.iter().map(|order| match order.body() {
        b"" => Err(park("an order without a number")), // this one only
        _ => Ok(()),
    });
    Ok(ends.collect())
}

#[tokio::main]
async fn main() -> retryrmq::Result<()> {
    let rmq = Client::from_env(ClientOptions::new()).await?;
    let (tell, mut told) = mpsc::unbounded_channel();
    let running = rmq
        .consumer(QUEUE)
        .dlx(true)
        .retry("fixed(500ms, retries=3)".parse()?)
        .batch(100)
        .batch_wait(Duration::from_millis(500))
        .on_event(move |event| {
            if let Event::Parked {
                message_id, error, ..
            } = event
            {
                let id = message_id.as_deref().unwrap_or_default();
                println!("{id} is parked: {error}");
                let _ = tell.send(()); // main may have ended
            }
        })
        .start_batches(handle)
        .await?;
    for number in 0..250 {
        let body = if number == 7 {
            String::new()
        } else {
            number.to_string()
        };
        let order = Publish::to_queue(QUEUE, body);
        rmq.publish(order.message_id(&format!("order-{number}")))
            .await?;
    }
    told.recv().await;
    while running.stats().acked < 249 {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    println!("all are stored");
    running.close().await;
    rmq.close().await;
    Ok(())
}
