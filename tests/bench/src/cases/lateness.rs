//! How much later than asked a delayed message comes: through retryrmq, and through the broker alone.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use futures_util::StreamExt;
use lapin::{
    BasicProperties,
    options::{BasicAckOptions, BasicPublishOptions, ConfirmSelectOptions},
};
use retryrmq::{Backoff, Client, Publish, waiting_queue};
use retryrmq_harness::Amqp;
use tokio::time::Instant;

use super::{Measured, consume::consume, delivery, meter::Meter};

/// Messages in flight.
const COUNT: usize = 2_000;

/// Handler failure to next attempt, minus the delay. `ms` is the delay.
pub(super) async fn retryrmq(url: &str, queue: &str, ms: usize) -> Measured {
    let delay = Duration::from_millis(ms as u64);
    let rmq = Client::connect(url).await.expect("connected");
    let meter = Arc::new(Meter::to(COUNT));
    let failed: Arc<Mutex<HashMap<String, Instant>>> = Arc::default();
    let late: Arc<Mutex<Vec<Duration>>> = Arc::default();
    let (counting, at, lateness) = (Arc::clone(&meter), Arc::clone(&failed), Arc::clone(&late));
    let running = rmq
        .consumer(queue)
        .dlx(true)
        .retry(Backoff::fixed(delay))
        .prefetch(1_000)
        .start(move |message| {
            let id = message.message_id().unwrap_or_default().to_owned();
            let mut at = at.lock().expect("a lock");
            let result = match at.remove(&id) {
                None => {
                    at.insert(id, Instant::now());
                    Err("the first time")
                }
                Some(began) => {
                    lateness
                        .lock()
                        .expect("a lock")
                        .push(began.elapsed().saturating_sub(delay));
                    counting.one();
                    Ok(())
                }
            };
            std::future::ready(result)
        })
        .await
        .expect("consuming");
    tokio::time::sleep(Duration::from_secs(3)).await; // its queues are a safe place from then on
    let publishes =
        (0..COUNT).map(|n| rmq.publish(Publish::to_queue(queue, "x").message_id(&n.to_string())));
    let published = futures_util::stream::iter(publishes).buffer_unordered(COUNT);
    published
        .for_each(|result| async { result.expect("published") })
        .await;
    meter.reached().await;
    running.close().await;
    let late = std::mem::take(&mut *late.lock().expect("a lock"));
    percentiles(late)
}

/// Confirm of the waiting copy to its delivery from the work queue, minus the delay: what no client can better.
pub(super) async fn broker_alone(url: &str, queue: &str, ms: usize) -> Measured {
    let delay = Duration::from_millis(ms as u64);
    let rmq = Client::connect(url).await.expect("connected");
    let plan = rmq
        .consumer(queue)
        .dlx(true)
        .retry(Backoff::fixed(delay))
        .plan()
        .expect("a plan");
    rmq.apply_plan(&plan).await.expect("queues");
    let amqp = Amqp::connect(url).await;
    let publishing = amqp.new_channel().await;
    publishing
        .confirm_select(ConfirmSelectOptions::default())
        .await
        .expect("confirms");
    let waiting = waiting_queue(queue, delay);
    let sent: Arc<Mutex<HashMap<String, Instant>>> = Arc::default();
    let (channel, mut consumer) = consume(&amqp, queue, 1_000).await;
    let times = Arc::clone(&sent);
    let sending = tokio::spawn(async move {
        let mut confirms = Vec::new();
        for n in 0..COUNT {
            let id = n.to_string();
            let properties = BasicProperties::default()
                .with_delivery_mode(2)
                .with_message_id(id.as_str().into());
            times.lock().expect("a lock").insert(id, Instant::now());
            let options = BasicPublishOptions::default();
            let confirm = publishing
                .basic_publish(
                    "".into(),
                    waiting.as_str().into(),
                    options,
                    b"x",
                    properties,
                )
                .await
                .expect("published");
            confirms.push(confirm);
        }
        for confirm in confirms {
            confirm.await.expect("confirmed");
        }
    });
    let mut late = Vec::new();
    for _ in 0..COUNT {
        let delivery = delivery::next(&mut consumer).await;
        let id = delivery
            .properties
            .message_id()
            .as_ref()
            .map(|id| id.as_str().to_owned())
            .unwrap_or_default();
        if let Some(began) = sent.lock().expect("a lock").get(&id) {
            late.push(began.elapsed().saturating_sub(delay));
        }
        let all = BasicAckOptions { multiple: true };
        if late.len().is_multiple_of(50) || late.len() == COUNT {
            channel
                .basic_ack(delivery.delivery_tag, all)
                .await
                .expect("acknowledged");
        }
    }
    sending.await.expect("sent");
    percentiles(late)
}

fn percentiles(mut late: Vec<Duration>) -> Measured {
    late.sort();
    let at = |share: f64| late[((late.len() - 1) as f64 * share) as usize].as_secs_f64() * 1e3;
    Measured::default()
        .with("p50_ms", at(0.5))
        .with("p99_ms", at(0.99))
        .with("max_ms", at(1.0))
}
