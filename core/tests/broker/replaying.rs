//! What is replayed: each message once, to the queue that it belongs to, and without the record of an earlier life.

use std::collections::BTreeMap;

use retryrmq::{Error, ErrorKind, ParkReason, Resend, park, types::AMQPValue};
use retryrmq_harness::{
    QueueType, Version,
    lapin::options::{BasicGetOptions, BasicRejectOptions},
    on_brokers, on_brokers_where, on_queue_types,
};

use crate::{
    fixture::{
        Observations, PARKED, QUEUE, connect, connect_with, id, int, policy, start, table, take,
        text,
    },
    parking::{ids, ready, records},
};

/// Quorum queues of 4.x hand out what has a priority of 5 and more first: what is parked again at once would come, and be
/// replayed, for ever.
#[tokio::test]
async fn what_comes_back_at_once_is_replayed_once() {
    const NORMAL: usize = 240;
    const URGENT: usize = 20;
    on_brokers_where(
        |broker| broker.version() >= Version::V4_0,
        |broker| async move {
            let vhost = broker.vhost().await;
            let (client, amqp) = (connect(&vhost).await, vhost.connect().await);
            let plan = client.consumer(QUEUE).dlx(true).plan().unwrap();
            client.apply_plan(&plan).await.unwrap();
            let message = |number: usize| {
                let name = number.to_string();
                let properties = id(&name);
                if number < NORMAL {
                    (PARKED, name, properties)
                } else {
                    (PARKED, name, properties.with_priority(9))
                }
            };
            amqp.publish_all("", (0..NORMAL + URGENT).map(message))
                .await;
            ready(&amqp, 260).await;
            let observations = Observations::default();
            let consumer = client
                .consumer(QUEUE)
                .dlx(true)
                .retry(policy("fixed(50ms, retries=0)"));
            let _running = start(consumer, &observations, |_| Err(park("again").into())).await;
            let mut walk = client.parked(QUEUE).browse().await.unwrap();
            let mut replayed = BTreeMap::new();
            while let Some(record) = walk.next().await.unwrap() {
                let name = record.message().message_id().unwrap().to_owned();
                walk.replay(&record).await.unwrap();
                // Long enough for the consumer to park it again.
                observations.until(&name, 1).await;
                *replayed.entry(name).or_insert(0) += 1;
            }
            walk.close().await.unwrap();
            assert_eq!(replayed.len(), NORMAL + URGENT);
            assert!(replayed.values().all(|times| *times == 1), "{replayed:?}");
            ready(&amqp, 260).await;
            // The next walk replays them again: they were parked when it began.
            let mut walk = client.parked(QUEUE).browse().await.unwrap();
            let first = walk.next().await.unwrap().unwrap();
            assert_eq!(first.message().replays(), 1);
            walk.close().await.unwrap();
        },
    )
    .await;
}

#[tokio::test]
async fn what_another_queue_lost_goes_back_to_that_queue() {
    on_queue_types(|broker, kind| async move {
        let vhost = broker.vhost().await;
        let (client, amqp) = (connect_with(&vhost, kind).await, vhost.connect().await);
        amqp.declare(PARKED, kind).await;
        for queue in [QUEUE, "billing"] {
            let route = table([
                ("x-dead-letter-exchange", text("")),
                ("x-dead-letter-routing-key", text(PARKED)),
            ]);
            amqp.declare_with(queue, kind, route).await;
            amqp.publish_with(queue, "x", id(queue)).await;
            let got = amqp
                .channel()
                .basic_get(queue.into(), BasicGetOptions::default())
                .await
                .unwrap();
            let reject = BasicRejectOptions { requeue: false };
            got.unwrap().reject(reject).await.unwrap();
        }
        ready(&amqp, 2).await;
        let mut walk = client.parked(QUEUE).browse().await.unwrap();
        while let Some(record) = walk.next().await.unwrap() {
            walk.replay(&record).await.unwrap();
        }
        walk.close().await.unwrap();
        for queue in [QUEUE, "billing"] {
            assert_eq!(take(&amqp, queue, 1).await[0].id(), Some(queue));
        }
        ready(&amqp, 0).await;
    })
    .await;
}

/// The record of an earlier parking, on a message that was published again by hand, with all its headers.
fn earlier() -> retryrmq::types::FieldTable {
    table([
        ("x-retry-count", int(5)),
        ("x-retry-error", text("OLD")),
        ("x-retry-error-stack", text("OLD stack")),
        ("x-retry-fingerprint", text("0123456789abcdef")),
        ("x-retry-parked-at", int(1_000_000)),
        ("x-retry-parked-reason", text("exhausted")),
    ])
}

#[tokio::test]
async fn the_record_of_an_earlier_parking_is_not_believed() {
    on_queue_types(|broker, kind| async move {
        let vhost = broker.vhost().await;
        let (client, amqp) = (connect_with(&vhost, kind).await, vhost.connect().await);
        let route = table([
            ("x-dead-letter-exchange", text("")),
            ("x-dead-letter-routing-key", text(PARKED)),
        ]);
        amqp.declare(PARKED, kind).await;
        amqp.declare_with(QUEUE, kind, route).await;
        amqp.publish_with(QUEUE, "x", id("rejected").with_headers(earlier()))
            .await;
        let got = amqp
            .channel()
            .basic_get(QUEUE.into(), BasicGetOptions::default())
            .await
            .unwrap();
        let reject = BasicRejectOptions { requeue: false };
        got.unwrap().reject(reject).await.unwrap();
        ready(&amqp, 1).await;
        for look in 0..3 {
            let seen = records(&client).await;
            let record = &seen[0];
            assert_eq!(record.reason, Some(ParkReason::Rejected), "look {look}");
            assert!(record.by_broker && record.stack.is_none());
            assert!(record.error.contains("dead-lettered"), "{}", record.error);
            let age = record.parked_at.unwrap().elapsed().unwrap_or_default();
            assert!(age.as_secs() < 86_400, "{age:?}");
            assert_ne!(record.fingerprint, "0123456789abcdef");
            ready(&amqp, 1).await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_new_parking_has_nothing_of_an_old_one() {
    on_brokers(|broker| async move {
        let vhost = broker.vhost().await;
        let (client, amqp) = (connect(&vhost).await, vhost.connect().await);
        amqp.declare(QUEUE, QueueType::Quorum).await;
        amqp.publish_with(QUEUE, "x", id("a").with_headers(earlier()))
            .await;
        let observations = Observations::default();
        let consumer = client.consumer(QUEUE).dlx(true);
        let _running = start(consumer, &observations, |_| Err(park("NEW").into())).await;
        ready(&amqp, 1).await;
        let seen = records(&client).await;
        assert_eq!(ids(&seen), ["a"]);
        assert_eq!(seen[0].error, "NEW");
        assert_eq!(seen[0].reason, Some(ParkReason::Requested));
        assert!(
            !format!("{:?}", seen[0].stack).contains("OLD"),
            "{:?}",
            seen[0].stack
        );
        assert_ne!(seen[0].fingerprint, "0123456789abcdef");
        // A copy that waits has no parking at all.
        ready(&amqp, 1).await;
    })
    .await;
}

/// What a retry writes is no parking: a copy that waits has lost what an earlier one wrote.
#[tokio::test]
async fn a_retry_carries_no_record_of_a_parking() {
    on_brokers(|broker| async move {
        let vhost = broker.vhost().await;
        let (client, amqp) = (connect(&vhost).await, vhost.connect().await);
        amqp.declare(QUEUE, QueueType::Quorum).await;
        let mut headers = earlier();
        headers.insert("x-retry-count".into(), int(0));
        amqp.publish_with(QUEUE, "x", id("a").with_headers(headers))
            .await;
        let observations = Observations::default();
        let consumer = client
            .consumer(QUEUE)
            .dlx(true)
            .retry(policy("fixed(10ms, retries=1)"));
        let _running = start(consumer, &observations, |message| {
            if message.attempt() == 1 {
                Err("not yet".into())
            } else {
                Ok(())
            }
        })
        .await;
        let attempts = observations.until("a", 2).await;
        let headers = attempts[1].message.headers().unwrap().inner();
        for gone in ["parked-at", "parked-reason", "error-stack", "fingerprint"] {
            let name = format!("x-retry-{gone}");
            assert!(!headers.contains_key(name.as_str()), "{name}");
        }
    })
    .await;
}

/// RabbitMQ closes the connection for such a number, and then nobody knows what became of the others.
#[tokio::test]
async fn a_number_that_rabbitmq_cannot_read_is_refused_and_the_others_are_restored_and_replayed() {
    on_brokers(|broker| async move {
        let vhost = broker.vhost().await;
        let (client, amqp) = (connect(&vhost).await, vhost.connect().await);
        amqp.declare(QUEUE, QueueType::Quorum).await;
        let parked = client.parked(QUEUE);
        parked.make().await.unwrap();
        let no_number = || id("2").with_headers(table([("n", AMQPValue::Double(f64::NAN))]));
        let from_file = [id("1"), no_number(), id("3")]
            .map(|properties| (String::new(), QUEUE.to_owned(), properties, b"x".to_vec()));
        let restored = parked.restore(from_file.into()).await;
        let kinds = |answers: &[retryrmq::Result<()>]| -> Vec<_> {
            let kind = |answer: &retryrmq::Result<()>| answer.as_ref().err().map(Error::kind);
            answers.iter().map(kind).collect()
        };
        let second = vec![None, Some(ErrorKind::InvalidOption), None];
        assert_eq!(kinds(&restored), second);
        ready(&amqp, 2).await;

        let mut walk = parked.browse().await.unwrap();
        let first = walk.next().await.unwrap().unwrap();
        let other = walk.next().await.unwrap().unwrap();
        let edited = Resend::of(&first).content(no_number(), b"edited".to_vec());
        let rehearsed = walk.would_send(&edited);
        assert_eq!(kinds(&[rehearsed]), second[1..2]);
        let sent = walk.send(&[edited, Resend::of(&other)]).await;
        assert_eq!(kinds(&sent), second[1..]);
        walk.close().await.unwrap();
        take(&amqp, QUEUE, 1).await;
        take(&amqp, PARKED, 2).await; // both, until the walk drops one
    })
    .await;
}
