//! What a client without us does with a delivery.

use futures_util::StreamExt;
use lapin::{
    Channel, Confirmation, Consumer,
    message::Delivery,
    options::{BasicAckOptions, BasicNackOptions, BasicPublishOptions, BasicRejectOptions},
    types::{AMQPValue, FieldTable},
};

/// Counts the failures in the loop by hand.
const FAILED: &str = "x-retries";

pub(crate) async fn next(consumer: &mut Consumer) -> Delivery {
    let next = consumer.next().await;
    next.expect("a delivery").expect("no error")
}

pub(crate) async fn acknowledge(delivery: &Delivery) {
    let once = BasicAckOptions::default();
    delivery.acker.ack(once).await.expect("acknowledged");
}

/// Gives it back with a count: RabbitMQ 4.3 can delay that.
pub(super) async fn reject(delivery: Delivery) {
    let again = BasicRejectOptions { requeue: true };
    delivery.acker.reject(again).await.expect("rejected");
}

/// Gives it back at once: RabbitMQ 4.3 does not count that, and a classic queue never did.
pub(super) async fn requeue(delivery: Delivery) {
    let again = BasicNackOptions {
        requeue: true,
        ..BasicNackOptions::default()
    };
    delivery.acker.nack(again).await.expect("given back");
}

/// How often it has failed in the loop by hand.
pub(super) fn failed(delivery: &Delivery) -> u32 {
    counted(delivery, FAILED)
}

/// Publishes a copy to a queue, with one failure more, and waits for the confirm.
pub(super) async fn copy(publishing: &Channel, to: &str, delivery: &Delivery) {
    let mut headers = FieldTable::default();
    headers.insert(FAILED.into(), AMQPValue::LongUInt(failed(delivery) + 1));
    let options = BasicPublishOptions {
        mandatory: true,
        ..BasicPublishOptions::default()
    };
    let properties = delivery.properties.clone().with_headers(headers);
    let publish =
        publishing.basic_publish("".into(), to.into(), options, &delivery.data, properties);
    let confirm = publish.await.expect("published").await;
    assert!(matches!(confirm, Ok(Confirmation::Ack(None))));
}

/// The number in this header, 0 where there is none.
pub(super) fn counted(delivery: &Delivery, header: &str) -> u32 {
    let headers = delivery.properties.headers().as_ref();
    match headers.and_then(|headers| headers.inner().get(header)) {
        Some(AMQPValue::LongUInt(count)) => *count,
        Some(AMQPValue::LongLongInt(count)) => u32::try_from(*count).unwrap_or(u32::MAX),
        _ => 0,
    }
}
