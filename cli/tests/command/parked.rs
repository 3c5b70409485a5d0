//! What is parked: listed, shown, replayed, dropped; also what the broker itself dead-lettered.

use retryrmq::types::{AMQPValue, FieldTable};
use retryrmq_harness::{QueueType, lapin::BasicProperties, on_brokers};
use serde_json::{Value, json};

use crate::fixture::{Fixture, PARKED, QUEUE};

/// Five parked messages: `a`, `b` and one without id failed alike, `c` was given up, and the broker dead-lettered `x`.
async fn set_up(broker: &retryrmq_harness::Broker) -> Fixture {
    let fixture = Fixture::of(broker).await;
    fixture
        .run(&["topology", QUEUE, "--retry=fixed(1h)", "--apply"])
        .await
        .exits(0);
    for (id, body) in [
        (Some("a"), "{\"n\":1.10}"),
        (Some("b"), "fail"),
        (None, "fail"),
        (Some("c"), "\u{1b}[2Jpark"),
    ] {
        let mut arguments = vec![
            "publish",
            "--queue",
            QUEUE,
            "--header=tenant=acme\u{1b}]0;x\u{7}",
            body,
        ];
        if let Some(id) = id {
            arguments.extend(["--message-id", id]);
        }
        fixture.run(&arguments).await.exits(0);
    }
    let script = "case $(cat) in *park) echo no customer >&2; exit 65;; esac; echo deep >&2; echo 'no answer' >&2; exit 3";
    fixture
        .consume(4, &["--retry=fixed(1h, retries=0)", "--no-declare"], script)
        .await
        .exits(0);
    let mut expired = FieldTable::default();
    expired.insert("size".into(), AMQPValue::LongLongInt(3));
    let properties = BasicProperties::default()
        .with_message_id("x".into())
        .with_expiration("1".into())
        .with_headers(expired);
    fixture
        .amqp
        .publish_with(QUEUE, vec![0xff, 0x00, 0x41], properties)
        .await;
    fixture.holds(PARKED, 5).await;
    fixture
}

fn ids(lines: &[Value]) -> Vec<&str> {
    lines
        .iter()
        .map(|line| line["message_id"].as_str().unwrap_or("-"))
        .collect()
}

#[tokio::test]
async fn a_task_of_celery_is_shown_with_its_name_and_arguments() {
    on_brokers(|broker| async move {
        let fixture = Fixture::of(&broker).await;
        fixture
            .run(&["topology", QUEUE, "--retry=fixed(1h)", "--apply"])
            .await
            .exits(0);
        fixture
            .run(&[
                "publish",
                "--queue",
                QUEUE,
                "--header=task=shop.charge",
                "--header=id=5c9b4a6e",
                "--header=root_id=5c9b4a6e",
                "--header=argsrepr=(7,)",
                "--header=kwargsrepr={'currency': 'EUR'}",
                "[[7], {}, {}]",
            ])
            .await
            .exits(0);
        let script = "cat >/dev/null; echo 'no answer' >&2; exit 3";
        fixture
            .consume(1, &["--retry=fixed(1h, retries=0)", "--no-declare"], script)
            .await
            .exits(0);
        let listed = fixture.run(&["parked", "ls", QUEUE]).await.exits(0);
        assert!(listed.out.contains("shop.charge: no answer"), "{listed:?}");
        let shown = fixture.run(&["parked", "show", QUEUE, "#1"]).await.exits(0);
        let task = "task         shop.charge (7,) {'currency': 'EUR'}";
        assert!(shown.out.contains(task), "{shown:?}");
        let line = fixture
            .run(&["--json", "parked", "show", QUEUE, "#1"])
            .await
            .exits(0)
            .json();
        assert_eq!(line["message_type"], json!("shop.charge"));
    })
    .await;
}

#[tokio::test]
async fn ls_tells_what_and_why() {
    on_brokers(|broker| async move {
        let fixture = set_up(&broker).await;
        let lines = fixture
            .run(&["--json", "parked", "ls", QUEUE])
            .await
            .exits(0)
            .lines();
        assert_eq!(ids(&lines), ["a", "b", "-", "c", "x"]);
        let reasons: Vec<_> = lines
            .iter()
            .map(|line| line["reason"].as_str().unwrap())
            .collect();
        assert_eq!(
            reasons,
            [
                "exhausted",
                "exhausted",
                "exhausted",
                "requested",
                "expired"
            ]
        );
        assert_eq!(
            (
                &lines[0]["error"],
                &lines[0]["error_type"],
                &lines[0]["attempts"]
            ),
            (&json!("no answer"), &json!("exit status 3"), &json!(1))
        );
        assert_eq!(
            (
                &lines[4]["by_broker"],
                &lines[4]["attempts"],
                &lines[4]["place"]
            ),
            (&json!(true), &json!(0), &json!(5))
        );
        assert!(
            lines[4]["error"]
                .as_str()
                .unwrap()
                .contains("dead-lettered by the broker")
        );

        let groups = fixture
            .run(&["--json", "parked", "ls", QUEUE, "--group"])
            .await
            .exits(0)
            .lines();
        let counts: Vec<_> = groups
            .iter()
            .map(|group| group["count"].as_u64().unwrap())
            .collect();
        assert_eq!(counts, [3, 1, 1]);
        assert!(
            groups.iter().all(|group| group["complete"] == true),
            "{groups:?}"
        );
        // A part does not look like all of it.
        let ls = ["parked", "ls", QUEUE, "--group", "--limit=2"];
        let part = fixture.run(&ls).await.exits(0);
        assert!(part.out.contains('≥'), "{}", part.out);
        assert!(part.err.contains("2 of 5 parked messages"), "{}", part.err);
        let part = fixture.run(&[&["--json"], &ls[..]].concat()).await.exits(0);
        assert!(part.err.contains("2 of 5 parked messages"), "{}", part.err);
        assert!(part.lines().iter().all(|group| group["complete"] == false));
        let like = lines[0]["fingerprint"].as_str().unwrap();
        let alike = format!("--fingerprint={}", &like[..8]);
        let alike = fixture
            .run(&["--json", "parked", "ls", QUEUE, &alike])
            .await
            .exits(0)
            .lines();
        assert_eq!(alike.len(), 3);
        let reason = lines[0]["reason"].as_str().unwrap();
        let of_reason =
            |all: &[serde_json::Value]| all.iter().filter(|line| line["reason"] == reason).count();
        let listed = format!("--reason={reason}");
        let listed = fixture
            .run(&["--json", "parked", "ls", QUEUE, &listed])
            .await
            .exits(0)
            .lines();
        assert_eq!(
            (listed.len(), of_reason(&listed)),
            (of_reason(&lines), listed.len())
        );
        assert_eq!(groups[0]["fingerprint"], lines[0]["fingerprint"]);

        let table = fixture.run(&["parked", "ls", QUEUE]).await.exits(0);
        assert_eq!(table.out.lines().count(), 6, "{}", table.out);
        assert!(
            table.out.contains("no customer (exit status 65)")
                && table.out.contains("UTC") | table.out.contains("+00:00")
        );
        let some = fixture
            .run(&["parked", "ls", QUEUE, "--limit=2"])
            .await
            .exits(0);
        assert_eq!(some.out.lines().count(), 3);
        assert!(some.err.contains("2 of 5"), "{some:#?}");
        fixture.holds(PARKED, 5).await;
    })
    .await;
}

#[tokio::test]
async fn show_tells_everything_and_is_safe_to_look_at() {
    on_brokers(|broker| async move {
        let fixture = set_up(&broker).await;
        let all = fixture
            .run(&["parked", "show", QUEUE, "--all"])
            .await
            .exits(0);
        for words in [
            "no answer (exit status 3)",
            "deep",
            "\"n\": 1.10",
            "history",
            "by the broker",
            "ff 00 41",
            "size",
            "\\x1b[2Jpark",
        ] {
            assert!(all.out.contains(words), "{words} in {}", all.out);
        }
        assert!(
            !all.out.contains(['\u{1b}', '\u{7}']),
            "no control characters: {:?}",
            all.out
        );
        let lines = fixture
            .run(&["--json", "parked", "show", QUEUE, "c", "#5"])
            .await
            .exits(0)
            .lines();
        assert_eq!(ids(&lines), ["c", "x"]);
        assert_eq!(
            (&lines[0]["body"], &lines[0]["headers"]["tenant"]),
            (&json!("\u{1b}[2Jpark"), &json!("acme\u{1b}]0;x\u{7}"))
        );
        assert_eq!(
            (
                &lines[0]["history"][0]["attempt"],
                &lines[0]["properties"]["message_id"]
            ),
            (&json!(1), &json!("c"))
        );
        assert_eq!(
            (&lines[1]["body_base64"], &lines[1]["routing_key"]),
            (&json!("/wBB"), &json!(QUEUE))
        );
        let raw = fixture
            .run(&["parked", "show", QUEUE, "x", "--raw"])
            .await
            .exits(0);
        assert_eq!(raw.bytes, [0xff, 0x00, 0x41]);
        for missing in ["nobody", "#6"] {
            let done = fixture
                .run(&["--json", "parked", "show", QUEUE, missing])
                .await
                .exits(3);
            assert!(
                done.err.contains(missing) && done.err.contains("\"code\":\"not_found\""),
                "{done:#?}"
            );
        }
        fixture.holds(PARKED, 5).await;
    })
    .await;
}

#[tokio::test]
async fn replay_sends_back_what_was_chosen() {
    on_brokers(|broker| async move {
        let fixture = set_up(&broker).await;
        let dry = fixture
            .run(&[
                "--json",
                "parked",
                "replay",
                QUEUE,
                "--reason=exhausted",
                "--dry-run",
            ])
            .await
            .exits(0)
            .lines();
        assert_eq!(
            (ids(&dry), &dry[0]["replayed"]),
            (vec!["a", "b", "-"], &json!(false))
        );
        fixture.holds(PARKED, 5).await;
        let fingerprint = dry[0]["fingerprint"].as_str().unwrap();
        let start = format!("--fingerprint={}", &fingerprint[..8]);
        let one = fixture
            .run(&["--json", "parked", "replay", QUEUE, &start, "--limit=1"])
            .await
            .exits(0)
            .lines();
        assert_eq!((ids(&one), &one[0]["replayed"]), (vec!["a"], &json!(true)));
        fixture.holds(QUEUE, 1).await;
        let done = fixture
            .run(&["parked", "replay", QUEUE, "#3", "nobody"])
            .await
            .exits(3);
        assert!(
            done.err.contains("1 message replayed") && done.err.contains("nobody"),
            "{done:#?}"
        );
        fixture
            .run(&["parked", "replay", QUEUE, "--all"])
            .await
            .exits(0);
        fixture.holds(PARKED, 0).await;
        let seen = fixture.consume(5, &[], "true").await.exits(0);
        let mut handled: Vec<_> = seen
            .events("handled")
            .iter()
            .map(|event| event["message_id"].as_str().unwrap_or("-").to_owned())
            .collect();
        handled.sort();
        assert_eq!(handled, ["-", "a", "b", "c", "x"]);
        assert!(
            seen.events("handled")
                .iter()
                .all(|event| event["attempt"] == 1),
            "counted from the start"
        );
    })
    .await;
}

#[tokio::test]
async fn drop_asks_and_drops_what_was_chosen() {
    on_brokers(|broker| async move {
        let fixture = set_up(&broker).await;
        let done = fixture
            .run(&["parked", "drop", QUEUE, "--all"])
            .await
            .exits(2);
        assert!(done.err.contains("--yes"), "{done:#?}");
        fixture
            .run(&["parked", "drop", QUEUE, "--all", "--dry-run"])
            .await
            .exits(0);
        fixture.holds(PARKED, 5).await;
        fixture
            .run(&["parked", "drop", QUEUE, "--reason=expired", "--yes"])
            .await
            .exits(0);
        let lines = fixture
            .run(&["--json", "parked", "ls", QUEUE])
            .await
            .exits(0)
            .lines();
        let third = format!("#3={}", lines[2]["mark"].as_str().unwrap());
        let done = fixture
            .run(&["parked", "drop", QUEUE, "a", &third, "--yes"])
            .await
            .exits(0);
        assert!(done.err.contains("2 messages dropped"), "{done:#?}");
        let left = fixture
            .run(&["--json", "parked", "ls", QUEUE])
            .await
            .exits(0)
            .lines();
        assert_eq!(ids(&left), ["b", "c"]);
        let none = fixture
            .run(&["parked", "drop", QUEUE, "--reason=overflow", "--yes"])
            .await
            .exits(3);
        assert!(
            none.err
                .contains("no message that was parked for this reason"),
            "{none:#?}"
        );
    })
    .await;
}

#[tokio::test]
async fn what_was_dropped_is_kept_and_can_be_parked_again_as_it_was() {
    on_brokers(|broker| async move {
        let fixture = set_up(&broker).await;
        let listed = async || {
            let all = ["--json", "parked", "ls", QUEUE];
            let mut lines = fixture.run(&all).await.exits(0).lines();
            for line in &mut lines {
                line["place"] = Value::Null;
            }
            lines.sort_by_key(|line| line["mark"].to_string());
            lines
        };
        let before = listed().await;
        let done = fixture.run(&["parked", "restore", QUEUE, "--all"]).await;
        assert!(
            done.exits(3)
                .err
                .contains("nothing that was dropped from `orders.parked` is kept")
        );
        let all = ["parked", "drop", QUEUE, "--all", "--yes"];
        let done = fixture.run(&all).await.exits(0);
        assert!(done.err.contains("5 messages dropped"), "{done:#?}");
        assert!(
            done.err.contains("kept in orders.parked.dropped"),
            "{done:#?}"
        );
        fixture.holds(PARKED, 0).await;
        fixture.holds(DROPPED, 5).await;
        let some = ["parked", "restore", QUEUE, "a", "--dry-run"];
        let done = fixture.run(&some).await.exits(0);
        assert!(
            done.err
                .contains("1 message would be restored to orders.parked: a"),
            "{done:#?}"
        );
        let done = fixture
            .run(&["parked", "restore", QUEUE, "--all"])
            .await
            .exits(0);
        assert!(
            done.err.contains("5 messages restored to orders.parked"),
            "{done:#?}"
        );
        fixture.holds(PARKED, 5).await;
        fixture.holds(DROPPED, 0).await;
        assert_eq!(listed().await, before);
        // They can be replayed as if nothing had been.
        let some = ["parked", "replay", QUEUE, "a"];
        fixture.run(&some).await.exits(0);
        fixture.holds(QUEUE, 1).await;
    })
    .await;
}

#[tokio::test]
async fn what_is_dropped_for_good_or_forgotten_is_kept_nowhere() {
    on_brokers(|broker| async move {
        let fixture = set_up(&broker).await;
        let some = ["parked", "drop", QUEUE, "a", "--yes", "--for-good"];
        fixture.run(&some).await.exits(0);
        fixture.holds(PARKED, 4).await;
        assert_eq!(fixture.amqp.depth(DROPPED).await, None);
        for keep in ["1", "0s", "366d", "soon"] {
            let refused = fixture
                .run(&["parked", "drop", QUEUE, "b", "--yes", "--keep", keep])
                .await;
            assert!(refused.exits(2).err.contains("--keep is a time"));
        }
        let some = ["parked", "drop", QUEUE, "b", "c", "--yes", "--keep=1h"];
        fixture.run(&some).await.exits(0);
        fixture.holds(DROPPED, 2).await;
        // Somebody who asks to be forgotten is forgotten there as well.
        let some = ["parked", "forget", QUEUE, "--id=b", "--yes"];
        let done = fixture.run(&some).await.exits(0);
        assert!(
            done.err
                .contains("looked through orders.parked, orders.parked.dropped and"),
            "{done:#?}"
        );
        fixture.holds(DROPPED, 1).await;
        // From there a message is dropped for good.
        let rest = ["parked", "drop", DROPPED, "--dlq", "--all", "--yes"];
        let done = fixture.run(&rest).await.exits(0);
        assert!(!done.err.contains("kept in"), "{done:#?}");
        fixture.holds(DROPPED, 0).await;
        fixture.holds(PARKED, 2).await;
    })
    .await;
}

const DROPPED: &str = "orders.parked.dropped";

#[tokio::test]
async fn a_queue_that_nothing_was_parked_for() {
    on_brokers(|broker| async move {
        let fixture = Fixture::of(&broker).await;
        let done = fixture.run(&["parked", "ls", "nope.parked"]).await.exits(3);
        assert!(
            done.err.contains("give the work queue's name, `nope`"),
            "{done:#?}"
        );
        for arguments in [
            &["ls", "nope"][..],
            &["show", "nope", "#1"],
            &["replay", "nope", "--all"],
            &["drop", "nope", "--all", "--yes"],
        ] {
            let mut all = vec!["--json", "parked"];
            all.extend(arguments);
            let done = fixture.run(&all).await.exits(3);
            assert!(
                done.err.contains("queue_not_found") && done.err.contains("nope.parked"),
                "{done:#?}"
            );
        }
        fixture.amqp.declare(PARKED, QueueType::Quorum).await;
        let done = fixture.run(&["parked", "ls", QUEUE]).await.exits(0);
        assert!(
            done.out.is_empty() && done.err.contains("nothing is parked"),
            "{done:#?}"
        );
    })
    .await;
}
