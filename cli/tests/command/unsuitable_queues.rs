//! Parking queues that no look could leave as they are: refused before anything is read from them.

use retryrmq::types::{AMQPValue, FieldTable};
use retryrmq_harness::{
    Amqp, QueueType,
    lapin::{
        BasicProperties,
        options::{BasicConsumeOptions, QueueDeclareOptions},
    },
    on_brokers,
};

use crate::fixture::{TestVhost, PARKED, QUEUE};

async fn declared(amqp: &Amqp, kind: &str, options: QueueDeclareOptions) -> bool {
    let mut arguments = FieldTable::default();
    arguments.insert("x-queue-type".into(), AMQPValue::LongString(kind.into()));
    let channel = amqp.new_channel().await;
    let declared = channel.queue_declare(PARKED.into(), options, arguments);
    declared.await.is_ok()
}

async fn publish(desk: &TestVhost, count: u32) {
    let messages =
        (0..count).map(|number| (PARKED, number.to_string(), BasicProperties::default()));
    desk.amqp.publish_all("", messages).await;
    desk.holds(PARKED, count).await;
}

#[tokio::test]
async fn an_auto_delete_parking_queue_is_refused_before_anything_is_read() {
    on_brokers(|broker| async move {
        let desk = TestVhost::of(&broker).await;
        for (kind, durable) in [("classic", true), ("classic", false), ("quorum", true)] {
            let options = QueueDeclareOptions {
                durable,
                auto_delete: true,
                ..QueueDeclareOptions::default()
            };
            if !declared(&desk.amqp, kind, options).await {
                assert_ne!(
                    (kind, durable),
                    ("classic", true),
                    "this one can be had anywhere"
                );
                continue; // not with this version
            }
            publish(&desk, 3).await;
            for arguments in [
                &["parked", "ls", QUEUE][..],
                &["parked", "show", QUEUE, "--all"],
                &["parked", "replay", QUEUE, "nosuch"],
                &["parked", "replay", QUEUE, "--all"],
                &["parked", "drop", QUEUE, "--all", "--dry-run"],
                &["parked", "drop", QUEUE, "--all", "--yes"],
                &["topology", QUEUE, "--apply"],
                &["consume", QUEUE, "--dlx", "--", "true"],
            ] {
                let done = desk.run(arguments).await.exits(5);
                assert!(done.err.contains("auto-delete"), "{arguments:?}: {done:#?}");
                desk.holds(PARKED, 3).await;
            }
            let done = desk.run(&["topology", QUEUE]).await.exits(5);
            assert!(
                format!("{}{}", done.out, done.err).contains("auto-delete"),
                "{done:#?}"
            );
            desk.holds(PARKED, 3).await;
            desk.amqp.delete(PARKED).await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_parking_queue_that_is_a_stream_is_refused() {
    on_brokers(|broker| async move {
        let desk = TestVhost::of(&broker).await;
        assert!(declared(&desk.amqp, "stream", QueueDeclareOptions::durable()).await);
        desk.amqp.publish(PARKED, "a").await;
        for arguments in [
            &["parked", "ls", QUEUE][..],
            &["parked", "replay", QUEUE, "--all"],
        ] {
            let done = desk.run(arguments).await.exits(5);
            assert!(done.err.contains("is a stream"), "{done:#?}");
        }
    })
    .await;
}

#[tokio::test]
async fn a_queue_that_somebody_consumes_exclusively_is_held_by_others() {
    on_brokers(|broker| async move {
        let desk = TestVhost::with_queue(&broker).await;
        desk.amqp.declare(PARKED, QueueType::Classic).await;
        publish(&desk, 2).await;
        let consuming = BasicConsumeOptions {
            exclusive: true,
            ..BasicConsumeOptions::default()
        };
        let channel = desk.amqp.new_channel().await;
        channel.basic_qos(1, Default::default()).await.unwrap();
        let consumer = channel
            .basic_consume(PARKED.into(), "x".into(), consuming, Default::default())
            .await
            .unwrap();
        desk.holds(PARKED, 1).await;
        for arguments in [
            &["parked", "ls", QUEUE][..],
            &["parked", "replay", QUEUE, "--all"],
            &["parked", "compact", QUEUE],
        ] {
            let done = desk.run(arguments).await.exits(6);
            assert!(
                done.err.contains("exclusively") && !done.err.contains("connection was lost"),
                "{done:#?}"
            );
        }
        drop(consumer);
    })
    .await;
}
