//! `retryrmq enable` and `retryrmq disable`: a merged policy, made, renewed and taken back.

use lapin::options::BasicRejectOptions;
use retryrmq_harness::{Policy, Version, on_brokers, on_every_broker};
use serde_json::{Value, json};

use crate::{
    fixture::{PARKED, QUEUE},
    management_fixture::{ManagementFixture, found},
};

/// The policies of the vhost, by name.
async fn policies(management_fixture: &ManagementFixture) -> Vec<Value> {
    let path = format!("policies/{}", management_fixture.fixture.vhost.name());
    let all = management_fixture
        .broker()
        .management()
        .get(path)
        .await
        .unwrap();
    all.as_array().unwrap().clone()
}

/// Takes a message and rejects it.
async fn reject(management_fixture: &ManagementFixture) {
    let amqp = &management_fixture.fixture.amqp;
    amqp.publish(QUEUE, "x").await;
    let channel = amqp.new_channel().await;
    let got = channel.basic_get(QUEUE.into(), Default::default()).await;
    let message = got.unwrap().expect("it is there");
    message.reject(BasicRejectOptions::default()).await.unwrap();
}

#[tokio::test]
async fn what_is_rejected_is_parked_and_every_key_is_kept() {
    on_every_broker(|broker| async move {
        let management_fixture = ManagementFixture::of(&broker).await;
        management_fixture.queue(QUEUE, json!({})).await;
        let base = json!({"max-length": 1000, "overflow": "reject-publish"});
        management_fixture.policy("all", "^orders$", 3, base).await;
        let code = if broker.version() >= Version::V4_0 {
            "RQ107"
        } else {
            "RQ101"
        };
        management_fixture
            .finds(&[QUEUE], &found([(code, QUEUE)]))
            .await;

        let refused = management_fixture.run(&["enable", QUEUE]).await.exits(2);
        assert!(refused.err.contains("--yes"), "{refused:#?}");
        let planned = management_fixture
            .run(&["enable", QUEUE, "--dry-run"])
            .await
            .exits(0);
        for words in [
            "+ queue orders.parked",
            "all of policy all (priority 3)",
            "    max-length 1000",
            "+ dead-letter-routing-key \"orders.parked\"",
        ] {
            assert!(planned.out.contains(words), "{words}: {}", planned.out);
        }
        assert_eq!(
            (
                policies(&management_fixture).await.len(),
                management_fixture.fixture.amqp.depth(PARKED).await
            ),
            (1, None)
        );

        let done = management_fixture
            .run(&["--json", "enable", QUEUE, "--yes"])
            .await
            .exits(0)
            .json();
        assert_eq!(
            (&done["priority"], &done["pattern"], &done["definition"]),
            (
                &json!(4),
                &json!("^orders$"),
                &json!({
                    "max-length": 1000,
                    "overflow": "reject-publish",
                    "dead-letter-exchange": "",
                    "dead-letter-routing-key": PARKED,
                    "dead-letter-strategy": "at-least-once",
                })
            )
        );
        reject(&management_fixture).await;
        management_fixture.fixture.holds(PARKED, 1).await;
        let parked = management_fixture
            .fixture
            .run(&["--json", "parked", "ls", QUEUE])
            .await
            .exits(0);
        assert_eq!(parked.lines()[0]["reason"], "rejected", "{parked:#?}");
        management_fixture.finds(&[], &found([])).await;
        let again = management_fixture
            .run(&["enable", QUEUE, "--yes"])
            .await
            .exits(0);
        assert!(again.out.contains("nothing to do"), "{again:#?}");
        assert_eq!(policies(&management_fixture).await.len(), 2, "idempotent");

        // What it was made from changes: it is told, and renewed.
        management_fixture
            .policy(
                "all",
                "^orders$",
                3,
                json!({"max-length": 2000, "overflow": "reject-publish"}),
            )
            .await;
        let mark = done["policy"].as_str().unwrap();
        management_fixture
            .finds(&[], &found([("RQ120", mark)]))
            .await;
        let renewed = management_fixture
            .run(&["--json", "enable", QUEUE, "--yes"])
            .await
            .exits(0)
            .json();
        assert_eq!(renewed["definition"]["max-length"], 2000);
        assert_eq!(
            policies(&management_fixture).await.len(),
            2,
            "the old one is gone"
        );
        management_fixture.finds(&[], &found([])).await;

        let rehearsed = management_fixture
            .run(&["disable", QUEUE, "--dry-run"])
            .await
            .exits(0);
        assert!(
            rehearsed.out.contains("then policy all is in force"),
            "{rehearsed:#?}"
        );
        assert_eq!(policies(&management_fixture).await.len(), 2);
        management_fixture
            .run(&["disable", QUEUE, "--yes"])
            .await
            .exits(0);
        let left = policies(&management_fixture).await;
        assert_eq!(
            (left.len(), &left[0]["name"]),
            (1, &json!("all")),
            "as it was"
        );
        management_fixture
            .finds(&[QUEUE], &found([(code, QUEUE)]))
            .await;
        let parked = management_fixture.fixture.amqp.depth(PARKED).await;
        assert_eq!(parked, Some(1), "what is parked stays");
        let again = management_fixture
            .run(&["disable", QUEUE, "--yes"])
            .await
            .exits(0);
        assert!(again.out.contains("nothing to do"), "{again:#?}");
    })
    .await;
}

#[tokio::test]
async fn a_parking_queue_that_somebody_deleted_is_created_again() {
    on_brokers(|broker| async move {
        let management_fixture = ManagementFixture::of(&broker).await;
        management_fixture
            .queue(QUEUE, json!({"x-queue-type": "classic"}))
            .await;
        let enable = ["--json", "enable", QUEUE, "--yes"];
        let changed = |done: Value| (done["enabled"] == true, done["changed"] == true);
        management_fixture.run(&enable).await.exits(0);
        assert_eq!(
            changed(management_fixture.run(&enable).await.exits(0).json()),
            (true, false)
        );
        management_fixture.fixture.amqp.delete(PARKED).await;
        let rehearsed = management_fixture
            .run(&["enable", QUEUE, "--dry-run"])
            .await
            .exits(0);
        assert!(
            rehearsed.out.contains("does not exist")
                && rehearsed.out.contains("+ queue orders.parked (quorum"),
            "{rehearsed:#?}"
        );
        assert_eq!(management_fixture.fixture.amqp.depth(PARKED).await, None);
        assert_eq!(
            changed(management_fixture.run(&enable).await.exits(0).json()),
            (true, true)
        );
        reject(&management_fixture).await;
        management_fixture.fixture.holds(PARKED, 1).await;

        // Nobody knows what another queue needs, or where the service's exchange leads.
        management_fixture.queue("morgue", json!({})).await;
        let elsewhere = ["enable", QUEUE, "--to=morgue", "--yes"];
        management_fixture.run(&elsewhere).await.exits(0);
        management_fixture.fixture.amqp.delete("morgue").await;
        let refused = management_fixture.run(&elsewhere).await.exits(3);
        assert!(refused.err.contains("morgue"), "{refused:#?}");
        management_fixture
            .queue("served", json!({"x-dead-letter-exchange": "retryrmq.dead"}))
            .await;
        let served = ["enable", "served", "--service", "--yes"];
        let refused = management_fixture.run(&served).await.exits(3);
        assert!(refused.err.contains("start the service"), "{refused:#?}");
    })
    .await;
}

#[tokio::test]
async fn nothing_is_done_where_it_would_be_without_effect_or_undo_somebodys_work() {
    on_brokers(|broker| async move {
        let management_fixture = ManagementFixture::of(&broker).await;
        let enable = |queue: &'static str| async {
            management_fixture
                .run(&["enable", queue, "--yes"])
                .await
                .exits(5)
                .err
        };
        // An argument wins over every policy.
        management_fixture
            .queue("fixed", json!({"x-dead-letter-exchange": "dlx"}))
            .await;
        assert!(enable("fixed").await.contains("wins over every policy"));
        // A route of somebody else.
        management_fixture.queue("routed", json!({})).await;
        management_fixture
            .policy(
                "theirs",
                "^routed",
                0,
                json!({"dead-letter-exchange": "dlx"}),
            )
            .await;
        assert!(enable("routed").await.contains("--replace"));
        management_fixture
            .queue("log", json!({"x-queue-type": "stream"}))
            .await;
        assert!(enable("log").await.contains("is a stream"));
        assert_eq!(policies(&management_fixture).await.len(), 1);
        assert!(
            management_fixture
                .fixture
                .amqp
                .depth("routed.parked")
                .await
                .is_none()
        );
        management_fixture
            .run(&["enable", "routed", "--yes", "--replace"])
            .await
            .exits(0);
        assert_eq!(policies(&management_fixture).await.len(), 2);
        management_fixture
            .run(&["enable", "orders.parked", "--yes"])
            .await
            .exits(2);
        management_fixture
            .run(&["enable", "nobody", "--yes"])
            .await
            .exits(3);
        let missing = management_fixture
            .run(&["enable", "routed", "--to=nobody", "--yes", "--replace"])
            .await
            .exits(3);
        assert!(missing.err.contains("nobody"), "{missing:#?}");
        // Somebody has changed what was made.
        let ours = policies(&management_fixture).await;
        let ours = ours
            .iter()
            .find(|policy| policy["name"] != "theirs")
            .unwrap();
        let mut definition = ours["definition"].clone();
        definition["max-length"] = json!(7);
        let name = ours["name"].as_str().unwrap();
        let mut changed = Policy::new("^routed$", definition);
        changed.priority = ours["priority"].as_i64().unwrap();
        management_fixture
            .fixture
            .vhost
            .put_policy(name, &changed)
            .await
            .unwrap();
        let refused = management_fixture
            .run(&["disable", "routed", "--yes"])
            .await
            .exits(5);
        assert!(refused.err.contains("\"max-length\":7"), "{refused:#?}");
        assert!(enable("routed").await.contains("--force"));
        assert_eq!(policies(&management_fixture).await.len(), 2);
        management_fixture
            .run(&["disable", "routed", "--yes", "--force"])
            .await
            .exits(0);
        assert_eq!(policies(&management_fixture).await.len(), 1);
    })
    .await;
}

#[tokio::test]
async fn publishers_of_a_queue_with_a_length_meet_nothing_new() {
    on_brokers(|broker| async move {
        let management_fixture = ManagementFixture::of(&broker).await;
        management_fixture
            .queue("eu.orders(1)", json!({"x-max-length": 10}))
            .await;
        let done = management_fixture
            .run(&["--json", "enable", "eu.orders(1)", "--yes"])
            .await
            .exits(0)
            .json();
        assert_eq!(
            done["definition"],
            json!({"dead-letter-exchange": "", "dead-letter-routing-key": "eu.orders(1).parked"})
        );
        let queue = management_fixture
            .fixture
            .vhost
            .queue("eu.orders(1)")
            .await
            .unwrap();
        assert!(queue.arguments().get("x-overflow").is_none());
    })
    .await;
}

#[tokio::test]
async fn a_parking_queue_that_loses_is_told_before_anything_goes_there() {
    on_brokers(|broker| async move {
        let management_fixture = ManagementFixture::of(&broker).await;
        management_fixture.queue(QUEUE, json!({})).await;
        let short = json!({"x-message-ttl": 3_000});
        management_fixture.queue(PARKED, short).await;
        let planned = management_fixture
            .run(&["enable", QUEUE, "--dry-run"])
            .await
            .exits(0);
        assert!(
            planned.err.contains("RQ110") && planned.err.contains("after 3000 ms"),
            "{planned:#?}"
        );
        let done = management_fixture
            .run(&["--json", "enable", QUEUE, "--yes"])
            .await;
        let done = done.exits(0).json();
        assert_eq!(done["warnings"][0]["code"], "RQ110", "{done}");
    })
    .await;
}
