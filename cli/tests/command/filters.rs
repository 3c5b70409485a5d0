//! Parked messages chosen by what they say: listed, shown, replayed and dropped are exactly those.

use retryrmq::types::{AMQPValue, FieldTable};
use retryrmq_harness::{QueueType, lapin::BasicProperties, on_brokers};
use serde_json::{Value, json};

use crate::fixture::{Fixture, PARKED, QUEUE};

/// As a consumer parks it: id, seconds since 1970, error and its type, routing key, tenant.
fn parked(id: &str, at: u64, error: (&str, &str), key: &str, tenant: &str) -> BasicProperties {
    let text = |text: &str| AMQPValue::LongString(text.into());
    let mut headers = FieldTable::default();
    for (name, value) in [
        ("x-retry-count", AMQPValue::LongLongInt(5)),
        ("x-retry-protocol", AMQPValue::LongLongInt(1)),
        ("x-retry-parked-reason", text("exhausted")),
        ("x-retry-parked-at", AMQPValue::Timestamp(at)),
        ("x-retry-error", text(error.0)),
        ("x-retry-error-type", text(error.1)),
        ("x-retry-exchange", text("")),
        ("x-retry-routing-key", text(key)),
        ("tenant", text(tenant)),
        ("size", AMQPValue::LongLongInt(3)),
    ] {
        headers.insert(name.into(), value);
    }
    BasicProperties::default()
        .with_message_id(id.into())
        .with_headers(headers)
}

fn now() -> u64 {
    std::time::SystemTime::now()
        .duration_since(std::time::SystemTime::UNIX_EPOCH)
        .unwrap()
        .as_secs()
}

async fn set_up(broker: &retryrmq_harness::Broker) -> Fixture {
    let fixture = Fixture::of(broker).await;
    fixture.amqp.declare(PARKED, QueueType::Quorum).await;
    fixture.amqp.declare(QUEUE, QueueType::Classic).await;
    let timeout = ("no Answer in time", "net.TimeoutError");
    let missing = ("no customer", "shop.NotFound");
    let hour = 3_600;
    for (id, age, error, key, tenant, body) in [
        (
            "old",
            48 * hour,
            timeout,
            "eu.orders",
            "acme",
            "{\"customer\": {\"id\": 7}}",
        ),
        (
            "a",
            2 * hour,
            timeout,
            "eu.orders.new",
            "acme",
            "{\"customer\": {\"id\": 7}}",
        ),
        (
            "b",
            hour,
            missing,
            "us.orders",
            "acme ltd",
            "{\"customer\": {\"id\": 8}}",
        ),
        ("c", 60, missing, "us.orders", "other", "no JSON at all"),
        (
            "d",
            30,
            missing,
            "us.orders",
            "other",
            "eyJjdXN0b21lciI6IHsiaWQiOiA3fX0=",
        ),
    ] {
        let properties = parked(id, now() - age, error, key, tenant);
        fixture.amqp.publish_with(PARKED, body, properties).await;
    }
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
async fn each_filter_lists_those_it_means() {
    on_brokers(|broker| async move {
        let fixture = set_up(&broker).await;
        for (filter, expected) in [
            (&["--since=3h"][..], &["a", "b", "c", "d"][..]),
            (&["--since=30m", "--error=CUSTOMER"], &["c", "d"]),
            (&["--error=answer"], &["old", "a"]),
            (&["--error-type=TimeoutError"], &["old", "a"]),
            (&["--type=shop.NotFound"], &["b", "c", "d"]),
            (&["--routing-key=us.orders"], &["b", "c", "d"]),
            (&["--routing-key=eu.#", "--since=1d"], &["a"]),
            (&["--header=tenant=acme*", "--header=size=3"], &["old", "a", "b"]),
            (&["--header=tenant=acme"], &["old", "a"]),
            (&["--where=body.customer.id == 7"], &["old", "a", "d"]),
            (&["--where=queue == 'orders' && headers.size > 2 && error_type.endsWith('NotFound') && attempts >= 0"], &["b", "c", "d"]),
            (&["--where=timestamp(parked_at) > timestamp('2020-01-01T00:00:00Z') && message_id in ['a', 'b']"], &["a", "b"]),
        ] {
            let mut arguments = vec!["--json", "parked", "ls", QUEUE];
            arguments.extend(filter);
            let lines = fixture.run(&arguments).await.exits(0).lines();
            assert_eq!(ids(&lines), expected, "{filter:?}");
        }
        let unevaluated = fixture.run(&["parked", "ls", QUEUE, "--where=body.customer.id == 7"]).await.exits(0);
        assert!(unevaluated.err.contains("could not be evaluated on 1 of 5 messages"), "{unevaluated:#?}");
        let groups = fixture.run(&["--json", "parked", "ls", QUEUE, "--group", "--since=3h"]).await.exits(0).lines();
        assert_eq!((&groups[0]["count"], &groups[0]["example"]["message_id"]), (&json!(3), &json!("b")));
        fixture.holds(PARKED, 5).await;
    })
    .await;
}

#[tokio::test]
async fn a_filter_that_means_nothing_says_so_and_does_nothing() {
    on_brokers(|broker| async move {
        let fixture = set_up(&broker).await;
        for arguments in [
            &["ls", QUEUE, "--error=nobody said that"][..],
            &["ls", QUEUE, "--group", "--where=body.customer.id == 9"],
            &["show", QUEUE, "--routing-key=asia.#"],
            &["replay", QUEUE, "--header=nope"],
            &["drop", QUEUE, "--yes", "--since=1s"],
        ] {
            let mut all = vec!["parked"];
            all.extend(arguments);
            let done = fixture.run(&all).await.exits(3);
            assert!(
                done.out.is_empty() && done.err.contains("no message like that in `orders.parked`"),
                "{done:#?}"
            );
        }
        for (arguments, words) in [
            (&["ls", QUEUE, "--where=body.customer.id =="][..], "column"),
            (&["drop", QUEUE, "--yes", "--where=bdy.id == 7"], "no `bdy`"),
            (&["ls", QUEUE, "--since=yesterday"], "neither an age"),
            (
                &["drop", QUEUE, "--yes", "--error="],
                "would choose every message",
            ),
            (
                &["drop", QUEUE, "--yes", "--all", "--error=x"],
                "leave out --all",
            ),
            (
                &["drop", QUEUE, "--yes", "a", "--error=x"],
                "leave out --all and the ids",
            ),
            (
                &["drop", QUEUE, "--yes", "--proto=/nowhere", "--type=x"],
                "/nowhere",
            ),
            (
                &["drop", QUEUE, "--yes", "--type=x", "--error-type=y"],
                "leave one out",
            ),
            (&["ls", QUEUE, "--config=/nowhere.toml"], "/nowhere.toml"),
            (
                &["drop", QUEUE, "--yes", "--since=2h", "--header==x"],
                "names no header",
            ),
        ] {
            let mut all = vec!["parked"];
            all.extend(arguments);
            let done = fixture.run(&all).await.exits(2);
            assert!(done.err.contains(words), "{words}: {done:#?}");
        }
        fixture.holds(PARKED, 5).await;
    })
    .await;
}

#[tokio::test]
async fn replay_and_drop_act_on_exactly_those() {
    on_brokers(|broker| async move {
        let fixture = set_up(&broker).await;
        let shown = fixture
            .run(&["--json", "parked", "show", QUEUE, "--error-type=NotFound"])
            .await
            .exits(0)
            .lines();
        assert_eq!(ids(&shown), ["b", "c", "d"]);
        let dry = fixture
            .run(&[
                "parked",
                "drop",
                QUEUE,
                "--where=body.customer.id == 7",
                "--dry-run",
            ])
            .await
            .exits(0);
        assert!(dry.err.contains("3 messages would be dropped"), "{dry:#?}");
        fixture.holds(PARKED, 5).await;
        let dropped = fixture
            .run(&[
                "parked",
                "drop",
                QUEUE,
                "--where=body.customer.id == 7",
                "--since=1d",
                "--yes",
            ])
            .await
            .exits(0);
        assert!(
            dropped.err.contains("2 messages dropped: a, d"),
            "{dropped:#?}"
        );
        fixture.holds(PARKED, 3).await;
        let replayed = fixture
            .run(&["parked", "replay", QUEUE, "--error=customer"])
            .await
            .exits(0);
        assert!(
            replayed.err.contains("2 messages replayed to orders: b, c"),
            "{replayed:#?}"
        );
        fixture.holds(QUEUE, 2).await;
        let left = fixture
            .run(&["--json", "parked", "ls", QUEUE])
            .await
            .exits(0)
            .lines();
        assert_eq!(ids(&left), ["old"]);
    })
    .await;
}
