//! Which deliveries a broker counts, where it writes the count, and who else can write it.

use crate::give_back::{Return, give_back};
use lapin::options::BasicRejectOptions;
use retryrmq_facts::*;
use retryrmq_harness::{QueueType, Version, on_every_broker, on_every_queue_type};

const DELIVERY_COUNT: &str = "x-delivery-count";
const ACQUIRED_COUNT: &str = "x-acquired-count";

/// Fact 4. What each way of giving a message back adds to the counts of a quorum queue.
#[tokio::test]
async fn reject_and_crashes_count_everywhere_but_nack_and_recover_no_longer_on_4_3() {
    on_every_broker(|broker| async move {
        let vhost = broker.vhost().await;
        let amqp = vhost.connect().await;
        amqp.declare("work", QueueType::Quorum).await;
        let new = broker.version() >= Version::V4_3;
        for (way, counted) in [
            (Return::Reject, true),
            (Return::ChannelClosed, true),
            (Return::ConnectionClosed, true),
            (Return::Nack, !new),
            (Return::Recover, !new),
        ] {
            amqp.publish("work", "").await;
            give_back(&vhost.connect().await, "work", way).await;
            let message = hold(amqp.channel(), "work").await;
            assert!(message.redelivered);
            let seen = count(&message.properties, DELIVERY_COUNT).unwrap_or(0);
            assert_eq!(seen, i64::from(counted), "{way:?}");
            assert_eq!(
                count(&message.properties, ACQUIRED_COUNT),
                new.then_some(1),
                "{way:?}"
            );
            message.ack(Default::default()).await.unwrap();
        }
    })
    .await;
}

/// Fact 4.
#[tokio::test]
async fn classic_queues_count_nothing() {
    on_every_broker(|broker| async move {
        let vhost = broker.vhost().await;
        let amqp = vhost.connect().await;
        amqp.declare("work", QueueType::Classic).await;
        amqp.publish("work", "").await;
        for way in [
            Return::Reject,
            Return::Nack,
            Return::ChannelClosed,
            Return::Recover,
            Return::ConnectionClosed,
        ] {
            give_back(&vhost.connect().await, "work", way).await;
        }
        let message = hold(amqp.channel(), "work").await;
        assert!(message.redelivered);
        assert_eq!(header(&message.properties, DELIVERY_COUNT), None);
        assert_eq!(header(&message.properties, ACQUIRED_COUNT), None);
    })
    .await;
}

/// Fact 4.
#[tokio::test]
async fn only_3_10_shows_a_count_on_the_first_delivery() {
    on_every_broker(|broker| async move {
        let vhost = broker.vhost().await;
        let amqp = vhost.connect().await;
        amqp.declare("work", QueueType::Quorum).await;
        amqp.publish("work", "").await;
        let message = hold(amqp.channel(), "work").await;
        assert!(!message.redelivered);
        let shown = (broker.version() < Version::V4_0).then_some(0);
        assert_eq!(count(&message.properties, DELIVERY_COUNT), shown);
        assert_eq!(header(&message.properties, ACQUIRED_COUNT), None);
    })
    .await;
}

/// Fact 7.
#[tokio::test]
async fn redelivered_after_a_dead_letter_loop_does_not_mean_that_a_consumer_crashed() {
    on_every_queue_type(|broker, queue_type| async move {
        let vhost = broker.vhost().await;
        let amqp = vhost.connect().await;
        amqp.declare_with("work", queue_type, table(dead_letters_to("wait")))
            .await;
        amqp.declare_with("wait", queue_type, wait_queue(queue_type, 50, "work"))
            .await;
        amqp.publish("work", "").await;
        let message = hold(amqp.channel(), "work").await;
        assert!(!message.redelivered);
        message
            .reject(BasicRejectOptions { requeue: false })
            .await
            .unwrap();
        let since = if queue_type == QueueType::Quorum {
            Version::V4_0
        } else {
            Version::V4_3
        };
        assert_eq!(
            hold(amqp.channel(), "work").await.redelivered,
            broker.version() >= since
        );
    })
    .await;
}

/// Fact 28.
#[tokio::test]
async fn a_publisher_can_forge_the_counts() {
    on_every_queue_type(|broker, queue_type| async move {
        let vhost = broker.vhost().await;
        let amqp = vhost.connect().await;
        amqp.declare("work", queue_type).await;
        amqp.publish_with("work", "", headers([(DELIVERY_COUNT, int(77))]))
            .await;
        let quorum = queue_type == QueueType::Quorum;
        let overwritten = quorum && broker.version() < Version::V4_0;
        let message = hold(amqp.channel(), "work").await;
        assert_eq!(
            count(&message.properties, DELIVERY_COUNT),
            Some(if overwritten { 0 } else { 77 })
        );
        requeue(&message).await;
        let message = hold(amqp.channel(), "work").await;
        assert!(message.redelivered);
        assert_eq!(
            count(&message.properties, DELIVERY_COUNT),
            Some(if quorum { 1 } else { 77 })
        );
    })
    .await;
}

/// Fact 28.
#[tokio::test]
async fn a_forged_count_survives_a_nack_on_4_3() {
    on_every_broker(|broker| async move {
        let vhost = broker.vhost().await;
        let amqp = vhost.connect().await;
        amqp.declare("work", QueueType::Quorum).await;
        amqp.publish_with("work", "", headers([(DELIVERY_COUNT, int(77))]))
            .await;
        give_back(&vhost.connect().await, "work", Return::Nack).await;
        let message = hold(amqp.channel(), "work").await;
        assert!(message.redelivered);
        let seen = if broker.version() < Version::V4_3 {
            1
        } else {
            77
        };
        assert_eq!(count(&message.properties, DELIVERY_COUNT), Some(seen));
    })
    .await;
}
