//! The parking queue: looking, sending back, dropping, and nothing lost by any of it.

use retryrmq::{ErrorKind, ParkReason, Record, park, types::FieldTable};
use retryrmq_harness::{
    self as harness, QueueType,
    lapin::options::{BasicGetOptions, BasicRejectOptions, QueueBindOptions},
    on_brokers, on_queue_types,
};

use crate::{
    connecting::refused,
    fixture::{
        DEADLINE, Observations, PARKED, QUEUE, connect, connect_with, id, policy, start, table,
        take, text,
    },
};

pub(crate) async fn records(client: &retryrmq::Client) -> Vec<Record> {
    let mut walk = client.parked(QUEUE).browse().await.unwrap();
    let mut all = Vec::new();
    while let Some(record) = walk.next().await.unwrap() {
        all.push(record);
    }
    assert_eq!(walk.remaining(), 0);
    walk.close().await.unwrap();
    all
}

pub(crate) fn ids(records: &[Record]) -> Vec<String> {
    records
        .iter()
        .map(|record| record.message().message_id().unwrap().to_owned())
        .collect()
}

/// Waits until so many are ready in the parking queue.
pub(crate) async fn ready(amqp: &harness::Amqp, count: u32) {
    harness::eventually(DEADLINE, &format!("{count} are parked"), || async {
        let depth = amqp.depth(PARKED).await;
        if depth == Some(count) {
            Ok(())
        } else {
            Err(format!("{depth:?}"))
        }
    })
    .await;
}

#[tokio::test]
async fn parked_messages_are_looked_at_replayed_and_dropped() {
    on_queue_types(|broker, kind| async move {
        let vhost = broker.vhost().await;
        let (client, amqp) = (connect_with(&vhost, kind).await, vhost.connect().await);
        let why = refused(
            client.parked(QUEUE).browse().await,
            ErrorKind::QueueNotFound,
        );
        assert!(why.contains("`orders.parked`"), "{why}");

        amqp.declare(QUEUE, kind).await;
        let observations = Observations::default();
        let consumer = client
            .consumer(QUEUE)
            .dlx(true)
            .retry(policy("fixed(50ms, retries=1)"));
        // One at a time, so that they are parked in order.
        let running = start(consumer.prefetch(1), &observations, |message| {
            if message.replays() > 0 {
                Ok(())
            } else {
                Err(park(format!("no customer {}", message.message_id().unwrap())).into())
            }
        })
        .await;
        let headers = table([("tenant", text("acme"))]);
        for name in ["a", "b", "c", "d"] {
            amqp.publish_with(QUEUE, name, id(name).with_headers(headers.clone()))
                .await;
        }
        ready(&amqp, 4).await;
        let seen = records(&client).await;
        assert_eq!(ids(&seen), ["a", "b", "c", "d"]);
        let first = &seen[0];
        assert_eq!(first.reason, Some(ParkReason::Requested));
        assert_eq!(first.error, "no customer a");
        assert_eq!(
            (first.attempts, first.history.len(), first.by_broker),
            (1, 1, false)
        );
        assert!(first.parked_at.is_some() && first.fingerprint.len() == 16);
        assert_eq!(first.message().body(), b"a");
        assert_eq!(first.message().routing_key(), QUEUE);
        ready(&amqp, 4).await;

        let mut walk = client.parked(QUEUE).browse().await.unwrap();
        assert_eq!(walk.remaining(), 4);
        let a = walk.next().await.unwrap().unwrap();
        let b = walk.next().await.unwrap().unwrap();
        walk.replay(&a).await.unwrap();
        walk.drop(&b).await.unwrap();
        refused(walk.replay(&a).await, ErrorKind::InvalidOption);
        refused(walk.drop(&b).await, ErrorKind::InvalidOption);
        refused(walk.drop(first).await, ErrorKind::InvalidOption);
        let attempts = observations.until("a", 2).await;
        let again = &attempts[1].message;
        assert_eq!((again.attempt(), again.replays()), (1, 1));
        assert_eq!(again.exchange(), "");
        let kept = again.headers().unwrap().inner();
        assert_eq!(kept.get("tenant"), Some(&text("acme")));
        for gone in [
            "x-retry-count",
            "x-retry-parked-reason",
            "x-retry-parked-at",
            "x-retry-fingerprint",
        ] {
            assert!(!kept.contains_key(gone), "{gone}");
        }
        walk.close().await.unwrap();
        ready(&amqp, 2).await;
        assert_eq!(ids(&records(&client).await), ["c", "d"]);
        // A walk that is dropped in its middle leaves everything parked.
        ready(&amqp, 2).await;
        let mut walk = client.parked(QUEUE).browse().await.unwrap();
        walk.next().await.unwrap();
        drop(walk);
        ready(&amqp, 2).await;
        assert_eq!(ids(&records(&client).await), ["c", "d"]);
        running.close().await;
    })
    .await;
}

/// Walks past so many, and says which they were.
async fn walk(client: &retryrmq::Client, most: usize) -> Vec<String> {
    let mut walk = client.parked(QUEUE).browse().await.unwrap();
    let mut seen = Vec::new();
    while seen.len() < most
        && let Some(record) = walk.next().await.unwrap()
    {
        seen.push(record);
    }
    walk.close().await.unwrap();
    ids(&seen)
}

/// More than one share of a walk: a quorum queue takes back consumer by consumer.
#[tokio::test]
async fn a_look_leaves_every_message_in_its_place() {
    const MESSAGES: u32 = 150;
    on_queue_types(|broker, kind| async move {
        let vhost = broker.vhost().await;
        let (client, amqp) = (connect_with(&vhost, kind).await, vhost.connect().await);
        let plan = client.consumer(QUEUE).dlx(true).plan().unwrap();
        client.apply_plan(&plan).await.unwrap();
        let mut expected: Vec<String> = (1..=MESSAGES).map(|number| number.to_string()).collect();
        amqp.publish_all(
            "",
            expected.iter().map(|name| (PARKED, name.clone(), id(name))),
        )
        .await;
        ready(&amqp, MESSAGES).await;
        for most in [1, 11, 40, 1_000, 1, 33, 1_000] {
            let seen = walk(&client, most).await;
            assert_eq!(
                seen,
                expected[..most.min(expected.len())],
                "{most} looked at"
            );
            ready(&amqp, MESSAGES).await;
        }
        // Some of them settled, in every share and in any order.
        ready(&amqp, MESSAGES).await;
        let mut browse = client.parked(QUEUE).browse().await.unwrap();
        let mut seen = Vec::new();
        while let Some(record) = browse.next().await.unwrap() {
            if seen.len() == 99 {
                browse.drop(&record).await.unwrap(); // number 100, in the present share
            }
            seen.push(record);
        }
        for place in [120, 1, 64] {
            browse.replay(&seen[place - 1]).await.unwrap();
        }
        browse.drop(&seen[10 - 1]).await.unwrap();
        browse.close().await.unwrap();
        let gone = [100, 120, 1, 64, 10].map(|place: u32| place.to_string());
        expected.retain(|name| !gone.contains(name));
        ready(&amqp, MESSAGES - 5).await;
        // Parked since; and the second of a few dropped, in a walk that ends there.
        amqp.publish_with(PARKED, "late", id("late")).await;
        expected.push("late".into());
        ready(&amqp, MESSAGES - 4).await;
        for place in [1, 0] {
            let mut browse = client.parked(QUEUE).browse().await.unwrap();
            for _ in 0..place {
                browse.next().await.unwrap();
            }
            let record = browse.next().await.unwrap().unwrap();
            browse.drop(&record).await.unwrap();
            browse.close().await.unwrap();
            assert_eq!(expected.remove(place), ids(&[record])[0]);
            ready(&amqp, expected.len().try_into().unwrap()).await;
        }
        for _ in 0..2 {
            assert_eq!(walk(&client, 1_000).await, expected);
            ready(&amqp, expected.len().try_into().unwrap()).await;
        }
        let replayed = take(&amqp, QUEUE, 3).await;
        let names: Vec<_> = replayed.iter().filter_map(|message| message.id()).collect();
        assert_eq!(names, ["120", "1", "64"]);
        // And all of them at once, settled as they come.
        let mut browse = client.parked(QUEUE).browse().await.unwrap();
        while let Some(record) = browse.next().await.unwrap() {
            browse.replay(&record).await.unwrap();
        }
        browse.close().await.unwrap();
        let replayed = take(&amqp, QUEUE, expected.len()).await;
        let names: Vec<_> = replayed.iter().filter_map(|message| message.id()).collect();
        assert_eq!(names, expected);
        ready(&amqp, 0).await;
    })
    .await;
}

#[tokio::test]
async fn a_walk_ends_when_others_take_what_it_counted() {
    on_queue_types(|broker, kind| async move {
        let vhost = broker.vhost().await;
        let (client, amqp) = (connect_with(&vhost, kind).await, vhost.connect().await);
        amqp.declare(PARKED, kind).await;
        for number in 0..100 {
            let name = number.to_string();
            amqp.publish_with(PARKED, "x", id(&name)).await;
        }
        ready(&amqp, 100).await;
        let mut browse = client.parked(QUEUE).browse().await.unwrap();
        assert_eq!(browse.remaining(), 100);
        assert!(browse.next().await.unwrap().is_some());
        // Another walk holds the rest, all but what the first was sent already.
        let mut other = client.parked(QUEUE).browse().await.unwrap();
        let mut held = 0;
        while other.next().await.unwrap().is_some() {
            held += 1;
        }
        assert!(held > 0);
        let mut seen = 1;
        while browse.next().await.unwrap().is_some() {
            seen += 1;
        }
        assert_eq!((seen + held, browse.remaining()), (100, 0));
        other.close().await.unwrap();
        browse.close().await.unwrap();
        ready(&amqp, 100).await;
        // Everything is taken away, queue and all.
        let mut browse = client.parked(QUEUE).browse().await.unwrap();
        assert!(browse.next().await.unwrap().is_some());
        amqp.delete(PARKED).await;
        let error = loop {
            match browse.next().await {
                Ok(Some(_)) => {} // was on its way
                Ok(None) => panic!("the end of the queue is no end of the walk"),
                Err(error) => break error,
            }
        };
        assert!(
            matches!(
                error.kind(),
                ErrorKind::ConnectionLost | ErrorKind::QueueNotFound
            ),
            "{error}"
        );
    })
    .await;
}

#[tokio::test]
async fn a_replay_to_a_queue_that_is_gone_keeps_the_message_parked() {
    on_queue_types(|broker, kind| async move {
        let vhost = broker.vhost().await;
        let (client, amqp) = (connect_with(&vhost, kind).await, vhost.connect().await);
        amqp.declare(PARKED, kind).await;
        amqp.publish_with(PARKED, "x", id("a")).await;
        let mut walk = client.parked(QUEUE).browse().await.unwrap();
        let record = walk.next().await.unwrap().unwrap();
        let why = refused(walk.replay(&record).await, ErrorKind::Unroutable);
        assert!(why.contains("`orders`"), "{why}");
        // The walk goes on: with the queue there, the same record is replayed.
        amqp.declare(QUEUE, kind).await;
        walk.replay(&record).await.unwrap();
        walk.close().await.unwrap();
        assert_eq!(take(&amqp, QUEUE, 1).await[0].id(), Some("a"));
        ready(&amqp, 0).await;
    })
    .await;
}

#[tokio::test]
async fn what_the_broker_parked_is_understood_as_well() {
    on_queue_types(|broker, kind| async move {
        let vhost = broker.vhost().await;
        let (client, amqp) = (connect_with(&vhost, kind).await, vhost.connect().await);
        amqp.declare(PARKED, kind).await;
        let route = table([
            ("x-dead-letter-exchange", text("")),
            ("x-dead-letter-routing-key", text(PARKED)),
        ]);
        amqp.declare_with(QUEUE, kind, route).await;
        let options = QueueBindOptions::default();
        amqp.channel()
            .queue_bind(
                QUEUE.into(),
                "amq.topic".into(),
                "eu.#".into(),
                options,
                FieldTable::default(),
            )
            .await
            .unwrap();
        amqp.publish_to("amq.topic", "eu.order", "x", id("rejected"))
            .await;
        let got = amqp
            .channel()
            .basic_get(QUEUE.into(), BasicGetOptions::default())
            .await
            .unwrap();
        got.unwrap()
            .reject(BasicRejectOptions { requeue: false })
            .await
            .unwrap();
        ready(&amqp, 1).await;
        amqp.publish_to(
            "amq.topic",
            "eu.order",
            "x",
            id("expired").with_expiration("1".into()),
        )
        .await;
        ready(&amqp, 2).await;
        amqp.publish_with(PARKED, "x", id("by hand")).await;
        ready(&amqp, 3).await;

        // As often as a person may look; each look must tell the same.
        for look in 0..18 {
            let seen = records(&client).await;
            let find = |name: &str| {
                let found = seen
                    .iter()
                    .find(|record| record.message().message_id() == Some(name));
                found.unwrap_or_else(|| panic!("look {look}: no `{name}`"))
            };
            let record = find("rejected");
            assert!(record.by_broker, "look {look}");
            assert_eq!(record.reason, Some(ParkReason::Rejected), "look {look}");
            assert_eq!(record.attempts, 1, "look {look}");
            assert!(
                record.error.contains(QUEUE) && record.parked_at.is_some(),
                "look {look}: {record:?}"
            );
            let message = record.message();
            assert_eq!(
                (message.exchange(), message.routing_key()),
                ("amq.topic", "eu.order"),
                "look {look}"
            );
            let record = find("expired");
            assert_eq!(
                (record.by_broker, record.reason),
                (true, Some(ParkReason::Expired)),
                "look {look}"
            );
            let record = find("by hand");
            assert_eq!(
                (record.by_broker, record.reason),
                (true, None),
                "look {look}"
            );
            assert_eq!(record.error, "");
            ready(&amqp, 3).await;
        }
        let mut walk = client.parked(QUEUE).browse().await.unwrap();
        while let Some(record) = walk.next().await.unwrap() {
            walk.replay(&record).await.unwrap();
        }
        walk.close().await.unwrap();
        let observations = Observations::default();
        let _running = start(client.consumer(QUEUE).dlx(true), &observations, |_| Ok(())).await;
        for name in ["rejected", "expired"] {
            let message = observations.until(name, 1).await.remove(0).message;
            assert_eq!(
                (message.exchange(), message.routing_key()),
                ("amq.topic", "eu.order")
            );
            assert_eq!((message.attempt(), message.replays()), (1, 1), "{name}");
            assert_eq!(message.properties().expiration(), &None);
        }
        observations.until("by hand", 1).await;
    })
    .await;
}

#[tokio::test]
async fn forty_walks_wear_nothing_out() {
    on_brokers(|broker| async move {
        for (queue, limits) in [("made-by-us", true), ("made-by-others", false)] {
            let vhost = broker.vhost().await;
            let (client, amqp) = (connect(&vhost).await, vhost.connect().await);
            if limits {
                client
                    .apply_plan(&client.consumer(QUEUE).dlx(true).plan().unwrap())
                    .await
                    .unwrap();
            } else {
                // From 4.0 on such a queue drops a message at its 21st return.
                amqp.declare(PARKED, QueueType::Quorum).await;
            }
            for name in ["a", "b", "c"] {
                amqp.publish_with(PARKED, name, id(name)).await;
            }
            for walk in 0..40 {
                ready(&amqp, 3).await;
                let mut seen = ids(&records(&client).await);
                if limits {
                    // Nothing is put back as a copy, so nothing loses its place.
                    assert_eq!(seen, ["a", "b", "c"], "{queue}, walk {walk}");
                }
                seen.sort();
                assert_eq!(seen, ["a", "b", "c"], "{queue}, walk {walk}");
            }
            ready(&amqp, 3).await;
        }
    })
    .await;
}
