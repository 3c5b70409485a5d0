//! When a broker takes a message for one that goes round in circles, and drops it in silence.

use std::time::Duration;

use lapin::BasicProperties;
use lapin::options::{BasicAckOptions, BasicRejectOptions};
use lapin::types::AMQPValue;
use retryrmq_facts::*;
use retryrmq_harness::{QueueType, Version, eventually, on_every_broker, on_every_queue_type};
use tokio::time::sleep;

/// Fact 8.
#[tokio::test]
async fn a_message_that_goes_round_by_ttl_alone_is_dropped() {
    on_every_queue_type(|broker, queue_type| async move {
        let vhost = broker.vhost().await;
        let amqp = vhost.connect().await;
        amqp.declare_with("work", queue_type, wait_queue(queue_type, 50, "wait"))
            .await;
        amqp.declare_with("wait", queue_type, wait_queue(queue_type, 50, "work"))
            .await;
        amqp.publish("work", "").await;
        all_gone(&amqp, &["work", "wait"]).await;
    })
    .await;
}

/// Fact 97. The two pairs of queues differ by one message: while the first of them is at work, the second is not.
#[tokio::test]
async fn what_goes_round_takes_up_an_at_least_once_queue_for_good() {
    on_every_broker(|broker| async move {
        let vhost = broker.vhost().await;
        let amqp = vhost.connect().await;
        let expires = BasicProperties::default().with_expiration("1".into());
        for (name, count) in [("works", 31), ("full", 32)] {
            let (work, wait) = (format!("{name}.work"), format!("{name}.wait"));
            let mut arguments = dead_letters_to(&wait);
            arguments.extend(at_least_once());
            amqp.declare_with(&work, QueueType::Quorum, table(arguments))
                .await;
            let waits = wait_queue(QueueType::Quorum, 50, &work);
            amqp.declare_with(&wait, QueueType::Quorum, waits).await;
            let messages = (0..count).map(|_| (work.as_str(), "", expires.clone()));
            amqp.publish_all("", messages).await;
            let what = format!("{wait} holds {count} messages");
            eventually(DEADLINE, &what, || async {
                let queue = vhost.queue(&wait).await.ok_or("there is no such queue")?;
                let seen = (queue.ready(), queue.dead_lettering());
                (seen == (Some(0), Some(count)))
                    .then_some(())
                    .ok_or_else(|| format!("{seen:?}"))
            })
            .await;
        }
        let fail = async |name: &str| {
            amqp.publish_with(
                &format!("{name}.work"),
                "failed",
                BasicProperties::default(),
            )
            .await;
            let message = hold(amqp.channel(), &format!("{name}.work")).await;
            let options = BasicRejectOptions { requeue: false };
            message.reject(options).await.unwrap();
        };
        fail("full").await;
        for _ in 0..3 {
            fail("works").await;
            let back = hold(amqp.channel(), "works.work").await;
            assert_eq!(back.data, b"failed");
            back.ack(BasicAckOptions::default()).await.unwrap();
        }
        assert_eq!(amqp.depth("full.work").await, Some(0));
        assert_eq!(amqp.depth("full.wait").await, Some(0), "it is due and held");
    })
    .await;
}

/// Fact 8. One rejection long ago protects a message on 3.10, and no longer on 4.x.
#[tokio::test]
async fn one_rejection_before_it_only_expires_saves_a_message_on_3_10_only() {
    on_every_queue_type(|broker, queue_type| async move {
        let vhost = broker.vhost().await;
        let amqp = vhost.connect().await;
        // Long enough that a busy machine rejects it before it expires for the first time: without that it is dropped.
        amqp.declare_with("work", queue_type, wait_queue(queue_type, 8_000, "wait"))
            .await;
        amqp.declare_with("wait", queue_type, wait_queue(queue_type, 50, "work"))
            .await;
        amqp.publish("work", "").await;
        hold(amqp.channel(), "work")
            .await
            .reject(BasicRejectOptions { requeue: false })
            .await
            .unwrap();
        if broker.version() >= Version::V4_0 {
            all_gone(&amqp, &["work", "wait"]).await;
            return;
        }
        loop {
            let message = hold(amqp.channel(), "work").await;
            if deaths(&message.properties)
                .iter()
                .any(|death| death.brief() == ("work", "expired", 2))
            {
                break; // it has expired twice in the work queue, and here it is
            }
            requeue(&message).await;
            // It expires only while nobody holds it.
            sleep(Duration::from_millis(100)).await;
        }
    })
    .await;
}

/// Fact 8.
#[tokio::test]
async fn a_message_past_its_delivery_limit_waits_and_does_not_return() {
    on_every_broker(|broker| async move {
        let vhost = broker.vhost().await;
        let amqp = vhost.connect().await;
        let mut work = dead_letters_to("wait");
        work.push(("x-delivery-limit", int(1)));
        amqp.declare_with("work", QueueType::Quorum, table(work))
            .await;
        amqp.declare_with(
            "wait",
            QueueType::Quorum,
            wait_queue(QueueType::Quorum, 5_000, "work"),
        )
        .await;
        amqp.publish("work", "").await;
        for _ in 0..2 {
            requeue(&hold(amqp.channel(), "work").await).await;
        }
        eventually(DEADLINE, "it waits", || async {
            amqp.depth("wait").await == Some(1)
        })
        .await;
        all_gone(&amqp, &["work", "wait"]).await;
    })
    .await;
}

/// Fact 8.
#[tokio::test]
async fn a_message_pushed_out_of_a_full_queue_does_not_return_to_it() {
    on_every_queue_type(|broker, queue_type| async move {
        let vhost = broker.vhost().await;
        let amqp = vhost.connect().await;
        let mut work = dead_letters_to("wait");
        work.push(("x-max-length", int(1)));
        amqp.declare_with("work", queue_type, table(work)).await;
        amqp.declare_with("wait", queue_type, wait_queue(queue_type, 50, "work"))
            .await;
        amqp.publish("work", "pushed out").await;
        amqp.publish("work", "stays").await;
        all_gone(&amqp, &["wait"]).await;
        assert_eq!(amqp.depth("work").await, Some(1));
        assert_eq!(amqp.take("work").await.unwrap().text(), "stays");
    })
    .await;
}

/// Fact 8, the way out of it. Five rounds of everything that kills a message, and it is still there.
#[tokio::test]
async fn a_published_copy_with_the_original_acked_is_never_taken_for_a_cycle() {
    on_every_queue_type(|broker, queue_type| async move {
        let vhost = broker.vhost().await;
        let amqp = vhost.connect().await;
        amqp.declare("work", queue_type).await;
        amqp.declare_with("wait", queue_type, wait_queue(queue_type, 50, "work"))
            .await;
        amqp.publish("work", "").await;
        for _ in 0..5 {
            let message = hold(amqp.channel(), "work").await;
            amqp.publish("wait", "").await;
            message.ack(Default::default()).await.unwrap();
        }
        let message = hold(amqp.channel(), "work").await;
        assert_eq!(
            deaths(&message.properties).len(),
            1,
            "and it carries one death, not five"
        );
        assert_eq!(
            deaths(&message.properties)[0].brief(),
            ("wait", "expired", 1)
        );
    })
    .await;
}

/// Fact 3.
#[tokio::test]
async fn a_published_x_death_can_make_a_message_vanish_on_3_10() {
    on_every_queue_type(|broker, queue_type| async move {
        let vhost = broker.vhost().await;
        let amqp = vhost.connect().await;
        amqp.declare("work", queue_type).await;
        amqp.declare_with("wait", queue_type, wait_queue(queue_type, 50, "work"))
            .await;
        let expired = table([
            ("queue", string("work")),
            ("reason", string("expired")),
            ("count", int(1)),
            ("exchange", string("")),
            ("routing-keys", array([string("work")])),
        ]);
        let copy = BasicProperties::default().with_headers(table([(
            "x-death",
            array([AMQPValue::FieldTable(expired)]),
        )]));
        amqp.publish_with("wait", "", copy).await;
        if broker.version() < Version::V4_0 {
            all_gone(&amqp, &["work", "wait"]).await;
        } else {
            hold(amqp.channel(), "work").await;
        }
    })
    .await;
}
