//! What a look or a replay may cost where the broker takes no copies, takes its messages back, or is killed: nothing.

use std::{collections::BTreeSet, sync::Mutex, time::Duration};

use futures_util::StreamExt;
use retryrmq::types::{AMQPValue, FieldTable};
use retryrmq_harness::{
    Broker, Policy, QueueType, Version, eventually,
    hostile::{Hostile, RawPublisher},
    lapin::{
        BasicProperties,
        options::{BasicGetOptions, BasicRejectOptions},
    },
    on_brokers, on_brokers_where,
};
use rustix::process::{Signal, kill_process};
use serde_json::json;
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    time::timeout,
};

use crate::{
    fixture::{CommandOutput, DEADLINE, Fixture, PARKED, QUEUE},
    interrupted_walks::{AtTerminal, code, parked, pid},
};

fn table<'a>(entries: impl IntoIterator<Item = (&'a str, AMQPValue)>) -> FieldTable {
    let mut table = FieldTable::default();
    for (name, value) in entries {
        table.insert(name.into(), value);
    }
    table
}

fn id(id: &str) -> BasicProperties {
    BasicProperties::default().with_message_id(id.into())
}

/// A parking queue like ours, and a policy over it that allows so many returns.
async fn set_up(broker: &Broker, limit: Option<u32>, arguments: FieldTable) -> Fixture {
    let fixture = Fixture::of(broker).await;
    if let Some(limit) = limit {
        let policy = Policy::new("^orders[.]parked$", json!({ "delivery-limit": limit }));
        fixture.vhost.put_policy("limits", &policy).await.unwrap();
    }
    let mut all = arguments;
    all.insert(
        "x-delivery-limit".into(),
        AMQPValue::LongLongInt(1_000_000_000),
    );
    fixture
        .amqp
        .declare_with(PARKED, QueueType::Quorum, all)
        .await;
    fixture
}

/// The ids that a listing shows.
async fn listed(fixture: &Fixture) -> (BTreeSet<String>, CommandOutput) {
    let done = fixture
        .run(&["--json", "parked", "ls", QUEUE])
        .await
        .exits(0);
    let ids = done.lines();
    let ids = ids
        .iter()
        .map(|line| line["message_id"].as_str().unwrap_or("").to_owned());
    (ids.collect(), done)
}

fn set<const N: usize>(ids: [&str; N]) -> BTreeSet<String> {
    ids.map(str::to_owned).into()
}

#[tokio::test]
async fn looks_that_are_interrupted_in_an_alarm_spend_nothing() {
    on_brokers(|broker| async move {
        if !broker.is_controllable() {
            return eprintln!("skipped: {broker} was given, and its memory is its own");
        }
        let node = broker.own_node(&[]).await;
        let fixture = set_up(&node, Some(2), FieldTable::default()).await;
        for name in ["1", "2", "3"] {
            fixture.amqp.publish_with(PARKED, name, id(name)).await;
        }
        fixture.holds(PARKED, 3).await;
        fixture.run(&["parked", "ls", QUEUE]).await.exits(0);
        fixture.holds(PARKED, 3).await;
        node.raise_memory_alarm().await;
        for _ in 0..3 {
            let mut listing = fixture.command(&["parked", "ls", QUEUE]).spawn().unwrap();
            let mut said = BufReader::new(listing.stderr.take().unwrap()).lines();
            loop {
                let line = timeout(DEADLINE, said.next_line()).await;
                let line = line.expect("it says so").unwrap().expect("it says so");
                if line.contains("has stopped reading") {
                    break;
                }
            }
            for _ in 0..10 {
                assert_eq!(
                    fixture.amqp.depth(PARKED).await,
                    Some(3),
                    "it holds nothing"
                );
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            kill_process(pid(&listing), Signal::INT).unwrap();
            assert_eq!(code(&mut listing).await, Some(130));
            assert_eq!(fixture.amqp.depth(PARKED).await, Some(3));
        }
        node.set_memory_watermark(0.4).await;
        fixture.holds(PARKED, 3).await;
        let (ids, _) = listed(&fixture).await;
        assert_eq!(ids, set(["1", "2", "3"]));
    })
    .await;
}

/// Lowers or raises what a broker takes, as an upgrade from 3.x to 4.x does.
async fn takes_bodies_up_to(node: &Broker, bytes: usize) {
    let set = format!(
        "application:set_env(rabbit,max_message_size,{bytes}), catch persistent_term:put(max_message_size,{bytes}), \
         catch rabbit:persist_static_configuration()."
    );
    node.ctl(&["eval", &set]).await;
}

#[tokio::test]
async fn one_that_the_broker_no_longer_takes_keeps_nobody_from_the_others() {
    on_brokers(|broker| async move {
        if !broker.is_controllable() {
            return eprintln!("skipped: {broker} was given, and its limits are its own");
        }
        let node = broker.own_node(&[]).await;
        let fixture = set_up(&node, None, FieldTable::default()).await;
        for (name, size) in [("small", 10), ("large", 5_000), ("later", 20)] {
            let body = "x".repeat(size);
            fixture.amqp.publish_with(PARKED, body, id(name)).await;
        }
        fixture.holds(PARKED, 3).await;
        takes_bodies_up_to(&node, 1_000).await;
        for look in 0..4 {
            let (ids, done) = listed(&fixture).await;
            assert_eq!(ids, set(["small", "large", "later"]), "look {look}");
            if look > 0 {
                assert!(
                    done.err.contains("max_message_size"),
                    "look {look}: {done:#?}"
                );
            }
            fixture.holds(PARKED, 3).await;
        }
        fixture
            .run(&["parked", "show", QUEUE, "later"])
            .await
            .exits(0);
        fixture.holds(PARKED, 3).await;
        fixture
            .run(&["parked", "drop", QUEUE, "small", "--yes"])
            .await
            .exits(0);
        fixture.holds(PARKED, 2).await;
        // A limit that is raised saves it.
        takes_bodies_up_to(&node, 10_000).await;
        for _ in 0..2 {
            let (ids, done) = listed(&fixture).await;
            assert_eq!(ids, set(["large", "later"]));
            assert!(!done.err.contains("max_message_size"), "{done:#?}");
            fixture.holds(PARKED, 2).await;
        }
        takes_bodies_up_to(&node, 1_000).await;
        // No copy of it can be kept.
        let refused = fixture
            .run(&["parked", "drop", QUEUE, "large", "--yes"])
            .await
            .exits(1);
        assert!(refused.err.contains("--for-good"), "{refused:#?}");
        fixture.holds(PARKED, 2).await;
        let large = ["parked", "drop", QUEUE, "large", "--yes", "--for-good"];
        fixture.run(&large).await.exits(0);
        fixture.holds(PARKED, 1).await;
    })
    .await;
}

#[tokio::test]
async fn a_full_parking_queue_that_refuses_copies_is_looked_at_all_the_same() {
    const MOST: i64 = 300;
    on_brokers(|broker| async move {
        let full = table([
            ("x-max-length", AMQPValue::LongLongInt(MOST)),
            ("x-overflow", AMQPValue::LongString("reject-publish".into())),
        ]);
        let fixture = set_up(&broker, Some(1), full).await;
        let messages = (0..=MOST).map(|number| (PARKED, "body", id(&number.to_string())));
        fixture.amqp.publish_all("", messages).await;
        let all = u32::try_from(MOST + 1).unwrap();
        fixture.holds(PARKED, all).await;
        for _ in 0..6 {
            fixture
                .run(&["parked", "ls", QUEUE, "--limit=3"])
                .await
                .exits(0);
            fixture.holds(PARKED, all).await;
        }
        let left: BTreeSet<_> = fixture
            .amqp
            .drain(PARKED)
            .await
            .iter()
            .map(|message| message.id().unwrap().to_owned())
            .collect();
        assert_eq!(left.len(), usize::try_from(all).unwrap());
    })
    .await;
}

#[tokio::test]
async fn a_replay_into_a_young_queue_survives_a_kill() {
    on_brokers(|broker| async move {
        if !broker.is_controllable() {
            return eprintln!("skipped: {broker} was given, and is not ours to kill");
        }
        let node = broker.own_node(&[]).await;
        let fixture = set_up(&node, None, FieldTable::default()).await;
        for name in ["1", "2", "3"] {
            fixture.amqp.publish_with(PARKED, name, id(name)).await;
        }
        fixture.holds(PARKED, 3).await;
        fixture.amqp.declare(QUEUE, QueueType::Quorum).await;
        let mut replay = fixture
            .command(&["parked", "replay", QUEUE, "--all"])
            .spawn()
            .unwrap();
        eventually(DEADLINE, "the first copy is there", || async {
            match fixture.amqp.depth(QUEUE).await {
                Some(1..) => Ok(()),
                depth => Err(format!("{depth:?}")),
            }
        })
        .await;
        node.kill().await;
        timeout(DEADLINE, replay.wait()).await.unwrap().unwrap();
        node.start().await;
        let amqp = fixture.vhost.connect().await;
        let seen = Mutex::new(BTreeSet::new());
        eventually(
            DEADLINE * 2,
            "all are in one queue or the other",
            || async {
                for queue in [PARKED, QUEUE] {
                    // A queue that was young at the kill may have no leader, and answers nobody.
                    let all = async {
                        let mut consumer = amqp.consume(queue, 100).await;
                        while let Some(Ok(message)) = consumer.next().await {
                            let id = message.properties.message_id().clone();
                            seen.lock().unwrap().insert(id.unwrap().to_string());
                        }
                    };
                    let _ = timeout(Duration::from_secs(3), all).await;
                }
                // What an earlier look has seen is still there: nothing is acknowledged.
                let ids = seen.lock().unwrap().clone();
                if ids.len() == 3 {
                    Ok(())
                } else {
                    Err(format!("{ids:?}"))
                }
            },
        )
        .await;
    })
    .await;
}

/// What a broker parks arrives counted, and a limit of 1 takes it at the next return.
#[tokio::test]
async fn what_the_broker_parked_behind_a_fresh_message_survives_a_killed_prompt() {
    on_brokers(|broker| async move {
        for kind in QueueType::ALL {
            let fixture = set_up(&broker, Some(1), FieldTable::default()).await;
            let route = table([
                ("x-dead-letter-exchange", AMQPValue::LongString("".into())),
                (
                    "x-dead-letter-routing-key",
                    AMQPValue::LongString(PARKED.into()),
                ),
            ]);
            fixture.amqp.declare_with(QUEUE, kind, route).await;
            fixture
                .amqp
                .publish_with(PARKED, "fresh", id("fresh"))
                .await;
            for name in ["d", "e", "f"] {
                fixture.amqp.publish_with(QUEUE, name, id(name)).await;
            }
            fixture.holds(QUEUE, 3).await;
            let channel = fixture.amqp.channel();
            for _ in 0..3 {
                let got = channel.basic_get(QUEUE.into(), BasicGetOptions::default());
                let got = got.await.unwrap().expect("one is ready");
                let reject = BasicRejectOptions { requeue: false };
                channel
                    .basic_reject(got.delivery_tag, reject)
                    .await
                    .unwrap();
            }
            fixture.holds(PARKED, 4).await;
            let mut prompt =
                AtTerminal::at_its_prompt(&fixture, &["parked", "drop", QUEUE, "fresh"]).await;
            prompt.child.kill().await.unwrap();
            fixture.holds(PARKED, 4).await;
            let (ids, _) = listed(&fixture).await;
            assert_eq!(ids, set(["d", "e", "f", "fresh"]), "{kind:?}");
        }
    })
    .await;
}

/// A copy could only have the names as they were mended.
#[tokio::test]
async fn a_look_copies_no_message_whose_names_were_mended() {
    on_brokers(|broker| async move {
        let fixture = set_up(&broker, None, FieldTable::default()).await;
        let url = fixture.vhost.url().to_owned();
        let published = tokio::task::spawn_blocking(move || {
            let mut publisher = RawPublisher::connect(&url);
            publisher.publish(&Hostile::header_key(), PARKED, b"mended");
            publisher.publish(&Hostile::nested_tables(40), PARKED, b"deep");
        });
        published.await.unwrap();
        fixture.holds(PARKED, 2).await;
        for look in 0..4 {
            let done = fixture
                .run(&["--json", "parked", "show", QUEUE, "--all"])
                .await
                .exits(0);
            let lines = done.lines();
            assert_eq!(lines.len(), 2);
            for line in lines {
                assert!(
                    line["headers"]["x-retry-walk"].is_null(),
                    "look {look}: {line}"
                );
            }
            assert!(done.err.contains("UTF-8"), "look {look}: {done:#?}");
            fixture.holds(PARKED, 2).await;
        }
    })
    .await;
}

/// What it was would be gone.
#[tokio::test]
async fn a_replay_sends_no_message_whose_names_were_mended() {
    on_brokers(|broker| async move {
        for to in [&["--to", "elsewhere"][..], &[]] {
            let fixture = set_up(&broker, None, FieldTable::default()).await;
            for queue in [QUEUE, "elsewhere"] {
                fixture.amqp.declare(queue, QueueType::Quorum).await;
            }
            let url = fixture.vhost.url().to_owned();
            let published = tokio::task::spawn_blocking(move || {
                RawPublisher::connect(&url).publish(&Hostile::header_key(), PARKED, b"mended");
            });
            published.await.unwrap();
            fixture
                .amqp
                .publish_with(PARKED, "sound", id("sound"))
                .await;
            fixture.holds(PARKED, 2).await;
            let all = ["parked", "replay", QUEUE, "--all"];
            for (rehearsal, says) in [
                (&["--dry-run"][..], "1 message"),
                (&[], "1 message replayed"),
            ] {
                let words = [&all[..], to, rehearsal].concat();
                let done = fixture.run(&words).await.exits(1);
                assert!(
                    done.err.contains("not UTF-8") && done.err.contains(says),
                    "{done:#?}"
                );
            }
            fixture.holds(PARKED, 1).await;
            fixture.holds(to.last().unwrap_or(&QUEUE), 1).await;
            // Whoever names it is told the same.
            let words = ["--json", "parked", "ls", QUEUE];
            let mark = fixture.run(&words).await.exits(0).lines()[0]["mark"].clone();
            let handle = format!("#1={}", &mark.as_str().unwrap()[..8]);
            let words = ["parked", "replay", QUEUE, &handle];
            let done = fixture.run(&words).await.exits(1);
            assert!(done.err.contains("shovel"), "{done:#?}");
            fixture.holds(PARKED, 1).await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_replay_leaves_nothing_out() {
    on_brokers(|broker| async move {
        let fixture = set_up(&broker, None, FieldTable::default()).await;
        fixture.amqp.declare(QUEUE, QueueType::Quorum).await;
        let filler = AMQPValue::LongString("x".repeat(129_200).into());
        let large = id("large").with_headers(table([("filler", filler)]));
        fixture.amqp.publish_with(PARKED, "large", large).await;
        fixture
            .amqp
            .publish_with(PARKED, "small", id("small"))
            .await;
        fixture.holds(PARKED, 2).await;
        let done = fixture
            .run(&["parked", "replay", QUEUE, "--all"])
            .await
            .exits(1);
        assert!(
            done.err.contains("`filler`") && done.err.contains("1 message replayed"),
            "{done:#?}"
        );
        fixture.holds(PARKED, 1).await;
        fixture.holds(QUEUE, 1).await;
    })
    .await;
}

/// RabbitMQ 4.3 takes back what is held for too long, and says nothing to whoever settles it afterwards.
#[tokio::test]
async fn what_was_taken_back_meanwhile_is_neither_dropped_nor_replayed() {
    on_brokers_where(
        |broker| broker.version() >= Version::V4_3,
        |broker| async move {
            if !broker.is_controllable() {
                return eprintln!("skipped: {broker} was given, and its patience is its own");
            }
            let node = broker.own_node(&["consumer_timeout = 6000"]).await;
            let fixture = set_up(&node, None, FieldTable::default()).await;
            for name in ["1", "2", "3"] {
                fixture.amqp.publish_with(PARKED, name, id(name)).await;
            }
            fixture.holds(PARKED, 3).await;
            let mut prompt =
                AtTerminal::at_its_prompt(&fixture, &["parked", "drop", QUEUE, "--all"]).await;
            fixture.holds(PARKED, 3).await;
            prompt.types("y\n");
            assert_eq!(code(&mut prompt.child).await, Some(1));
            prompt.shows("0 messages dropped").await;
            fixture.holds(PARKED, 3).await;
        },
    )
    .await;
}

#[tokio::test]
async fn a_policy_that_holds_back_what_was_looked_at_is_named() {
    on_brokers_where(
        |broker| broker.version() >= Version::V4_3,
        |broker| async move {
            let fixture = set_up(&broker, None, FieldTable::default()).await;
            let delays = json!({"delayed-retry-type": "all", "delayed-retry-min": 8000, "delayed-retry-max": 8000});
            let policy = Policy::new("^orders", delays);
            fixture.vhost.put_policy("native", &policy).await.unwrap();
            fixture.amqp.publish_with(PARKED, "1", parked("1", 1_700_000_000, "no")).await;
            fixture.holds(PARKED, 1).await;
            eventually(DEADLINE, "the policy is in force and told of", || async {
                let done = fixture.run(&["parked", "ls", QUEUE]).await.exits(0);
                if done.err.contains("delayed-retry") { Ok(()) } else { Err(format!("{done:?}")) }
            })
            .await;
            fixture.holds(PARKED, 1).await;
        },
    )
    .await;
}

#[tokio::test]
async fn a_long_walk_that_keeps_no_more_drops_exactly_what_was_named() {
    const COUNT: usize = 2_100; // no order is kept at any price among so many
    const SIZE: usize = 40 * 1024; // of which the last ones are more than a walk keeps
    on_brokers(|broker| async move {
        let fixture = set_up(&broker, None, FieldTable::default()).await;
        let body = "x".repeat(SIZE);
        for from in (0..COUNT).step_by(100) {
            let some = (from..from + 100).map(|number| (PARKED, &body, id(&number.to_string())));
            fixture.amqp.publish_all("", some).await;
        }
        let count = u32::try_from(COUNT).unwrap();
        fixture.holds(PARKED, count).await;
        let listing = ["--json", "parked", "ls", QUEUE, "--limit=0"];
        let first = fixture.run(&listing).await.exits(0).lines();
        assert_eq!(first.len(), COUNT);
        fixture.holds(PARKED, count).await;
        // Those from before and from after it kept enough.
        let named = ["0", "7", "1999", "2099"];
        let mut drop = vec!["parked", "drop", QUEUE, "--yes"];
        drop.extend(named);
        let done = fixture.run(&drop).await.exits(0);
        assert!(done.err.contains("4 messages dropped"), "{done:#?}");
        fixture.holds(PARKED, count - 4).await;
        let left: BTreeSet<_> = fixture
            .run(&listing)
            .await
            .exits(0)
            .lines()
            .iter()
            .map(|line| line["message_id"].as_str().unwrap().to_owned())
            .collect();
        assert_eq!(left.len(), COUNT - 4);
        assert!(named.iter().all(|name| !left.contains(*name)));
    })
    .await;
}
