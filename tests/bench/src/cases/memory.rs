//! Memory of the client while very many messages wait in the broker.

use std::time::Duration;

use futures_util::StreamExt;
use retryrmq::{Backoff, Client, HOUR, Publish, waiting_queue};
use retryrmq_harness::Amqp;

use super::{BODY, Measured};
use crate::process;

/// Messages that wait; `RETRYRMQ_BENCH_WAITING` changes it.
pub(crate) fn count() -> usize {
    crate::rounds::number("RETRYRMQ_BENCH_WAITING", 100_000)
}

/// Lets `count` messages fail once, an hour of waiting before each, and measures before, half-way and after.
pub(super) async fn waiting(url: &str, queue: &str, count: usize) -> Measured {
    let rmq = Client::connect(url).await.expect("connected");
    let running = rmq
        .consumer(queue)
        .dlx(true)
        .retry(Backoff::fixed(HOUR))
        .start(|_| std::future::ready(Err::<(), _>("not now")))
        .await
        .expect("consuming");
    let mut measured = Measured::default();
    let mut publishes =
        futures_util::stream::iter((0..count).map(|_| rmq.publish(Publish::to_queue(queue, BODY))))
            .buffer_unordered(500);
    let mut published = 0;
    while let Some(result) = publishes.next().await {
        result.expect("published");
        published += 1;
        // The first thousand fill buffers and caches; what counts is whether it grows from there.
        for (name, at) in [("begin_kib", count / 10), ("half_kib", count / 2)] {
            if published == at {
                measured = measured.with(name, process::resident() as f64);
            }
        }
    }
    while running.stats().retried < count as u64 {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let end = process::resident() as f64;
    let grown = (end - measured.get("begin_kib")) * 1024.0;
    let amqp = Amqp::connect(url).await;
    let stored = amqp.depth(&waiting_queue(queue, HOUR)).await;
    let held = count - stored.unwrap_or_default() as usize;
    let measured = measured
        .with("end_kib", end)
        .with("bytes_each", grown / (count - count / 10) as f64)
        .with("held", held as f64);
    drop(publishes);
    running.close().await;
    measured
}
