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

use crate::fixture::{Fixture, PARKED, QUEUE};

async fn declared(amqp: &Amqp, kind: &str, options: QueueDeclareOptions) -> bool {
    let mut arguments = FieldTable::default();
    arguments.insert("x-queue-type".into(), AMQPValue::LongString(kind.into()));
    let channel = amqp.new_channel().await;
    let declared = channel.queue_declare(PARKED.into(), options, arguments);
    declared.await.is_ok()
}

async fn publish(fixture: &Fixture, count: u32) {
    let messages =
        (0..count).map(|number| (PARKED, number.to_string(), BasicProperties::default()));
    fixture.amqp.publish_all("", messages).await;
    fixture.holds(PARKED, count).await;
}

#[tokio::test]
async fn an_auto_delete_parking_queue_is_refused_before_anything_is_read() {
    on_brokers(|broker| async move {
        let fixture = Fixture::of(&broker).await;
        for (kind, durable) in [("classic", true), ("classic", false), ("quorum", true)] {
            let options = QueueDeclareOptions {
                durable,
                auto_delete: true,
                ..QueueDeclareOptions::default()
            };
            if !declared(&fixture.amqp, kind, options).await {
                assert_ne!(
                    (kind, durable),
                    ("classic", true),
                    "this one can be had anywhere"
                );
                continue; // not with this version
            }
            publish(&fixture, 3).await;
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
                let done = fixture.run(arguments).await.exits(5);
                assert!(done.err.contains("auto-delete"), "{arguments:?}: {done:#?}");
                fixture.holds(PARKED, 3).await;
            }
            let done = fixture.run(&["topology", QUEUE]).await.exits(5);
            assert!(
                format!("{}{}", done.out, done.err).contains("auto-delete"),
                "{done:#?}"
            );
            fixture.holds(PARKED, 3).await;
            fixture.amqp.delete(PARKED).await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_parking_queue_that_is_a_stream_is_refused() {
    on_brokers(|broker| async move {
        let fixture = Fixture::of(&broker).await;
        assert!(declared(&fixture.amqp, "stream", QueueDeclareOptions::durable()).await);
        fixture.amqp.publish(PARKED, "a").await;
        for arguments in [
            &["parked", "ls", QUEUE][..],
            &["parked", "replay", QUEUE, "--all"],
        ] {
            let done = fixture.run(arguments).await.exits(5);
            assert!(done.err.contains("is a stream"), "{done:#?}");
        }
    })
    .await;
}

#[tokio::test]
async fn a_queue_that_somebody_consumes_exclusively_is_held_by_others() {
    on_brokers(|broker| async move {
        let fixture = Fixture::with_queue(&broker).await;
        fixture.amqp.declare(PARKED, QueueType::Classic).await;
        publish(&fixture, 2).await;
        let consuming = BasicConsumeOptions {
            exclusive: true,
            ..BasicConsumeOptions::default()
        };
        let channel = fixture.amqp.new_channel().await;
        channel.basic_qos(1, Default::default()).await.unwrap();
        let consumer = channel
            .basic_consume(PARKED.into(), "x".into(), consuming, Default::default())
            .await
            .unwrap();
        fixture.holds(PARKED, 1).await;
        for arguments in [
            &["parked", "ls", QUEUE][..],
            &["parked", "replay", QUEUE, "--all"],
            &["parked", "compact", QUEUE],
        ] {
            let done = fixture.run(arguments).await.exits(6);
            assert!(
                done.err.contains("exclusively") && !done.err.contains("connection was lost"),
                "{done:#?}"
            );
        }
        drop(consumer);
    })
    .await;
}
