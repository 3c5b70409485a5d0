//! Consume and acknowledge a full queue, with a handler that does nothing.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use lapin::{
    Channel, Consumer,
    options::{BasicAckOptions, BasicConsumeOptions, BasicQosOptions},
    types::FieldTable,
};
use retryrmq::Client;
use retryrmq_harness::Amqp;
use tokio::{sync::Notify, time::Instant};

use super::{Measured, delivery};
use crate::process;

const PREFETCH: u16 = 200;

/// Raw lapin, one awaited acknowledgement per delivery.
pub(super) async fn ack_each(url: &str, queue: &str, count: usize) -> Measured {
    let amqp = Amqp::connect(url).await;
    let mut consumer = amqp.consume(queue, PREFETCH).await;
    let (began, cpu) = (Instant::now(), process::cpu());
    for _ in 0..count {
        let delivery = delivery::next(&mut consumer).await;
        delivery::acknowledge(&delivery).await;
    }
    Measured::pace(count, began.elapsed(), cpu)
}

/// Raw lapin, a task per delivery that acknowledges it.
pub(super) async fn ack_each_in_tasks(url: &str, queue: &str, count: usize) -> Measured {
    let amqp = Amqp::connect(url).await;
    let mut consumer = amqp.consume(queue, PREFETCH).await;
    let (began, cpu) = (Instant::now(), process::cpu());
    let done = Arc::new(Counter::to(count));
    for _ in 0..count {
        let delivery = delivery::next(&mut consumer).await;
        let done = Arc::clone(&done);
        tokio::spawn(async move {
            delivery::acknowledge(&delivery).await;
            done.one();
        });
    }
    done.reached().await;
    Measured::pace(count, began.elapsed(), cpu)
}

/// Raw lapin, one acknowledgement for every sixteen deliveries: the limit of what this client can do.
pub(super) async fn ack_multiple(url: &str, queue: &str, count: usize) -> Measured {
    let amqp = Amqp::connect(url).await;
    let (channel, mut consumer) = consume(&amqp, queue, PREFETCH).await;
    let (began, cpu) = (Instant::now(), process::cpu());
    for n in 1..=count {
        let delivery = delivery::next(&mut consumer).await;
        if n.is_multiple_of(16) || n == count {
            let all = BasicAckOptions { multiple: true };
            channel
                .basic_ack(delivery.delivery_tag, all)
                .await
                .expect("acknowledged");
        }
    }
    Measured::pace(count, began.elapsed(), cpu)
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
    let done = Arc::new(Counter::to(count));
    let counted = Arc::clone(&done);
    let (began, cpu) = (Instant::now(), process::cpu());
    let running = rmq
        .consumer(queue)
        .dlx(true)
        .prefetch(PREFETCH)
        .start(move |_| {
            counted.one();
            std::future::ready(Ok::<(), std::io::Error>(()))
        })
        .await
        .expect("consuming");
    done.reached().await;
    let measured = Measured::pace(count, began.elapsed(), cpu);
    running.close().await;
    measured
}

/// Counts up to a number, and tells when it is reached.
pub(super) struct Counter {
    left: AtomicUsize,
    reached: Notify,
}

impl Counter {
    pub(super) fn to(count: usize) -> Self {
        Self {
            left: AtomicUsize::new(count),
            reached: Notify::new(),
        }
    }

    pub(super) fn one(&self) {
        if self.left.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.reached.notify_one();
        }
    }

    pub(super) async fn reached(&self) {
        self.reached.notified().await;
    }
}
