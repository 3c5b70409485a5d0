//! Handlers that take longer than the broker's patience with what is not settled, on a node that has little of it.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use futures_util::future::join_all;
use retryrmq::{Client, ErrorKind, Message, Pause};
use retryrmq_harness::{
    Broker, QueueType, Version, eventually, on_brokers_where, on_every_broker_where,
};
use tokio::time::sleep;

use crate::{
    connecting::refused,
    fixture::{
        DEADLINE, Observations, PARKED, QUEUE, id, int, ms, node_with_consumer_timeout, policy,
        start, stats, table, text,
    },
    log_capture,
    parking::{ids, ready, records},
};

/// The broker's patience is four seconds: longer than a copy in a queue that was just found is waited for.
const LONG: Duration = Duration::from_secs(9);
const SLOW: &str = "slow";
const FAST: usize = 20;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handler_that_outlasts_the_brokers_patience_is_done_when_it_succeeds() {
    on_every_broker_where(Broker::is_controllable, |broker| async move {
        log_capture::start();
        let node = node_with_consumer_timeout(&broker, ms(4_000)).await;
        let (client, amqp) = (
            Client::connect(node.url()).await.unwrap(),
            node.connect().await,
        );
        for (kind, patient) in [
            (QueueType::Classic, false),
            (QueueType::Quorum, false),
            // A queue may have a patience of its own, which counts before that of its node.
            (QueueType::Quorum, true),
        ] {
            // A classic queue counts nothing before 4.3, so that what comes again takes a detour, as another message.
            let counts = kind == QueueType::Quorum || broker.version() >= Version::V4_3;
            if !counts || patient && broker.version() < Version::V4_0 {
                continue;
            }
            let queue = format!("orders.{kind}.{patient}");
            let own = patient.then(|| ("x-consumer-timeout", int(600_000)));
            amqp.declare_with(&queue, kind, table(own)).await;
            let observations = Observations::default();
            let seen = observations.clone();
            let consumer = client
                .consumer(&queue)
                .dlx(true)
                .retry(policy("fixed(100ms, retries=5)"))
                .prefetch(8)
                .concurrency(4)
                .on_event(observations.listener());
            let slow =
                |message: &Message| message.headers().is_some_and(|all| all.contains_key(SLOW));
            let running = consumer
                .start(move |message: Message| {
                    seen.note(&message);
                    async move {
                        if slow(&message) {
                            sleep(LONG).await;
                        }
                        Ok::<(), std::io::Error>(())
                    }
                })
                .await
                .unwrap();
            // Without an id nobody could tell it from another one later.
            let properties = id("slow");
            let properties = properties.with_headers(table([(SLOW, text("yes"))]));
            amqp.publish_with(&queue, "x", properties).await;
            for number in 0..FAST {
                amqp.publish_with(&queue, "x", id(&number.to_string()))
                    .await;
            }
            let what = format!("{broker}, {kind}, {patient}");
            for number in 0..FAST {
                observations.until(&number.to_string(), 1).await;
            }
            eventually(DEADLINE, &format!("{what}: all is done"), || async {
                let (stats, depth) = (running.stats(), amqp.depth(&queue).await);
                let ended = stats.acked + stats.already_handled > FAST as u64;
                let done = ended && stats.outstanding == 0 && depth == Some(0);
                done.then_some(())
                    .ok_or_else(|| format!("{stats:?}, {depth:?}"))
            })
            .await;
            let runs = observations.all();
            let runs = runs.iter().filter(|attempt| slow(&attempt.message)).count();
            println!("{what}: {runs} runs, {:?}", running.stats());
            if patient {
                assert_eq!(runs, 1, "{what}");
            }
            if !patient && broker.version() < Version::V4_3 {
                let lines = log_capture::lines();
                let told = |line: &&String| line.contains(&queue) && line.contains("timed out");
                assert!(
                    lines.iter().any(|line| told(&line)),
                    "{what}: the reason is told"
                );
            }
            stats(&running, "nothing is parked", |stats| stats.parked == 0).await;
            running.close().await;
            assert_eq!(
                amqp.depth(&format!("{queue}.parked")).await,
                Some(0),
                "{what}"
            );
            assert_eq!(amqp.depth(&queue).await, Some(0), "{what}");
        }
        client.close().await;
    })
    .await;
}

/// The first share of a walk is held by a consumer that was cancelled, and is taken back before the second.
#[tokio::test]
async fn a_walk_drops_nothing_that_the_broker_has_taken_back() {
    const FIRST: usize = 32;
    on_brokers_where(Broker::is_controllable, |broker| async move {
        let node = node_with_consumer_timeout(&broker, ms(20_000)).await;
        let (client, amqp) = (
            Client::connect(node.url()).await.unwrap(),
            node.connect().await,
        );
        amqp.declare(PARKED, QueueType::Quorum).await;
        let names: Vec<_> = (0..FIRST + 8).map(|number| number.to_string()).collect();
        let messages = names.iter().map(|name| (PARKED, "x", id(name)));
        amqp.publish_all("", messages).await;
        ready(&amqp, 40).await;
        let mut walk = client.parked(QUEUE).browse().await.unwrap();
        let first = walk.next().await.unwrap().unwrap();
        for _ in 1..FIRST {
            walk.next().await.unwrap().unwrap();
        }
        // The second share is younger by so much.
        sleep(Duration::from_secs(3)).await;
        walk.next().await.unwrap().unwrap();
        eventually(DEADLINE, "the first share is back", || async {
            amqp.depth(PARKED).await >= Some(32)
        })
        .await;
        // The broker answers no settlement. If its cancellation is still on its way to us, the end of the walk is refused.
        let result = match walk.drop(&first).await {
            Ok(()) => walk.close().await,
            refusal => {
                drop(walk);
                refusal
            }
        };
        refused(result, ErrorKind::ConnectionLost);
        ready(&amqp, 40).await;
        let mut left = ids(&records(&client).await);
        left.sort_by_key(|name| name.parse::<usize>().unwrap());
        assert_eq!(left, names);
    })
    .await;
}

/// A pausing consumer keeps a message, so that no more come. Each time that the broker takes it back counts as a crash.
#[tokio::test]
async fn a_pause_longer_than_the_brokers_patience_is_no_crash() {
    on_every_broker_where(Broker::is_controllable, |broker| async move {
        let node = node_with_consumer_timeout(&broker, ms(3_000)).await;
        let pauses = QueueType::ALL.map(|kind| pauses(&node, kind));
        join_all(pauses).await;
    })
    .await;
}

/// Plays it on a queue of this type.
async fn pauses(node: &Broker, kind: QueueType) {
    const PAUSE: Duration = Duration::from_secs(45);
    let what = format!("{node}, {kind}");
    let vhost = node.vhost().await;
    let client = Client::connect(vhost.url()).await.unwrap();
    let amqp = vhost.connect().await;
    amqp.declare(QUEUE, kind).await;
    for number in 0..6 {
        amqp.publish_with(QUEUE, "x", id(&number.to_string())).await;
    }
    let observations = Observations::default();
    let fails = Arc::new(AtomicBool::new(true));
    let failing = Arc::clone(&fails);
    let pause = Pause::default().failures(0.5).window(4).pause(PAUSE);
    let consumer = client
        .consumer(QUEUE)
        .dlx(true)
        .retry(policy("fixed(60s, retries=5)"))
        .pause(pause)
        .concurrency(1)
        .prefetch(2);
    let running = start(consumer, &observations, move |_| {
        if failing.load(Ordering::SeqCst) {
            Err("down".into())
        } else {
            Ok(())
        }
    })
    .await;
    observations.event("paused").await;
    fails.store(false, Ordering::SeqCst);
    observations.event("resumed").await;
    for name in ["4", "5"] {
        observations.until(name, 1).await;
    }
    let events = observations.event_names();
    let lost = events.iter().filter(|name| **name == "disconnected");
    let lost = lost.count();
    println!("{what}: {lost} lost, {events:?}");
    assert!(!events.contains(&"parked"), "{what}: {events:?}");
    // A slow broker may confirm a copy too late. One that is not believed takes the message back 13 times.
    assert!(lost <= 7, "{what}: it is known, {events:?}");
    running.close().await;
    client.close().await;
}

/// One handler is busy, and what was prefetched behind it waits.
#[tokio::test]
async fn what_waits_for_a_handler_goes_back_in_time() {
    on_every_broker_where(Broker::is_controllable, |broker| async move {
        let node = node_with_consumer_timeout(&broker, ms(9_000)).await;
        let client = Client::connect(node.url()).await.unwrap();
        let amqp = node.connect().await;
        amqp.declare(QUEUE, QueueType::Quorum).await;
        let observations = Observations::default();
        let seen = observations.clone();
        let consumer = client.consumer(QUEUE).dlx(true).concurrency(1).prefetch(8);
        let running = consumer
            .on_event(observations.listener())
            .start(move |message: Message| {
                seen.note(&message);
                async move {
                    sleep(Duration::from_secs(2)).await;
                    Ok::<(), std::io::Error>(())
                }
            })
            .await
            .unwrap();
        for number in 0..20 {
            amqp.publish_with(QUEUE, "x", id(&number.to_string())).await;
        }
        for number in 0..20 {
            observations.until(&number.to_string(), 1).await;
        }
        stats(&running, "all is done", |stats| stats.outstanding == 0).await;
        let events = observations.event_names();
        let lost = events.iter().filter(|name| **name == "disconnected");
        let lost = lost.count();
        println!(
            "{broker}: {} runs, {lost} lost, {events:?}",
            observations.all().len()
        );
        assert!(lost <= 2, "{broker}: {events:?}");
        running.close().await;
        client.close().await;
    })
    .await;
}
