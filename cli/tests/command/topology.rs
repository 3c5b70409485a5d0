//! `retryrmq topology`: planned, compared, applied; and its exit code says whether all is there.

use retryrmq::types::FieldTable;
use retryrmq_harness::{
    QueueType,
    lapin::{
        BasicProperties, ExchangeKind,
        options::{ExchangeDeclareOptions, QueueBindOptions},
    },
    on_brokers, on_every_broker,
};
use serde_json::{Value, json};

use crate::fixture::{Fixture, PARKED, QUEUE, finish, retryrmq};

fn statuses(plan: &Value) -> Vec<&str> {
    plan["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|item| item["status"].as_str().unwrap_or("-"))
        .collect()
}

#[tokio::test]
async fn planned_compared_applied_and_there() {
    on_brokers(|broker| async move {
        let fixture = Fixture::of(&broker).await;
        let plan = ["--json", "topology", QUEUE, "--retry=list(1s, 1m)"];
        let with = |more: &'static str| plan.iter().copied().chain([more]).collect::<Vec<_>>();
        let offline = fixture.run(&with("--offline")).await.exits(0).json();
        let names: Vec<_> = offline["items"]
            .as_array()
            .unwrap()
            .iter()
            .map(|item| item["name"].as_str().unwrap())
            .collect();
        assert_eq!(
            names,
            [PARKED, QUEUE, "orders.retry.1000", "orders.retry.60000"]
        );
        assert_eq!(
            (
                &offline["complete"],
                &offline["items"][2]["arguments"]["x-message-ttl"]
            ),
            (&Value::Null, &json!(1000))
        );
        let before = fixture.run(&plan).await.exits(3).json();
        assert_eq!(
            (statuses(&before), &before["complete"]),
            (vec!["missing"; 4], &json!(false))
        );
        assert_eq!(fixture.amqp.depth(QUEUE).await, None, "nothing was made");
        assert_eq!(
            statuses(&fixture.run(&with("--apply")).await.exits(0).json()),
            ["created"; 4]
        );
        assert_eq!(
            statuses(&fixture.run(&with("--apply")).await.exits(0).json()),
            ["present"; 4],
            "idempotent"
        );
        let after = fixture.run(&plan).await.exits(0);
        assert_eq!(
            (statuses(&after.json()), &after.json()["complete"]),
            (vec!["present"; 4], &json!(true))
        );
        let table = fixture
            .run(&["topology", QUEUE, "--retry=list(1s, 1m)"])
            .await
            .exits(0)
            .out;
        assert!(
            table.contains("✓ present")
                && table.contains("x-message-ttl")
                && table.contains("60000"),
            "{table}"
        );
        assert!(
            table.contains("orders  exists, and is not changed\n\n"),
            "{table}"
        );
        let planned = fixture
            .run(&["topology", QUEUE, "--offline"])
            .await
            .exits(0)
            .out;
        assert!(
            planned.contains("orders  would be declared with\n  x-queue-type"),
            "{planned}"
        );
        fixture
            .run(&["publish", "--queue", QUEUE, "x"])
            .await
            .exits(0);
        fixture
            .consume(1, &["--retry=list(1s, 1m)", "--no-declare"], "true")
            .await
            .exits(0);
    })
    .await;
}

/// Some of its delays are equal to the millisecond: all of the others have their queues all the same.
#[tokio::test]
async fn what_was_planned_for_delays_that_repeat_is_all_that_consuming_needs() {
    on_brokers(|broker| async move {
        let fixture = Fixture::of(&broker).await;
        let policy = "--retry=exponential(10ms, factor=1.05, max=1s, retries=30)";
        fixture
            .run(&["topology", QUEUE, policy, "--apply"])
            .await
            .exits(0);
        fixture
            .run(&["publish", "--queue", QUEUE, "x"])
            .await
            .exits(0);
        fixture
            .consume(31, &[policy, "--no-declare"], "exit 1")
            .await
            .exits(0);
        fixture.holds(PARKED, 1).await;
        fixture.holds(QUEUE, 0).await;
    })
    .await;
}

/// As messages of a fanout exchange have none.
#[tokio::test]
async fn a_rule_may_be_about_those_without_a_routing_key() {
    on_brokers(|broker| async move {
        let fixture = Fixture::with_queue(&broker).await;
        let channel = fixture.amqp.channel();
        let made = channel.exchange_declare(
            "all".into(),
            ExchangeKind::Fanout,
            ExchangeDeclareOptions::default(),
            FieldTable::default(),
        );
        made.await.unwrap();
        let bound = channel.queue_bind(
            QUEUE.into(),
            "all".into(),
            "".into(),
            QueueBindOptions::default(),
            FieldTable::default(),
        );
        bound.await.unwrap();
        let nameless = BasicProperties::default();
        fixture.amqp.publish_to("all", "", "x", nameless).await;
        fixture.amqp.publish(QUEUE, "y").await;
        let policies = ["--retry=fixed(20m)", "--rule=routing_key= => fixed(10m)"];
        fixture.consume(2, &policies, "exit 1").await.exits(0);
        fixture.holds("orders.retry.600000", 1).await;
        fixture.holds("orders.retry.1200000", 1).await;
        let waits = fixture.amqp.take("orders.retry.600000").await.unwrap();
        assert_eq!(waits.text(), "x");
    })
    .await;
}

#[tokio::test]
async fn the_work_queue_is_made_as_it_is_said() {
    on_brokers(|broker| async move {
        let fixture = Fixture::of(&broker).await;
        let said = ["topology", QUEUE, "--work-queue={\"x-max-priority\": 3}"];
        let planned = [&["--json"], &said[..], &["--offline"]].concat();
        let plan = fixture.run(&planned).await.exits(0).json();
        assert_eq!(
            (&plan["items"][1]["name"], &plan["items"][1]["arguments"]),
            (&json!(QUEUE), &json!({"x-max-priority": 3}))
        );
        let existing = [
            &["topology", QUEUE, "--work-queue=existing"],
            &["--apply"][..],
        ];
        let refused = fixture.run(&existing.concat()).await.exits(3);
        assert!(refused.err.contains("`existing`"), "{refused:#?}");
        assert!(fixture.vhost.queues().await.is_empty(), "nothing was made");
        let compared = fixture.run(existing[0]).await.exits(3);
        assert!(
            compared.err.contains("--work-queue existing"),
            "{compared:#?}"
        );
        fixture
            .run(&[&said[..], &["--apply"]].concat())
            .await
            .exits(0);
        assert_eq!(
            fixture.vhost.queue(QUEUE).await.unwrap().arguments()["x-max-priority"],
            3
        );
        fixture.run(&existing.concat()).await.exits(0);
        for (bad, named) in [
            ("stream", "quorum, classic, existing"),
            ("{", "JSON object"),
        ] {
            let bad = format!("--work-queue={bad}");
            let refused = fixture.run(&["topology", QUEUE, &bad]).await.exits(2);
            assert!(refused.err.contains(named), "{refused:#?}");
        }
    })
    .await;
}

#[tokio::test]
async fn a_consumer_makes_the_work_queue_as_it_is_said() {
    on_brokers(|broker| async move {
        let fixture = Fixture::of(&broker).await;
        let run = ["consume", QUEUE, "--dlx", "--idle=100ms"];
        let consume = async |what: &str| {
            let what = format!("--work-queue={what}");
            fixture
                .run(&[&run[..], &[&what, "--", "true"]].concat())
                .await
        };
        let refused = consume("existing").await.exits(3);
        assert!(refused.err.contains(QUEUE), "{refused:#?}");
        assert!(fixture.vhost.queue(QUEUE).await.is_none(), "it was made");
        let refused = consume("{").await.exits(2);
        assert!(refused.err.contains("JSON object"), "{refused:#?}");
        consume("{\"x-max-priority\": 3}").await.exits(0);
        let made = fixture.vhost.queue(QUEUE).await.unwrap();
        assert_eq!(made.arguments()["x-max-priority"], 3);
        assert!(
            !made.arguments().contains_key("x-dead-letter-exchange"),
            "nothing was added"
        );
    })
    .await;
}

#[tokio::test]
async fn a_queue_with_other_arguments_is_named() {
    on_brokers(|broker| async move {
        let fixture = Fixture::of(&broker).await;
        fixture
            .amqp
            .declare("orders.retry.1000", QueueType::Classic)
            .await;
        let compared = fixture
            .run(&["--json", "topology", QUEUE, "--retry=fixed(1s)"])
            .await
            .exits(5)
            .json();
        assert_eq!(statuses(&compared), ["missing", "missing", "differs"]);
        assert!(
            compared["items"][2]["difference"]
                .as_str()
                .unwrap()
                .contains("orders.retry.1000")
        );
        let shown = fixture
            .run(&["topology", QUEUE, "--retry=fixed(1s)"])
            .await
            .exits(5);
        assert!(shown.out.contains("≠ differs"), "{}", shown.out);
        let applied = fixture
            .run(&["--json", "topology", QUEUE, "--retry=fixed(1s)", "--apply"])
            .await
            .exits(5);
        assert!(
            applied.err.contains("\"code\":\"mismatch\"")
                && applied.err.contains("orders.retry.1000"),
            "{applied:#?}"
        );
        let refused = fixture
            .consume(1, &["--retry=fixed(1s)"], "true")
            .await
            .exits(5);
        assert!(refused.err.contains("mismatch"), "{refused:#?}");
    })
    .await;
}

#[tokio::test]
async fn a_strategy_that_the_broker_cannot_serve_makes_nothing() {
    on_every_broker(|broker| async move {
        let fixture = Fixture::of(&broker).await;
        let arguments = [
            "--json",
            "topology",
            QUEUE,
            "--strategy=native",
            "--retry=fixed(5s)",
            "--apply",
        ];
        if broker.version() >= "4.3.0".parse().unwrap() {
            assert_eq!(
                fixture.run(&arguments).await.exits(0).json()["strategy"],
                "native"
            );
        } else {
            let done = fixture.run(&arguments).await.exits(5);
            assert!(
                done.err.contains("strategy_refused") && done.err.contains("retry-queues"),
                "{done:#?}"
            );
            assert_eq!(fixture.amqp.depth(QUEUE).await, None);
        }
        let other = fixture
            .run(&[
                "topology",
                QUEUE,
                "--strategy=dead-letter",
                "--retry=list(1s, 2s)",
            ])
            .await
            .exits(5);
        assert!(other.err.contains("one delay"), "{other:#?}");
    })
    .await;
}

#[tokio::test]
async fn the_plan_alone_needs_no_broker() {
    let mut command = retryrmq();
    command.args([
        "--url=amqp://localhost:1",
        "topology",
        "lines",
        "--strategy=delayed-exchange",
        "--offline",
        "--queue-type=classic",
    ]);
    let done = finish(command, None).await.exits(0);
    for words in ["exchange", "binding", "x-delayed-message", "lines.delayed"] {
        assert!(done.out.contains(words), "{words}: {}", done.out);
    }
}

#[tokio::test]
async fn a_stream_is_no_queue_to_be_consumed() {
    on_brokers(|broker| async move {
        let fixture = Fixture::of(&broker).await;
        let mut stream = lapin::types::FieldTable::default();
        let kind = lapin::types::AMQPValue::LongString("stream".into());
        stream.insert("x-queue-type".into(), kind);
        let durable = lapin::options::QueueDeclareOptions::durable();
        let channel = fixture.amqp.new_channel().await;
        channel
            .queue_declare(QUEUE.into(), durable, stream)
            .await
            .unwrap();
        let compared = fixture.run(&["topology", QUEUE]).await.exits(5);
        assert!(compared.out.contains("is a stream"), "{compared:#?}");
        for refused in [
            fixture.run(&["topology", QUEUE, "--apply"]).await.exits(5),
            fixture.consume(1, &[], "true").await.exits(5),
        ] {
            assert!(refused.err.contains("is a stream"), "{refused:#?}");
        }
    })
    .await;
}

#[tokio::test]
async fn where_messages_are_parked_is_no_queue_to_be_consumed() {
    on_brokers(|broker| async move {
        let fixture = Fixture::of(&broker).await;
        for queue in [PARKED, "orders.retry.1000"] {
            fixture.amqp.declare(queue, QueueType::Quorum).await;
            fixture.amqp.publish(queue, "kept").await;
            for command in [
                &["consume", queue, "--", "true"][..],
                &["consume", queue, "--dlx", "--", "true"],
                &["topology", queue, "--apply"],
            ] {
                let refused = fixture.run(command).await.exits(2);
                assert!(
                    refused.err.contains("orders") && refused.err.contains("--reserved-name"),
                    "{refused:#?}"
                );
            }
            assert_eq!(fixture.amqp.depth(queue).await, Some(1));
            let meant = [
                "consume",
                queue,
                "--reserved-name",
                "--count=1",
                "--",
                "true",
            ];
            fixture.run(&meant).await.exits(0);
            assert_eq!(fixture.amqp.depth(queue).await, Some(0));
        }
    })
    .await;
}

#[tokio::test]
async fn a_management_address_that_cannot_be_is_refused_before_anything_is_made() {
    on_brokers(|broker| async move {
        let fixture = Fixture::of(&broker).await;
        let make = ["topology", QUEUE, "--apply", "--management=ftp://shop"];
        fixture.run(&make).await.exits(2);
        assert_eq!(fixture.amqp.depth(QUEUE).await, None);
    })
    .await;
}
