//! Readers of JSON lines who leave after the first: what was asked for goes on without them, and what was done is told.

use lapin::BasicProperties;
use retryrmq_harness::{Broker, QueueType, on_brokers};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, BufReader},
    time::timeout,
};

use crate::{
    fixture::{DEADLINE, Fixture, PARKED, QUEUE},
    interrupted_walks::{code, parked},
};

/// Their lines are more than a pipe holds.
const MANY: u32 = 400;

fn id(number: u32) -> String {
    format!("{number}-{}", "x".repeat(200))
}

async fn many_parked(broker: &Broker) -> Fixture {
    let fixture = Fixture::with_queue(broker).await;
    fixture.amqp.declare(PARKED, QueueType::Quorum).await;
    for number in 0..MANY {
        let record = parked(&id(number), 1_700_000_000, "no answer");
        fixture.amqp.publish_with(PARKED, "x", record).await;
    }
    fixture.holds(PARKED, MANY).await;
    fixture
}

/// Runs the command for a reader of its first line alone; what it says then, where all went well.
async fn heard_once(fixture: &Fixture, arguments: &[&str]) -> Value {
    let mut child = fixture.command(arguments).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    timeout(DEADLINE, lines.next_line()).await.unwrap().unwrap();
    drop(lines);
    let (mut err, mut said) = (String::new(), child.stderr.take().unwrap());
    said.read_to_string(&mut err).await.unwrap();
    assert_eq!(code(&mut child).await, Some(0), "{err}");
    serde_json::from_str(&err).unwrap_or_else(|why| panic!("{why}: {err}"))
}

#[tokio::test]
async fn nobody_listening_keeps_nothing_waiting_that_is_brought_back() {
    on_brokers(|broker| async move {
        let fixture = Fixture::with_queue(&broker).await;
        let retry = "--retry=fixed(10m)";
        fixture
            .run(&["topology", QUEUE, retry, "--apply"])
            .await
            .exits(0);
        let waiting = "orders.retry.600000";
        for number in 0..MANY {
            let named = BasicProperties::default().with_message_id(id(number).into());
            fixture.amqp.publish_with(waiting, "x", named).await;
        }
        fixture.holds(waiting, MANY).await;
        let flush = ["--json", "waiting", "flush", QUEUE, retry, "--all", "--yes"];
        let output = heard_once(&fixture, &flush).await;
        assert_eq!(output["flushed"], MANY);
        fixture.holds(QUEUE, MANY).await;
    })
    .await;
}

#[tokio::test]
async fn nobody_listening_keeps_nothing_that_is_to_be_forgotten() {
    on_brokers(|broker| async move {
        let fixture = many_parked(&broker).await;
        let forget = [
            "--json",
            "parked",
            "forget",
            QUEUE,
            "--error=answer",
            "--yes",
        ];
        let output = heard_once(&fixture, &forget).await;
        assert_eq!(output["forgotten"], MANY);
        fixture.holds(PARKED, 0).await;
    })
    .await;
}

#[tokio::test]
async fn a_rehearsal_that_nobody_listens_to_is_not_told_as_the_action() {
    on_brokers(|broker| async move {
        let fixture = many_parked(&broker).await;
        for (action, done) in [
            ("replay", "replayed"),
            ("drop", "dropped"),
            ("forget", "forgotten"),
        ] {
            let rehearsed = [
                "--json",
                "parked",
                action,
                QUEUE,
                "--error=answer",
                "--dry-run",
            ];
            let output = heard_once(&fixture, &rehearsed).await;
            assert_eq!(output, json!({ format!("would_be_{done}"): MANY }));
        }
        fixture.holds(PARKED, MANY).await;
    })
    .await;
}
