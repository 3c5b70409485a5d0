//! Leaves the broker as it was: `make demo` may have been given somebody's own.

use retryrmq::{MILLISECOND, parking_queue, rung, waiting_queue};
use retryrmq_harness::Amqp;

use crate::handler::CHOSEN_DELAYS;

/// How many messages are still parked, seen with a plain AMQP client; afterwards all queues of the demo are gone.
pub(crate) async fn parked_then_delete(url: &str, queue: &str) -> u32 {
    let amqp = Amqp::connect(url).await;
    let parked = amqp.depth(&parking_queue(queue)).await.unwrap_or(0);
    let waiting = [500, 1_000, 2_000]
        .map(|ms| ms * MILLISECOND)
        .into_iter()
        .chain(CHOSEN_DELAYS.map(rung));
    for delay in waiting {
        amqp.delete(&waiting_queue(queue, delay)).await;
    }
    amqp.delete(&parking_queue(queue)).await;
    amqp.delete(queue).await;
    amqp.close().await;
    parked
}
