//! Parked messages that are exported, imported, written anew, noted on and left alone.

use retryrmq::types::{AMQPValue, DecimalValue, FieldArray, FieldTable};
use retryrmq_harness::{QueueType, eventually, lapin::BasicProperties, on_brokers, on_queue_types};
use serde_json::json;

use crate::{
    fixture::{DEADLINE, Fixture, PARKED, QUEUE},
    interrupted_walks::parked,
};

/// A table with every type that goes over the wire.
fn every_type() -> FieldTable {
    let mut inner = FieldTable::default();
    inner.insert("$int8".into(), AMQPValue::LongString("no type".into()));
    let mut table = FieldTable::default();
    for (name, value) in [
        ("flag", AMQPValue::Boolean(true)),
        ("b", AMQPValue::ShortShortInt(-8)),
        ("B", AMQPValue::ShortShortUInt(250)),
        ("s", AMQPValue::ShortInt(-300)),
        ("u", AMQPValue::ShortUInt(60_000)),
        ("I", AMQPValue::LongInt(i32::MIN)),
        ("i", AMQPValue::LongUInt(u32::MAX)),
        ("l", AMQPValue::LongLongInt(i64::MIN)),
        ("f", AMQPValue::Float(0.1)),
        ("d", AMQPValue::Double(0.1 + 0.2)),
        (
            "D",
            AMQPValue::DecimalValue(DecimalValue {
                scale: 2,
                value: 314,
            }),
        ),
        ("S", AMQPValue::LongString("ü\u{1b}[2J".into())),
        ("raw", AMQPValue::LongString(vec![0xff, 0].into())),
        ("T", AMQPValue::Timestamp(1_700_000_000)),
        ("x", AMQPValue::ByteArray(vec![0, 1, 255].into())),
        ("V", AMQPValue::Void),
        (
            "A",
            AMQPValue::FieldArray(FieldArray::from(vec![
                AMQPValue::Timestamp(1),
                AMQPValue::Void,
            ])),
        ),
        ("F", AMQPValue::FieldTable(inner)),
    ] {
        table.insert(name.into(), value);
    }
    table
}

#[tokio::test]
async fn what_is_exported_and_imported_is_the_same_to_the_last_bit() {
    on_brokers(|broker| async move {
        let fixture = Fixture::with_queue(&broker).await;
        fixture.amqp.declare(PARKED, QueueType::Quorum).await;
        let record = parked("7", 1_700_000_000, "no answer");
        let mut headers = record.headers().clone().unwrap();
        for (name, value) in every_type().inner() {
            headers.insert(name.clone(), value.clone());
        }
        let properties = BasicProperties::default()
            .with_message_id("7".into())
            .with_content_type("application/x".into())
            .with_correlation_id("c".into())
            .with_reply_to("r".into())
            .with_type("t".into())
            .with_app_id("a".into())
            .with_priority(4)
            .with_timestamp(1_600_000_000)
            .with_headers(headers);
        let body: Vec<u8> = (0..=255).collect();
        fixture.amqp.publish_with(PARKED, &body, properties).await;
        let others = (1..=400).map(|number| {
            (
                PARKED,
                format!("{number}"),
                parked(&format!("m{number}"), 1_700_000_001, "other"),
            )
        });
        fixture.amqp.publish_all("", others).await;
        fixture.holds(PARKED, 401).await;
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str| folder.path().join(name).display().to_string();
        let list = || async {
            let lines = fixture
                .run(&["--json", "parked", "show", QUEUE, "--all"])
                .await
                .exits(0)
                .lines();
            let mut lines: Vec<_> = lines
                .into_iter()
                .map(|mut line| {
                    // What every copy of ours carries beside the message.
                    for name in [
                        "x-retry-walk",
                        "x-retry-exchange",
                        "x-retry-routing-key",
                        "x-retry-protocol",
                    ] {
                        line["headers"].as_object_mut().unwrap().remove(name);
                    }
                    line["properties"]
                        .as_object_mut()
                        .unwrap()
                        .remove("delivery_mode");
                    line["headers"]
                        .as_object_mut()
                        .unwrap()
                        .remove("x-delivery-count");
                    line.to_string()
                })
                .collect();
            lines.sort();
            lines
        };
        let before = list().await;
        // An export leaves all where it is, and never writes over a file.
        fixture
            .run(&["parked", "export", QUEUE, &file("all")])
            .await
            .exits(0);
        fixture
            .run(&["parked", "export", QUEUE, &file("all"), "--remove"])
            .await
            .exits(2);
        fixture.holds(PARKED, 401).await;
        let piped = fixture.run(&["parked", "export", QUEUE]).await.exits(0);
        assert_eq!(piped.lines().len(), 401);
        let removed = fixture
            .run(&["parked", "export", QUEUE, &file("gone"), "--remove"])
            .await
            .exits(0);
        assert!(
            removed.err.contains("401 messages exported") && removed.err.contains("401 removed"),
            "{removed:#?}"
        );
        fixture.holds(PARKED, 0).await;
        // One bad line, and nothing happens.
        let text = std::fs::read_to_string(file("gone")).unwrap();
        let bad: Vec<_> = text
            .lines()
            .enumerate()
            .map(|(at, line)| {
                if at == 300 {
                    line.replacen('{', "{,", 1)
                } else {
                    line.to_owned()
                }
            })
            .collect();
        std::fs::write(file("bad"), bad.join("\n")).unwrap();
        let done = fixture
            .run(&["parked", "import", &file("bad")])
            .await
            .exits(2);
        assert!(
            done.err.contains("line 301 column 2") && done.err.contains("nothing was imported"),
            "{done:#?}"
        );
        let done = fixture
            .run(&["parked", "import", &file("gone"), "--queue=elsewhere"])
            .await
            .exits(3);
        assert!(
            done.err.contains("retryrmq topology elsewhere --apply"),
            "{done:#?}"
        );
        fixture.holds(PARKED, 0).await;
        let done = fixture
            .feed(&["--json", "parked", "import", "-"], text.as_bytes())
            .await
            .exits(0);
        assert_eq!(done.json()["imported"], 401);
        fixture.holds(PARKED, 401).await;
        assert_eq!(list().await, before);
        // On the wire as well.
        let there = fixture.amqp.drain(PARKED).await;
        let seven = there
            .iter()
            .find(|message| message.id() == Some("7"))
            .unwrap();
        assert_eq!(seven.body, body);
        for (name, value) in every_type().inner() {
            assert_eq!(seven.header(name.as_str()).as_ref(), Some(value), "{name}");
        }
    })
    .await;
}

#[tokio::test]
async fn a_queue_that_is_written_anew_has_all_of_it_in_order() {
    on_brokers(|broker| async move {
        let fixture = Fixture::with_queue(&broker).await;
        fixture.amqp.declare(PARKED, QueueType::Quorum).await;
        let messages = (1..=700).map(|number| {
            (
                PARKED,
                format!("{number}"),
                parked(&number.to_string(), 1_700_000_000 + number, "x"),
            )
        });
        fixture.amqp.publish_all("", messages).await;
        fixture.holds(PARKED, 700).await;
        for _ in 0..2 {
            let done = fixture
                .run(&["--json", "parked", "compact", QUEUE])
                .await
                .exits(0);
            assert_eq!(
                done.json(),
                json!({"rewritten": 700, "kept": 0, "remaining": 0})
            );
            fixture.holds(PARKED, 700).await;
        }
        // Killed meanwhile, it loses none.
        for _ in 0..3 {
            let mut child = fixture
                .command(&["parked", "compact", QUEUE])
                .spawn()
                .unwrap();
            while child.try_wait().unwrap().is_none() {
                if fixture.amqp.consumers(PARKED).await != Some(0) {
                    child.kill().await.unwrap();
                }
            }
        }
        let mut numbers: Vec<u32> = Vec::new();
        eventually(DEADLINE, "all are back", || async {
            fixture.amqp.consumers(PARKED).await == Some(0)
                && fixture
                    .amqp
                    .depth(PARKED)
                    .await
                    .is_some_and(|depth| depth >= 700)
        })
        .await;
        for message in fixture.amqp.drain(PARKED).await {
            numbers.push(message.text().parse().unwrap());
        }
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!(numbers.len(), 700);
    })
    .await;
}

#[tokio::test]
async fn a_group_on_hold_is_left_alone_unless_it_is_named() {
    on_brokers(|broker| async move {
        let fixture = Fixture::with_queue(&broker).await;
        fixture.amqp.declare(PARKED, QueueType::Quorum).await;
        for (id, error) in [
            ("1", "vendor down"),
            ("2", "no customer"),
            ("3", "vendor down"),
        ] {
            fixture
                .amqp
                .publish_with(PARKED, id, parked(id, 1_700_000_000, error))
                .await;
        }
        fixture.holds(PARKED, 3).await;
        let groups = fixture
            .run(&["--json", "parked", "ls", QUEUE, "--group"])
            .await
            .exits(0)
            .lines();
        let vendor = groups[0]["fingerprint"].as_str().unwrap().to_owned();
        assert_eq!(groups[0].get("about"), None);
        fixture
            .run(&["parked", "hold", "ordrs", "--group", &vendor])
            .await
            .exits(3);
        fixture
            .run(&["parked", "hold", QUEUE, "--group", "12"])
            .await
            .exits(2);
        fixture
            .run(&[
                "parked",
                "hold",
                QUEUE,
                "--group",
                &vendor,
                "--note",
                "until \u{1b}[2J monday",
            ])
            .await
            .exits(0);
        fixture
            .run(&["parked", "tag", QUEUE, "--group", &vendor, "--owner", "ana"])
            .await
            .exits(0);
        let groups = fixture
            .run(&["--json", "parked", "ls", QUEUE, "--group"])
            .await
            .exits(0)
            .lines();
        let about = &groups[0]["about"];
        assert_eq!(
            (&about["hold"], &about["owner"]),
            (&json!(true), &json!("ana")),
            "{about}"
        );
        let table = fixture
            .run(&["parked", "ls", QUEUE, "--group"])
            .await
            .exits(0);
        assert!(
            table.out.contains("hold")
                && table.out.contains("monday")
                && !table.out.contains('\u{1b}'),
            "{}",
            table.out
        );
        let shown = fixture.run(&["parked", "show", QUEUE, "1"]).await.exits(0);
        assert!(shown.out.contains("on hold, owner ana"), "{}", shown.out);
        // One note, whatever was written before it.
        fixture.holds("orders.notes.parked", 1).await;
        let done = fixture
            .run(&["parked", "drop", QUEUE, "--all", "--yes", "--dry-run"])
            .await
            .exits(0);
        assert!(done.err.contains("1 message would be dropped"), "{done:#?}");
        let done = fixture
            .run(&["parked", "replay", QUEUE, "--all"])
            .await
            .exits(0);
        assert!(done.err.contains("2 on hold were left alone"), "{done:#?}");
        fixture.holds(PARKED, 2).await;
        // By the parking queue's own name as well.
        let done = fixture
            .run(&["parked", "replay", PARKED, "--dlq", "--all"])
            .await
            .exits(0);
        assert!(done.err.contains("2 on hold were left alone"), "{done:#?}");
        fixture.holds(PARKED, 2).await;
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name).display().to_string();
        let done = fixture
            .run(&["parked", "export", QUEUE, &path("held"), "--remove"])
            .await
            .exits(0);
        assert!(done.err.contains("2 on hold were left alone"), "{done:#?}");
        // Who only copies them leaves them alone.
        let done = fixture
            .run(&["parked", "export", QUEUE, &path("copies")])
            .await
            .exits(0);
        assert!(done.err.contains("2 messages exported"), "{done:#?}");
        let done = fixture
            .run(&["parked", "forget", QUEUE, "--error=vendor", "--yes"])
            .await
            .exits(2);
        assert!(
            done.err.contains("2 of these messages are on hold"),
            "{done:#?}"
        );
        fixture.holds(PARKED, 2).await;
        fixture
            .run(&["parked", "replay", QUEUE, "1"])
            .await
            .exits(0);
        fixture
            .run(&["parked", "hold", QUEUE, "--group", &vendor, "--release"])
            .await
            .exits(0);
        fixture
            .run(&["parked", "replay", QUEUE, "--all"])
            .await
            .exits(0);
        fixture.holds(PARKED, 0).await;
        fixture.holds(QUEUE, 3).await;
    })
    .await;
}

#[tokio::test]
async fn what_is_forgotten_is_gone_and_all_else_is_as_it_was() {
    on_queue_types(|broker, queue_type| async move {
        let fixture = Fixture::of(&broker).await;
        let kind = format!("--queue-type={}", queue_type.as_str());
        for retry in ["fixed(40s)", "fixed(1h)"] {
            let retry = format!("--retry={retry}");
            let arguments = ["topology", QUEUE, &retry, &kind, "--apply"];
            fixture.run(&arguments).await.exits(0);
        }
        // As long as three commands may take on a busy machine.
        for queue in ["orders.retry.40000", "orders.retry.3600000"] {
            // There is no delay step of an hour, and no policy of ours: it is not looked at.
            for id in ["a", "17", "b", "17", "c"] {
                let properties = BasicProperties::default().with_message_id(id.into());
                fixture.amqp.publish_with(queue, id, properties).await;
            }
        }
        for id in ["17", "d", "id:17"] {
            fixture
                .amqp
                .publish_with(PARKED, id, parked(id, 1_700_000_000, "x"))
                .await;
        }
        fixture.holds(PARKED, 3).await;
        let forget = ["parked", "forget", QUEUE, "--id=17"];
        fixture.run(&forget).await.exits(2);
        let mut rehearsed = forget.to_vec();
        rehearsed.push("--dry-run");
        let done = fixture.run(&rehearsed).await.exits(0);
        assert!(
            done.err.contains("would be forgotten: 1 parked, 2 waiting"),
            "{done:#?}"
        );
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit").display().to_string();
        let mut sure = forget.to_vec();
        sure.extend(["--yes", "--json", "--audit", &path]);
        let done = fixture.run(&sure).await.exits(0);
        let from: Vec<_> = done
            .lines()
            .iter()
            .map(|line| line["from"].clone())
            .collect();
        assert_eq!(from, ["orders.retry.40000", "orders.retry.40000", PARKED]);
        let audit = std::fs::read_to_string(&path).unwrap();
        assert_eq!(audit.matches("\"event\":\"forgotten\"").count(), 3);
        fixture.holds(PARKED, 2).await;
        // The others come when they are due, in their order.
        fixture.holds(QUEUE, 3).await;
        let came = fixture.amqp.drain(QUEUE).await;
        let came: Vec<_> = came.iter().map(|message| message.text()).collect();
        assert_eq!(came, ["a", "b", "c"]);
        fixture.run(&sure).await.exits(3);
        fixture.holds("orders.retry.3600000", 5).await;
        sure.push("--delay=1h");
        let done = fixture.run(&sure).await.exits(0);
        assert_eq!(done.lines().len(), 2);
        fixture.holds("orders.retry.3600000", 3).await;
    })
    .await;
}

#[tokio::test]
async fn what_a_customer_sent_is_forgotten_and_others_stay() {
    on_brokers(|broker| async move {
        let fixture = Fixture::of(&broker).await;
        let arguments = ["topology", QUEUE, "--retry=fixed(10m)", "--apply"];
        fixture.run(&arguments).await.exits(0);
        for (queue, count) in [(PARKED, 2), ("orders.retry.600000", 1)] {
            for customer in [7, 8] {
                let body = format!("{{\"customer\": {{\"id\": {customer}}}}}");
                for _ in 0..count {
                    fixture.amqp.publish(queue, body.clone()).await;
                }
            }
        }
        fixture.holds(PARKED, 4).await;
        let condition = "body.customer.id == 7";
        // What is to be erased stands in no document that tells of it.
        let rehearsed = fixture
            .run(&[
                "--json",
                "parked",
                "forget",
                QUEUE,
                "--dry-run",
                "--where",
                condition,
            ])
            .await
            .exits(0);
        for line in rehearsed.lines() {
            assert_eq!(line["body_bytes"], 23, "{line}");
            assert!(line.get("body").is_none(), "{line}");
            assert!(line.get("body_base64").is_none(), "{line}");
        }
        assert_eq!(rehearsed.lines().len(), 2, "{rehearsed:#?}");
        assert!(!rehearsed.out.contains("customer"), "{rehearsed:#?}");
        let forget = ["parked", "forget", QUEUE, "--delay=10m", "--yes", "--where"];
        let mut arguments = forget.to_vec();
        arguments.push(condition);
        let done = fixture.run(&arguments).await.exits(0);
        assert!(
            done.err
                .contains("3 messages forgotten: 2 parked, 1 waiting"),
            "{done:#?}"
        );
        fixture.holds(PARKED, 2).await;
        fixture.holds("orders.retry.600000", 1).await;
        // A filter that matches nothing was not meant so. A third look at what waits would be one too many before 4.3.
        let mut arguments = forget.to_vec();
        arguments.push(condition);
        let done = fixture.run(&arguments).await.exits(3);
        assert!(
            done.err
                .contains("no message like that is parked or waits for orders"),
            "{done:#?}"
        );
        let mut arguments = forget.to_vec();
        arguments.extend(["body.customer.id ==", "--dry-run"]);
        fixture.run(&arguments).await.exits(2);
        let since = [
            "parked",
            "forget",
            QUEUE,
            "--since=1h",
            "--where",
            condition,
            "--yes",
        ];
        assert!(fixture.run(&since).await.exits(2).err.contains("--since"));
    })
    .await;
}
