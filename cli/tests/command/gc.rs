//! `retryrmq gc`: waiting queues that nobody needs go, and no message with them.

use std::collections::BTreeSet;

use lapin::BasicProperties;
use retryrmq_harness::{Permissions, eventually, on_brokers};
use rustix::process::Signal;
use serde_json::Value;

use crate::fixture::{DEADLINE, Fixture, PARKED, QUEUE, finish};

fn verdict(lines: &[Value], name: &str) -> String {
    let line = lines.iter().find(|line| line["name"] == name);
    line.map_or_else(
        || format!("{name} is not listed: {lines:?}"),
        |line| line["verdict"].as_str().unwrap().to_owned(),
    )
}

#[tokio::test]
async fn only_what_is_empty_unused_and_in_no_policy_goes() {
    on_brokers(|broker| async move {
        for kind in ["quorum", "classic"] {
            let fixture = Fixture::with_queue(&broker).await;
            let kind = format!("--queue-type={kind}");
            let made = [
                "topology",
                QUEUE,
                "--retry=list(7s, 1m, 2m)",
                &kind,
                "--apply",
            ];
            fixture.run(&made).await.exits(0);
            fixture.amqp.publish("orders.retry.120000", "waits").await;
            let sweep = [
                "--json",
                "gc",
                QUEUE,
                "--retry=fixed(1m)",
                "--was=list(7s, 1m, 2m)",
            ];
            let run = |more: &'static str| [&sweep[..], &[more]].concat();
            let dry = fixture.run(&run("--dry-run")).await.exits(0).lines();
            let expected = [
                ("orders.retry.7000", "unneeded"),
                ("orders.retry.60000", "kept"),
                ("orders.retry.120000", "in_use"),
                ("orders.retry.100", "kept"),
            ];
            for (name, word) in expected {
                assert_eq!(verdict(&dry, name), word, "{name}");
            }
            assert!(fixture.run(&sweep).await.exits(2).err.contains("--yes"));
            let consumer = fixture.amqp.consume(QUEUE, 1).await;
            let sure = [&run("--yes")[..], &["--seen-empty"]].concat();
            let consumed = fixture.run(&sure).await.exits(5);
            assert_eq!(verdict(&consumed.lines(), "orders.retry.7000"), "consumed");
            fixture.holds("orders.retry.7000", 0).await;
            drop(consumer);
            // Its channel stays, and so does the consumer: another connection shows that it is gone.
            let after = Fixture {
                amqp: fixture.vhost.connect().await,
                vhost: fixture.vhost,
            };
            fixture.amqp.close().await;
            if kind.ends_with("quorum") {
                let unseen = after.run(&run("--yes")).await.exits(5);
                assert_eq!(verdict(&unseen.lines(), "orders.retry.7000"), "uncertain");
                after.holds("orders.retry.7000", 0).await;
            }
            let sure = [&run("--yes")[..], &["--seen-empty"]].concat();
            let swept = after.run(&sure).await.exits(0).lines();
            assert_eq!(verdict(&swept, "orders.retry.7000"), "deleted");
            assert_eq!(after.amqp.depth("orders.retry.7000").await, None);
            assert_eq!(after.amqp.depth("orders.retry.60000").await, Some(0));
            assert_eq!(after.amqp.depth("orders.retry.120000").await, Some(1));
            let off = ["--json", "gc", QUEUE, "--off", "--was=list(1m, 2m)"];
            let off = [&off[..], &["--seen-empty", "--yes"]].concat();
            let off = after.run(&off).await.exits(0).lines();
            let expected = [
                ("orders.retry.60000", "deleted"),
                ("orders.retry.120000", "in_use"),
                ("orders.retry.100", "deleted"),
            ];
            for (name, word) in expected {
                assert_eq!(verdict(&off, name), word, "{name}");
            }
            assert_eq!(after.amqp.depth(PARKED).await, Some(0), "it is kept");
        }
    })
    .await;
}

#[tokio::test]
async fn what_was_deleted_before_an_error_is_told() {
    on_brokers(|broker| async move {
        let fixture = Fixture::with_queue(&broker).await;
        let was = "list(7s, 70s)";
        let retry = format!("--retry={was}");
        let made = ["topology", QUEUE, &retry, "--queue-type=classic", "--apply"];
        fixture.run(&made).await.exits(0);
        let (management, vhost) = (broker.management(), &fixture.vhost);
        let user = format!("{}-sweeper", vhost.name());
        management.create_user(&user, "pw", "").await.unwrap();
        let may = Permissions {
            configure: r"^orders\.retry\.7000$",
            write: ".*",
            read: ".*",
        };
        management
            .set_permissions(vhost.name(), &user, may)
            .await
            .unwrap();
        let was = format!("--was={was}");
        let mut sweep = fixture.command(&["--json", "gc", QUEUE, &was, "--yes"]);
        sweep.env("RETRYRMQ_URL", vhost.url_as(&user, "pw"));
        let done = finish(sweep, None).await.exits(5);
        management.delete_user(&user).await.unwrap();
        assert!(done.err.contains("access_refused"), "{done:#?}");
        let lines = done.lines();
        assert_eq!(verdict(&lines, "orders.retry.7000"), "deleted");
        assert_eq!(verdict(&lines, "orders.retry.70000"), "unneeded");
    })
    .await;
}

/// A consumer that fails all the time uses a queue that `gc` was told nobody needs.
#[tokio::test]
async fn beside_a_failing_consumer_nothing_is_deleted_and_nothing_is_lost() {
    on_brokers(|broker| async move {
        let fixture = Fixture::with_queue(&broker).await;
        let policy = "--retry=fixed(200ms, retries=2)";
        let sweep = [
            "--json",
            "gc",
            QUEUE,
            "--retry=fixed(1m)",
            "--was=fixed(200ms)",
            "--yes",
            "--seen-empty",
        ];
        let wanted: BTreeSet<String> = (0..30).map(|number| number.to_string()).collect();
        let publish = async |from: usize, to: usize| {
            for number in from..to {
                let id = BasicProperties::default().with_message_id(number.to_string().into());
                fixture.amqp.publish_with(QUEUE, "x", id).await;
            }
        };
        let running = fixture.start(&[policy], "exit 1");
        eventually(DEADLINE, "it consumes", || async {
            fixture.amqp.consumers(QUEUE).await == Some(1)
        })
        .await;
        publish(0, 20).await;
        while fixture.amqp.depth(PARKED).await.unwrap_or(0) < 20 {
            let done = fixture.run(&sweep).await;
            let lines = done.lines();
            assert!(
                lines.iter().all(|line| line["verdict"] != "deleted"),
                "{done:#?}"
            );
        }
        running.signal(Signal::TERM);
        running.end().await;
        let swept = fixture.run(&sweep).await.exits(0).lines();
        assert_eq!(verdict(&swept, "orders.retry.200"), "deleted");
        // Whoever needs it makes it again.
        let again = fixture.start(&[policy], "exit 1");
        publish(20, 30).await;
        fixture.holds(PARKED, 30).await;
        again.signal(Signal::TERM);
        again.end().await;
        let parked = fixture.amqp.drain(PARKED).await;
        let ids: BTreeSet<String> = parked
            .iter()
            .filter_map(|message| message.id().map(ToOwned::to_owned))
            .collect();
        assert_eq!(ids, wanted);
    })
    .await;
}
