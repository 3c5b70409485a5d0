//! What a name means: the one message that was looked at, and nothing is done where it may mean another.

use retryrmq::types::{AMQPValue, FieldTable};
use retryrmq_harness::{
    QueueType, Version,
    lapin::{
        BasicProperties, ExchangeKind,
        options::{ExchangeDeclareOptions, QueueBindOptions},
    },
    on_brokers, on_every_broker_where,
};

use crate::{
    fixture::{Fixture, PARKED, QUEUE},
    interrupted_walks::parked,
};

/// RabbitMQ 4.0 and later close the connection instead of saying that a queue with such a name is missing.
#[tokio::test]
async fn a_name_that_the_broker_cannot_say_is_refused_with_the_reason() {
    on_every_broker_where(
        |broker| broker.version() >= Version::V4_0,
        |broker| async move {
            let fixture = Fixture::of(&broker).await;
            let long = "ä".repeat(115);
            let commands: [&[&str]; 5] = [
                &["topology", &long],
                &["parked", "ls", &long],
                &["parked", "replay", &long, "--all"],
                &["waiting", "ls", &long],
                &["consume", &long, "--dlx", "--", "true"],
            ];
            for arguments in commands {
                let done = fixture.run(arguments).await.exits(2);
                assert!(done.err.contains("use a shorter name"), "{done:#?}");
            }
            assert!(fixture.vhost.queues().await.is_empty(), "nothing was made");
        },
    )
    .await;
}

/// As Spring's `RepublishMessageRecoverer` does it.
#[tokio::test]
async fn what_an_application_parked_keeps_its_name_and_where_it_was_published() {
    on_brokers(|broker| async move {
        let fixture = Fixture::of(&broker).await;
        for queue in [PARKED, QUEUE] {
            fixture.amqp.declare(queue, QueueType::Quorum).await;
        }
        let channel = fixture.amqp.channel();
        let options = ExchangeDeclareOptions {
            durable: true,
            ..ExchangeDeclareOptions::default()
        };
        channel
            .exchange_declare(
                "parking".into(),
                ExchangeKind::Direct,
                options,
                FieldTable::default(),
            )
            .await
            .unwrap();
        channel
            .queue_bind(
                PARKED.into(),
                "parking".into(),
                "eu.orders".into(),
                QueueBindOptions::default(),
                FieldTable::default(),
            )
            .await
            .unwrap();
        let properties = BasicProperties::default();
        fixture
            .amqp
            .publish_to("parking", "eu.orders", "x", properties)
            .await;
        let mut marks = Vec::new();
        for _ in 0..4 {
            fixture.holds(PARKED, 1).await;
            let listed = fixture
                .run(&["--json", "parked", "ls", QUEUE])
                .await
                .exits(0);
            let line = &listed.lines()[0];
            assert_eq!(
                (line["exchange"].as_str(), line["routing_key"].as_str()),
                (Some("parking"), Some("eu.orders"))
            );
            marks.push(line["mark"].as_str().unwrap().to_owned());
        }
        marks.dedup();
        assert_eq!(marks.len(), 1, "{marks:?}");
        fixture.holds(PARKED, 1).await;
        let name = format!("#1={}", marks[0]);
        fixture
            .run(&["parked", "replay", QUEUE, &name])
            .await
            .exits(0);
        fixture.holds(QUEUE, 1).await;
        let copy = fixture.amqp.take(QUEUE).await.unwrap();
        assert_eq!(copy.header_text("x-retry-exchange").unwrap(), "parking");
        assert_eq!(
            copy.header_text("x-retry-routing-key").unwrap(),
            "eu.orders"
        );
    })
    .await;
}

#[tokio::test]
async fn an_id_that_looks_like_a_place_can_be_named() {
    on_brokers(|broker| async move {
        let fixture = Fixture::of(&broker).await;
        for queue in [PARKED, "target"] {
            fixture.amqp.declare(queue, QueueType::Quorum).await;
        }
        for (at, name) in ["#0", "#1", "third"].into_iter().enumerate() {
            let properties = parked(name, 1_700_000_000 + at as u64, "no");
            fixture.amqp.publish_with(PARKED, name, properties).await;
        }
        fixture.holds(PARKED, 3).await;
        let replay = |name| ["parked", "replay", QUEUE, name, "--to=target"];
        let done = fixture.run(&replay("#1")).await.exits(2);
        assert!(
            done.err.contains("id:#1") && done.err.contains("nothing was replayed"),
            "{done:#?}"
        );
        fixture.holds(PARKED, 3).await;
        fixture.run(&replay("id:#1")).await.exits(0);
        fixture.holds(PARKED, 2).await;
        assert_eq!(fixture.amqp.take("target").await.unwrap().id(), Some("#1"));
        let done = fixture.run(&["parked", "drop", QUEUE, "#0", "--yes"]).await;
        assert!(done.exits(2).err.contains("id:#0"));
        fixture
            .run(&["parked", "drop", QUEUE, "id:#0", "--yes"])
            .await
            .exits(0);
        fixture.holds(PARKED, 1).await;
        // Nobody's id by now: a place.
        fixture.run(&replay("#1")).await.exits(0);
        fixture.holds(PARKED, 0).await;
        assert_eq!(
            fixture.amqp.take("target").await.unwrap().id(),
            Some("third")
        );
    })
    .await;
}

#[tokio::test]
async fn a_limit_drops_nothing_where_nobody_can_tell_the_oldest() {
    const MESSAGES: u32 = 2_100;
    on_brokers(|broker| async move {
        let fixture = Fixture::of(&broker).await;
        fixture.amqp.declare(PARKED, QueueType::Classic).await;
        let messages = (0..MESSAGES).map(|number| {
            let properties = parked(&number.to_string(), 1_700_000_000, "no");
            (PARKED, "body", properties)
        });
        fixture.amqp.publish_all("", messages).await;
        fixture.holds(PARKED, MESSAGES).await;
        let drop = |dry| ["parked", "drop", QUEUE, "--all", "--limit=2", dry];
        for dry in ["--yes", "--dry-run"] {
            let done = fixture.run(&drop(dry)).await.exits(2);
            assert!(
                done.err.contains("nothing was dropped") && done.err.contains("--limit"),
                "{done:#?}"
            );
            fixture.holds(PARKED, MESSAGES).await;
        }
        // What is replayed is not gone, so it is only said.
        fixture.amqp.declare("target", QueueType::Classic).await;
        let replay = [
            "parked",
            "replay",
            QUEUE,
            "--all",
            "--limit=2",
            "--to=target",
        ];
        let done = fixture.run(&replay).await.exits(0);
        assert!(done.err.contains("the first of the queue"), "{done:#?}");
        fixture.holds("target", 2).await;
        for _ in 0..MESSAGES - 2 - 2_000 {
            fixture.amqp.take(PARKED).await.unwrap();
        }
        fixture.holds(PARKED, 2_000).await;
        let done = fixture.run(&replay).await.exits(0);
        assert!(!done.err.contains("the first of the queue"), "{done:#?}");
        fixture.holds("target", 4).await;
        fixture.holds(PARKED, 1_998).await;
        fixture.run(&drop("--yes")).await.exits(0);
        fixture.holds(PARKED, 1_996).await;
    })
    .await;
}

#[tokio::test]
async fn a_fingerprint_that_several_kinds_begin_with_drops_none() {
    on_brokers(|broker| async move {
        let fixture = Fixture::of(&broker).await;
        fixture.amqp.declare(PARKED, QueueType::Quorum).await;
        for (at, kind) in ["3f2a000000000001", "3f2a000000000002", "3f2a000000000002"]
            .into_iter()
            .enumerate()
        {
            let properties = parked(&at.to_string(), 1_700_000_000 + at as u64, "no");
            let mut headers = properties.headers().clone().unwrap();
            headers.insert(
                "x-retry-fingerprint".into(),
                AMQPValue::LongString(kind.into()),
            );
            let properties = properties.with_headers(headers);
            fixture.amqp.publish_with(PARKED, kind, properties).await;
        }
        fixture.holds(PARKED, 3).await;
        let drop = |hex| ["parked", "drop", QUEUE, "--fingerprint", hex, "--yes"];
        let done = fixture.run(&drop("3f2a")).await.exits(2);
        assert!(
            done.err.contains("nothing was dropped") && done.err.contains("3f2a000000000002"),
            "{done:#?}"
        );
        fixture.holds(PARKED, 3).await;
        fixture.run(&drop("3f2a000000000002")).await.exits(0);
        fixture.holds(PARKED, 1).await;
        // One kind alone begins so by now.
        fixture.run(&drop("3f2a")).await.exits(0);
        fixture.holds(PARKED, 0).await;
    })
    .await;
}
