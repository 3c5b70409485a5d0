//! Consume and acknowledge a full queue, with a handler that does nothing.

use std::sync::Arc;

use lapin::{
    Channel, Consumer,
    options::{BasicAckOptions, BasicConsumeOptions, BasicQosOptions},
    types::FieldTable,
};
use retryrmq::Client;
use retryrmq_harness::Amqp;

use super::{Measured, delivery, meter::Meter};

const PREFETCH: u16 = 200;

/// Raw lapin, one awaited acknowledgement per delivery.
pub(super) async fn ack_each(url: &str, queue: &str, count: usize) -> Measured {
    let amqp = Amqp::connect(url).await;
    let mut consumer = amqp.consume(queue, PREFETCH).await;
    let meter = Meter::to(count);
    for _ in 0..count {
        let delivery = delivery::next(&mut consumer).await;
        meter.arrived();
        delivery::acknowledge(&delivery).await;
        meter.one();
    }
    meter.pace().await
}

/// Raw lapin, a task per delivery that acknowledges it.
pub(super) async fn ack_each_in_tasks(url: &str, queue: &str, count: usize) -> Measured {
    let amqp = Amqp::connect(url).await;
    let mut consumer = amqp.consume(queue, PREFETCH).await;
    let meter = Arc::new(Meter::to(count));
    for _ in 0..count {
        let delivery = delivery::next(&mut consumer).await;
        meter.arrived();
        let meter = Arc::clone(&meter);
        tokio::spawn(async move {
            delivery::acknowledge(&delivery).await;
            meter.one();
        });
    }
    meter.pace().await
}

/// Raw lapin, one acknowledgement for every sixteen deliveries: the limit of what this client can do.
pub(super) async fn ack_multiple(url: &str, queue: &str, count: usize) -> Measured {
    let amqp = Amqp::connect(url).await;
    let (channel, mut consumer) = consume(&amqp, queue, PREFETCH).await;
    let meter = Meter::to(count);
    for n in 1..=count {
        let delivery = delivery::next(&mut consumer).await;
        meter.arrived();
        if n.is_multiple_of(16) || n == count {
            let all = BasicAckOptions { multiple: true };
            channel
                .basic_ack(delivery.delivery_tag, all)
                .await
                .expect("acknowledged");
        }
        meter.one();
    }
    meter.pace().await
}

/// A consumer and its channel, on which a prefix of its deliveries can be acknowledged.
pub(super) async fn consume(amqp: &Amqp, queue: &str, prefetch: u16) -> (Channel, Consumer) {
    let channel = amqp.new_channel().await;
    channel
        .basic_qos(prefetch, BasicQosOptions::default())
        .await
        .expect("a prefetch");
    let options = BasicConsumeOptions::default();
    let consume = channel.basic_consume(queue.into(), "".into(), options, FieldTable::default());
    let consumer = consume.await.expect("a consumer");
    (channel, consumer)
}

/// Ours, with everything on.
pub(super) async fn retryrmq(url: &str, queue: &str, count: usize) -> Measured {
    let rmq = Client::connect(url).await.expect("connected");
    let meter = Arc::new(Meter::to(count));
    let counting = Arc::clone(&meter);
    let running = rmq
        .consumer(queue)
        .dlx(true)
        .prefetch(PREFETCH)
        .start(move |_| {
            counting.arrived();
            counting.one();
            std::future::ready(Ok::<(), std::io::Error>(()))
        })
        .await
        .expect("consuming");
    let measured = meter.pace().await;
    running.close().await;
    measured
}
