//! `retryrmq waiting`: what waits is seen, brought back, taken out, and never lost.

use std::collections::BTreeSet;

use lapin::BasicProperties;
use retryrmq_harness::{QueueType, Version, eventually, on_brokers, on_every_broker};
use serde_json::Value;

use crate::fixture::{CommandOutput, DEADLINE, Fixture, PARKED, QUEUE};

const POLICY: &str = "--retry=fixed(10m)";
const WAITING_QUEUE: &str = "orders.retry.600000";

fn id(id: &str) -> BasicProperties {
    BasicProperties::default().with_message_id(id.into())
}

async fn waiting(fixture: &Fixture, arguments: &[&str]) -> CommandOutput {
    let all = [&["waiting", arguments[0], QUEUE, POLICY], &arguments[1..]].concat();
    fixture.run(&all).await
}

fn waiting_queue(listed: &Value) -> &Value {
    let queues = listed["queues"].as_array().unwrap();
    queues
        .iter()
        .find(|queue| queue["name"] == WAITING_QUEUE)
        .unwrap_or_else(|| panic!("{listed}"))
}

#[tokio::test]
async fn what_waits_is_looked_at_brought_back_and_taken_out() {
    on_every_broker(|broker| async move {
        let fixture = Fixture::with_queue(&broker).await;
        waiting(&fixture, &["ls"]).await.exits(3);
        for name in ["a", "b", "c"] {
            fixture.amqp.publish_with(QUEUE, "chair", id(name)).await;
        }
        fixture
            .consume(3, &[POLICY, "--concurrency=1"], "echo no chair >&2; exit 1")
            .await
            .exits(0);
        let counted = waiting(&fixture, &["ls", "--json"]).await.exits(0).json();
        assert_eq!(
            (&counted["waiting"], &waiting_queue(&counted)["waiting"]),
            (&3.into(), &3.into())
        );
        assert_eq!(
            waiting_queue(&counted)["messages"],
            Value::Null,
            "nothing was looked at"
        );

        let looked = waiting(&fixture, &["ls", "--look", "--json"])
            .await
            .exits(0)
            .json();
        let seen = waiting_queue(&looked)["messages"]
            .as_array()
            .unwrap()
            .clone();
        let names: Vec<_> = seen
            .iter()
            .map(|seen| seen["id"].as_str().unwrap())
            .collect();
        assert_eq!(names, ["a", "b", "c"], "in the order in which they wait");
        for message in &seen {
            assert_eq!(message["retries"], 1, "{message}");
            assert!(message["due_at"].is_string(), "{message}");
            assert!(
                message["error"].as_str().unwrap().contains("no chair"),
                "{message}"
            );
        }
        fixture.holds(WAITING_QUEUE, 3).await;
        let table = waiting(&fixture, &["ls"]).await.exits(0).out;
        assert!(
            table.contains("within 10m") && table.contains(WAITING_QUEUE),
            "{table}"
        );
        assert!(
            table.lines().all(|line| line.chars().count() <= 80),
            "{table}"
        );
        let shown = waiting(&fixture, &["show", "b", "--json"])
            .await
            .exits(0)
            .json();
        assert_eq!(
            (&shown["body"], &shown["queue"]),
            (&"chair".into(), &WAITING_QUEUE.into())
        );
        assert_eq!(shown["history"][0]["attempt"], 1);
        fixture.holds(WAITING_QUEUE, 3).await;

        // Where a look counts as a crash, nobody looks a third time.
        let counts = (Version::V4_0..Version::V4_3).contains(&broker.version());
        let sought = waiting(&fixture, &["show", "nobody"]).await;
        let sought = sought.exits(if counts { 1 } else { 3 });
        assert_eq!(
            sought.err.contains("has been read 2 times"),
            counts,
            "{sought:#?}"
        );
        waiting(&fixture, &["flush", "--id=nobody", "--yes"])
            .await
            .exits(3);
        waiting(&fixture, &["flush", "--yes"]).await.exits(2);
        let unasked = waiting(&fixture, &["flush", "--all"]).await.exits(2);
        assert!(unasked.err.contains("--yes"), "{unasked:#?}");
        fixture.holds(WAITING_QUEUE, 3).await;

        let mark = format!("--id=#{}", seen[1]["mark"].as_str().unwrap());
        let flushed = waiting(&fixture, &["flush", &mark, "--yes", "--json"])
            .await
            .exits(0);
        assert_eq!(
            (&flushed.json()["id"], &flushed.json()["outcome"]),
            (&"b".into(), &"flushed".into())
        );
        fixture.holds(WAITING_QUEUE, 2).await;
        fixture.holds(QUEUE, 1).await;
        let acked = fixture
            .consume(1, &[POLICY], r#"test "$RETRYRMQ_ATTEMPT" = 2"#)
            .await
            .exits(0);
        assert_eq!(
            acked.events("handled").len(),
            1,
            "its count came along: {acked:#?}"
        );

        waiting(&fixture, &["cancel", "--id=a", "--yes"])
            .await
            .exits(0);
        fixture.holds(WAITING_QUEUE, 1).await;
        let parked = fixture
            .run(&["--json", "parked", "show", QUEUE, "a"])
            .await
            .exits(0)
            .json();
        assert_eq!(parked["reason"], "requested", "{parked}");
        assert!(
            parked["error"].as_str().unwrap().contains("no chair"),
            "{parked}"
        );
        waiting(&fixture, &["flush", "--waits=10m", "--yes"])
            .await
            .exits(0);
        fixture.holds(QUEUE, 1).await;
        fixture.holds(WAITING_QUEUE, 0).await;
        let nothing = waiting(&fixture, &["ls"]).await.exits(0);
        assert!(
            nothing.err.contains("nothing waits")
                && nothing.err.contains("only the broker was asked"),
            "{nothing:#?}"
        );
    })
    .await;
}

#[tokio::test]
async fn killed_while_it_brings_back_nothing_is_lost() {
    on_brokers(|broker| async move {
        let fixture = Fixture::with_queue(&broker).await;
        fixture
            .run(&["topology", QUEUE, POLICY, "--apply"])
            .await
            .exits(0);
        let all: BTreeSet<String> = (0..200).map(|number| number.to_string()).collect();
        let messages = all.iter().map(|number| (WAITING_QUEUE, "x", id(number)));
        fixture.amqp.publish_all("", messages).await;
        let flush = ["waiting", "flush", QUEUE, POLICY, "--all", "--yes"];
        // Copies are confirmed, and the originals held, while the queue may be young.
        let mut child = fixture.command(&flush).spawn().unwrap();
        eventually(DEADLINE, "something is back", || async {
            fixture
                .amqp
                .depth(QUEUE)
                .await
                .is_some_and(|depth| depth > 0)
                .then_some(())
        })
        .await;
        child.start_kill().unwrap();
        child.wait().await.unwrap();
        eventually(DEADLINE, "all that waits is in the queue again", || async {
            // What the dead process held comes back when the broker has seen its end.
            if fixture.amqp.consumers(WAITING_QUEUE).await != Some(0) {
                return None;
            }
            let (back, left) = (
                fixture.amqp.depth(QUEUE).await,
                fixture.amqp.depth(WAITING_QUEUE).await,
            );
            (back.unwrap_or(0) + left.unwrap_or(0) >= 200).then_some(())
        })
        .await;
        fixture.run(&flush).await.exits(0);
        fixture.holds(WAITING_QUEUE, 0).await;
        let came = fixture.amqp.drain(QUEUE).await;
        let ids: BTreeSet<String> = came
            .iter()
            .filter_map(|message| message.id().map(ToOwned::to_owned))
            .collect();
        assert_eq!(ids, all);
        assert!(
            came.len() <= 200 + 64,
            "no more than one wave comes twice: {}",
            came.len()
        );
    })
    .await;
}

#[tokio::test]
async fn without_its_queue_nothing_is_moved() {
    on_brokers(|broker| async move {
        let fixture = Fixture::with_queue(&broker).await;
        fixture
            .run(&["topology", QUEUE, POLICY, "--apply"])
            .await
            .exits(0);
        fixture.amqp.publish_with(WAITING_QUEUE, "x", id("a")).await;
        fixture.amqp.delete(QUEUE).await;
        let refused = waiting(&fixture, &["flush", "--all", "--yes"])
            .await
            .exits(3);
        assert!(refused.err.contains(QUEUE), "{refused:#?}");
        fixture.holds(WAITING_QUEUE, 1).await;
        fixture.amqp.declare(QUEUE, QueueType::Classic).await;
        waiting(&fixture, &["flush", "--all", "--yes"])
            .await
            .exits(0);
        fixture.holds(QUEUE, 1).await;
        assert_eq!(fixture.amqp.depth(PARKED).await, Some(0));
    })
    .await;
}
