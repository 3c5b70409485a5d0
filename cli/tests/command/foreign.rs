//! Dead letters of other libraries: looked at, and replayed to where their consumers expect them.

use retryrmq::types::{AMQPValue, FieldTable};
use retryrmq_harness::{
    QueueType,
    lapin::{ExchangeKind, options, options::BasicRejectOptions},
    on_brokers,
};
use serde_json::{Value, json};

use crate::{dead_letter_fixture::DeadLetterFixture, fixture::Fixture, replaying::edit};

/// The names of a message's headers that are not ours.
fn names(headers: &FieldTable) -> Vec<&str> {
    let names = headers.inner().keys().map(|name| name.as_str());
    // A quorum queue of 3.10 writes its count.
    names
        .filter(|name| !name.starts_with("x-retry-") && *name != "x-delivery-count")
        .collect()
}

#[tokio::test]
async fn every_library_is_told_and_replayed_to_its_own_queue() {
    on_brokers(|broker| async move {
        let fixture = Fixture::of(&broker).await;
        let dead = "everybody_error";
        fixture.amqp.declare(dead, QueueType::Quorum).await;
        let came_from = [
            ("masstransit", "submit-order"),
            ("nservicebus", "Sales"),
            ("spring-queue", "spring.orders"),
            ("easynetq-newtonsoft", "Shop.OrderPlaced, Shop_billing"),
        ];
        for (name, queue) in came_from {
            fixture.amqp.declare(queue, QueueType::Classic).await;
            DeadLetterFixture::named(name).arrives(&fixture, dead).await;
        }
        fixture.holds(dead, 4).await;
        let mut lines = fixture
            .run(&["--json", "parked", "ls", dead, "--dlq"])
            .await
            .exits(0)
            .lines();
        lines.sort_by_key(|line| line["library"].as_str().unwrap().to_owned());
        let seen: Vec<_> = lines
            .iter()
            .map(|line| {
                (
                    line["library"].as_str().unwrap(),
                    line["home"].as_str().unwrap(),
                )
            })
            .collect();
        assert_eq!(
            seen,
            [
                ("easynetq", "Shop.OrderPlaced, Shop_billing"),
                ("masstransit", "submit-order"),
                ("nservicebus", "Sales"),
                ("spring", "spring.orders"),
            ]
        );
        for line in &lines {
            assert_eq!(
                (&line["error"], &line["by_broker"], &line["reason"]),
                (
                    &json!("no such customer: 7"),
                    &json!(false),
                    &json!("exhausted")
                ),
                "{line}"
            );
        }
        let shown = fixture
            .run(&["parked", "show", dead, "--dlq", "--all"])
            .await
            .exits(0)
            .out;
        for words in [
            "by MassTransit",
            "SubmitOrderConsumer.cs:line 21",
            "by NServiceBus",
            "Shop.PlaceOrder",
            "by Spring AMQP",
            "ListenerExecutionFailedException",
            "out of EasyNetQ's envelope",
            "\"Name\": \"Grüße\"",
            "2026-07-01",
        ] {
            assert!(shown.contains(words), "{words} in {shown}");
        }
        assert!(!shown.contains("MT-Fault-Message"), "told above: {shown}");

        let done = fixture
            .run(&["--json", "parked", "replay", dead, "--dlq", "--all"])
            .await
            .exits(0);
        assert_eq!(done.lines().len(), 4, "{done:?}");
        fixture.holds(dead, 0).await;
        let took = async |queue: &str| fixture.amqp.take(queue).await.expect("it is there");
        let message = took("submit-order").await;
        let headers = message.headers();
        assert_eq!(
            names(&headers),
            ["Content-Type", "MT-Fault-Address", "publishId", "tenant"]
        );
        assert_eq!(
            message.text(),
            DeadLetterFixture::named("masstransit").body()
        );
        assert_eq!(message.header_int("x-retry-replays"), Some(1));

        let headers = took("Sales").await.headers();
        let is_failure = |name: &&str| {
            name.contains("Exception") || name.contains("Retries") || name.contains("Fail")
        };
        assert!(!names(&headers).iter().any(is_failure), "{headers:?}");
        assert!(names(&headers).contains(&"NServiceBus.EnclosedMessageTypes"));

        let message = took("spring.orders").await;
        assert_eq!(names(&message.headers()), ["tenant", "weight"]);
        assert_eq!(message.text(), "{\"customer\":7}");

        let message = took("Shop.OrderPlaced, Shop_billing").await;
        assert_eq!(message.text(), "{\"Customer\":7,\"Name\":\"Grüße\"}");
        assert_eq!(names(&message.headers()), ["fragile", "tenant", "weight"]);
        assert_eq!(message.header_text("tenant").as_deref(), Some("acme"));
        assert_eq!(
            message.header_text("x-retry-routing-key").as_deref(),
            Some("order.placed")
        );
        let properties = &message.properties;
        assert_eq!(
            (
                message.id(),
                properties.kind().as_ref().map(|kind| kind.as_str())
            ),
            (Some("m-7"), Some("Shop.OrderPlaced, Shop"))
        );
        assert_eq!(
            (*properties.timestamp(), *properties.priority()),
            (Some(1_782_899_940), None)
        );
    })
    .await;
}

#[tokio::test]
async fn what_celery_rejects_goes_back_to_its_worker() {
    on_brokers(|broker| async move {
        let fixture = Fixture::of(&broker).await;
        let (work, dead) = ("celery.orders", "celery.dead");
        let mut route = FieldTable::default();
        for (name, value) in [("exchange", ""), ("routing-key", dead)] {
            route.insert(
                format!("x-dead-letter-{name}").into(),
                AMQPValue::LongString(value.into()),
            );
        }
        fixture
            .amqp
            .declare_with(work, QueueType::Classic, route)
            .await;
        fixture.amqp.declare(dead, QueueType::Classic).await;
        let channel = fixture.amqp.channel();
        let exchange = channel.exchange_declare(
            "celery.shop".into(),
            ExchangeKind::Topic,
            options::ExchangeDeclareOptions::default(),
            FieldTable::default(),
        );
        exchange.await.unwrap();
        let bound = channel.queue_bind(
            work.into(),
            "celery.shop".into(),
            "order.#".into(),
            options::QueueBindOptions::default(),
            FieldTable::default(),
        );
        bound.await.unwrap();
        let task = DeadLetterFixture::named("celery-rejected");
        fixture
            .amqp
            .publish_to(
                "celery.shop",
                "order.charge",
                task.body(),
                task.properties(),
            )
            .await;
        fixture.holds(work, 1).await;
        let got = channel
            .basic_get(work.into(), options::BasicGetOptions::default())
            .await
            .unwrap()
            .unwrap();
        got.acker
            .reject(BasicRejectOptions { requeue: false })
            .await
            .unwrap();
        fixture.holds(dead, 1).await;
        let line = fixture
            .run(&["--json", "parked", "show", dead, "--dlq", "#1"])
            .await
            .exits(0)
            .json();
        assert_eq!(
            (&line["library"], &line["home"], &line["reason"]),
            (&json!("celery"), &json!(work), &json!("rejected"))
        );
        assert_eq!(
            (&line["attempts"], &line["message_type"]),
            (&json!(2), &json!("shop.charge"))
        );
        assert!(
            line["error"]
                .as_str()
                .unwrap()
                .contains("shop.charge was rejected")
        );
        fixture
            .run(&["parked", "replay", dead, "--dlq", "#1"])
            .await
            .exits(0);
        fixture.holds(dead, 0).await;
        let message = fixture.amqp.take(work).await.unwrap();
        assert_eq!(message.text(), task.body());
        assert_eq!(message.header_text("task").as_deref(), Some("shop.charge"));
        assert!(message.header("x-death").is_none());
    })
    .await;
}

/// Dramatiq and taskiq count within the body: their workers would give the message up again at once.
#[tokio::test]
async fn a_counter_within_the_body_begins_again() {
    on_brokers(|broker| async move {
        let fixture = Fixture::of(&broker).await;
        for (name, work, dead, old, new) in [
            (
                "dramatiq-charge",
                "shop",
                "shop.XQ",
                r#""retries":1"#,
                r#""retries":0"#,
            ),
            (
                "taskiq",
                "taskiq.shop",
                "taskiq.dead",
                r#""_retries": "1""#,
                r#""_retries": "0""#,
            ),
        ] {
            let mut route = FieldTable::default();
            for (name, value) in [("exchange", ""), ("routing-key", dead)] {
                route.insert(
                    format!("x-dead-letter-{name}").into(),
                    AMQPValue::LongString(value.into()),
                );
            }
            fixture
                .amqp
                .declare_with(work, QueueType::Classic, route)
                .await;
            fixture.amqp.declare(dead, QueueType::Classic).await;
            let task = DeadLetterFixture::named(name);
            task.arrives(&fixture, work).await;
            fixture.holds(work, 1).await;
            let got = fixture
                .amqp
                .channel()
                .basic_get(work.into(), options::BasicGetOptions::default())
                .await
                .unwrap()
                .unwrap();
            got.acker
                .reject(BasicRejectOptions { requeue: false })
                .await
                .unwrap();
            fixture.holds(dead, 1).await;
            let line = fixture
                .run(&["--json", "parked", "show", dead, "--dlq", "#1"])
                .await
                .exits(0)
                .json();
            assert_eq!(
                (&line["home"], &line["attempts"]),
                (&json!(work), &json!(2)),
                "{line}"
            );
            assert_eq!(line["body"], json!(task.body()), "shown as it stands");
            fixture
                .run(&["parked", "replay", dead, "--dlq", "#1"])
                .await
                .exits(0);
            fixture.holds(dead, 0).await;
            let message = fixture.amqp.take(work).await.unwrap();
            assert_eq!(message.text(), task.body().replace(old, new));
            assert!(message.header("x-death").is_none());
        }
    })
    .await;
}

#[tokio::test]
async fn what_goes_nowhere_stays_and_says_what_to_do() {
    on_brokers(|broker| async move {
        let fixture = Fixture::of(&broker).await;
        let dead = "failed";
        fixture.amqp.declare(dead, QueueType::Quorum).await;
        fixture
            .amqp
            .declare("async.orders", QueueType::Quorum)
            .await;
        for name in ["spring-exchange", "symfony", "symfony-php", "masstransit"] {
            DeadLetterFixture::named(name).arrives(&fixture, dead).await;
        }
        fixture.amqp.publish(dead, "plain").await;
        fixture.holds(dead, 5).await;
        let replay = ["parked", "replay", dead, "--dlq", "--all"];
        let done = fixture.run(&replay).await.exits(3);
        for words in [
            "pass --to QUEUE",
            "the exchange `shop` and the routing key `order.placed`",
            "Symfony's transport `async`",
            "messenger:failed:retry",
            "submit-order",
            "0 messages replayed",
        ] {
            assert!(done.err.contains(words), "{words} in {done:?}");
        }
        fixture.holds(dead, 5).await;
        let done = fixture
            .run(&[
                "parked",
                "replay",
                dead,
                "--dlq",
                "--all",
                "--to",
                "async.orders",
            ])
            .await
            .exits(3);
        assert!(
            done.err.contains("4 messages replayed to async.orders"),
            "{done:?}"
        );
        fixture.holds(dead, 1).await;
        let arrived = fixture.amqp.drain("async.orders").await;
        assert_eq!(arrived.len(), 4);
        let of_symfony = |message: &&retryrmq_harness::Message| message.header("type").is_some();
        let symfony = arrived.iter().find(of_symfony).unwrap().headers();
        let stamps = names(&symfony)
            .into_iter()
            .filter(|name| name.contains("Stamp"));
        let stamps: Vec<_> = stamps.collect();
        assert_eq!(stamps.len(), 1, "{stamps:?}");
        assert!(stamps[0].ends_with("BusNameStamp"), "{stamps:?}");
        // Into itself, and to nowhere.
        let done = fixture
            .run(&["parked", "replay", dead, "--dlq", "--all", "--to", dead])
            .await;
        assert_ne!(done.status.code(), Some(0), "{done:?}");
        let done = fixture
            .run(&["parked", "ls", "nowhere", "--dlq"])
            .await
            .exits(3);
        assert!(done.err.contains("there is no queue `nowhere`"), "{done:?}");
        let done = fixture.run(&["parked", "ls", dead]).await.exits(3);
        assert!(done.err.contains("--dlq"), "{done:?}");
        fixture.holds(dead, 1).await;
    })
    .await;
}

#[tokio::test]
async fn an_original_is_edited_and_what_goes_nowhere_is_told_one_by_one() {
    on_brokers(|broker| async move {
        let fixture = Fixture::of(&broker).await;
        let (dead, work) = ("everybody_error", "Shop.OrderPlaced, Shop_billing");
        fixture.amqp.declare(dead, QueueType::Quorum).await;
        fixture.amqp.declare(work, QueueType::Quorum).await;
        for _ in 0..2 {
            let envelope = DeadLetterFixture::named("easynetq-newtonsoft");
            envelope.arrives(&fixture, dead).await;
        }
        fixture.amqp.publish(dead, "plain").await;
        fixture.holds(dead, 3).await;
        // What fails again comes back in a new envelope, in which no mark of ours is seen.
        let done = fixture
            .run(&["parked", "replay", dead, "--dlq", "--all", "--canary", "1"])
            .await
            .exits(2);
        assert!(done.err.contains("--canary could not tell"), "{done:?}");
        let seen = fixture
            .run(&["--json", "parked", "ls", dead, "--dlq"])
            .await
            .exits(0)
            .lines();
        let handles: Vec<_> = seen
            .iter()
            .map(|line| format!("#{}={}", line["place"], line["mark"].as_str().unwrap()))
            .collect();
        let replay = |handle| {
            [
                "--json", "parked", "replay", dead, "--dlq", "--edit", handle,
            ]
        };
        let done = edit(&fixture, "sed -i s/Grüße/Hallo/", &replay(&*handles[0])).await;
        assert_eq!(done.exits(0).json()["edited"], true);
        fixture.holds(dead, 2).await;
        let message = fixture.amqp.take(work).await.expect("it is there");
        assert_eq!(message.text(), "{\"Customer\":7,\"Name\":\"Hallo\"}");
        assert_eq!(names(&message.headers()), ["fragile", "tenant", "weight"]);
        assert_eq!(
            message.header_text("x-retry-routing-key").as_deref(),
            Some("order.placed")
        );
        let mut all = vec!["--json", "parked", "replay", dead, "--dlq"];
        let outcomes = |lines: Vec<Value>| -> Vec<_> {
            lines.iter().map(|line| line["outcome"].clone()).collect()
        };
        let done = fixture
            .run(&[&all[..], &["--all", "--dry-run"]].concat())
            .await
            .exits(3);
        assert_eq!(
            outcomes(done.lines()),
            ["would be replayed", "would be refused"]
        );
        fixture.holds(dead, 2).await;
        // Named, one that cannot go ends it; those before it have gone.
        all.extend([&*handles[1], &*handles[2]]);
        let done = fixture.run(&all).await.exits(3);
        assert!(done.err.contains("1 message replayed"), "{done:?}");
        assert_eq!(outcomes(done.lines()), ["replayed", "refused"]);
        fixture.holds(dead, 1).await;
        fixture.holds(work, 1).await;
    })
    .await;
}

#[tokio::test]
async fn a_look_at_anothers_queue_costs_nothing() {
    on_brokers(|broker| async move {
        let fixture = Fixture::of(&broker).await;
        let dead = "orders_error";
        let mut limit = FieldTable::default();
        limit.insert("x-delivery-limit".into(), AMQPValue::LongLongInt(2));
        fixture
            .amqp
            .declare_with(dead, QueueType::Quorum, limit)
            .await;
        let dead_letter_fixture = DeadLetterFixture::named("masstransit");
        for number in 0..3 {
            let properties = dead_letter_fixture
                .properties()
                .with_message_id(format!("m-{number}").as_str().into());
            fixture
                .amqp
                .publish_with(dead, dead_letter_fixture.body(), properties)
                .await;
        }
        fixture.holds(dead, 3).await;
        for _ in 0..4 {
            let lines = fixture
                .run(&["--json", "parked", "ls", dead, "--dlq"])
                .await
                .exits(0)
                .lines();
            let ids: Vec<_> = lines
                .iter()
                .map(|line| line["message_id"].clone())
                .collect();
            assert_eq!(ids, ["m-0", "m-1", "m-2"]);
        }
        fixture.holds(dead, 3).await;
        let message = fixture.amqp.take(dead).await.unwrap();
        assert_eq!(
            message.header_text("MT-Reason").as_deref(),
            Some("fault"),
            "as it was"
        );
        assert_eq!(message.text(), dead_letter_fixture.body());
    })
    .await;
}

#[tokio::test]
async fn everything_that_died_in_a_virtual_host() {
    on_brokers(|broker| async move {
        let fixture = Fixture::of(&broker).await;
        let mut route = FieldTable::default();
        for (name, value) in [("exchange", ""), ("routing-key", "graveyard")] {
            let name = format!("x-dead-letter-{name}");
            route.insert(name.into(), AMQPValue::LongString(value.into()));
        }
        fixture
            .amqp
            .declare_with("orders", QueueType::Quorum, route)
            .await;
        for queue in [
            "graveyard",
            "mail.parked",
            "submit-order_error",
            "submit-order",
        ] {
            fixture.amqp.declare(queue, QueueType::Quorum).await;
            fixture.amqp.publish(queue, "x").await;
        }
        let management = broker.management().url().to_owned();
        let management = management.as_str();
        let queues = async |more: &[&str]| {
            let mut words = vec![
                "--json",
                "parked",
                "ls",
                "--all-queues",
                "--management",
                management,
            ];
            words.extend(more);
            let lines = fixture.run(&words).await.exits(0).lines();
            let mut names: Vec<_> = lines
                .iter()
                .map(|line| line["queue"].as_str().unwrap().to_owned())
                .collect();
            names.sort();
            names
        };
        let all = ["graveyard", "mail.parked", "submit-order_error"];
        assert_eq!(queues(&[]).await, all);
        assert_eq!(queues(&["--group"]).await, all);
        let wrong = [
            "parked",
            "ls",
            "--all-queues",
            "--management",
            "http://guest:geheim@127.0.0.1:1",
        ];
        let done = fixture.run(&wrong).await.exits(4);
        assert!(
            done.err.contains("127.0.0.1:1")
                && done.err.contains("--management")
                && !done.err.contains("geheim"),
            "{done:?}"
        );
    })
    .await;
}

#[tokio::test]
async fn what_anothers_dead_letters_say_is_chosen_by_and_decoded() {
    on_brokers(|broker| async move {
        let fixture = Fixture::of(&broker).await;
        let (dead, ours) = ("everybody_error", "mail.parked");
        for queue in [dead, ours] {
            fixture.amqp.declare(queue, QueueType::Quorum).await;
        }
        for name in ["masstransit", "spring-queue", "easynetq-newtonsoft"] {
            DeadLetterFixture::named(name).arrives(&fixture, dead).await;
        }
        fixture.amqp.publish(ours, "{\"Customer\": 7}").await;
        fixture.holds(dead, 3).await;
        fixture.holds(ours, 1).await;
        let ls = ["--json", "parked", "ls", dead, "--dlq"];
        for (filter, libraries) in [
            (
                &["--error=NO SUCH customer"][..],
                &["easynetq", "masstransit", "spring"][..],
            ),
            (
                &["--error-type=InvalidOperationException"],
                &["easynetq", "masstransit"],
            ),
            // Of an envelope: the body, the properties, the headers and the routing key of what is within.
            (&["--where=body.Customer == 7"], &["easynetq"]),
            (
                &["--where=properties.message_id == 'm-7' && headers.weight == 3"],
                &["easynetq"],
            ),
            (
                &["--header=tenant=acme", "--routing-key=order.*"],
                &["easynetq"],
            ),
            (&["--where=queue == 'submit-order'"], &["masstransit"]),
        ] {
            let lines = fixture
                .run(&[&ls[..], filter].concat())
                .await
                .exits(0)
                .lines();
            let mut found: Vec<_> = lines
                .iter()
                .map(|line| line["library"].as_str().unwrap())
                .collect();
            found.sort_unstable();
            assert_eq!(found, libraries, "{filter:?}");
        }

        let which = ["--where=body.Customer == 7"];
        let show = ["--json", "parked", "show", dead, "--dlq"];
        let shown = fixture
            .run(&[&show[..], &which].concat())
            .await
            .exits(0)
            .json();
        let value = json!({"Customer": 7, "Name": "Grüße"});
        assert_eq!(
            (&shown["decoded"]["value"], &shown["decoded"]["format"]),
            (&value, &json!("json"))
        );
        assert_eq!(
            (
                &shown["library"],
                &shown["home"],
                &shown["original"]["headers"]["tenant"]
            ),
            (
                &json!("easynetq"),
                &json!("Shop.OrderPlaced, Shop_billing"),
                &json!("acme")
            )
        );
        assert_eq!(
            shown["body"],
            DeadLetterFixture::named("easynetq-newtonsoft").body()
        );

        let management = std::env::var("RETRYRMQ_TEST_BROKERS").unwrap();
        let version = broker.version().to_string();
        let line = management.lines().find(|line| line.contains(&version));
        let management = line.and_then(|line| line.split('|').nth(2)).unwrap();
        let everywhere = ["parked", "ls", "--all-queues", "--management", management];
        let lines = fixture
            .run(&[&["--json"], &everywhere[..], &which].concat())
            .await
            .exits(0)
            .lines();
        let mut queues: Vec<_> = lines
            .iter()
            .map(|line| line["queue"].as_str().unwrap())
            .collect();
        queues.sort_unstable();
        assert_eq!(queues, [dead, ours]);
        let done = fixture
            .run(&[&everywhere[..], &["--error=no such customer"]].concat())
            .await
            .exits(0);
        assert!(done.err.contains("3 dead letters like that"), "{done:?}");
        assert!(!done.out.contains(ours), "{done:?}");
        let done = fixture
            .run(&[&everywhere[..], &["--where=body.Customer == 9"]].concat())
            .await
            .exits(3);
        assert!(done.err.contains("no dead letter like that"), "{done:?}");
        assert!(done.err.contains(&format!("of {dead}: ")), "{done:?}");

        fixture
            .amqp
            .declare("Shop.OrderPlaced, Shop_billing", QueueType::Classic)
            .await;
        let replay = ["parked", "replay", dead, "--dlq"];
        let done = fixture.run(&[&replay[..], &which].concat()).await.exits(0);
        assert!(done.err.contains("1 message replayed"), "{done:?}");
        let drop = ["parked", "drop", dead, "--dlq", "--yes", "--header=tenant"];
        let done = fixture
            .run(&[&drop[..], &["--error-type=InvalidOperationException"]].concat())
            .await
            .exits(0);
        assert!(done.err.contains("1 message dropped"), "{done:?}");
        fixture.holds(dead, 1).await;
    })
    .await;
}
