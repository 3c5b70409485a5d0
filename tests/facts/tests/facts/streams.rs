//! How to tell a stream from a queue, without a trace on either.

use futures_util::StreamExt;
use lapin::options::{BasicConsumeOptions, BasicQosOptions};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{Channel, Result};
use retryrmq_facts::*;
use retryrmq_harness::{QueueType, Version, on_every_broker, on_every_queue_type};

/// Fact 50.
#[tokio::test]
async fn consuming_from_an_offset_without_a_prefetch_is_refused_by_every_type_in_its_own_words() {
    on_every_broker(|broker| async move {
        let vhost = broker.vhost().await;
        let amqp = vhost.connect().await;
        stream(amqp.new_channel().await).await;
        amqp.publish("stream", "").await;
        let place = format!("in vhost '{}'", vhost.name());
        let refused = refusal(consume(&amqp.new_channel().await, "stream", offset()).await);
        let named = if broker.version() < Version::V4_0 {
            format!("'queue 'stream' {place}'")
        } else {
            format!("stream queue 'stream' {place}")
        };
        let words = format!("PRECONDITION_FAILED - consumer prefetch count is not set for {named}");
        assert_eq!(refused, (406, words));
        for kind in QueueType::ALL {
            let queue = kind.as_str();
            amqp.declare(queue, kind).await;
            amqp.publish(queue, "").await;
            let refused = refusal(consume(&amqp.new_channel().await, queue, offset()).await);
            let words = format!(
                "PRECONDITION_FAILED - invalid arg 'x-stream-offset' for queue '{queue}' {place} of queue type rabbit_{kind}_queue"
            );
            assert_eq!(refused, (406, words));
            assert_eq!(amqp.consumers(queue).await, Some(0), "{queue}");
            let untouched = hold(amqp.channel(), queue).await;
            assert!(!untouched.redelivered, "{queue}");
        }
    })
    .await;
}

/// Fact 50.
#[tokio::test]
async fn consuming_from_an_offset_is_refused_also_to_those_behind_an_exclusive_consumer() {
    on_every_queue_type(|broker, kind| async move {
        let vhost = broker.vhost().await;
        let amqp = vhost.connect().await;
        amqp.declare("queue", kind).await;
        let exclusive = BasicConsumeOptions {
            exclusive: true,
            ..BasicConsumeOptions::default()
        };
        let alone = amqp.new_channel().await;
        let first = alone
            .basic_consume("queue".into(), "".into(), exclusive, FieldTable::default())
            .await
            .unwrap();
        let (code, text) = refusal(consume(&amqp.new_channel().await, "queue", offset()).await);
        assert!(
            (code == 406 && text.contains("x-stream-offset"))
                || (code == 403 && text.contains("in exclusive use")),
            "{code} {text}"
        );
        drop(first);
    })
    .await;
}

/// Fact 50.
#[tokio::test]
async fn a_stream_keeps_what_is_acknowledged_and_begins_after_it() {
    on_every_broker(|broker| async move {
        let vhost = broker.vhost().await;
        let amqp = vhost.connect().await;
        stream(amqp.new_channel().await).await;
        amqp.publish("stream", "before").await;
        let channel = amqp.new_channel().await;
        let one = BasicQosOptions::default();
        channel.basic_qos(10, one).await.unwrap();
        let mut later = consume(&channel, "stream", FieldTable::default())
            .await
            .unwrap();
        for _ in 0..2 {
            // Each reader sees it, whatever the others did with it.
            let channel = amqp.new_channel().await;
            channel.basic_qos(10, one).await.unwrap();
            let first = table([("x-stream-offset", string("first"))]);
            let mut reader = consume(&channel, "stream", first).await.unwrap();
            let read = reader.next().await.unwrap().unwrap();
            assert_eq!(read.data, b"before");
            assert_eq!(header(&read.properties, "x-stream-offset"), Some(int(0)));
            read.ack(lapin::options::BasicAckOptions::default())
                .await
                .unwrap();
        }
        amqp.publish("stream", "after").await;
        assert_eq!(later.next().await.unwrap().unwrap().data, b"after");
    })
    .await;
}

async fn stream(channel: Channel) {
    let kind = table([("x-queue-type", string("stream"))]);
    let durable = lapin::options::QueueDeclareOptions::durable();
    channel
        .queue_declare("stream".into(), durable, kind)
        .await
        .unwrap();
}

fn offset() -> FieldTable {
    table([("x-stream-offset", AMQPValue::LongString("next".into()))])
}

async fn consume(channel: &Channel, queue: &str, arguments: FieldTable) -> Result<lapin::Consumer> {
    let options = BasicConsumeOptions::default();
    let tag = "".into();
    channel
        .basic_consume(queue.into(), tag, options, arguments)
        .await
}
