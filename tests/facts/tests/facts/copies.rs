//! What becomes of a copy that a client publishes to a queue where it waits, as the core does for every retry.

use lapin::message::BasicGetMessage;
use lapin::types::AMQPValue;
use retryrmq_facts::*;
use retryrmq_harness::{Amqp, Broker, QueueType, Version, on_every_queue_type};

/// Fact 29. What makes "redelivered" mean that a consumer crashed.
#[tokio::test]
async fn a_copy_starts_as_if_it_had_never_been_delivered() {
    on_every_queue_type(|broker, queue_type| async move {
        for wait_type in QueueType::ALL {
            let vhost = broker.vhost().await;
            let amqp = vhost.connect().await;
            amqp.declare("work", queue_type).await;
            amqp.declare_with("wait", wait_type, wait_queue(wait_type, 50, "work"))
                .await;
            amqp.publish("wait", "").await;
            let message = crashed(&amqp, &broker, queue_type).await;
            amqp.publish("wait", "").await;
            message.ack(Default::default()).await.unwrap();
            crashed(&amqp, &broker, queue_type).await;
        }
    })
    .await;
}

/// Takes the next message for the first time and loses it, then takes it again; looks at its counts each time.
async fn crashed(amqp: &Amqp, broker: &Broker, queue_type: QueueType) -> BasicGetMessage {
    let quorum = queue_type == QueueType::Quorum;
    let consumer = amqp.new_channel().await;
    let message = hold(&consumer, "work").await;
    assert!(!message.redelivered);
    let first = (quorum && broker.version() < Version::V4_0).then_some(0);
    assert_eq!(count(&message.properties, "x-delivery-count"), first);
    consumer.close(200, "".into()).await.unwrap();

    let message = hold(amqp.channel(), "work").await;
    assert!(message.redelivered);
    assert_eq!(
        count(&message.properties, "x-delivery-count"),
        quorum.then_some(1)
    );
    message
}

/// Fact 29.
#[tokio::test]
async fn a_copy_arrives_with_the_death_of_its_wait_queue_and_nothing_else_changed() {
    on_every_queue_type(|broker, queue_type| async move {
        let vhost = broker.vhost().await;
        let amqp = vhost.connect().await;
        amqp.declare("work", queue_type).await;
        amqp.declare_with("wait", queue_type, wait_queue(queue_type, 60_000, "work"))
            .await;
        let sent = every_property("guest");
        amqp.publish_with("wait", "a\0b", sent.clone().with_expiration("50".into()))
            .await;

        let message = hold(amqp.channel(), "work").await;
        assert_eq!(message.data, b"a\0b");
        assert_eq!(
            (message.exchange.as_str(), message.routing_key.as_str()),
            ("", "work")
        );
        let death = XDeath {
            queue: "wait".into(),
            reason: "expired".into(),
            count: 1,
            exchange: String::new(),
            routing_keys: vec!["wait".into()],
            original_expiration: Some("50".into()),
        };
        assert_eq!(deaths(&message.properties), [death]);

        let added = |name: &str| {
            ["x-death", "x-first-death-", "x-last-death-"]
                .iter()
                .any(|prefix| name.starts_with(prefix))
                || (name == "x-delivery-count"
                    && queue_type == QueueType::Quorum
                    && broker.version() < Version::V4_0)
        };
        let kept = message.properties.headers().clone().unwrap();
        let kept = kept
            .inner()
            .iter()
            .filter(|(name, _)| !added(name.as_str()));
        let kept = table(kept.map(|(name, value)| (name.as_str(), value.clone())));
        assert_eq!(message.properties.clone().with_headers(kept), sent);
    })
    .await;
}

/// Fact 3.
#[tokio::test]
async fn headers_that_brokers_count_in_come_back_as_plain_ones_on_a_copy() {
    on_every_queue_type(|broker, queue_type| async move {
        let vhost = broker.vhost().await;
        let amqp = vhost.connect().await;
        amqp.declare("work", queue_type).await;
        let stale = headers([
            ("x-acquired-count", int(5)),
            ("x-delivery-count", int(5)),
            (
                "x-death",
                array([AMQPValue::FieldTable(table([(
                    "queue",
                    string("elsewhere"),
                )]))]),
            ),
            ("x-first-death-queue", string("elsewhere")),
        ]);
        amqp.publish_with("work", "", stale.clone()).await;
        let message = hold(amqp.channel(), "work").await;
        let mut expected = stale.headers().clone().unwrap();
        if queue_type == QueueType::Quorum && broker.version() < Version::V4_0 {
            expected.insert("x-delivery-count".into(), int(0));
        }
        assert_eq!(message.properties.headers().as_ref(), Some(&expected));
    })
    .await;
}
