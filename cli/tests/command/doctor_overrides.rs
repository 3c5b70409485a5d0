//! Policies and feature flags that take away what a queue was declared with: `doctor`, `topology` and `consume` say so before anything is
//! lost.

use retryrmq_harness::{Broker, Version, on_brokers, on_brokers_where, on_every_broker};
use serde_json::{Value, json};

use crate::{
    fixture::QUEUE,
    management_fixture::{ManagementFixture, found},
};

/// What 3.8 had.
const OLD_FLAGS: &str = "feature_flags = quorum_queue implicit_default_bindings virtual_host_metadata maintenance_mode_status \
                         user_limits drop_unroutable_metric empty_basic_get_metric";

const RETRY: &str = "--retry=list(1s, 15s)";

/// The finding of a report with this code, about this.
fn finding(report: &Value, code: &str, name: &str) -> Value {
    let all = report["findings"].as_array().unwrap().iter();
    let mut fitting = all.filter(|one| one["code"] == code && one["name"] == name);
    fitting
        .next()
        .unwrap_or_else(|| panic!("{code} {name}: {report:#}"))
        .clone()
}

/// Runs the fix of a finding.
async fn mend(broker: &Broker, finding: &Value) {
    let fix = shell_words::split(finding["fix"].as_str().unwrap()).unwrap();
    let words: Vec<&str> = fix.iter().map(String::as_str).collect();
    assert_eq!(words[..2], ["rabbitmqctl", "set_policy"]);
    broker.ctl(&words[1..]).await;
}

#[tokio::test]
async fn a_policy_with_overflow_is_found_and_named_and_its_fix_mends() {
    on_every_broker(|broker| async move {
        let management_fixture = ManagementFixture::of(&broker).await;
        let apply = ["topology", QUEUE, RETRY, "--apply"];
        management_fixture.run(&apply).await.exits(0);
        let drops = json!({"overflow": "drop-head"});
        management_fixture.policy("all", ".*", 0, drops).await;
        let waiting = ["orders.retry.1000", "orders.retry.15000"];
        let expected = found([
            ("RQ108", QUEUE),
            ("RQ108", waiting[0]),
            ("RQ108", waiting[1]),
        ]);
        management_fixture.finds(&[], &expected).await;

        let report = management_fixture
            .run(&["--json", "doctor"])
            .await
            .exits(8)
            .json();
        let about = finding(&report, "RQ108", waiting[1]);
        assert_eq!(about["severity"], "error");
        let sentence = about["sentence"].as_str().unwrap();
        assert!(
            sentence.contains("policy `all` sets its overflow to `drop-head`, which wins"),
            "{sentence}"
        );
        let warned = management_fixture.run(&apply[..3]).await.exits(0).err;
        assert!(
            warned.contains("warning: `orders.retry.15000` asks"),
            "{warned}"
        );
        // What is made now would drop messages.
        let refused = management_fixture.run(&apply).await.exits(5).err;
        assert!(refused.contains("RQ108"), "{refused}");
        if broker.is_controllable() {
            mend(&broker, &about).await; // for both
            let left = found([("RQ108", QUEUE)]);
            management_fixture.finds(&[], &left).await;
            mend(&broker, &finding(&report, "RQ108", QUEUE)).await;
            management_fixture.finds(&[], &found([])).await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_work_queue_that_drops_its_oldest_messages_is_found_and_the_fix_mends() {
    on_brokers(|broker| async move {
        let management_fixture = ManagementFixture::of(&broker).await;
        let apply = ["topology", QUEUE, RETRY, "--apply"];
        management_fixture.run(&apply).await.exits(0);
        management_fixture
            .queue("sms", json!({"x-max-length": 5}))
            .await;
        let refuses = json!({"x-max-length": 5, "x-overflow": "reject-publish"});
        management_fixture.queue("strict", refuses).await;
        let drops = json!({"x-max-length-bytes": 5, "x-overflow": "drop-head"});
        management_fixture.queue("small", drops).await;
        management_fixture
            .routed("routed", "dead", json!({"x-max-length": 5}))
            .await;
        let expected = found([("RQ125", "sms"), ("RQ125", "small")]);
        let ours = "--ignore=RQ101,RQ103,RQ107,RQ110,RQ112";
        management_fixture.finds(&[ours], &expected).await;
        let report = management_fixture
            .run(&["--json", "doctor", ours])
            .await
            .exits(8)
            .json();
        let sms = finding(&report, "RQ125", "sms");
        let sentence = sms["sentence"].as_str().unwrap();
        assert!(
            sentence.contains("beyond 5 messages (`max-length`)"),
            "{sentence}"
        );
        let fix = finding(&report, "RQ125", "small")["fix"].to_string();
        assert!(fix.contains("make the queue anew"), "{fix}");
        if broker.is_controllable() {
            mend(&broker, &sms).await;
            management_fixture
                .finds(&[ours], &found([("RQ125", "small")]))
                .await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_list_of_parked_messages_says_that_a_policy_deletes_some() {
    on_brokers(|broker| async move {
        let management_fixture = ManagementFixture::of(&broker).await;
        let apply = ["topology", QUEUE, RETRY, "--apply"];
        management_fixture.run(&apply).await.exits(0);
        let list = ["parked", "ls", QUEUE];
        let before = management_fixture.run(&list).await.exits(0).err;
        assert!(!before.contains("RQ110"), "{before}");
        management_fixture
            .policy("cap", "^orders", 1, json!({"max-length": 20}))
            .await;
        let listed = management_fixture.run(&list).await.exits(0).err;
        assert!(
            listed.contains("RQ110") && listed.contains("drops the oldest beyond 20 messages"),
            "{listed}"
        );
    })
    .await;
}

#[tokio::test]
async fn an_operator_policy_with_overflow_is_found() {
    on_brokers_where(
        |broker| broker.version() >= Version::V4_0,
        |broker| async move {
            let management_fixture = ManagementFixture::of(&broker).await;
            let apply = ["topology", QUEUE, "--retry=fixed(1s)", "--apply"];
            management_fixture.run(&apply).await.exits(0);
            let path = format!("operator-policies/{}/bounds", management_fixture.fixture.vhost.name());
            let drops = json!({"pattern": "retry", "apply-to": "queues", "definition": {"overflow": "drop-head"}});
            broker.management().put(path, drops).await.unwrap();
            let expected = found([("RQ108", "orders.retry.1000")]);
            management_fixture.finds(&[], &expected).await;
            let report = management_fixture.run(&["--json", "doctor"]).await.exits(8).json();
            let about = finding(&report, "RQ108", "orders.retry.1000");
            let sentence = about["sentence"].as_str().unwrap();
            assert!(sentence.contains("an operator policy sets"), "{sentence}");
            let fix = about["fix"].as_str().unwrap();
            assert!(fix.starts_with("rabbitmqctl list_operator_policies"), "{fix}");
        },
    )
    .await;
}

#[tokio::test]
async fn a_policy_for_the_work_queue_of_the_strategy_dead_letter_is_found() {
    on_every_broker(|broker| async move {
        let management_fixture = ManagementFixture::of(&broker).await;
        let dead_letter = ["shop", "--strategy=dead-letter", "--retry=fixed(1s)"];
        let apply = [&["topology"], &dead_letter[..], &["--apply"]].concat();
        management_fixture.run(&apply).await.exits(0);
        let drops = json!({"overflow": "drop-head"});
        management_fixture.policy("mine", "^shop$", 0, drops).await;
        management_fixture
            .finds(&["shop"], &found([("RQ108", "shop")]))
            .await;
        let warned = management_fixture
            .run_with_policies(&apply)
            .await
            .exits(0)
            .err;
        assert!(
            warned.contains("policy `mine` sets its overflow"),
            "{warned}"
        );
        let consume = [
            &["consume"],
            &dead_letter[..],
            &["--dlx", "--idle=8s", "--", "true"],
        ];
        let told = management_fixture
            .run_with_policies(&consume.concat())
            .await
            .err;
        assert!(told.contains("policy `mine` sets its overflow"), "{told}");
    })
    .await;
}

#[tokio::test]
async fn a_missing_feature_flag_is_found() {
    on_brokers_where(
        |broker| broker.is_controllable() && broker.version() < Version::V4_0,
        |broker| async move {
            let node = broker.own_node(&[OLD_FLAGS]).await;
            let management_fixture = ManagementFixture::of(&node).await;
            let apply = ["topology", QUEUE, "--retry=fixed(1s)", "--apply"];
            let plan = [&["--json"], &apply[..3]].concat();
            let plan = management_fixture.run(&plan).await.exits(3).json();
            // Nothing is made that would drop messages for good.
            let refused = management_fixture.run(&apply).await.exits(5).err;
            assert!(refused.contains("feature flag `stream_queue`"), "{refused}");
            let still = [&["--json"], &apply[..3]].concat();
            let still = management_fixture.run(&still).await.exits(3).json();
            for item in still["items"].as_array().unwrap() {
                assert_eq!(item["status"], "missing", "{item}");
            }
            for item in plan["items"].as_array().unwrap() {
                let name = item["name"].as_str().unwrap();
                management_fixture
                    .queue(name, item["arguments"].clone())
                    .await;
            }
            let warned = management_fixture.run(&apply[..3]).await.exits(0).err;
            assert!(warned.contains("feature flag `stream_queue`"), "{warned}");
            let expected = found([("RQ108", "stream_queue")]);
            management_fixture.finds(&[], &expected).await;
            management_fixture.finds(&[QUEUE], &expected).await;
            management_fixture.fixture.amqp.delete(QUEUE).await;
            let report = management_fixture
                .run(&["--json", "doctor"])
                .await
                .exits(8)
                .json();
            let gone = finding(&report, "RQ113", "orders.retry.1000");
            let sentence = gone["sentence"].as_str().unwrap();
            assert!(sentence.contains("dropped"), "{sentence}");
            node.ctl(&["enable_feature_flag", "stream_queue"]).await;
            management_fixture.run(&apply).await.exits(0);
            management_fixture.finds(&[], &found([])).await;
        },
    )
    .await;
}

#[tokio::test]
async fn a_policy_that_changes_native_delays_is_found_and_its_fix_mends() {
    on_brokers_where(
        |broker| broker.version() >= Version::V4_3,
        |broker| async move {
            let management_fixture = ManagementFixture::of(&broker).await;
            let apply = [
                "topology",
                "mails",
                "--strategy=native",
                "--retry=fixed(5s)",
                "--apply",
            ];
            management_fixture.run(&apply).await.exits(0);
            for (name, priority, definition) in [
                ("off", 0, json!({"delayed-retry-type": "disabled"})),
                (
                    "short",
                    1,
                    json!({"delayed-retry-min": 1, "delayed-retry-max": 1}),
                ),
            ] {
                management_fixture
                    .policy(name, ".*", priority, definition)
                    .await;
                management_fixture
                    .finds(&[], &found([("RQ123", "mails")]))
                    .await;
                let report = management_fixture
                    .run(&["--json", "doctor"])
                    .await
                    .exits(8)
                    .json();
                let about = finding(&report, "RQ123", "mails");
                let sentence = about["sentence"].as_str().unwrap();
                assert!(sentence.contains(&format!("policy `{name}`")), "{sentence}");
                let warned = management_fixture.run(&apply).await.exits(0).err;
                assert!(warned.contains("(RQ123)"), "{warned}");
                if broker.is_controllable() && name == "short" {
                    mend(&broker, &about).await;
                    management_fixture.finds(&[], &found([])).await;
                }
            }
            // Longer, or for more, does no harm.
            let long = json!({"delayed-retry-type": "all", "delayed-retry-min": 60_000});
            management_fixture.policy("long", "^mails$", 9, long).await;
            management_fixture.finds(&[], &found([])).await;
        },
    )
    .await;
}
