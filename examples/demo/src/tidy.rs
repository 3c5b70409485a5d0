//! Leaves the broker as it was: `make demo` may have been given somebody's own.

use std::time::Duration;

use retryrmq::{MILLISECOND, delay_step, parking_queue, waiting_queue};
use retryrmq_harness::Amqp;

use crate::handler::CHOSEN_DELAYS;

/// How many messages are still parked, seen with a plain AMQP client; afterwards all queues of the demo are gone.
pub(crate) async fn parked_then_delete(url: &str, queue: &str) -> u32 {
    let delays: Vec<Duration> = [500, 1_000, 2_000]
        .map(|ms| ms * MILLISECOND)
        .into_iter()
        .chain(CHOSEN_DELAYS.map(delay_step))
        .collect();
    delete(url, queue, &delays).await
}

/// The same for a queue with these delays.
pub(crate) async fn delete(url: &str, queue: &str, delays: &[Duration]) -> u32 {
    let amqp = Amqp::connect(url).await;
    let parked = amqp.depth(&parking_queue(queue)).await.unwrap_or(0);
    for delay in delays {
        amqp.delete(&waiting_queue(queue, *delay)).await;
    }
    amqp.delete(&parking_queue(queue)).await;
    amqp.delete(queue).await;
    amqp.close().await;
    parked
}
