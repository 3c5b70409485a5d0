//! Dead letters of other libraries that are exported, imported and forgotten, and what JSON says of them everywhere.

use retryrmq_harness::{QueueType, on_brokers};
use serde_json::{Value, json};

use crate::{
    dead_letter_fixture::DeadLetterFixture,
    fixture::{CommandOutput, Fixture},
    interrupted_walks::parked,
};

const DEAD: &str = "orders_error";

/// A dead-letter queue with three of them.
async fn set_up(fixture: &Fixture) {
    fixture.amqp.declare(DEAD, QueueType::Quorum).await;
    for name in ["masstransit", "spring-queue", "easynetq-newtonsoft"] {
        DeadLetterFixture::named(name).arrives(fixture, DEAD).await;
    }
    fixture.holds(DEAD, 3).await;
}

/// What is said of each message, but for its place and what was done with it, in the order of libraries.
fn said(done: &CommandOutput, names: &[&str]) -> Vec<Value> {
    let mut lines = done.lines();
    lines.sort_by_key(|line| line["library"].as_str().unwrap().to_owned());
    let only = |line: &Value| names.iter().map(|name| line[name].clone()).collect();
    lines.iter().map(only).collect()
}

#[tokio::test]
async fn what_another_library_left_is_exported_imported_and_forgotten() {
    const SAID: [&str; 10] = [
        "message_id",
        "parked_at",
        "reason",
        "attempts",
        "error",
        "error_type",
        "exchange",
        "routing_key",
        "home",
        "library",
    ];
    on_brokers(|broker| async move {
        let fixture = Fixture::of(&broker).await;
        set_up(&fixture).await;
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("dead.jsonl").display().to_string();
        let ls = |queue: &'static str| async {
            let done = fixture
                .run(&["--json", "parked", "ls", queue, "--dlq"])
                .await;
            said(&done.exits(0), &SAID)
        };
        let before = ls(DEAD).await;
        let export = ["parked", "export", DEAD, &file, "--dlq", "--remove"];
        let done = fixture.run(&export).await.exits(0);
        assert!(done.err.contains("3 messages exported"), "{done:#?}");
        fixture.holds(DEAD, 0).await;

        // It knows by itself where they belong; said otherwise, they go elsewhere.
        fixture.run(&["parked", "import", &file]).await.exits(0);
        fixture.holds(DEAD, 3).await;
        assert_eq!(ls(DEAD).await, before);
        fixture.amqp.declare("morgue", QueueType::Classic).await;
        let import = ["parked", "import", &file, "--dlq", "--queue"];
        let done = fixture.run(&[&import[..], &["morgue"]].concat()).await;
        assert!(done.exits(0).err.contains("imported to morgue"));
        assert_eq!(ls("morgue").await, before);
        let done = fixture.run(&[&import[..], &["nowhere"]].concat()).await;
        let done = done.exits(3);
        assert!(done.err.contains("no queue `nowhere`"), "{done:#?}");
        assert!(!done.err.contains("topology"), "{done:#?}");
        fixture
            .run(&["parked", "import", &file, "--dlq"])
            .await
            .exits(2);

        // One of ours, by its own name, is what is parked for its work queue.
        fixture.amqp.declare("mail.parked", QueueType::Quorum).await;
        let ours = parked("m", 1_700_000_000, "no answer");
        fixture
            .amqp
            .publish_with("mail.parked", "hello", ours)
            .await;
        fixture.holds("mail.parked", 1).await;
        let done = fixture
            .run(&["parked", "export", "mail.parked", "--dlq"])
            .await;
        let line = done.exits(0).json();
        assert_eq!(
            (&line["queue"], &line["dlq"]),
            (&json!("mail"), &json!(null))
        );
    })
    .await;
}

#[tokio::test]
async fn what_a_customer_left_in_anothers_queue_is_forgotten() {
    on_brokers(|broker| async move {
        let fixture = Fixture::of(&broker).await;
        set_up(&fixture).await;
        let forget = ["parked", "forget", DEAD, "--dlq", "--yes"];
        let run = |more: &'static [&'static str]| fixture_run(&fixture, &forget, more);
        let done = run(&["--where=body.Customer == 7"]).await.exits(0);
        assert!(
            done.err
                .contains("1 message forgotten: 1 parked, 0 waiting"),
            "{done:#?}"
        );
        fixture.holds(DEAD, 2).await;
        for none in [
            &["--where=body.Customer == 7"][..],
            &["--since=1s"],
            &["--error=other", "--dry-run"],
        ] {
            let done = run(none).await.exits(3);
            assert!(
                done.err.contains("no message like that is in orders_error"),
                "{done:#?}"
            );
        }
        run(&["--id=nobody"]).await.exits(3);
        let done = run(&["--id=m-7", "--delay=1m"]).await.exits(2);
        assert!(done.err.contains("without --dlq"), "{done:#?}");
        fixture.holds(DEAD, 2).await;
        let gone = ["parked", "forget", "gone_error", "--dlq", "--yes"];
        let done = fixture_run(&fixture, &gone, &["--id=m-7"]).await.exits(3);
        assert!(done.err.contains("no queue `gone_error`"), "{done:#?}");
    })
    .await;
}

async fn fixture_run(fixture: &Fixture, first: &[&str], more: &[&str]) -> CommandOutput {
    fixture.run(&[first, more].concat()).await
}

#[tokio::test]
async fn json_says_the_same_of_a_message_whoever_prints_it() {
    const SAID: [&str; 6] = [
        "mark",
        "exchange",
        "routing_key",
        "home",
        "library",
        "error",
    ];
    on_brokers(|broker| async move {
        let fixture = Fixture::of(&broker).await;
        set_up(&fixture).await;
        for queue in [
            "submit-order",
            "spring.orders",
            "Shop.OrderPlaced, Shop_billing",
        ] {
            fixture.amqp.declare(queue, QueueType::Classic).await;
        }
        let ls = ["--json", "parked", "ls", DEAD, "--dlq"];
        let listed = said(&fixture.run(&ls).await.exits(0), &SAID);
        assert!(
            listed.iter().any(|line| line[2] == "order.placed"),
            "the key within the envelope: {listed:?}"
        );
        // The first look may have put them back as fresh copies.
        for subcommand in [
            &["show", DEAD, "--all"][..],
            &["replay", DEAD, "--all", "--dry-run"],
            &["drop", DEAD, "--all", "--dry-run"],
            &["forget", DEAD, "--error=no such customer", "--dry-run"],
            &["ls", DEAD],
            &["replay", DEAD, "--all"],
        ] {
            let arguments = [&["--json", "parked"], subcommand, &["--dlq"]].concat();
            let done = fixture.run(&arguments).await.exits(0);
            assert_eq!(said(&done, &SAID), listed, "{subcommand:?}");
        }
    })
    .await;
}
