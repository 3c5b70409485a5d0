//! Every message fails once, waits a second, and succeeds.

use std::sync::Arc;

use futures_util::StreamExt;
use lapin::{
    Channel, Confirmation,
    message::Delivery,
    options::{BasicAckOptions, BasicPublishOptions, ConfirmSelectOptions},
    types::{AMQPValue, FieldTable},
};
use retryrmq::{Backoff, Client, Publish, SECOND, waiting_queue};
use retryrmq_harness::Amqp;
use tokio::time::Instant;

use super::{BODY, Measured, consume::Counter};
use crate::process;

/// Messages of one measurement; `RETRYRMQ_BENCH_RETRIED` changes it.
pub(crate) fn count() -> usize {
    crate::rounds::number("RETRYRMQ_BENCH_RETRIED", 20_000)
}

/// What people write: a task per delivery publishes the copy, awaits its confirm, and acknowledges.
pub(super) async fn by_hand(url: &str, queue: &str, outstanding: usize) -> Measured {
    let amqp = Amqp::connect(url).await;
    let publishing = amqp.new_channel().await;
    publishing
        .confirm_select(ConfirmSelectOptions::default())
        .await
        .expect("confirms");
    let prefetch = u16::try_from(outstanding).expect("a prefetch");
    let mut consumer = amqp.consume(queue, prefetch).await;
    let waiting = waiting_queue(queue, SECOND);
    let (began, cpu) = (Instant::now(), process::cpu());
    let count = count();
    let done = Arc::new(Counter::to(count));
    for _ in 0..2 * count {
        let delivery = consumer
            .next()
            .await
            .expect("a delivery")
            .expect("no error");
        let (publishing, waiting, done) = (publishing.clone(), waiting.clone(), Arc::clone(&done));
        tokio::spawn(async move {
            handle_by_hand(&publishing, &waiting, delivery, &done).await;
        });
    }
    done.reached().await;
    Measured::pace(count, began.elapsed(), cpu)
}

async fn handle_by_hand(publishing: &Channel, waiting: &str, delivery: Delivery, done: &Counter) {
    let failed_before = delivery
        .properties
        .headers()
        .as_ref()
        .is_some_and(|headers| headers.contains_key("x-retries"));
    if !failed_before {
        let mut headers = FieldTable::default();
        headers.insert("x-retries".into(), AMQPValue::LongInt(1));
        let options = BasicPublishOptions {
            mandatory: true,
            ..BasicPublishOptions::default()
        };
        let properties = delivery.properties.clone().with_headers(headers);
        let confirm = publishing
            .basic_publish(
                "".into(),
                waiting.into(),
                options,
                &delivery.data,
                properties,
            )
            .await
            .expect("published");
        assert!(matches!(confirm.await, Ok(Confirmation::Ack(None))));
    }
    delivery
        .acker
        .ack(BasicAckOptions::default())
        .await
        .expect("acknowledged");
    if failed_before {
        done.one();
    }
}

/// Ours, with everything on.
pub(super) async fn retryrmq(url: &str, queue: &str, outstanding: usize) -> Measured {
    let rmq = Client::connect(url).await.expect("connected");
    let count = count();
    let done = Arc::new(Counter::to(count));
    let counted = Arc::clone(&done);
    let (began, cpu) = (Instant::now(), process::cpu());
    let running = rmq
        .consumer(queue)
        .dlx(true)
        .retry(Backoff::fixed(SECOND))
        .prefetch(u16::try_from(outstanding).expect("a prefetch"))
        .start(move |message| {
            let first = message.attempt() == 1;
            if !first {
                counted.one();
            }
            std::future::ready(if first { Err("the first time") } else { Ok(()) })
        })
        .await
        .expect("consuming");
    done.reached().await;
    let measured = Measured::pace(count, began.elapsed(), cpu);
    running.close().await;
    measured
}

/// Makes the queues, and fills the work queue.
pub(crate) async fn prepare(url: &str, queue: &str) {
    let rmq = Client::connect(url).await.expect("connected");
    let plan = rmq
        .consumer(queue)
        .dlx(true)
        .retry(Backoff::fixed(SECOND))
        .plan()
        .expect("a plan");
    rmq.apply_plan(&plan).await.expect("queues");
    let publishes = (0..count()).map(|_| rmq.publish(Publish::to_queue(queue, BODY)));
    let published = futures_util::stream::iter(publishes).buffer_unordered(1_000);
    published
        .for_each(|result| async { result.expect("published") })
        .await;
    rmq.close().await;
}
