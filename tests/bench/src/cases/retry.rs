//! Every message fails once or more often, waits a second each time, and succeeds.

use std::sync::Arc;

use lapin::{Channel, message::Delivery, options::ConfirmSelectOptions};
use retryrmq::{Backoff, Client, SECOND, Strategy, waiting_queue};
use retryrmq_harness::Amqp;

use super::{Measured, delivery, meter::Meter};

/// Messages of one measurement; `RETRYRMQ_BENCH_RETRIED` changes it.
pub(crate) fn count() -> usize {
    crate::rounds::number("RETRYRMQ_BENCH_RETRIED", 20_000)
}

/// How often each message fails, of how many, and how many a client may hold.
#[derive(Clone, Copy)]
pub(super) struct Load {
    pub(super) count: usize,
    pub(super) failures: u32,
    pub(super) outstanding: usize,
}

impl Load {
    /// As many messages as [`count`] says, each of which fails once.
    pub(super) fn once(outstanding: usize) -> Self {
        Self {
            count: count(),
            failures: 1,
            outstanding,
        }
    }

    pub(super) fn prefetch(self) -> u16 {
        u16::try_from(self.outstanding).expect("a prefetch")
    }

    /// Deliveries until every message has succeeded.
    pub(super) fn deliveries(self) -> usize {
        self.count * (self.failures as usize + 1)
    }
}

/// What people write: a task per delivery publishes the copy, awaits its confirm, and acknowledges.
pub(super) async fn by_hand(url: &str, queue: &str, load: Load) -> Measured {
    let amqp = Amqp::connect(url).await;
    let publishing = amqp.new_channel().await;
    publishing
        .confirm_select(ConfirmSelectOptions::default())
        .await
        .expect("confirms");
    let mut consumer = amqp.consume(queue, load.prefetch()).await;
    let waiting = waiting_queue(queue, SECOND);
    let meter = Arc::new(Meter::to(load.count));
    for _ in 0..load.deliveries() {
        let delivery = delivery::next(&mut consumer).await;
        meter.arrived();
        let (publishing, waiting) = (publishing.clone(), waiting.clone());
        let meter = Arc::clone(&meter);
        tokio::spawn(async move {
            handle_by_hand(&publishing, &waiting, delivery, load.failures, &meter).await;
        });
    }
    meter.pace().await
}

async fn handle_by_hand(
    publishing: &Channel,
    waiting: &str,
    delivery: Delivery,
    failures: u32,
    meter: &Meter,
) {
    let fails = delivery::failed(&delivery) < failures;
    if fails {
        delivery::copy(publishing, waiting, &delivery).await;
    }
    delivery::acknowledge(&delivery).await;
    if !fails {
        meter.one();
    }
}

/// Ours, with everything on.
pub(super) async fn retryrmq(url: &str, queue: &str, load: Load, strategy: Strategy) -> Measured {
    let rmq = Client::connect(url).await.expect("connected");
    let meter = Arc::new(Meter::to(load.count));
    let counting = Arc::clone(&meter);
    let running = rmq
        .consumer(queue)
        .dlx(true)
        .strategy(strategy)
        .retry(Backoff::fixed(SECOND))
        .prefetch(load.prefetch())
        .start(move |message| {
            counting.arrived();
            let fails = message.attempt() <= load.failures;
            if !fails {
                counting.one();
            }
            std::future::ready(if fails { Err("not yet") } else { Ok(()) })
        })
        .await
        .expect("consuming");
    let measured = meter.pace().await;
    running.close().await;
    measured
}

/// Makes the work queue and what hangs from it.
pub(crate) async fn make(url: &str, queue: &str, strategy: Strategy) {
    let rmq = Client::connect(url).await.expect("connected");
    let plan = rmq
        .consumer(queue)
        .dlx(true)
        .strategy(strategy)
        .retry(Backoff::fixed(SECOND))
        .plan()
        .expect("a plan");
    rmq.apply_plan(&plan).await.expect("queues");
    rmq.close().await;
}
