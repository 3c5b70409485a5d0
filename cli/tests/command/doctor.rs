//! `retryrmq doctor`: every finding on a real fault, and none on a healthy broker.

use lapin::{
    options::{BasicConsumeOptions, BasicQosOptions},
    types::FieldTable,
};
use retryrmq_harness::{Broker, Version, on_brokers_where, on_every_broker};
use serde_json::json;

use crate::{
    fixture::{Fixture, QUEUE},
    management_fixture::{ManagementFixture, NOT_OF_OTHER_TESTS, found},
};

/// Puts a fault of almost every kind into a virtual host. What it returns holds the consumers among them.
pub(crate) async fn make_faults(management_fixture: &ManagementFixture) -> impl Sized {
    let amqp = &management_fixture.fixture.amqp;
    let is_4 = management_fixture.broker().version() >= Version::V4_0;
    // Where dead letters may end.
    management_fixture
        .queue("dead", json!({"x-delivery-limit": 1_000_000_000}))
        .await;

    management_fixture
        .queue("rejects", json!({"x-queue-type": "classic"}))
        .await;
    management_fixture
        .queue("no-exchange", json!({"x-dead-letter-exchange": "nowhere"}))
        .await;
    management_fixture.fanout("empty").await;
    management_fixture
        .queue("unbound", json!({"x-dead-letter-exchange": "empty"}))
        .await;
    management_fixture
        .routed("no-target", "not-there", json!({}))
        .await;
    management_fixture
        .routed("tick", "tock", json!({"x-message-ttl": 600_000}))
        .await;
    management_fixture
        .routed("tock", "tick", json!({"x-message-ttl": 600_000}))
        .await;
    management_fixture
        .queue("hidden", json!({"x-queue-type": "classic"}))
        .await;
    let route = json!({"dead-letter-exchange": "", "dead-letter-routing-key": "dead"});
    management_fixture
        .policy("route", "^hidden$", 0, route)
        .await;
    management_fixture
        .policy("above", "^hid", 5, json!({"max-length": 1000}))
        .await;
    management_fixture
        .routed("pause", "jobs", json!({"x-queue-type": "classic"}))
        .await;
    management_fixture
        .routed("jobs", "pause", json!({"x-queue-type": "classic"}))
        .await;
    let jobs = amqp.consume("jobs", 5).await;
    management_fixture
        .queue("limited", json!({"x-delivery-limit": 5}))
        .await;
    management_fixture
        .routed(
            "almost",
            "dead",
            json!({"x-dead-letter-strategy": "at-least-once"}),
        )
        .await;
    management_fixture
        .routed("orders", "orders.parked", json!({}))
        .await;
    let expiring = json!({"x-message-ttl": 5000, "x-expires": 600_000});
    management_fixture
        .routed("orders.retry.5000", "orders", expiring)
        .await;
    management_fixture
        .queue(
            "orders.parked",
            json!({"x-delivery-limit": 1_000_000_000, "x-message-ttl": 600_000}),
        )
        .await;
    management_fixture
        .routed("stock", "stock.parked", json!({}))
        .await;
    management_fixture
        .routed("stock.retry.1000", "stock", json!({"x-message-ttl": 1000}))
        .await;
    management_fixture
        .queue("stock.parked", json!({"x-delivery-limit": 1_000_000_000}))
        .await;
    management_fixture
        .policy("greedy", "^stock", 0, json!({"max-length": 1000}))
        .await;
    management_fixture
        .queue(
            "heap.unreadable",
            json!({"x-delivery-limit": 1_000_000_000}),
        )
        .await;
    management_fixture
        .queue(
            "stock.unreadable",
            json!({"x-delivery-limit": 1_000_000_000}),
        )
        .await;
    amqp.publish("heap.unreadable", "of AMQP 1.0").await;
    management_fixture
        .routed("unheard", "dead", json!({}))
        .await;
    amqp.publish("unheard", "anybody?").await;
    management_fixture
        .routed("ghost.retry.1000", "ghost", json!({"x-message-ttl": 1000}))
        .await;
    management_fixture
        .routed(
            "looping",
            "looping-away",
            json!({"x-queue-type": "classic", "x-max-length": 5}),
        )
        .await;
    management_fixture
        .routed("looping-away", "looping", json!({"x-message-ttl": 1000}))
        .await;
    management_fixture
        .routed("counted", "counted-away", json!({"x-delivery-limit": 3}))
        .await;
    management_fixture
        .routed("counted-away", "counted", json!({"x-message-ttl": 1000}))
        .await;
    management_fixture
        .queue("itself", json!({"x-dead-letter-exchange": ""}))
        .await;
    let rejecting =
        json!({"x-queue-type": "classic", "x-max-length": 1, "x-overflow": "reject-publish"});
    management_fixture.queue("full.dlq", rejecting).await;
    let held = json!({
        "x-message-ttl": 100,
        "x-dead-letter-strategy": "at-least-once",
        "x-overflow": "reject-publish",
    });
    management_fixture.routed("held", "full.dlq", held).await;
    for queue in ["full.dlq", "held"] {
        amqp.publish(queue, "one").await;
    }
    management_fixture.routed("stuck", "dead", json!({})).await;
    let stuck = amqp.consume("stuck", 1).await;
    for body in ["one", "two"] {
        amqp.publish("stuck", body).await;
    }
    management_fixture
        .routed("heedless", "dead", json!({}))
        .await;
    let channel = amqp.new_channel().await;
    channel
        .basic_qos(5, BasicQosOptions::default())
        .await
        .unwrap();
    let unacknowledged = BasicConsumeOptions {
        no_ack: true,
        ..Default::default()
    };
    let heedless = channel
        .basic_consume(
            "heedless".into(),
            "".into(),
            unacknowledged,
            FieldTable::default(),
        )
        .await
        .unwrap();
    if is_4 {
        management_fixture.queue("default-limit", json!({})).await;
        management_fixture
            .routed("hasty", "dead", json!({"x-consumer-timeout": 30_000}))
            .await;
    }
    (jobs, stuck, heedless, channel)
}

#[tokio::test]
async fn every_fault_is_found_and_nothing_else() {
    on_every_broker(|broker| async move {
        let management_fixture = ManagementFixture::of(&broker).await;
        let is_4 = broker.version() >= Version::V4_0;
        let _faults = make_faults(&management_fixture).await;

        let mut expected = found([
            ("RQ101", "rejects"),
            ("RQ101", "hidden"),
            ("RQ102", "no-exchange"),
            ("RQ103", "unbound"),
            ("RQ103", "no-target"),
            ("RQ104", "tick"),
            ("RQ105", "hidden"),
            ("RQ106", "pause"),
            ("RQ107", "limited"),
            ("RQ108", "almost"),
            ("RQ109", "orders.retry.5000"),
            ("RQ110", "orders.parked"),
            ("RQ110", "stock.parked"),
            ("RQ110", "stock.unreadable"),
            ("RQ110", "full.dlq"),
            ("RQ111", "stock.retry.1000"),
            ("RQ112", "unheard"),
            ("RQ113", "ghost.retry.1000"),
            ("RQ114", "stuck"),
            ("RQ118", "looping"),
            ("RQ118", "counted"),
            ("RQ119", "heedless"),
            ("RQ121", "itself"),
            ("RQ122", "held"),
            ("RQ124", "heap.unreadable"),
            ("RQ125", "hidden"),
        ]);
        if is_4 {
            expected.extend(found([("RQ107", "default-limit"), ("RQ115", "hasty")]));
        }
        if broker.version() < Version::V4_3 {
            // A limit that basic.nack will not reach.
            expected.extend(found([("RQ117", "limited"), ("RQ117", "counted")]));
        }
        management_fixture
            .finds(&["--stuck-after=1s"], &expected)
            .await;
        let family = found([("RQ109", "orders.retry.5000"), ("RQ110", "orders.parked")]);
        management_fixture.finds(&["orders"], &family).await;
        management_fixture
            .finds(&["orders", "--ignore=RQ110,rq109"], &found([]))
            .await;

        let shown = management_fixture
            .run(&["doctor", NOT_OF_OTHER_TESTS, "orders", "rejects"])
            .await
            .exits(8);
        for words in [
            "error   RQ110 queue orders.parked\n",
            "  fix retryrmq enable rejects\n",
            ": 3 findings (RQ101, RQ109, RQ110)",
        ] {
            assert!(shown.out.contains(words), "{words}: {}", shown.out);
        }
        management_fixture.run(&["doctor", "nobody"]).await.exits(3);
        let ghost = found([("RQ113", "ghost.retry.1000")]);
        management_fixture.finds(&["ghost"], &ghost).await;

        // A fix is a command that mends.
        if broker.is_controllable() && broker.version() >= Version::V4_3 {
            let report = management_fixture
                .run(&["--json", "doctor", "hidden"])
                .await
                .exits(8)
                .json();
            let all = report["findings"].as_array().unwrap();
            let hidden = all
                .iter()
                .find(|finding| finding["code"] == "RQ105")
                .unwrap();
            let fix = shell_words::split(hidden["fix"].as_str().unwrap()).unwrap();
            let words: Vec<&str> = fix.iter().map(String::as_str).collect();
            assert_eq!(words[..2], ["rabbitmqctl", "set_policy"]);
            broker.ctl(&words[1..]).await;
            management_fixture.finds(&["hidden"], &found([])).await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_healthy_broker_yields_nothing() {
    on_every_broker(|broker| async move {
        let management_fixture = ManagementFixture::of(&broker).await;
        let fixture = &management_fixture.fixture;
        fixture.run(&["topology", QUEUE, "--apply"]).await.exits(0);
        let dead_letter = ["--strategy=dead-letter", "--retry=fixed(1s)", "--apply"];
        for (queue, kind) in [("stock", "quorum"), ("bills", "classic")] {
            let kind = format!("--queue-type={kind}");
            let all = [&["topology", queue, &kind], &dead_letter[..]].concat();
            fixture.run(&all).await.exits(0);
        }
        if broker.version() >= Version::V4_3 {
            let native = [
                "topology",
                "mails",
                "--strategy=native",
                "--retry=fixed(5s)",
                "--apply",
            ];
            fixture.run(&native).await.exits(0);
        }
        fixture.amqp.publish(QUEUE, "x").await;
        fixture.consume(1, &[], "exit 65").await.exits(0);
        fixture.holds("orders.parked", 1).await;
        management_fixture.finds(&[], &found([])).await;
        let count = fixture.vhost.queues().await.len();
        let all = format!(
            "{count} queues in virtual host {}: nothing found",
            fixture.vhost.name()
        );
        let said = management_fixture
            .run(&["doctor", NOT_OF_OTHER_TESTS])
            .await
            .exits(0);
        let whole = format!("looked at {all}");
        assert!(said.out.starts_with(&whole), "{said:#?}");
        let said = management_fixture
            .run(&["doctor", NOT_OF_OTHER_TESTS, QUEUE, "bills"])
            .await
            .exits(0);
        let two = format!("looked at orders, bills, of {all}");
        assert!(said.out.starts_with(&two), "{said:#?}");
    })
    .await;
}

#[tokio::test]
async fn deprecated_features_are_told() {
    on_brokers_where(
        |broker| broker.version() >= Version::V4_0,
        |broker| async move {
            let management_fixture = ManagementFixture::of(&broker).await;
            let channel = management_fixture.fixture.amqp.new_channel().await;
            let transient = lapin::options::QueueDeclareOptions::default();
            channel
                .queue_declare("passing".into(), transient, FieldTable::default())
                .await
                .unwrap();
            let report = management_fixture
                .run(&["--json", "doctor"])
                .await
                .exits(8)
                .json();
            let findings = report["findings"].as_array().unwrap();
            let is_told = |name: &str| {
                findings
                    .iter()
                    .any(|finding| finding["code"] == "RQ116" && finding["name"] == name)
            };
            assert!(is_told("transient_nonexcl_queues"), "{report:#}");
        },
    )
    .await;
}

#[tokio::test]
async fn mirrored_queues_and_the_plugin_are_no_more_in_the_next_version() {
    on_brokers_where(
        |broker| broker.version() < Version::V4_0,
        |broker| async move {
            let management_fixture = ManagementFixture::of(&broker).await;
            management_fixture
                .policy("mirror", "^m", 0, json!({"ha-mode": "all"}))
                .await;
            management_fixture
                .finds(&[], &found([("RQ117", "mirror")]))
                .await;
        },
    )
    .await;
}

#[tokio::test]
async fn an_exchange_of_the_delayed_message_plugin_is_told() {
    on_brokers_where(Broker::may_have_delayed_messages, |broker| async move {
        let settings = ["plugins = rabbitmq_delayed_message_exchange"];
        let node = broker.own_node(&settings).await;
        let management_fixture = ManagementFixture::of(&node).await;
        let delayed = [
            "topology",
            QUEUE,
            "--strategy=delayed-exchange",
            "--retry=fixed(5s)",
            "--apply",
        ];
        management_fixture.fixture.run(&delayed).await.exits(0);
        management_fixture
            .finds(&[], &found([("RQ117", "orders.delayed")]))
            .await;
    })
    .await;
}

#[tokio::test]
async fn without_metrics_the_rest_is_found() {
    on_brokers_where(
        |broker| broker.is_controllable() && broker.version() >= Version::V4_3,
        |broker| async move {
            let settings = ["management_agent.disable_metrics_collector = true"];
            let node = broker.own_node(&settings).await;
            let management_fixture = ManagementFixture::of(&node).await;
            management_fixture
                .queue("dead", json!({"x-delivery-limit": 1_000_000_000}))
                .await;
            management_fixture.queue("limited", json!({})).await;
            management_fixture
                .routed("unheard", "dead", json!({}))
                .await;
            management_fixture.routed("heard", "dead", json!({})).await;
            let fixture: &Fixture = &management_fixture.fixture;
            let _heard = fixture.amqp.consume("heard", 1).await;
            for queue in ["heard", "heard", "unheard"] {
                fixture.amqp.publish(queue, "x").await;
            }
            let expected = found([("RQ107", "limited"), ("RQ112", "unheard")]);
            management_fixture.finds(&[], &expected).await;
            let report = management_fixture
                .run(&["--json", "doctor", "limited"])
                .await
                .exits(8)
                .json();
            let unknown = report["unknown"][0].as_str().unwrap();
            assert!(unknown.contains("metrics collector"), "{unknown}");
        },
    )
    .await;
}
