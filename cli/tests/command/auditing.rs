//! `--audit-stream`: what operators did, in a stream.

use futures_util::StreamExt;
use retryrmq::types::{AMQPValue, FieldTable};
use retryrmq_harness::{
    QueueType,
    lapin::options::{BasicAckOptions, BasicConsumeOptions, BasicQosOptions, QueueDeclareOptions},
    on_brokers,
};
use serde_json::Value;
use tokio::time::timeout;

use crate::{
    fixture::{CommandOutput, DEADLINE, Fixture, PARKED, QUEUE},
    replaying::set_up,
};

const TRAIL: &str = "trail";

fn arguments(all: &[(&str, AMQPValue)]) -> FieldTable {
    let mut table = FieldTable::default();
    for (name, value) in all {
        table.insert((*name).into(), value.clone());
    }
    table
}

/// The first so many events, each with the type that it has as a message.
async fn events(fixture: &Fixture, stream: &str, count: usize) -> Vec<Value> {
    let channel = fixture.amqp.new_channel().await;
    let qos = channel.basic_qos(100, BasicQosOptions::default());
    qos.await.unwrap();
    let from = arguments(&[("x-stream-offset", AMQPValue::LongString("first".into()))]);
    let consume = channel.basic_consume(
        stream.into(),
        "reader".into(),
        BasicConsumeOptions::default(),
        from,
    );
    let mut deliveries = consume.await.unwrap();
    let mut events = Vec::new();
    while events.len() < count {
        let delivery = timeout(DEADLINE, deliveries.next()).await;
        let delivery = delivery.expect("it comes").unwrap().unwrap();
        let kind = delivery.properties.kind().as_ref();
        assert_eq!(kind.map(|kind| kind.as_str()), Some("retryrmq.audit"));
        events.push(serde_json::from_slice(&delivery.data).unwrap());
        delivery.ack(BasicAckOptions::default()).await.unwrap();
    }
    events
}

async fn run(fixture: &Fixture, arguments: &[&str], code: i32) -> CommandOutput {
    fixture
        .run(&[&["parked"], arguments].concat())
        .await
        .exits(code)
}

#[tokio::test]
async fn a_stream_tells_what_was_done_with_each_message() {
    on_brokers(|broker| async move {
        let fixture = set_up(&broker, 4).await;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit").display().to_string();
        let to = ["--audit-stream", TRAIL];
        run(
            &fixture,
            &[&["replay", QUEUE, "1", "--dry-run"], &to[..]].concat(),
            0,
        )
        .await;
        assert_eq!(
            fixture.amqp.depth(TRAIL).await,
            None,
            "a rehearsal leaves no trail"
        );
        run(
            &fixture,
            &[&["replay", QUEUE, "1", "--audit", &path], &to[..]].concat(),
            0,
        )
        .await;
        run(
            &fixture,
            &[&["drop", QUEUE, "2", "--yes"], &to[..]].concat(),
            0,
        )
        .await;
        let output = events(&fixture, TRAIL, 4).await;
        let names: Vec<_> = output
            .iter()
            .map(|event| {
                (
                    event["command"].as_str().unwrap(),
                    event["event"].as_str().unwrap(),
                    event["message_id"].as_str(),
                )
            })
            .collect();
        assert_eq!(
            names,
            [
                ("replay", "begun", None),
                ("replay", "replayed", Some("1")),
                ("drop", "begun", None),
                ("drop", "dropped", Some("2")),
            ]
        );
        let lines = std::fs::read_to_string(&path).unwrap();
        let lines: Vec<Value> = lines
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        assert_eq!(lines, output[..2], "the file and the stream say the same");

        // A stream that is there is taken as it is; what is no stream keeps nothing that is read.
        let durable = QueueDeclareOptions {
            durable: true,
            ..QueueDeclareOptions::default()
        };
        let others = arguments(&[
            ("x-queue-type", AMQPValue::LongString("stream".into())),
            ("x-max-age", AMQPValue::LongString("1h".into())),
            ("x-max-length-bytes", AMQPValue::LongLongInt(1_000_000)),
        ]);
        let channel = fixture.amqp.new_channel().await;
        let made = channel.queue_declare("others".into(), durable, others);
        made.await.unwrap();
        run(
            &fixture,
            &["drop", QUEUE, "3", "--yes", "--audit-stream=others"],
            0,
        )
        .await;
        assert_eq!(events(&fixture, "others", 2).await[1]["message_id"], "3");
        let short = arguments(&[("x-max-length-bytes", AMQPValue::LongLongInt(1_000_000))]);
        fixture
            .amqp
            .declare_with("short", QueueType::Classic, short)
            .await;
        for none in [QUEUE, PARKED, "short"] {
            let to = format!("--audit-stream={none}");
            let done = run(&fixture, &["drop", QUEUE, "4", "--yes", &to], 5).await;
            assert!(
                done.err
                    .contains(&format!("`{none}` is there and is no stream"))
                    && done.err.contains("nothing was done"),
                "{done:#?}"
            );
        }
        fixture.holds(PARKED, 1).await;
    })
    .await;
}
