//! Publishing while the broker is short of memory and reads nothing, on a node of its own.

use std::{collections::BTreeMap, time::Duration};

use futures_util::future::join_all;
use retryrmq::{
    BasicProperties, Client, ErrorKind, FailedMessage, Failure, Message, Outcome, Publish,
};
use retryrmq_harness::{
    Broker, Permissions, QueueType, Version, eventually, free_port, on_brokers_where,
    on_every_broker_where,
};
use tokio::{
    task::JoinSet,
    time::{Instant, sleep, sleep_until, timeout},
};

use crate::{
    connecting::host_and_port,
    fixture::{
        Attempt, DEADLINE, Observations, PARKED, QUEUE, id, int, ms, node_with_consumer_timeout,
        policy, start, stats, table,
    },
    log_capture,
    network::{CutProxies, PUBLISHING},
};

/// Longer than the library waits for any one answer, and than two heartbeats.
const ALARM: Duration = Duration::from_secs(30);
/// More than a client may have outstanding.
const GIVEN_UP: usize = 6_000;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_long_alarm_loses_nothing_and_doubles_nothing() {
    on_brokers_where(Broker::is_controllable, |broker| async move {
        let node = broker.own_node(&[]).await;
        let client = Client::connect(&format!("{}?heartbeat=10", node.url()))
            .await
            .unwrap();
        let amqp = node.connect().await;
        amqp.declare(QUEUE, QueueType::Classic).await;
        amqp.declare("other", QueueType::Classic).await;
        for queue in [PARKED, "replayed"] {
            amqp.declare(queue, QueueType::Quorum).await;
        }
        amqp.publish(PARKED, "x").await;
        let mut walk = client.parked(QUEUE).browse().await.unwrap();
        let record = walk.next().await.unwrap().unwrap();
        client.publish(Publish::to_queue(QUEUE, "0")).await.unwrap();
        amqp.drain(QUEUE).await;
        // What was refused once goes alone from then on.
        amqp.declare("refused", QueueType::Classic).await;
        let nothing = Permissions {
            write: "^$",
            ..Permissions::ALL
        };
        let management = node.management();
        let refused = || client.publish(Publish::to_queue("refused", "x"));
        for (may, is_refused) in [(nothing, true), (Permissions::ALL, false)] {
            let user = node.user();
            let set = management.set_permissions("/", &user, may);
            set.await.unwrap();
            if is_refused {
                let error = refused().await.expect_err("nobody may write");
                assert_eq!(error.kind(), ErrorKind::AccessRefused, "{error:?}");
            }
        }
        node.raise_memory_alarm().await;
        let over = Instant::now() + ALARM;
        // The work of somebody patient: a message is published again when that may help, until it is confirmed.
        let mut patient = JoinSet::new();
        for number in 0..50 {
            let client = client.clone();
            patient.spawn(async move {
                let name = number.to_string();
                let message = || {
                    let properties: BasicProperties = id(&name);
                    Publish::to_queue(QUEUE, "x").properties(properties.with_delivery_mode(2))
                };
                let mut published = 1;
                while let Err(error) = client.publish(message()).await {
                    assert_eq!(error.kind(), ErrorKind::Timeout, "{error:?}");
                    published += 1;
                }
                (name, published)
            });
        }
        eventually(DEADLINE, "the client is blocked", || async {
            let open = management.connections("/").await.unwrap();
            let states: Vec<_> = open.into_iter().map(|open| open.state).collect();
            let is_blocked = states.iter().any(|state| state == "blocked");
            is_blocked
                .then_some(())
                .ok_or_else(|| format!("{states:?}"))
        })
        .await;
        timeout(Duration::from_millis(200), refused())
            .await
            .expect_err("nothing is confirmed meanwhile");
        // And of somebody impatient, who gives up at once and goes on with the next.
        let mut impatient = JoinSet::new();
        for _ in 0..GIVEN_UP {
            let client = client.clone();
            impatient.spawn(async move {
                let message = Publish::to_queue("other", "x");
                timeout(Duration::from_millis(20), client.publish(message))
                    .await
                    .expect_err("nothing is confirmed meanwhile");
            });
        }
        impatient.join_all().await;
        for _ in 0..20 {
            timeout(
                Duration::from_millis(20),
                walk.replay_to(&record, "replayed"),
            )
            .await
            .expect_err("nothing is confirmed meanwhile");
        }
        sleep_until(over).await;
        assert_eq!(amqp.depth(QUEUE).await, Some(0), "so there was an alarm");
        node.set_memory_watermark(0.6).await;
        let published: BTreeMap<String, usize> = patient.join_all().await.into_iter().collect();
        client
            .publish(Publish::to_queue(QUEUE, "last").properties(id("last")))
            .await
            .expect("it publishes on");
        client
            .publish(Publish::to_queue("other", "x"))
            .await
            .unwrap();
        let mut found: BTreeMap<String, usize> = BTreeMap::new();
        for message in amqp.drain(QUEUE).await {
            *found.entry(message.id().unwrap().to_owned()).or_default() += 1;
        }
        assert_eq!(found.remove("last"), Some(1));
        assert_eq!(found.len(), 50, "every message is there");
        // Two copies at most: one that was on its way when the alarm came, and one that its publisher asked for after a
        // timeout. What was given up before it was on its way is not published any more.
        let many: Vec<_> = found.iter().filter(|(_, count)| **count > 2).collect();
        assert!(many.is_empty(), "{many:?} of {published:?}");
        let given_up = amqp.depth("other").await.unwrap();
        println!("{broker}: {given_up} of {GIVEN_UP} that were given up are there");
        assert!(given_up < 1_000, "{given_up} pile up");
        walk.replay_to(&record, "replayed").await.unwrap();
        walk.close().await.unwrap();
        assert_eq!(amqp.depth("replayed").await, Some(1), "the last one alone");
        refused().await.unwrap();
        assert_eq!(amqp.depth("refused").await, Some(1), "the last one alone");
        assert_eq!(client.reconnects(), 0, "no connection was lost over it");
        client.close().await;
    })
    .await;
}

/// Where what waits in the queue raised the alarm, consuming is what ends it.
#[tokio::test]
async fn a_copy_that_an_alarm_holds_up_keeps_no_place_from_the_others() {
    const GOOD: u64 = 10;
    on_brokers_where(Broker::is_controllable, |broker| async move {
        let node = broker.own_node(&[]).await;
        let (client, amqp) = (
            Client::connect(node.url()).await.unwrap(),
            node.connect().await,
        );
        amqp.declare(QUEUE, QueueType::Classic).await;
        let consumer = client
            .consumer(QUEUE)
            .dlx(true)
            .retry(policy("fixed(100ms, retries=2)"))
            .prefetch(1);
        client.apply_plan(&consumer.plan().unwrap()).await.unwrap();
        let names = std::iter::once("bad".to_owned()).chain((0..GOOD).map(|name| name.to_string()));
        amqp.publish_all("", names.map(|name| (QUEUE, "x", id(&name))))
            .await;
        node.raise_memory_alarm().await;
        let observations = Observations::default();
        let running = start(consumer, &observations, |message| {
            match (message.message_id(), message.attempt()) {
                (Some("bad"), 1) => Err("no".into()),
                _ => Ok(()),
            }
        })
        .await;
        stats(&running, "the others are handled", |stats| {
            stats.acked == GOOD
        })
        .await;
        assert_eq!(
            observations.of("bad").len(),
            1,
            "its copy waits for the end of the alarm"
        );
        node.set_memory_watermark(0.4).await;
        observations.until("bad", 2).await;
        running.close().await;
    })
    .await;
}

/// Who keeps the original has it stored again later.
#[tokio::test]
async fn a_copy_that_its_retrier_has_given_up_is_not_published_after_the_alarm() {
    const GIVEN_UP: usize = 20;
    on_brokers_where(Broker::is_controllable, |broker| async move {
        let node = broker.own_node(&[]).await;
        let (client, amqp) = (
            Client::connect(node.url()).await.unwrap(),
            node.connect().await,
        );
        amqp.declare("other", QueueType::Classic).await;
        let orders = client.retrier(QUEUE).unwrap().retry(policy("fixed(1h)"));
        let failed = FailedMessage::new(QUEUE, "", QUEUE, id("one"), "x").unwrap();
        let outcome = Outcome::retry(Failure::new("no"));
        let decision = orders.after(&failed, &outcome).await.unwrap().unwrap();
        node.raise_memory_alarm().await;
        let publisher = client.clone();
        // The one by which a client learns of the alarm.
        let first = tokio::spawn(async move {
            let message = || Publish::to_queue("other", "x");
            while publisher.publish(message()).await.is_err() {}
        });
        let management = node.management();
        eventually(DEADLINE, "the client is blocked", || async {
            let open = management.connections("/").await.unwrap();
            open.iter()
                .any(|open| open.state == "blocked")
                .then_some(())
        })
        .await;
        for _ in 0..GIVEN_UP {
            timeout(Duration::from_millis(20), orders.store(&failed, &decision))
                .await
                .expect_err("nothing is confirmed meanwhile");
        }
        node.set_memory_watermark(0.6).await;
        first.await.unwrap();
        orders.store(&failed, &decision).await.unwrap();
        // Messages of one lane go in their order: those would be there by now.
        assert_eq!(amqp.depth(&decision.queue).await, Some(2));
        client.close().await;
    })
    .await;
}

/// What became of the rest of a wave is not known when its connection goes, and it would be published again.
#[tokio::test]
async fn what_was_given_up_in_an_alarm_is_not_published_on_the_next_connection() {
    /// More than stays on the way between two sockets.
    const LARGE: usize = 1 << 20;
    const GIVEN_UP: usize = 60;
    on_brokers_where(Broker::is_controllable, |broker| async move {
        let node = broker.own_node(&[]).await;
        let (proxies, port) = (CutProxies::default(), free_port());
        let _door = proxies.lead(port, host_and_port(&node)).await;
        let url = format!("amqp://guest:guest@127.0.0.1:{port}/%2f");
        let (client, amqp) = (Client::connect(&url).await.unwrap(), node.connect().await);
        amqp.declare(QUEUE, QueueType::Classic).await;
        let large = || client.publish(Publish::to_queue(QUEUE, vec![b'x'; LARGE]));
        // From then on messages as large go together.
        large().await.unwrap();
        amqp.drain(QUEUE).await;
        node.raise_memory_alarm().await;
        let wave = (0..GIVEN_UP).map(|_| timeout(Duration::from_secs(3), large()));
        for given_up in join_all(wave).await {
            given_up.expect_err("nothing is confirmed meanwhile");
        }
        proxies.cut(PUBLISHING);
        eventually(DEADLINE, "the client publishes on another one", || async {
            (client.reconnects() == 1 && client.health().is_ok()).then_some(())
        })
        .await;
        // For what would be published again at once.
        sleep(Duration::from_secs(3)).await;
        node.set_memory_watermark(0.6).await;
        client
            .publish(Publish::to_queue(QUEUE, "last"))
            .await
            .unwrap();
        let there = amqp.drain(QUEUE).await;
        let given_up = there.iter().filter(|message| message.text() != "last");
        println!(
            "{broker}: {} of {GIVEN_UP} are there",
            given_up.clone().count()
        );
        assert!(given_up.count() < 16, "no more than were on their way");
        client.close().await;
    })
    .await;
}

/// A client learns of an alarm by what it publishes: by then a wave is under way, and most of it is not.
#[tokio::test]
async fn what_was_given_up_in_the_middle_of_a_wave_is_not_published_after_the_alarm() {
    const LARGE: usize = 1 << 20;
    const GIVEN_UP: usize = 60;
    on_brokers_where(Broker::is_controllable, |broker| async move {
        let node = broker.own_node(&[]).await;
        let client = Client::connect(node.url()).await.unwrap();
        let amqp = node.connect().await;
        amqp.declare(QUEUE, QueueType::Classic).await;
        let large = || client.publish(Publish::to_queue(QUEUE, vec![b'x'; LARGE]));
        // From then on messages as large go together.
        large().await.unwrap();
        amqp.drain(QUEUE).await;
        node.raise_memory_alarm().await;
        let wave = (0..GIVEN_UP).map(|_| timeout(Duration::from_secs(3), large()));
        for given_up in join_all(wave).await {
            given_up.expect_err("nothing is confirmed meanwhile");
        }
        node.set_memory_watermark(0.6).await;
        client
            .publish(Publish::to_queue(QUEUE, "last"))
            .await
            .unwrap();
        let there = amqp.drain(QUEUE).await;
        let given_up = there.iter().filter(|message| message.text() != "last");
        println!(
            "{broker}: {} of {GIVEN_UP} are there",
            given_up.clone().count()
        );
        assert!(given_up.count() < 16, "no more than were on their way");
        assert_eq!(client.reconnects(), 0);
        client.close().await;
    })
    .await;
}

/// The queue of somebody else: no dead-letter route, and few deliveries. Each time that the broker takes back an original that waits for its
/// copy counts as a delivery, and past the limit it is dropped.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_alarm_outlasts_the_brokers_patience_and_nothing_is_dropped() {
    on_every_broker_where(Broker::is_controllable, |broker| async move {
        outlast_an_alarm(&broker, 1, 6).await;
    })
    .await;
}

/// Each of them finds out for itself, which costs a delivery.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn several_consumers_outlast_the_brokers_patience_in_an_alarm() {
    on_brokers_where(Broker::is_controllable, |broker| async move {
        outlast_an_alarm(&broker, 3, 8).await;
    })
    .await;
}

/// As many clients consume a queue with this delivery limit during an alarm that is long enough to drop its messages.
async fn outlast_an_alarm(broker: &Broker, clients: usize, limit: u32) {
    /// How long a delivery may take: the broker's patience, and how often it looks.
    const DELIVERY: Duration = Duration::from_secs(4);
    let node = node_with_consumer_timeout(broker, ms(3_000)).await;
    let amqp = node.connect().await;
    // Lines of other tests are told apart by the name.
    let queue = format!("outlasts.{clients}.{}", broker.version());
    log_capture::start();
    let arguments = table([("x-delivery-limit", int(i64::from(limit)))]);
    amqp.declare_with(&queue, QueueType::Quorum, arguments)
        .await;
    for name in ["0", "1"] {
        amqp.publish_with(&queue, "x", id(name)).await;
    }
    let connecting = (0..clients).map(|_| async { Client::connect(node.url()).await.unwrap() });
    let clients = join_all(connecting).await;
    let consumer = |client: &Client| {
        let consumer = client.consumer(&queue).dlx(true);
        consumer.retry(policy("fixed(1s, retries=5)"))
    };
    clients[0]
        .apply_plan(&consumer(&clients[0]).plan().unwrap())
        .await
        .unwrap();
    node.raise_memory_alarm().await;
    let over = Instant::now() + (limit + 4) * DELIVERY;
    let observations = Observations::default();
    let fails_once = |message: &Message| match message.attempt() {
        1 => Err("no".into()),
        _ => Ok(()),
    };
    let mut running = Vec::new();
    for client in &clients {
        running.push(start(consumer(client), &observations, fails_once).await);
    }
    sleep_until(over).await;
    println!(
        "{broker}, {} clients: {} runs, {:?}",
        clients.len(),
        observations.all().len(),
        observations.event_names()
    );
    let is_said = || {
        log_capture::lines()
            .iter()
            .any(|line| line.contains(&queue) && line.contains("nothing is consumed from it"))
    };
    // From then on RabbitMQ does not count what is returned.
    if broker.version() < Version::V4_3 {
        eventually(DEADLINE, "it is said", || async { is_said() }).await;
    } else {
        assert!(!is_said(), "{broker}");
    }
    node.set_memory_watermark(0.6).await;
    for name in ["0", "1"] {
        eventually(DEADLINE, "it succeeds", || async {
            let again = |attempt: &Attempt| attempt.message.attempt() == 2;
            observations.of(name).iter().any(again).then_some(())
        })
        .await;
    }
    let mut acked = 0;
    for running in running {
        let done = stats(&running, "all is done", |stats| stats.outstanding == 0).await;
        acked += done.acked;
        running.close().await;
    }
    // What was on its way when the alarm came is there as well.
    assert!((2..=8).contains(&acked), "{broker}: {acked} acknowledged");
    assert!(!observations.event_names().contains(&"parked"), "{broker}");
    for client in clients {
        client.close().await;
    }
}

/// Orchestrators kill what does not stop in time, and then everything in hand is counted as a crash.
#[tokio::test]
async fn in_an_alarm_publishing_and_stopping_take_no_longer_than_they_may() {
    on_brokers_where(Broker::is_controllable, |broker| async move {
        let node = broker.own_node(&[]).await;
        let (client, amqp) = (
            Client::connect(node.url()).await.unwrap(),
            node.connect().await,
        );
        amqp.declare(QUEUE, QueueType::Classic).await;
        amqp.declare("other", QueueType::Classic).await;
        node.raise_memory_alarm().await;
        let began = Instant::now();
        let limit = Duration::from_secs(2);
        let message = Publish::to_queue("other", "x").timeout(limit);
        let error = client.publish(message).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Timeout);
        assert!(began.elapsed() >= limit);
        let health = || async { client.health().err() };
        let blocked = eventually(DEADLINE, "the client is not healthy", health).await;
        assert!(
            blocked.to_string().contains("memory or disk alarm"),
            "{blocked}"
        );
        let error = client.publish(Publish::to_queue("other", "x").timeout(limit));
        let error = error.await.unwrap_err().to_string();
        assert!(error.contains("within its timeout of 2s"), "{error}");
        assert!(error.contains("memory or disk alarm"), "{error}");
        // One that waits longer sees the end of the alarm.
        let long = client.publish(Publish::to_queue("other", "last").timeout(DEADLINE));
        let (told, ()) = tokio::join!(long, async {
            sleep(Duration::from_secs(25)).await;
            node.set_memory_watermark(0.6).await;
        });
        told.unwrap();
        let health = || async { client.health().ok() };
        eventually(DEADLINE, "the client is healthy", health).await;
        node.raise_memory_alarm().await;
        let publisher = client.clone();
        let waits = tokio::spawn(async move {
            let message = Publish::to_queue("other", "x");
            publisher.publish(message.timeout(ALARM * 100)).await
        });
        let health = || async { client.health().err() };
        eventually(DEADLINE, "the client is blocked again", health).await;
        // The alarm goes on.
        client.close().await;
        let error = waits.await.unwrap().unwrap_err();
        let kinds = [ErrorKind::Closed, ErrorKind::ConnectionLost];
        assert!(kinds.contains(&error.kind()), "{error}");
    })
    .await;
}
