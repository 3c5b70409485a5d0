//! Messages that RabbitMQ cannot deliver over AMQP 0-9-1: they are moved out of the way, and lost nowhere.

use std::{collections::BTreeSet, sync::Arc};

use lapin::{
    options::{BasicGetOptions, QueuePurgeOptions},
    types::AMQPValue,
};
use retryrmq::{
    BasicProperties, Client, Event, Message, RunningConsumer, Strategy, UnreadableMessage,
    permission_pattern,
};
use retryrmq_harness::{
    Amqp, Amqp10, Body10, Broker, Message10, Policy, Property10, QueueType, Value10, Version,
    Vhost,
    amqp10::{char, string, uuid},
    eventually, on_every_broker_where, on_every_queue_type_where,
};

use serde_json::json;
use tokio::sync::Semaphore;

use crate::{
    fixture::{
        DEADLINE, Observations, PARKED, QUEUE, connect_with, id, int, policy, start, stats, table,
        take,
    },
    permissions::{DEFAULT_EXCHANGE, User},
};

const UNREADABLE: &str = "orders.unreadable";
/// What belongs to the queue, without the queue for what is moved.
const FAMILY: &str = r"^orders(\.retry\.[0-9]+|\.parked)?$";
const FAMILY_AND_UNREADABLE: &str = r"^orders(\.retry\.[0-9]+|\.parked|\.unreadable)?$";

fn stores_what_amqp_0_9_1_cannot_carry(broker: &Broker) -> bool {
    broker.version() >= Version::V4_0
}

/// Messages that cannot be delivered, each for another reason.
fn bombs() -> Vec<Message10> {
    vec![
        Message10::new("in a property")
            .id("uuid")
            .property("tenant", uuid([7; 16]))
            .property("shop", string("north")),
        Message10::new("a character")
            .id("char")
            .property("c", char('x')),
        Message10::new("long")
            .id("type")
            .content_type(&"t".repeat(300)),
        Message10::new("x".repeat(120_000))
            .id("large")
            .property("tenant", uuid([8; 16])),
    ]
}

/// A message for the work queue.
fn plain(body: &String) -> (&'static str, &String, BasicProperties) {
    (QUEUE, body, BasicProperties::default())
}

/// RabbitMQ can deliver this over AMQP 0-9-1, and cannot over AMQP 1.0: an annotation without a value.
fn null(id: &str) -> Message10 {
    let key = Value10::symbol("x-null");
    Message10::new("x").id(id).annotation(key, Value10::Null)
}

async fn publish(vhost: &Vhost, queue: &str, messages: &[Message10]) {
    let mut publisher = Amqp10::connect(vhost).await;
    for message in messages {
        publisher
            .publish(&format!("/queues/{queue}"), message)
            .await;
    }
}

async fn set_aside(client: &Client, count: usize) -> Vec<UnreadableMessage> {
    let unreadable = client.unreadable(QUEUE);
    eventually(DEADLINE, "they are set aside", || async {
        match unreadable.list(100).await {
            Ok(all) if all.len() == count => Ok(all),
            other => Err(format!("{other:?}")),
        }
    })
    .await
}

/// Waits until what came back with a lost connection is acknowledged as well: that may be after what is unreadable was moved.
async fn is_empty(amqp: &Amqp, running: &RunningConsumer) {
    eventually(DEADLINE, "nothing is left", || async {
        match (amqp.depth(QUEUE).await, running.stats().outstanding) {
            (Some(0), 0) => Ok(()),
            left => Err(format!("{left:?}")),
        }
    })
    .await;
}

/// Starts a consumer that handles every message.
async fn consume(client: &Client, observations: &Observations) -> RunningConsumer {
    let consumer = client.consumer(QUEUE).dlx(true);
    let consumer = consumer.retry(policy("fixed(50ms, retries=1)"));
    start(consumer, observations, |_| Ok(())).await
}

/// A message is in its new queue before the event tells of it.
async fn until_told_to_be_moved(observations: &Observations, count: u32) {
    eventually(DEADLINE, "so many are told to be moved", || async {
        let (told, _) = told_to_be_moved(observations);
        (told == count).then_some(()).ok_or(told)
    })
    .await;
}

/// How many messages the events say were moved, and the cause that the first of them gives.
fn told_to_be_moved(observations: &Observations) -> (u32, Option<String>) {
    let (mut moved, mut first) = (0, None);
    for event in observations.events() {
        if let Event::UnreadableMoved {
            queue,
            to,
            count,
            cause,
            ..
        } = event
        {
            assert_eq!((&*queue, &*to), (QUEUE, UNREADABLE));
            moved += count;
            first.get_or_insert(cause);
        }
    }
    (moved, first)
}

/// How many events of this name there were.
fn told(observations: &Observations, name: &str) -> usize {
    let names = observations.event_names();
    names.iter().filter(|told| **told == name).count()
}

/// Waits until it is told that the consumer stopped, and returns why.
async fn stopped(observations: &Observations) -> String {
    let Event::ConsumingStopped { queue, error, .. } =
        observations.event("consuming_stopped").await
    else {
        unreachable!("it is the event of this name")
    };
    assert_eq!(queue, QUEUE);
    error
}

/// A message with an annotation that AMQP 0-9-1 has no type for.
fn with_annotation(name: &str) -> Message10 {
    let key = Value10::symbol(name);
    let character = Value10::Char(u32::from('x'));
    Message10::new("x").id(name).annotation(key, character)
}

/// What a queue counts in.
const COUNTS: [&str; 2] = ["x-delivery-count", "x-acquired-count"];

/// Those in whose place a look sees what the queue has counted. For AMQP 0-9-1, the publisher's are converted.
fn hidden_by_counts(broker: &Broker, kind: QueueType) -> &'static [&'static str] {
    match kind {
        QueueType::Classic => &[],
        QueueType::Quorum if broker.version() < Version::V4_3 => &COUNTS[..1],
        QueueType::Quorum => &COUNTS,
    }
}

/// RabbitMQ adds annotations of its own to what it delivers, and a publisher may have used their names.
#[tokio::test]
async fn what_has_a_name_of_the_brokers_own_is_moved_as_well() {
    on_every_queue_type_where(
        stores_what_amqp_0_9_1_cannot_carry,
        |broker, kind| async move {
            let vhost = broker.vhost().await;
            let (client, amqp) = (connect_with(&vhost, kind).await, vhost.connect().await);
            amqp.declare(QUEUE, kind).await;
            let mut moved = vec![
                "x-delivery-limit",
                "x-first-death-queue",
                "x-opt-delivery-time",
                "x-stream-offset",
            ];
            let hidden = hidden_by_counts(&broker, kind);
            moved.extend(COUNTS.iter().filter(|name| !hidden.contains(name)));
            // The broker leaves these out, or writes them itself.
            let handled = ["x-death", "x-exchange", "x-routing-key"];
            let names = moved.iter().chain(&handled);
            let messages: Vec<_> = names.map(|name| with_annotation(name)).collect();
            publish(&vhost, QUEUE, &messages).await;
            let observations = Observations::default();
            let running = consume(&client, &observations).await;
            for id in handled {
                observations.until(id, 1).await;
            }
            let all = set_aside(&client, moved.len()).await;
            let ids = all.iter().filter_map(|one| one.message_id.as_deref());
            assert_eq!(BTreeSet::from_iter(ids), BTreeSet::from_iter(moved));
            running.close().await;
        },
    )
    .await;
}

/// A message that its queue seems to have counted already, as one that came through another quorum queue.
fn counted_before(number: i64) -> BasicProperties {
    let counts = COUNTS.map(|name| (name, int(1_000 + number)));
    id(&format!("neighbour {number}")).with_headers(table(counts))
}

#[tokio::test]
async fn what_the_queues_own_counts_hide_is_moved_and_no_other_message() {
    on_every_broker_where(stores_what_amqp_0_9_1_cannot_carry, |broker| async move {
        for name in hidden_by_counts(&broker, QueueType::Quorum) {
            let vhost = broker.vhost().await;
            let client = connect_with(&vhost, QueueType::Quorum).await;
            let amqp = vhost.connect().await;
            amqp.declare(QUEUE, QueueType::Quorum).await;
            for number in 0..40 {
                if number == 20 {
                    publish(&vhost, QUEUE, &[with_annotation(name)]).await;
                }
                let properties = match number % 4 {
                    0 => counted_before(number),
                    _ => id(&format!("neighbour {number}")),
                };
                amqp.publish_with(QUEUE, "x", properties).await;
            }
            let observations = Observations::default();
            let running = consume(&client, &observations).await;
            for number in 0..40 {
                observations.until(&format!("neighbour {number}"), 1).await;
            }
            let all = set_aside(&client, 1).await;
            assert_eq!(all[0].message_id.as_deref(), Some(*name));
            let cause = all[0].cause.as_deref().unwrap_or_default();
            assert!(cause.contains(name), "{cause}");
            is_empty(&amqp, &running).await;
            assert_eq!(told(&observations, "consuming_stopped"), 0);
            running.close().await;
        }
    })
    .await;
}

/// A publisher that does so does it always.
#[tokio::test]
async fn many_that_the_queues_own_counts_hide_are_moved_by_two_consumers() {
    on_every_broker_where(stores_what_amqp_0_9_1_cannot_carry, |broker| async move {
        let many = 12;
        let vhost = broker.vhost().await;
        let amqp = vhost.connect().await;
        amqp.declare(QUEUE, QueueType::Quorum).await;
        let observations = Observations::default();
        let mut all = Vec::new();
        for _ in 0..2 {
            let client = connect_with(&vhost, QueueType::Quorum).await;
            let running = consume(&client, &observations).await;
            all.push((client, running));
        }
        for number in 0..many {
            publish(&vhost, QUEUE, &[with_annotation(COUNTS[0])]).await;
            let properties = counted_before(i64::try_from(number).unwrap());
            amqp.publish_with(QUEUE, "x", properties).await;
        }
        let moved = set_aside(&all[0].0, many).await;
        for one in moved {
            assert_eq!(one.message_id.as_deref(), Some(COUNTS[0]));
        }
        for number in 0..many {
            observations.until(&format!("neighbour {number}"), 1).await;
        }
        for (client, running) in all {
            is_empty(&amqp, &running).await;
            running.close().await;
            client.close().await;
        }
    })
    .await;
}

/// The strategy `native` delays what a lost connection held, and counts it as a retry.
#[tokio::test]
async fn a_queue_that_delays_what_it_takes_back_is_looked_at_when_that_is_ready() {
    let delays_returns = |broker: &Broker| broker.version() >= Version::V4_3;
    on_every_broker_where(delays_returns, |broker| async move {
        for bomb in [bombs().remove(0), with_annotation(COUNTS[0])] {
            let vhost = broker.vhost().await;
            let client = connect_with(&vhost, QueueType::Quorum).await;
            let amqp = vhost.connect().await;
            let consumer = || {
                let consumer = client.consumer(QUEUE).dlx(true);
                let consumer = consumer.strategy(Strategy::Native);
                consumer.retry(policy("fixed(3s, retries=3)"))
            };
            let observations = Observations::default();
            let running = start(consumer(), &observations, |_| Ok(())).await;
            running.close().await;
            for number in 0..30 {
                if number == 10 {
                    publish(&vhost, QUEUE, std::slice::from_ref(&bomb)).await;
                }
                let id = id(&format!("neighbour {number}"));
                amqp.publish_with(QUEUE, "x", id).await;
            }
            let running = start(consumer(), &observations, |_| Ok(())).await;
            for number in 0..30 {
                observations.until(&format!("neighbour {number}"), 1).await;
            }
            set_aside(&client, 1).await;
            assert_eq!(told(&observations, "consuming_stopped"), 0);
            assert!(matches!(amqp.depth(PARKED).await, None | Some(0)));
            running.close().await;
        }
    })
    .await;
}

/// What is asked for alone is another message there: what closes a connection comes back later, at the head, or behind all others.
#[tokio::test]
async fn no_other_message_is_moved_from_a_queue_that_returns_messages_elsewhere() {
    on_every_broker_where(stores_what_amqp_0_9_1_cannot_carry, |broker| async move {
        let later: &[(&str, AMQPValue)] = &[
            (
                "x-delayed-retry-type",
                AMQPValue::LongString("failed".into()),
            ),
            ("x-delayed-retry-min", int(6_000)),
            ("x-delayed-retry-max", int(6_000)),
        ];
        let behind: &[(&str, AMQPValue)] = &[("x-delivery-limit", int(-1))];
        for arguments in [later, behind] {
            let vhost = broker.vhost().await;
            let client = connect_with(&vhost, QueueType::Quorum).await;
            let amqp = vhost.connect().await;
            let arguments = table(arguments.iter().cloned());
            amqp.declare_with(QUEUE, QueueType::Quorum, arguments).await;
            for number in 0..40 {
                if number % 20 == 10 {
                    publish(&vhost, QUEUE, &[with_annotation(COUNTS[0])]).await;
                }
                amqp.publish_with(QUEUE, "x", id(&format!("neighbour {number}")))
                    .await;
            }
            // A plain consumer loses its connection to it, with all others.
            let plain = vhost.connect().await;
            let _consumer = plain.consume(QUEUE, 100).await;
            eventually(DEADLINE, "the connection is lost", || async {
                !plain.channel().status().connected()
            })
            .await;
            eventually(DEADLINE, "all are ready again", || async {
                amqp.depth(QUEUE).await == Some(42)
            })
            .await;
            for _ in 0..3 {
                let tried = client.unreadable(QUEUE).try_each_from(QUEUE, 1_000).await;
                let aside = amqp.depth(UNREADABLE).await;
                if aside.is_some_and(|aside| aside > 0) {
                    for one in client.unreadable(QUEUE).list(100).await.unwrap() {
                        assert_eq!(one.message_id.as_deref(), Some(COUNTS[0]), "{tried:?}");
                    }
                }
            }
        }
    })
    .await;
}

/// Consumers of one client share the connection that the message costs.
#[tokio::test]
async fn no_message_of_another_queue_is_moved_because_of_what_counts_hide() {
    const OTHERS: [&str; 3] = ["one", "two", "three"];
    on_every_broker_where(stores_what_amqp_0_9_1_cannot_carry, |broker| async move {
        let vhost = broker.vhost().await;
        let client = connect_with(&vhost, QueueType::Quorum).await;
        let amqp = vhost.connect().await;
        let (observations, others) = (Observations::default(), Observations::default());
        let may_end = Arc::new(Semaphore::new(0));
        let mut running = Vec::new();
        for queue in OTHERS {
            amqp.declare(queue, QueueType::Quorum).await;
            let (seen, may_end) = (others.clone(), Arc::clone(&may_end));
            let consumer = client.consumer(queue).dlx(true).on_event(others.listener());
            let started = consumer.start(move |message: Message| {
                seen.note(&message);
                let may_end = Arc::clone(&may_end);
                async move {
                    drop(may_end.acquire().await);
                    Ok::<(), String>(())
                }
            });
            running.push(started.await.unwrap());
            for number in 0..2 {
                amqp.publish_with(queue, "x", id(&format!("{queue} {number}")))
                    .await;
            }
            others.until(&format!("{queue} 1"), 1).await;
        }
        amqp.declare(QUEUE, QueueType::Quorum).await;
        publish(&vhost, QUEUE, &[with_annotation(COUNTS[0])]).await;
        running.push(consume(&client, &observations).await);
        set_aside(&client, 1).await;
        may_end.add_permits(1_000);
        for queue in OTHERS {
            eventually(DEADLINE, "its messages are handled", || async {
                amqp.depth(queue).await == Some(0)
            })
            .await;
            let aside = amqp.depth(&format!("{queue}.unreadable")).await;
            assert!(matches!(aside, None | Some(0)), "{queue}: {aside:?}");
        }
        assert_eq!(told(&others, "unreadable_moved"), 0);
        assert_eq!(told(&others, "consuming_stopped"), 0);
        for running in running {
            running.close().await;
        }
    })
    .await;
}

/// A walk finds it although all messages of the parking queue have the same count.
#[tokio::test]
async fn a_walk_through_parked_messages_moves_what_counts_hide() {
    on_every_broker_where(stores_what_amqp_0_9_1_cannot_carry, |broker| async move {
        let vhost = broker.vhost().await;
        let client = connect_with(&vhost, QueueType::Quorum).await;
        let amqp = vhost.connect().await;
        client.parked(QUEUE).make().await.unwrap();
        for number in 0..20 {
            if number == 15 {
                publish(&vhost, PARKED, &[with_annotation(COUNTS[0])]).await;
            }
            amqp.publish_with(PARKED, "x", id(&number.to_string()))
                .await;
        }
        eventually(DEADLINE, "all others are seen", || async {
            let mut walk = client
                .parked(QUEUE)
                .browse()
                .await
                .map_err(|why| why.to_string())?;
            let mut seen = BTreeSet::new();
            loop {
                match walk.next().await {
                    Ok(Some(record)) => {
                        seen.extend(record.message().message_id().map(str::to_owned));
                    }
                    Ok(None) if seen.len() == 20 => break,
                    other => return Err(format!("{seen:?}: {:?}", other.err())),
                }
            }
            walk.close().await.map_err(|why| why.to_string())
        })
        .await;
        let all = set_aside(&client, 1).await;
        assert_eq!(all[0].message_id.as_deref(), Some(COUNTS[0]));
        assert_eq!(all[0].found_in.as_deref(), Some(PARKED));

        // So does whoever asks for that.
        amqp.declare(QUEUE, QueueType::Quorum).await;
        publish(&vhost, QUEUE, &[with_annotation(COUNTS[0])]).await;
        let closed = vhost.connect().await;
        let got = closed.new_channel().await;
        let got = got.basic_get(QUEUE.into(), BasicGetOptions::default());
        got.await.expect_err("the connection is closed");
        eventually(DEADLINE, "it is given back", || async {
            amqp.depth(QUEUE).await == Some(1)
        })
        .await;
        let unreadable = client.unreadable(QUEUE);
        assert_eq!(unreadable.take_from(QUEUE, 10).await.unwrap(), [""; 0]);
        assert_eq!(unreadable.try_each_from(QUEUE, 10).await.unwrap().len(), 1);
        assert_eq!(amqp.depth(QUEUE).await, Some(0));
        client.close().await;
    })
    .await;
}

#[tokio::test]
async fn they_are_moved_and_their_neighbours_are_handled() {
    on_every_queue_type_where(
        stores_what_amqp_0_9_1_cannot_carry,
        |broker, kind| async move {
            let vhost = broker.vhost().await;
            let (client, amqp) = (connect_with(&vhost, kind).await, vhost.connect().await);
            amqp.declare(QUEUE, kind).await;
            let bombs = bombs();
            for (number, bomb) in bombs.iter().enumerate() {
                amqp.publish_with(QUEUE, "x", id(&format!("before {number}")))
                    .await;
                publish(&vhost, QUEUE, std::slice::from_ref(bomb)).await;
            }
            amqp.publish_with(QUEUE, "x", id("last")).await;
            let observations = Observations::default();
            let running = consume(&client, &observations).await;
            observations.until("last", 1).await;
            for number in 0..bombs.len() {
                observations.until(&format!("before {number}"), 1).await;
            }
            let all = set_aside(&client, bombs.len()).await;
            // A consumer whose message is not found stops after five.
            let lost = told(&observations, "disconnected");
            assert!(lost <= 5 * bombs.len(), "{lost}");
            let first = &all[0];
            assert_eq!(first.found_in.as_deref(), Some(QUEUE));
            assert_eq!(first.routing_key.as_deref(), Some(QUEUE));
            assert_eq!(first.exchange.as_deref(), Some(""));
            assert_eq!(first.message_id.as_deref(), Some("uuid"));
            assert_eq!(first.body, b"in a property");
            assert!(first.moved_at.is_some());
            let cause = first.cause.as_deref().unwrap();
            assert!(
                cause.contains("`tenant`") && cause.contains("UUID"),
                "{cause}"
            );
            let tenant = "uuid 07070707-0707-0707-0707-070707070707".to_owned();
            assert_eq!(
                first.properties,
                [
                    ("tenant".to_owned(), tenant),
                    ("shop".to_owned(), "north".to_owned())
                ]
            );
            assert_eq!(all[3].body.len(), 120_000);
            let count = u32::try_from(bombs.len()).unwrap();
            until_told_to_be_moved(&observations, count).await;
            assert_eq!(told_to_be_moved(&observations).1, first.cause);
            // What comes later is moved as well, and what is looked at stays.
            publish(&vhost, QUEUE, &bombs[..1]).await;
            amqp.publish_with(QUEUE, "x", id("later")).await;
            observations.until("later", 1).await;
            until_told_to_be_moved(&observations, count + 1).await;
            stats(&running, "it is counted", |stats| {
                stats.unreadable == u64::from(count) + 1
            })
            .await;
            assert!(
                client.metrics_text().contains(&format!(
                    "retryrmq_messages_unreadable_total{{queue=\"{QUEUE}\"}} {}\n",
                    count + 1
                )),
                "{}",
                client.metrics_text()
            );
            assert_eq!(told(&observations, "consuming_stopped"), 0);
            let all = set_aside(&client, bombs.len() + 1).await;
            let unreadable = client.unreadable(QUEUE);
            let ids = [all[1].id.clone(), all[2].id.clone(), "unknown".to_owned()];
            assert_eq!(unreadable.remove(&ids).await.unwrap(), 2);
            let left = set_aside(&client, bombs.len() - 1).await;
            let ids = |all: &[UnreadableMessage]| -> Vec<_> {
                all.iter().map(|message| message.id.clone()).collect()
            };
            assert_eq!(ids(&left), [&ids(&all)[..1], &ids(&all)[3..]].concat());
            is_empty(&amqp, &running).await;
            running.close().await;
            assert_eq!(amqp.depth(QUEUE).await, Some(0));
            assert_eq!(amqp.depth(PARKED).await, Some(0));
        },
    )
    .await;
}

#[tokio::test]
async fn a_consumer_that_may_not_move_them_stops_before_they_are_dropped() {
    on_every_broker_where(stores_what_amqp_0_9_1_cannot_carry, |broker| async move {
        let vhost = broker.vhost().await;
        let amqp = vhost.connect().await;
        // Without a dead-letter route: what is returned too often is dropped.
        amqp.declare(QUEUE, QueueType::Quorum).await;
        let user = User::of(&vhost).await;
        user.may(FAMILY, DEFAULT_EXCHANGE, FAMILY).await;
        let client = user.client().await;
        let observations = Observations::default();
        let running = consume(&client, &observations).await;
        publish(&vhost, QUEUE, &bombs()[..1]).await;
        amqp.publish_with(QUEUE, "x", id("behind")).await;
        let why = stopped(&observations).await;
        assert!(why.contains("retryrmq unreadable take orders"), "{why}");
        assert!(told(&observations, "disconnected") >= 1);
        eventually(DEADLINE, "nobody consumes", || async {
            (amqp.consumers(QUEUE).await == Some(0)).then_some(())
        })
        .await;
        // Another try gets as far as the queue, and moves nothing.
        user.may(FAMILY_AND_UNREADABLE, "^$", FAMILY_AND_UNREADABLE)
            .await;
        eventually(DEADLINE, "it tries again", || async {
            amqp.depth(UNREADABLE).await == Some(0)
        })
        .await;
        user.may(
            FAMILY_AND_UNREADABLE,
            DEFAULT_EXCHANGE,
            FAMILY_AND_UNREADABLE,
        )
        .await;
        observations.until("behind", 1).await;
        let root = connect_with(&vhost, QueueType::Quorum).await;
        set_aside(&root, 1).await;
        assert_eq!(told_to_be_moved(&observations).0, 1);
        assert_eq!(told(&observations, "consuming_stopped"), 1);
        let names = observations.event_names();
        let at = names.iter().position(|name| *name == "consuming_stopped");
        let after = &names[at.unwrap() + 1..];
        assert!(
            after.starts_with(&["unreadable_moved", "reconnected"]),
            "{names:?}"
        );
        is_empty(&amqp, &running).await;
        running.close().await;
        assert_eq!(amqp.depth(QUEUE).await, Some(0));
        user.gone().await;
    })
    .await;
}

/// As many deliveries as there are consumers may be lost before the first one looks.
#[tokio::test]
async fn many_consumers_of_a_queue_without_a_route_move_them_before_they_are_dropped() {
    const CLIENTS: usize = 12;
    on_every_broker_where(stores_what_amqp_0_9_1_cannot_carry, |broker| async move {
        let vhost = broker.vhost().await;
        let amqp = vhost.connect().await;
        amqp.declare(QUEUE, QueueType::Quorum).await;
        let observations = Observations::default();
        let mut all = Vec::new();
        for _ in 0..CLIENTS {
            let client = connect_with(&vhost, QueueType::Quorum).await;
            let running = consume(&client, &observations).await;
            all.push((client, running));
        }
        for (number, bomb) in bombs().iter().enumerate() {
            publish(&vhost, QUEUE, std::slice::from_ref(bomb)).await;
            let expected = number + 1;
            let unreadable = all[0].0.unreadable(QUEUE);
            eventually(DEADLINE, "they are set aside", || async {
                let moved = unreadable.list(100).await.map_or(0, |all| all.len());
                let left = amqp.depth(QUEUE).await;
                let events = observations.event_names();
                (moved == expected)
                    .then_some(())
                    .ok_or(format!("{moved} are moved, {left:?} left: {events:?}"))
            })
            .await;
        }
        amqp.publish_with(QUEUE, "x", id("behind")).await;
        observations.until("behind", 1).await;
        for (client, running) in all {
            running.close().await;
            client.close().await;
        }
        println!(
            "{broker}: {} lost connections",
            told(&observations, "disconnected")
        );
    })
    .await;
}

/// The user has the permissions that the documentation and `retryrmq setup` name.
#[tokio::test]
async fn a_consumer_with_the_documented_permissions_moves_them() {
    on_every_queue_type_where(
        stores_what_amqp_0_9_1_cannot_carry,
        |broker, kind| async move {
            let vhost = broker.vhost().await;
            let amqp = vhost.connect().await;
            amqp.declare(QUEUE, kind).await;
            let user = User::of(&vhost).await;
            let family = permission_pattern(QUEUE);
            user.may(&family, DEFAULT_EXCHANGE, &family).await;
            let client = user.client().await;
            let observations = Observations::default();
            let running = consume(&client, &observations).await;
            publish(&vhost, QUEUE, &bombs()[..1]).await;
            amqp.publish_with(QUEUE, "x", id("behind")).await;
            observations.until("behind", 1).await;
            let root = connect_with(&vhost, kind).await;
            set_aside(&root, 1).await;
            assert_eq!(told(&observations, "consuming_stopped"), 0);
            running.close().await;
            user.gone().await;
        },
    )
    .await;
}

#[tokio::test]
async fn a_walk_through_parked_messages_moves_them() {
    on_every_broker_where(stores_what_amqp_0_9_1_cannot_carry, |broker| async move {
        let vhost = broker.vhost().await;
        let client = connect_with(&vhost, QueueType::Quorum).await;
        let amqp = vhost.connect().await;
        client.parked(QUEUE).make().await.unwrap();
        amqp.publish_with(PARKED, "x", id("one")).await;
        publish(&vhost, PARKED, &bombs()).await;
        amqp.publish_with(PARKED, "x", id("two")).await;
        let mut walk = client.parked(QUEUE).browse().await.unwrap();
        let mut seen = Vec::new();
        while let Some(record) = walk.next().await.unwrap() {
            seen.push(record.message().message_id().unwrap().to_owned());
        }
        walk.close().await.unwrap();
        assert_eq!(seen, ["one", "two"]);
        let all = set_aside(&client, bombs().len()).await;
        assert!(
            all.iter()
                .all(|message| message.found_in.as_deref() == Some(PARKED))
        );
        take(&amqp, PARKED, 2).await;
        assert_eq!(amqp.depth(UNREADABLE).await, Some(4));
    })
    .await;
}

#[tokio::test]
async fn they_are_found_behind_many_others_which_keep_their_places() {
    on_every_queue_type_where(
        stores_what_amqp_0_9_1_cannot_carry,
        |broker, kind| async move {
            let vhost = broker.vhost().await;
            let (client, amqp) = (connect_with(&vhost, kind).await, vhost.connect().await);
            amqp.declare(QUEUE, kind).await;
            let bodies: Vec<_> = (0..200).map(|number| number.to_string()).collect();
            amqp.publish_all("", bodies[..150].iter().map(plain)).await;
            publish(&vhost, QUEUE, &bombs()[..2]).await;
            amqp.publish_all("", bodies[150..].iter().map(plain)).await;
            let unreadable = client.unreadable(QUEUE);
            assert_eq!(unreadable.take_from(QUEUE, 150).await.unwrap().len(), 0);
            assert_eq!(unreadable.take_from(QUEUE, 1_000).await.unwrap().len(), 2);
            let left = take(&amqp, QUEUE, bodies.len()).await;
            let left: Vec<_> = left
                .iter()
                .map(|message| String::from_utf8_lossy(&message.body).into_owned())
                .collect();
            assert_eq!(left, bodies);
        },
    )
    .await;
}

/// Lists in each other.
fn deep(innermost: Value10) -> Value10 {
    (0..200).fold(innermost, |inner, _| Value10::List(vec![inner]))
}

/// Messages whose publishers make it hard to move them.
fn hard(publisher: &str) -> Vec<Message10> {
    let bomb = || Message10::new("x").property("tenant", uuid([7; 16]));
    let other =
        |body: Value10| Message10::of(Body10::Value(body)).property("tenant", uuid([7; 16]));
    let many = Value10::List(vec![Value10::Encoded(vec![0x40]); 110_000]);
    let annotation = |name: &str, value| bomb().annotation(Value10::symbol(name), value);
    vec![
        // The broker takes it from no other user.
        bomb().with(Property10::UserId, Value10::Binary(publisher.into())),
        // RabbitMQ 4.3 would route a copy to this queue again.
        annotation("x-cc", Value10::List(vec![Value10::string(QUEUE)])),
        other(deep(Value10::Null)),
        other(many.clone()),
        annotation("x-deep", deep(Value10::Uuid([7; 16]))),
        annotation("x-many", many),
    ]
}

#[tokio::test]
async fn whatever_else_is_in_them_they_are_moved_once() {
    on_every_broker_where(stores_what_amqp_0_9_1_cannot_carry, |broker| async move {
        let vhost = broker.vhost().await;
        let amqp = vhost.connect().await;
        amqp.declare(QUEUE, QueueType::Quorum).await;
        let user = User::of(&vhost).await;
        user.may(".*", ".*", ".*").await;
        let client = user.client().await;
        let unreadable = client.unreadable(QUEUE);
        let publisher = url::Url::parse(vhost.url()).unwrap();
        for (number, message) in hard(publisher.username()).into_iter().enumerate() {
            publish(&vhost, QUEUE, &[message]).await;
            let moved = unreadable.take_from(QUEUE, 100).await.unwrap();
            assert_eq!(moved.len(), 1, "message {number}");
            assert_eq!(amqp.depth(QUEUE).await, Some(0), "message {number}");
        }
        assert_eq!(unreadable.list(100).await.unwrap().len(), 6);
        user.gone().await;
    })
    .await;
}

#[tokio::test]
async fn what_can_be_delivered_stays_however_odd_it_is() {
    on_every_broker_where(stores_what_amqp_0_9_1_cannot_carry, |broker| async move {
        let vhost = broker.vhost().await;
        let (client, amqp) = (
            connect_with(&vhost, QueueType::Quorum).await,
            vhost.connect().await,
        );
        amqp.declare(QUEUE, QueueType::Quorum).await;
        let nested = table([("vip", AMQPValue::Boolean(true))]);
        let headers = table([("x-meta", AMQPValue::FieldTable(nested))]);
        let properties = BasicProperties::default().with_headers(headers);
        amqp.publish_with(QUEUE, "x", properties).await;
        let wide = Value10::List(vec![Value10::Encoded(vec![0x56, 1])]);
        let odd = Message10::new("x").application(Value10::string("a"), wide);
        publish(&vhost, QUEUE, &[odd]).await;
        let moved = client.unreadable(QUEUE).take_from(QUEUE, 100).await;
        assert_eq!(moved.unwrap(), Vec::<String>::new());
        take(&amqp, QUEUE, 2).await;
    })
    .await;
}

#[tokio::test]
async fn of_messages_that_are_the_same_one_is_dropped() {
    on_every_broker_where(stores_what_amqp_0_9_1_cannot_carry, |broker| async move {
        let vhost = broker.vhost().await;
        let client = connect_with(&vhost, QueueType::Quorum).await;
        let amqp = vhost.connect().await;
        amqp.declare(UNREADABLE, QueueType::Quorum).await;
        let same = vec![bombs().remove(0); 3];
        publish(&vhost, UNREADABLE, &same).await;
        let unreadable = client.unreadable(QUEUE);
        let all = unreadable.list(100).await.unwrap();
        let first = || all[0].id.clone();
        assert_eq!(unreadable.remove(&[first()]).await.unwrap(), 1);
        assert_eq!(unreadable.list(100).await.unwrap().len(), 2);
        assert_eq!(unreadable.remove(&[first(), first()]).await.unwrap(), 2);
    })
    .await;
}

#[tokio::test]
async fn of_very_many_that_are_moved_none_stays() {
    on_every_broker_where(stores_what_amqp_0_9_1_cannot_carry, |broker| async move {
        const MANY: usize = 3_000;
        let vhost = broker.vhost().await;
        let client = connect_with(&vhost, QueueType::Quorum).await;
        let amqp = vhost.connect().await;
        amqp.declare(QUEUE, QueueType::Quorum).await;
        let mut publisher = Amqp10::connect(&vhost).await;
        let bombs = vec![bombs().remove(0); MANY];
        let published = publisher.try_publish_all("/queues/orders", &bombs);
        published.await.unwrap();
        let unreadable = client.unreadable(QUEUE);
        let moved = unreadable.take_from(QUEUE, u32::MAX).await.unwrap();
        assert_eq!(moved.len(), MANY);
        assert_eq!(amqp.depth(QUEUE).await, Some(0));
        assert_eq!(amqp.depth(UNREADABLE).await, u32::try_from(MANY).ok());
    })
    .await;
}

#[tokio::test]
async fn a_look_is_no_delivery_since_4_3() {
    let tells_what_is_given_back = |broker: &Broker| broker.version() >= Version::V4_3;
    on_every_broker_where(tells_what_is_given_back, |broker| async move {
        let vhost = broker.vhost().await;
        let client = connect_with(&vhost, QueueType::Quorum).await;
        let amqp = vhost.connect().await;
        for queue in [QUEUE, UNREADABLE] {
            let limit = table([("x-delivery-limit", int(2))]);
            amqp.declare_with(queue, QueueType::Quorum, limit).await;
            amqp.publish(queue, "x").await;
        }
        let unreadable = client.unreadable(QUEUE);
        for _ in 0..5 {
            unreadable.take_from(QUEUE, 100).await.unwrap();
            assert_eq!(unreadable.list(100).await.unwrap().len(), 1);
        }
        for queue in [QUEUE, UNREADABLE] {
            take(&amqp, queue, 1).await;
        }
    })
    .await;
}

#[tokio::test]
async fn they_are_found_between_messages_that_amqp_1_0_cannot_carry() {
    on_every_queue_type_where(
        stores_what_amqp_0_9_1_cannot_carry,
        |broker, kind| async move {
            let vhost = broker.vhost().await;
            let (client, amqp) = (connect_with(&vhost, kind).await, vhost.connect().await);
            amqp.declare(QUEUE, kind).await;
            let bombs = bombs();
            let mixed = [
                &bombs[..1],
                &[null("a"), null("b")],
                &bombs[1..2],
                &[null("c")],
                &bombs[2..],
            ];
            publish(&vhost, QUEUE, &mixed.concat()).await;
            amqp.publish_with(QUEUE, "x", id("last")).await;
            let observations = Observations::default();
            let running = consume(&client, &observations).await;
            for name in ["a", "b", "c", "last"] {
                observations.until(name, 1).await;
            }
            set_aside(&client, bombs.len()).await;
            is_empty(&amqp, &running).await;
            running.close().await;
            assert_eq!(amqp.depth(QUEUE).await, Some(0));
        },
    )
    .await;
}

/// A look ends at the next message without a value, and copies of these have it too. A quorum queue gives back in another order.
#[tokio::test]
async fn they_are_found_among_many_that_amqp_1_0_cannot_carry() {
    on_every_broker_where(stores_what_amqp_0_9_1_cannot_carry, |broker| async move {
        for kind in QueueType::ALL {
            let vhost = broker.vhost().await;
            let (client, amqp) = (connect_with(&vhost, kind).await, vhost.connect().await);
            amqp.declare(QUEUE, kind).await;
            let order = "pnupnppunnpppnpuppnppnnu";
            let numbered = order.chars().zip(0..);
            let mixed: Vec<_> = numbered
                .map(|(letter, number)| match letter {
                    'u' => Message10::new("x").property("tenant", uuid([number; 16])),
                    'n' => null(&format!("n{number}")),
                    _ => Message10::new("x").id(&format!("p{number}")),
                })
                .collect();
            publish(&vhost, QUEUE, &mixed).await;
            let observations = Observations::default();
            let consumer = client
                .consumer(QUEUE)
                .dlx(true)
                .retry(policy("fixed(50ms, retries=1)"));
            let once = |message: &Message| match message.attempt() {
                1 => Err("once".into()),
                _ => Ok(()),
            };
            let running = start(consumer, &observations, once).await;
            for (letter, number) in order.chars().zip(0..) {
                if letter != 'u' {
                    observations.until(&format!("{letter}{number}"), 2).await;
                }
            }
            set_aside(&client, order.matches('u').count()).await;
            is_empty(&amqp, &running).await;
            running.close().await;
            assert_eq!(amqp.depth(QUEUE).await, Some(0));
        }
    })
    .await;
}

#[tokio::test]
async fn what_neither_protocol_can_carry_stops_a_consumer_until_a_policy_removes_it() {
    on_every_queue_type_where(
        stores_what_amqp_0_9_1_cannot_carry,
        |broker, kind| async move {
            let vhost = broker.vhost().await;
            let (client, amqp) = (connect_with(&vhost, kind).await, vhost.connect().await);
            amqp.declare(QUEUE, kind).await;
            amqp.declare("removed", kind).await;
            let neither = null("neither").property("tenant", uuid([7; 16]));
            publish(&vhost, QUEUE, &[neither]).await;
            let why = client.unreadable(QUEUE).take_from(QUEUE, 100).await;
            let why = why.unwrap_err();
            assert!(why.to_string().contains("remove it with a policy"), "{why}");
            let observations = Observations::default();
            let running = consume(&client, &observations).await;
            let why = stopped(&observations).await;
            assert!(why.contains("remove it with a policy"), "{why}");
            eventually(DEADLINE, "the message is back", || async {
                match (amqp.consumers(QUEUE).await, amqp.depth(QUEUE).await) {
                    (Some(0), Some(1)) => Ok(()),
                    other => Err(format!("{other:?}")),
                }
            })
            .await;
            let none = json!({
                "max-length": 0, "overflow": "drop-head",
                "dead-letter-exchange": "", "dead-letter-routing-key": "removed",
            });
            let put = async |definition| {
                let policy = Policy::new("^orders$", definition);
                vhost.put_policy("remove", &policy).await.unwrap();
            };
            put(none).await;
            eventually(DEADLINE, "the message is removed", || async {
                amqp.depth("removed").await == Some(1)
            })
            .await;
            eventually(DEADLINE, "it consumes again", || async {
                observations.event_names().last() == Some(&"reconnected")
            })
            .await;
            put(json!({ "max-length": 1_000 })).await;
            amqp.publish_with(QUEUE, "x", id("later")).await;
            observations.until("later", 1).await;
            assert_eq!(told_to_be_moved(&observations).0, 0);
            assert_eq!(told(&observations, "consuming_stopped"), 1);
            is_empty(&amqp, &running).await;
            running.close().await;
            assert_eq!(amqp.depth(QUEUE).await, Some(0));
        },
    )
    .await;
}

#[tokio::test]
async fn a_consumer_without_room_for_them_goes_on_when_there_is_some() {
    on_every_queue_type_where(
        stores_what_amqp_0_9_1_cannot_carry,
        |broker, kind| async move {
            let vhost = broker.vhost().await;
            let (client, amqp) = (connect_with(&vhost, kind).await, vhost.connect().await);
            amqp.declare(QUEUE, kind).await;
            let most = async |count: u32| {
                let definition = json!({ "max-length": count, "overflow": "reject-publish" });
                let policy = Policy::new(r"^orders\.unreadable$", definition);
                vhost.put_policy("room", &policy).await.unwrap();
            };
            most(1).await;
            let bombs = bombs();
            publish(&vhost, QUEUE, &bombs).await;
            amqp.publish_with(QUEUE, "x", id("behind")).await;
            let observations = Observations::default();
            let running = consume(&client, &observations).await;
            let why = stopped(&observations).await;
            assert!(
                why.contains("see to it that `orders.unreadable` stores messages"),
                "{why}"
            );
            let stored = client.unreadable(QUEUE).list(100).await.unwrap();
            assert!((1..bombs.len()).contains(&stored.len()), "{stored:?}");
            most(100).await;
            let ids = [stored[0].id.clone()];
            assert_eq!(client.unreadable(QUEUE).remove(&ids).await.unwrap(), 1);
            observations.until("behind", 1).await;
            set_aside(&client, bombs.len() - 1).await;
            let count = u32::try_from(bombs.len()).unwrap();
            until_told_to_be_moved(&observations, count).await;
            assert_eq!(told(&observations, "consuming_stopped"), 1);
            is_empty(&amqp, &running).await;
            running.close().await;
            assert_eq!(amqp.depth(QUEUE).await, Some(0));
        },
    )
    .await;
}

#[tokio::test]
async fn a_consumer_goes_on_when_another_one_of_its_client_stops() {
    on_every_broker_where(stores_what_amqp_0_9_1_cannot_carry, |broker| async move {
        let vhost = broker.vhost().await;
        let client = connect_with(&vhost, QueueType::Quorum).await;
        let amqp = vhost.connect().await;
        amqp.declare(QUEUE, QueueType::Quorum).await;
        amqp.declare("other", QueueType::Quorum).await;
        let neither = null("neither").property("tenant", uuid([7; 16]));
        publish(&vhost, QUEUE, &[neither]).await;
        let (observations, others) = (Observations::default(), Observations::default());
        // First, because it cannot start on the connection that the message ends.
        let other = start(client.consumer("other").dlx(true), &others, |_| Ok(())).await;
        let running = consume(&client, &observations).await;
        stopped(&observations).await;
        amqp.publish_with("other", "x", id("neighbor")).await;
        others.until("neighbor", 1).await;
        assert_eq!(told(&others, "consuming_stopped"), 0);
        // They shared a connection that was lost.
        let lost = told(&others, "disconnected");
        assert!(lost >= 1, "{lost}: {:?}", others.event_names());
        let channel = amqp.new_channel().await;
        // It is with a consumer that looks for it now and then.
        eventually(DEADLINE, "the message is purged", || async {
            let purged = channel.queue_purge(QUEUE.into(), QueuePurgeOptions::default());
            purged.await.unwrap() == 1
        })
        .await;
        amqp.publish_with(QUEUE, "x", id("later")).await;
        observations.until("later", 1).await;
        running.close().await;
        other.close().await;
    })
    .await;
}
