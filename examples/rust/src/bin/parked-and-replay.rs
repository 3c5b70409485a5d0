//! A bug parks messages. An operator browses them, the bug is fixed, and they are replayed.

use retryrmq::{Client, ClientOptions, Event, Message, Publish};
use tokio::sync::mpsc;

const QUEUE: &str = "example.replay";

fn price(order: &serde_json::Value, fixed: bool) -> Result<f64, String> {
    let discount = order["discount"].as_f64().or(fixed.then_some(0.0));
    let discount = discount.ok_or("an order without a discount")?;
    Ok(order["price"].as_f64().unwrap_or_default() - discount)
}

/// Handles until `count` orders have been parked or are done.
async fn consume(
    rmq: &Client,
    fixed: bool,
    count: usize,
    orders: &[(&str, &str)],
) -> retryrmq::Result<()> {
    let (end, mut ends) = mpsc::unbounded_channel();
    let parked = end.clone();
    let running = rmq
        .consumer(QUEUE)
        .dlx(true)
        .retry("list(200ms)".parse()?)
        .on_event(move |event| {
            if let Event::Parked { .. } = event {
                let _ = parked.send(()); // main may have ended
            }
        })
        .start(move |message: Message| {
            let end = end.clone();
            async move {
                let order =
                    serde_json::from_slice(message.body()).map_err(|why| why.to_string())?;
                let price = price(&order, fixed)?;
                println!("{} costs {price}", message.message_id().unwrap_or_default());
                let _ = end.send(());
                Ok::<(), String>(())
            }
        })
        .await?;
    for (id, body) in orders {
        rmq.publish(Publish::to_queue(QUEUE, *body).message_id(id))
            .await?;
    }
    for _ in 0..count {
        ends.recv().await;
    }
    running.close().await;
    Ok(())
}

#[tokio::main]
async fn main() -> retryrmq::Result<()> {
    let rmq = Client::from_env(ClientOptions::new()).await?;
    let orders = [
        ("order-1", r#"{"price": 10, "discount": 1}"#),
        ("order-2", r#"{"price": 20}"#),
        ("order-3", r#"{"price": 0.5}"#),
    ];
    consume(&rmq, false, orders.len(), &orders).await?;

    let mut parked = rmq.parked(QUEUE).browse().await?;
    while let Some(record) = parked.next().await? {
        let message = record.message();
        let id = message.message_id().unwrap_or_default();
        println!(
            "parked {id}: {} after attempt {}",
            record.error, record.attempts
        );
        if id == "order-3" {
            parked.discard(&record).await?; // not worth it
        } else {
            parked.replay(&record).await?; // back to the tail of its queue, counted from the start
        }
    }
    parked.close().await?;

    consume(&rmq, true, 1, &[]).await?;
    rmq.close().await;
    Ok(())
}
