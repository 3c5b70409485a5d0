//! Messages that clients die of: here they are messages like any other, or parked.

use retryrmq::{Client, ErrorKind, Message, Publish};
use retryrmq_harness::{
    Broker, QueueType, Version,
    hostile::{Hostile, RawPublisher},
    on_queue_types,
};

use crate::fixture::{
    Answer, DEADLINE, Observations, PARKED, QUEUE, connect_with, id, policy, start, stats, take,
};

/// All of them, but for those that the broker itself needs many seconds to encode: from 4.0 on, and in quorum queues of
/// every version, the time grows with the square of the depth.
fn hostile(broker: &Broker, kind: QueueType) -> Vec<Hostile> {
    let quick = kind == QueueType::Classic && broker.version() < Version::V4_0;
    let mut all = Hostile::all();
    all.retain(|message| {
        quick
            || !["15000 ", "25000 "]
                .iter()
                .any(|deep| message.name.starts_with(deep))
    });
    all
}

/// Publishes all of them, each followed by one that has nothing wrong with it; returns how many are hostile.
async fn publish_all(url: &str, all: Vec<Hostile>) -> usize {
    let url = url.to_owned();
    let publishing = tokio::task::spawn_blocking(move || {
        let mut publisher = RawPublisher::connect(&url);
        for message in &all {
            publisher.publish(message, QUEUE, message.name.as_bytes());
            publisher.publish_raw("", QUEUE.as_bytes(), &[0, 0], b"innocent");
        }
        all.len()
    });
    publishing.await.unwrap()
}

#[tokio::test]
async fn they_are_handled_like_others() {
    on_queue_types(|broker, kind| async move {
        let vhost = broker.vhost().await;
        let (client, amqp) = (connect_with(&vhost, kind).await, vhost.connect().await);
        amqp.declare(QUEUE, kind).await;
        amqp.declare("beside", kind).await;
        let observations = Observations::default();
        let running = start(client.consumer(QUEUE).dlx(true), &observations, |_| Ok(())).await;
        let neighbours = Observations::default();
        let neighbour = start(client.consumer("beside").dlx(true), &neighbours, |_| Ok(())).await;
        let count = publish_all(vhost.url(), hostile(&broker, kind)).await;
        let done = stats(&running, "all are handled", |stats| {
            stats.acked as usize == 2 * count
        })
        .await;
        assert_eq!(
            (done.delivered as usize, done.reconnects, done.failed),
            (2 * count, 0, 0)
        );
        let bodies: Vec<Vec<u8>> = observations
            .all()
            .iter()
            .map(|attempt| attempt.message.body().to_vec())
            .collect();
        for message in hostile(&broker, kind) {
            assert!(
                bodies.contains(&message.name.clone().into_bytes()),
                "{}",
                message.name
            );
        }
        let mended = observations
            .all()
            .iter()
            .filter(|one| one.message.mended().is_some())
            .count();
        // All but the one whose only fault is its size.
        assert!(mended >= count - 2, "{mended} of {count} were mended");
        amqp.publish_with("beside", "x", id("a")).await;
        neighbours.until("a", 1).await;
        assert_eq!(neighbour.stats().reconnects, 0);
        client
            .publish(Publish::to_queue("beside", "x"))
            .await
            .unwrap();
        assert_eq!(client.reconnects(), 0);
    })
    .await;
}

#[tokio::test]
async fn if_their_handler_fails_they_are_parked_and_can_be_replayed() {
    on_queue_types(|broker, kind| async move {
        let vhost = broker.vhost().await;
        let (client, amqp): (Client, _) = (connect_with(&vhost, kind).await, vhost.connect().await);
        amqp.declare(QUEUE, kind).await;
        let observations = Observations::default();
        let answer = |message: &Message| -> Answer {
            if message.body() == b"innocent" || message.replays() > 0 {
                Ok(())
            } else {
                Err("cannot make anything of it".into())
            }
        };
        let consumer = client
            .consumer(QUEUE)
            .dlx(true)
            .retry(policy("fixed(50ms, retries=1)"));
        let running = start(consumer, &observations, answer).await;
        let count = publish_all(vhost.url(), hostile(&broker, kind)).await;
        let done = stats(&running, "all are settled", |stats| {
            stats.acked as usize == count
                && stats.parked as usize == count
                && stats.outstanding == 0
        })
        .await;
        assert_eq!((done.reconnects, client.reconnects()), (0, 0));

        // They can be looked at and sent back as well.
        let mut walk = client.parked(QUEUE).browse().await.unwrap();
        let mut reasons = Vec::new();
        while let Some(record) = walk.next().await.unwrap() {
            reasons.push(record.reason.unwrap().to_string());
            walk.replay(&record).await.unwrap();
        }
        walk.close().await.unwrap();
        assert_eq!(reasons.len(), count);
        let undecodable = reasons
            .iter()
            .filter(|reason| *reason == "undecodable")
            .count();
        assert!(undecodable >= count - 2, "{reasons:?}");
        assert!(
            reasons
                .iter()
                .all(|reason| reason == "undecodable" || reason == "exhausted")
        );
        stats(&running, "the replayed are handled", |stats| {
            stats.acked as usize == 2 * count
        })
        .await;
        assert_eq!(take(&amqp, PARKED, 0).await.len(), 0);
        assert_eq!(running.stats().reconnects, 0);
    })
    .await;
}

#[tokio::test]
async fn in_the_parking_queue_they_harm_nobody_either() {
    on_queue_types(|broker, kind| async move {
        let vhost = broker.vhost().await;
        let (client, amqp) = (connect_with(&vhost, kind).await, vhost.connect().await);
        amqp.declare(PARKED, kind).await;
        amqp.declare(QUEUE, kind).await;
        let (url, all) = (vhost.url().to_owned(), hostile(&broker, kind));
        let count = tokio::task::spawn_blocking(move || {
            let mut publisher = RawPublisher::connect(&url);
            for message in &all {
                publisher.publish(message, PARKED, message.name.as_bytes());
            }
            all.len()
        })
        .await
        .unwrap();
        let walking = async {
            let mut walk = client.parked(QUEUE).browse().await.unwrap();
            let (mut seen, mut replayed) = (0, 0);
            let mut last = String::new();
            while let Some(record) = walk
                .next()
                .await
                .unwrap_or_else(|error| panic!("after {seen}, `{last}`: {error}"))
            {
                seen += 1;
                last = String::from_utf8_lossy(record.message().body()).into_owned();
                if last == "headers of a whole frame" {
                    // A copy could only be without them.
                    let error = walk.replay(&record).await.unwrap_err();
                    assert_eq!(error.kind(), ErrorKind::TooLarge, "{error}");
                    walk.drop(&record).await.unwrap();
                } else if seen % 2 == 0 {
                    match walk.replay(&record).await {
                        Ok(()) => replayed += 1,
                        // A copy would be another message.
                        Err(error) => {
                            assert_eq!(error.kind(), ErrorKind::InvalidOption, "{error}");
                            assert!(record.message().mended().is_some(), "{last}");
                            walk.drop(&record).await.unwrap();
                        }
                    }
                } else {
                    walk.drop(&record).await.unwrap();
                }
            }
            walk.close().await.unwrap();
            (seen, replayed)
        };
        let (seen, replayed) = tokio::time::timeout(DEADLINE, walking).await.unwrap();
        assert_eq!(seen, count);
        assert_eq!(amqp.depth(QUEUE).await, Some(replayed));
        assert_eq!(amqp.depth(PARKED).await, Some(0));
    })
    .await;
}
