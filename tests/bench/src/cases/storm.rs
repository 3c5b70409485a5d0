//! Everything that is published at once fails five times, a second between two attempts: what a broken dependency leaves behind. Queue and
//! consumer are there first, and no longer young.
//!
//! Besides the loop by hand there are two peers that publish no copies: RabbitMQ 4.3's own delayed retry, and the loop that
//! gives a message back at once, which waits for nothing and so tries everything again as fast as it can.

use std::{collections::HashMap, sync::Arc};

use lapin::{
    message::Delivery,
    types::{AMQPValue, FieldTable},
};
use retryrmq::Strategy;
use retryrmq_harness::{Amqp, QueueType};

use super::{
    Measured,
    delivery::{self, counted},
    meter::Meter,
    retry::{self, Load},
};

/// How often each message fails.
const FAILURES: u32 = 5;

/// Messages of one measurement; `RETRYRMQ_BENCH_STORM` changes it.
pub(crate) fn count() -> usize {
    crate::rounds::number("RETRYRMQ_BENCH_STORM", 100_000)
}

fn load(outstanding: usize) -> Load {
    Load {
        count: count(),
        failures: FAILURES,
        outstanding,
    }
}

pub(super) async fn retryrmq(
    url: &str,
    queue: &str,
    outstanding: usize,
    strategy: Strategy,
) -> Measured {
    retry::retryrmq(url, queue, load(outstanding), strategy).await
}

pub(super) async fn by_hand(url: &str, queue: &str, outstanding: usize) -> Measured {
    retry::by_hand(url, queue, load(outstanding)).await
}

/// Makes a queue that keeps what is rejected for a second.
pub(crate) async fn make_for_delayed_retry(url: &str, queue: &str) {
    let amqp = Amqp::connect(url).await;
    let mut arguments = FieldTable::default();
    arguments.insert(
        "x-delayed-retry-type".into(),
        AMQPValue::LongString("failed".into()),
    );
    for bound in ["x-delayed-retry-min", "x-delayed-retry-max"] {
        arguments.insert(bound.into(), AMQPValue::LongInt(1_000));
    }
    amqp.declare_with(queue, QueueType::Quorum, arguments).await;
    amqp.close().await;
}

/// The client only rejects; the queue keeps the message and counts.
pub(super) async fn delayed_retry(url: &str, queue: &str, outstanding: usize) -> Measured {
    let amqp = Amqp::connect(url).await;
    let fails = |delivery: &Delivery| counted(delivery, "x-delivery-count") < FAILURES;
    without_copies(&amqp, queue, load(outstanding), fails, delivery::reject).await
}

/// Given back at once; how often a message has failed is known to this process alone.
pub(super) async fn requeue(url: &str, queue: &str, outstanding: usize) -> Measured {
    let load = load(outstanding);
    let amqp = Amqp::connect(url).await;
    let mut failures: HashMap<String, u32> = HashMap::new();
    let fails = |delivery: &Delivery| {
        let id = delivery.properties.message_id().as_ref();
        let id = id.map(|id| id.as_str().to_owned()).unwrap_or_default();
        let failed = failures.entry(id).or_default();
        *failed += 1;
        *failed <= FAILURES
    };
    without_copies(&amqp, queue, load, fails, delivery::requeue).await
}

/// A task for each delivery gives back what fails, and acknowledges what does not.
async fn without_copies<F: Future<Output = ()> + Send + 'static>(
    amqp: &Amqp,
    queue: &str,
    load: Load,
    mut fails: impl FnMut(&Delivery) -> bool,
    give_back: fn(Delivery) -> F,
) -> Measured {
    let mut consumer = amqp.consume(queue, load.prefetch()).await;
    let meter = Arc::new(Meter::to(load.count));
    for _ in 0..load.deliveries() {
        let delivery = delivery::next(&mut consumer).await;
        meter.arrived();
        let (fails, meter) = (fails(&delivery), Arc::clone(&meter));
        tokio::spawn(async move {
            if fails {
                give_back(delivery).await;
            } else {
                delivery::acknowledge(&delivery).await;
                meter.one();
            }
        });
    }
    meter.pace().await
}
