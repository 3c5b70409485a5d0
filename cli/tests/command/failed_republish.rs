//! Walks that cannot put back what they looked at: they tell why, and what they did before.

use std::collections::BTreeSet;

use retryrmq::types::{AMQPValue, FieldTable};
use retryrmq_harness::{
    Broker, CutProxy, Policy, QueueType, eventually,
    lapin::{
        BasicProperties, Confirmation,
        options::{BasicGetOptions, BasicPublishOptions},
    },
    on_brokers,
};
use serde_json::json;
use tokio::time::timeout;

use crate::{
    fixture::{CommandOutput, DEADLINE, Fixture, PARKED, QUEUE, finish},
    interrupted_walks::{AtTerminal, code},
};

/// More than a walk renews at its beginning, and more than one that shows a few has been sent.
const COUNT: u32 = 2_200;
/// How many may be ready before the parking queue refuses more.
const ROOM: u32 = 20;
const FULL: &str = "is full and rejects copies";

fn id(number: u32) -> BasicProperties {
    BasicProperties::default().with_message_id(number.to_string().into())
}

/// So many parked messages, of which the first three were returned once: a walk renews these at its end.
async fn set_up(broker: &Broker) -> Fixture {
    let fixture = Fixture::of(broker).await;
    let mut arguments = FieldTable::default();
    arguments.insert(
        "x-delivery-limit".into(),
        AMQPValue::LongLongInt(1_000_000_000),
    );
    fixture
        .amqp
        .declare_with(PARKED, QueueType::Quorum, arguments)
        .await;
    fixture.amqp.declare(QUEUE, QueueType::Quorum).await;
    let messages = (1..=COUNT).map(|number| (PARKED, "body", id(number)));
    fixture.amqp.publish_all("", messages).await;
    fixture.holds(PARKED, COUNT).await;
    let channel = fixture.amqp.new_channel().await;
    for _ in 0..3 {
        let get = channel.basic_get(PARKED.into(), BasicGetOptions::default());
        get.await.unwrap().expect("one is ready");
    }
    channel.close(200, "done".into()).await.unwrap();
    fixture.holds(PARKED, COUNT).await;
    let limits = json!({ "max-length": ROOM, "overflow": "reject-publish" });
    let policy = Policy::new("^orders[.]parked$", limits);
    fixture.vhost.put_policy("limits", &policy).await.unwrap();
    fixture
}

/// Publishes to the parking queue until it refuses, and returns how many it took.
async fn fill(fixture: &Fixture) -> u32 {
    let filling = async {
        for taken in 0.. {
            let publish = fixture.amqp.channel().basic_publish(
                "".into(),
                PARKED.into(),
                BasicPublishOptions::default(),
                b"filler",
                id(COUNT + taken).with_delivery_mode(2),
            );
            if let Confirmation::Nack(_) = publish.await.unwrap().await.unwrap() {
                return taken;
            }
        }
        unreachable!("it refuses at last")
    };
    timeout(DEADLINE, filling).await.expect("it is full")
}

#[track_caller]
fn tells(done: &CommandOutput, words: &[&str]) {
    for words in words {
        assert!(done.err.contains(words), "{words}: {done:#?}");
    }
}

#[tokio::test]
async fn a_listing_tells_that_it_has_spent_a_delivery() {
    on_brokers(|broker| async move {
        let fixture = set_up(&broker).await;
        let all = COUNT + fill(&fixture).await;
        let listing = ["--json", "parked", "ls", QUEUE, "--limit=2"];
        let done = fixture.run(&listing).await.exits(1);
        assert_eq!(done.lines().len(), 2, "{done:#?}");
        tells(&done, &[FULL]);
        fixture.holds(PARKED, all).await;
        // Also where the listing itself fails.
        let mut command = fixture.command(&["parked", "ls", QUEUE, "--limit=2"]);
        let nowhere = std::fs::OpenOptions::new().write(true).open("/dev/full");
        command.stdout(nowhere.unwrap());
        let child = command.spawn().unwrap();
        let output = timeout(DEADLINE, child.wait_with_output()).await.unwrap();
        let err = String::from_utf8(output.unwrap().stderr).unwrap();
        assert!(err.contains("cannot write") && err.contains(FULL), "{err}");
        fixture.holds(PARKED, all).await;
    })
    .await;
}

#[tokio::test]
async fn a_replay_tells_it_and_how_many_went() {
    on_brokers(|broker| async move {
        let fixture = set_up(&broker).await;
        let all = COUNT + fill(&fixture).await;
        let replay = ["parked", "replay", QUEUE, "--all", "--limit=1"];
        let done = fixture.run(&replay).await.exits(1);
        tells(&done, &[FULL, "1 message replayed to orders: 1"]);
        fixture.holds(QUEUE, 1).await;
        fixture.holds(PARKED, all - 1).await;
        // Also where the replay itself fails.
        let mut to_nowhere = replay.to_vec();
        to_nowhere.push("--to=nowhere");
        let done = fixture.run(&to_nowhere).await.exits(3);
        tells(&done, &["`nowhere`", FULL, "0 messages replayed"]);
        fixture.holds(PARKED, all - 1).await;
    })
    .await;
}

#[tokio::test]
async fn a_drop_tells_it_and_how_many_are_gone() {
    on_brokers(|broker| async move {
        let fixture = set_up(&broker).await;
        let mut prompt =
            AtTerminal::at_its_prompt(&fixture, &["parked", "drop", QUEUE, "7", "8"]).await;
        // What it holds does not count, and what comes meanwhile does.
        let all = COUNT + fill(&fixture).await;
        prompt.types("y\n");
        prompt.shows(FULL).await;
        prompt.shows("2 messages dropped: 7, 8").await;
        assert_eq!(code(&mut prompt.child).await, Some(1));
        fixture.holds(PARKED, all - 2).await;
    })
    .await;
}

#[tokio::test]
async fn a_replay_that_is_cut_off_tells_how_many_went() {
    const FEW: u32 = 20;
    on_brokers(|broker| async move {
        let fixture = Fixture::with_queue(&broker).await;
        fixture.amqp.declare(PARKED, QueueType::Quorum).await;
        let messages = (1..=FEW).map(|number| (PARKED, "body", id(number)));
        fixture.amqp.publish_all("", messages).await;
        fixture.holds(PARKED, FEW).await;
        let proxy = CutProxy::to(fixture.vhost.url()).await;
        let mut command = fixture.command(&["parked", "replay", QUEUE, "--all", "--rate=2/s"]);
        command.env("RETRYRMQ_URL", proxy.url());
        let cut = async {
            // One after the other: those before the third are gone.
            eventually(DEADLINE, "three are replayed", || async {
                match fixture.amqp.depth(QUEUE).await {
                    Some(3..) => Ok(()),
                    depth => Err(format!("{depth:?}")),
                }
            })
            .await;
            proxy.refuse();
            proxy.cut();
        };
        let (done, ()) = tokio::join!(finish(command, None), cut);
        let done = done.exits(1);
        let went = (2..FEW).find(|went| {
            let told = format!("{went} messages replayed to orders: 1, 2");
            done.err.contains(&told)
        });
        let went = went.unwrap_or_else(|| panic!("{done:#?}"));
        eventually(DEADLINE, "nothing is held", || async {
            let depths = [
                fixture.amqp.depth(PARKED).await,
                fixture.amqp.depth(QUEUE).await,
            ];
            match depths {
                [Some(parked), Some(work)] if parked + work >= FEW => Ok(()),
                _ => Err(format!("{depths:?}")),
            }
        })
        .await;
        let (parked, work) = (
            fixture.amqp.drain(PARKED).await,
            fixture.amqp.drain(QUEUE).await,
        );
        assert!(work.len() >= usize::try_from(went).unwrap(), "{done:#?}");
        let ids: BTreeSet<_> = parked.iter().chain(&work).filter_map(|m| m.id()).collect();
        assert_eq!(ids.len(), usize::try_from(FEW).unwrap());
    })
    .await;
}
