//! How often a quorum queue delivers a message, and what becomes of it then.

use crate::give_back::{Return, give_back};
use lapin::options::{BasicNackOptions, BasicRejectOptions};
use retryrmq_facts::*;
use retryrmq_harness::{Amqp, QueueType, Version, on_every_broker};

/// Fact 5.
#[tokio::test]
async fn without_an_argument_the_21st_delivery_is_the_last_since_4_0() {
    on_every_broker(|broker| async move {
        let vhost = broker.vhost().await;
        let amqp = vhost.connect().await;
        amqp.declare("work", QueueType::Quorum).await;
        let deliveries = if broker.version() < Version::V4_0 {
            30
        } else {
            21
        };
        assert_eq!(
            deliveries_until_gone(&amqp, "work", Return::Reject, 30).await,
            deliveries
        );
    })
    .await;
}

/// Facts 4 and 5.
#[tokio::test]
async fn a_nack_passes_every_delivery_limit_on_4_3() {
    on_every_broker(|broker| async move {
        let vhost = broker.vhost().await;
        let amqp = vhost.connect().await;
        amqp.declare_with(
            "work",
            QueueType::Quorum,
            table([("x-delivery-limit", int(2))]),
        )
        .await;
        let deliveries = if broker.version() < Version::V4_3 {
            3
        } else {
            30
        };
        assert_eq!(
            deliveries_until_gone(&amqp, "work", Return::Nack, 30).await,
            deliveries
        );
    })
    .await;
}

/// Fact 5.
#[tokio::test]
async fn minus_one_is_unlimited_on_4_but_one_delivery_on_3_10() {
    on_every_broker(|broker| async move {
        let vhost = broker.vhost().await;
        let amqp = vhost.connect().await;
        amqp.declare_with(
            "work",
            QueueType::Quorum,
            table([("x-delivery-limit", int(-1))]),
        )
        .await;
        let deliveries = if broker.version() < Version::V4_0 {
            1
        } else {
            30
        };
        assert_eq!(
            deliveries_until_gone(&amqp, "work", Return::Reject, 30).await,
            deliveries
        );
    })
    .await;
}

/// Fact 5. The one value that means "no limit to speak of" everywhere.
#[tokio::test]
async fn a_delivery_limit_of_a_thousand_million_is_accepted_everywhere() {
    on_every_broker(|broker| async move {
        let vhost = broker.vhost().await;
        let amqp = vhost.connect().await;
        amqp.declare_with(
            "work",
            QueueType::Quorum,
            table([("x-delivery-limit", int(1_000_000_000))]),
        )
        .await;
        assert_eq!(
            deliveries_until_gone(&amqp, "work", Return::Reject, 30).await,
            30
        );
    })
    .await;
}

/// Fact 6.
#[tokio::test]
async fn rejects_are_carried_through_dead_lettering_on_4_3_until_a_message_is_lost() {
    on_every_broker(|broker| async move {
        let vhost = broker.vhost().await;
        let amqp = vhost.connect().await;
        declare_loop(&amqp).await;
        for _ in 0..25 {
            hold(amqp.channel(), "work")
                .await
                .reject(BasicRejectOptions { requeue: false })
                .await
                .unwrap();
        }
        let message = hold(amqp.channel(), "work").await;
        let shown = if broker.version() < Version::V4_0 {
            0
        } else {
            25
        };
        assert_eq!(count(&message.properties, "x-delivery-count"), Some(shown));
        requeue(&message).await;
        if broker.version() < Version::V4_3 {
            let message = hold(amqp.channel(), "work").await;
            assert_eq!(
                count(&message.properties, "x-delivery-count"),
                Some(1),
                "it starts afresh"
            );
        } else {
            // Delivered too often, it is dead-lettered, and then dropped as one that goes round in circles.
            all_gone(&amqp, &["work", "wait"]).await;
        }
    })
    .await;
}

/// Fact 6, the way out of it.
#[tokio::test]
async fn nacks_without_requeue_are_not_carried_through_dead_lettering_on_4_3() {
    on_every_broker(|broker| async move {
        let vhost = broker.vhost().await;
        let amqp = vhost.connect().await;
        declare_loop(&amqp).await;
        for _ in 0..25 {
            hold(amqp.channel(), "work")
                .await
                .nack(BasicNackOptions::default())
                .await
                .unwrap();
        }
        let message = hold(amqp.channel(), "work").await;
        assert_eq!(
            deaths(&message.properties)[1].brief(),
            ("work", "rejected", 25),
            "a nack dies like a reject"
        );
        requeue(&message).await;
        let message = hold(amqp.channel(), "work").await;
        assert_eq!(
            count(&message.properties, "x-delivery-count"),
            Some(1),
            "it starts afresh"
        );
    })
    .await;
}

/// How often a message is delivered that is given back each time, but not more than `most` times.
async fn deliveries_until_gone(amqp: &Amqp, queue: &str, way: Return, most: u32) -> u32 {
    amqp.publish(queue, "").await;
    for deliveries in 0..most {
        if deliveries > 0 && !comes_back(amqp, queue).await {
            return deliveries;
        }
        give_back(amqp, queue, way).await;
    }
    most
}

/// A quorum work queue with a message in it, whose dead letters come back by way of a wait queue.
async fn declare_loop(amqp: &Amqp) {
    amqp.declare_with("work", QueueType::Quorum, table(dead_letters_to("wait")))
        .await;
    amqp.declare_with(
        "wait",
        QueueType::Quorum,
        wait_queue(QueueType::Quorum, 1, "work"),
    )
    .await;
    amqp.publish("work", "").await;
}
