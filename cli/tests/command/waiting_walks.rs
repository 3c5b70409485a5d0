//! Looks at what waits keep what looks at parked messages promise: nothing is destroyed, what others hold is not taken for gone, and a
//! signal ends them.

use std::{collections::BTreeSet, time::Duration};

use retryrmq::types::{AMQPValue, FieldTable};
use retryrmq_harness::{
    Amqp, Broker, Version,
    lapin::{BasicProperties, options::QueueDeclareOptions},
    on_brokers, on_brokers_where,
};
use rustix::process::{Signal, kill_process};
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    time::timeout,
};

use crate::{
    fixture::{DEADLINE, Fixture, PARKED, QUEUE},
    interrupted_walks::{AtTerminal, code, parked, pid},
};

const POLICY: &str = "--retry=fixed(10m)";
const WAITING_QUEUE: &str = "orders.retry.600000";
/// Of the default policy; it is looked through before the other one.
const EARLIER: &str = "orders.retry.256000";

fn id(id: &str) -> BasicProperties {
    BasicProperties::default().with_message_id(id.into())
}

/// All ways to look at what waits, and the one that takes it out.
fn looks() -> [Vec<&'static str>; 6] {
    [
        vec!["waiting", "ls", QUEUE, POLICY, "--look"],
        vec!["waiting", "show", QUEUE, POLICY, "b"],
        vec!["waiting", "flush", QUEUE, POLICY, "--all", "--yes"],
        vec!["waiting", "cancel", QUEUE, POLICY, "--id=b", "--yes"],
        vec![
            "parked",
            "forget",
            QUEUE,
            "--delay=10m",
            "--id=b",
            "--dry-run",
        ],
        vec!["parked", "forget", QUEUE, "--delay=10m", "--id=b", "--yes"],
    ]
}

/// `a` and `b` wait in [`WAITING_QUEUE`].
async fn two_waiting(broker: &Broker) -> Fixture {
    let fixture = Fixture::with_queue(broker).await;
    let made = ["topology", QUEUE, POLICY, "--apply"];
    fixture.run(&made).await.exits(0);
    for name in ["a", "b"] {
        fixture
            .amqp
            .publish_with(WAITING_QUEUE, name, id(name))
            .await;
    }
    fixture.holds(WAITING_QUEUE, 2).await;
    fixture
}

/// RabbitMQ 4.3 counts what comes back with a closed channel, but not what is given back by `basic.nack`.
#[tokio::test]
async fn forgetting_the_last_message_again_and_again_counts_nothing_for_those_before() {
    on_brokers_where(
        |broker| broker.version() >= Version::V4_3,
        |broker| async move {
            let fixture = two_waiting(&broker).await;
            for name in ["c", "d"] {
                fixture
                    .amqp
                    .publish_with(WAITING_QUEUE, name, id(name))
                    .await;
            }
            fixture.holds(WAITING_QUEUE, 4).await;
            for (last, left) in [("--id=d", 3), ("--id=c", 2), ("--id=b", 1)] {
                let forget = ["parked", "forget", QUEUE, "--delay=10m", last, "--yes"];
                let done = fixture.run(&forget).await.exits(0);
                assert!(done.err.contains("1 message forgotten"), "{done:#?}");
                fixture.holds(WAITING_QUEUE, left).await;
            }
            let first = fixture.amqp.take(WAITING_QUEUE).await.unwrap();
            assert_eq!(first.text(), "a");
            assert_eq!(first.header_int("x-delivery-count").unwrap_or(0), 0);
        },
    )
    .await;
}

#[tokio::test]
async fn what_others_hold_of_what_waits_is_not_taken_for_gone() {
    on_brokers(|broker| async move {
        let fixture = two_waiting(&broker).await;
        let other = Amqp::connect(fixture.vhost.url()).await;
        let _held = other.consume(WAITING_QUEUE, 10).await;
        fixture.holds(WAITING_QUEUE, 0).await;
        for arguments in looks() {
            let done = fixture.run(&arguments).await.exits(6);
            assert!(
                done.err.contains("somebody") && done.err.contains(WAITING_QUEUE),
                "{arguments:?}: {done:#?}"
            );
        }
        let listed = fixture
            .run(&["--json", "waiting", "ls", QUEUE, POLICY])
            .await;
        assert!(listed.exits(6).err.contains("held_by_others"));
        other.close().await;
        fixture.holds(WAITING_QUEUE, 2).await;
        let sought = [
            "waiting",
            "cancel",
            QUEUE,
            POLICY,
            "--id=b",
            "--id=nobody",
            "--yes",
        ];
        let done = fixture.run(&sought).await.exits(3);
        assert!(
            done.err.contains("no message `nobody`") && done.err.contains("1 message taken out"),
            "{done:#?}"
        );
    })
    .await;
}

#[tokio::test]
async fn who_begins_to_look_after_the_question_is_not_overlooked() {
    on_brokers(|broker| async move {
        let fixture = two_waiting(&broker).await;
        let flush = ["waiting", "flush", QUEUE, POLICY, "--all"];
        let mut prompt = AtTerminal::at_its_prompt(&fixture, &flush).await;
        let other = Amqp::connect(fixture.vhost.url()).await;
        let _held = other.consume(WAITING_QUEUE, 1).await;
        fixture.holds(WAITING_QUEUE, 1).await;
        prompt.types("y\n");
        assert_eq!(code(&mut prompt.child).await, Some(6));
        prompt.shows("somebody else looks at").await;
        other.close().await;
        fixture.holds(WAITING_QUEUE, 1).await;
        fixture.holds(QUEUE, 1).await;
    })
    .await;
}

/// In classic queues: nobody counts how often these are looked at.
#[tokio::test]
async fn what_waits_belongs_to_the_group_of_its_last_failure() {
    const FAILURE: &str = "36567b941ac2e6b8";
    const NO_FAILURE: &str = "af63c74c8601c8dd";
    on_brokers(|broker| async move {
        let fixture = Fixture::of(&broker).await;
        for policy in [POLICY, "--retry=fixed(256s)"] {
            let made = ["topology", QUEUE, policy, "--queue-type=classic", "--apply"];
            fixture.run(&made).await.exits(0);
        }
        let text = |text: &str| AMQPValue::LongString(text.into());
        let mut failed = FieldTable::default();
        failed.insert("x-retry-count".into(), AMQPValue::LongLongInt(1));
        failed.insert("x-retry-error".into(), text("connect to 10.0.0.7:5432"));
        failed.insert("x-retry-error-type".into(), text("Timeout"));
        let failed = id("failed").with_headers(failed);
        fixture
            .amqp
            .publish_with(WAITING_QUEUE, "failed", failed)
            .await;
        fixture
            .amqp
            .publish_with(WAITING_QUEUE, "delayed", id("delayed"))
            .await;
        fixture
            .amqp
            .publish_with(PARKED, "strange", id("strange"))
            .await;
        let mut other = FieldTable::default();
        other.insert("x-retry-error".into(), text("connect was refused"));
        let other = id("other").with_headers(other);
        fixture.amqp.publish_with(EARLIER, "other", other).await;
        fixture.holds(EARLIER, 1).await;
        fixture.holds(WAITING_QUEUE, 2).await;
        fixture.holds(PARKED, 1).await;
        let forget = |what: &'static str| ["parked", "forget", QUEUE, "--delay=10m", "--yes", what];
        let hold = |more: &'static [&'static str]| {
            [&["parked", "hold", QUEUE, "--group", FAILURE], more].concat()
        };
        fixture.run(&hold(&[])).await.exits(0);
        let done = fixture.run(&forget("--error=connect")).await.exits(2);
        assert!(
            done.err.contains("nothing was forgotten") && done.err.contains("on hold"),
            "{done:#?}"
        );
        fixture.holds(WAITING_QUEUE, 2).await;
        // It does not begin: what may be forgotten is there as well.
        fixture.holds(EARLIER, 1).await;
        fixture.run(&hold(&["--release"])).await.exits(0);

        let done = fixture
            .run(&[&forget("--fingerprint")[..], &[NO_FAILURE]].concat())
            .await
            .exits(0);
        assert!(done.err.contains("1 parked, 0 waiting"), "{done:#?}");
        fixture.holds(WAITING_QUEUE, 2).await;
        let done = fixture
            .run(&[&forget("--fingerprint")[..], &[FAILURE]].concat())
            .await
            .exits(0);
        assert!(done.err.contains("0 parked, 1 waiting"), "{done:#?}");
        fixture.holds(WAITING_QUEUE, 1).await;
    })
    .await;
}

#[tokio::test]
async fn a_long_error_has_the_same_group_where_it_waits_and_where_it_is_parked() {
    on_brokers(|broker| async move {
        let fixture = Fixture::with_queue(&broker).await;
        for (name, policy) in [
            ("waits", POLICY),
            ("parked", "--retry=fixed(10m, retries=0)"),
        ] {
            fixture.amqp.publish_with(QUEUE, name, id(name)).await;
            let fails = "head -c 2000 /dev/zero | tr '\\0' x >&2; exit 1";
            let consume = ["consume", QUEUE, "--dlx", policy, "--count=1", "--"];
            let fails = ["sh", "-c", fails];
            fixture.run(&[&consume[..], &fails].concat()).await;
        }
        fixture.holds(WAITING_QUEUE, 1).await;
        fixture.holds(PARKED, 1).await;
        let listed = fixture
            .run(&["parked", "ls", QUEUE, "--json"])
            .await
            .exits(0);
        let record: serde_json::Value = serde_json::from_str(listed.out.trim()).unwrap();
        let alike = record["fingerprint"].as_str().unwrap();
        let forget = ["parked", "forget", QUEUE, "--delay=10m", "--yes"];
        let done = fixture
            .run(&[&forget[..], &["--fingerprint", alike]].concat())
            .await
            .exits(0);
        assert!(done.err.contains("1 parked, 1 waiting"), "{done:#?}");
    })
    .await;
}

#[tokio::test]
async fn a_waiting_queue_that_goes_with_its_last_reader_is_not_read() {
    on_brokers(|broker| async move {
        let fixture = Fixture::with_queue(&broker).await;
        for durable in [true, false] {
            let options = QueueDeclareOptions {
                durable,
                auto_delete: true,
                ..QueueDeclareOptions::default()
            };
            let mut arguments = FieldTable::default();
            let text = |text: &str| AMQPValue::LongString(text.into());
            arguments.insert("x-queue-type".into(), text("classic"));
            arguments.insert("x-dead-letter-exchange".into(), text(""));
            arguments.insert("x-dead-letter-routing-key".into(), text(QUEUE));
            arguments.insert("x-message-ttl".into(), AMQPValue::LongInt(600_000));
            let channel = fixture.amqp.new_channel().await;
            let made = channel.queue_declare(WAITING_QUEUE.into(), options, arguments);
            made.await.expect("it can be had");
            for name in ["a", "b"] {
                fixture
                    .amqp
                    .publish_with(WAITING_QUEUE, name, id(name))
                    .await;
            }
            fixture.holds(WAITING_QUEUE, 2).await;
            for arguments in looks() {
                let done = fixture.run(&arguments).await.exits(5);
                assert!(done.err.contains("auto-delete"), "{arguments:?}: {done:#?}");
                fixture.holds(WAITING_QUEUE, 2).await;
            }
            fixture.amqp.delete(WAITING_QUEUE).await;
        }
        // Nothing was made to find out.
        assert_eq!(fixture.amqp.depth(WAITING_QUEUE).await, None);
    })
    .await;
}

#[tokio::test]
async fn a_count_that_a_publisher_wrote_keeps_nobody_from_a_classic_queue() {
    on_brokers(|broker| async move {
        let fixture = Fixture::of(&broker).await;
        let made = ["topology", QUEUE, POLICY, "--queue-type=classic", "--apply"];
        fixture.run(&made).await.exits(0);
        let mut forged = FieldTable::default();
        forged.insert("x-delivery-count".into(), AMQPValue::LongLongInt(9));
        let evil = id("evil").with_headers(forged);
        fixture.amqp.publish_with(WAITING_QUEUE, "evil", evil).await;
        fixture.amqp.publish_with(WAITING_QUEUE, "b", id("b")).await;
        fixture.holds(WAITING_QUEUE, 2).await;
        let [ls, show, .., rehearsal, forget] = looks();
        for arguments in [&ls, &show, &rehearsal, &ls, &show, &rehearsal] {
            fixture.run(arguments).await.exits(0);
            fixture.holds(WAITING_QUEUE, 2).await;
        }
        fixture.run(&forget).await.exits(0);
        fixture.holds(WAITING_QUEUE, 1).await;
    })
    .await;
}

#[tokio::test]
async fn a_signal_ends_in_an_alarm_whatever_is_under_way() {
    on_brokers(|broker| async move {
        if !broker.is_controllable() {
            return eprintln!("skipped: {broker} was given, and its memory is its own");
        }
        let node = broker.own_node(&[]).await;
        let fixture = Fixture::with_queue(&node).await;
        let made = ["topology", QUEUE, POLICY, "--apply"];
        fixture.run(&made).await.exits(0);
        for name in ["a", "b"] {
            fixture
                .amqp
                .publish_with(WAITING_QUEUE, name, id(name))
                .await;
            let died = parked(name, 1_700_000_000, "x");
            fixture.amqp.publish_with(PARKED, name, died).await;
        }
        fixture.holds(PARKED, 2).await;
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("exported").display().to_string();
        fixture
            .run(&["parked", "export", QUEUE, &file])
            .await
            .exits(0);
        fixture.holds(PARKED, 2).await;
        let group = "--group=0123456789abcdef";
        fixture
            .run(&["parked", "hold", QUEUE, group])
            .await
            .exits(0);
        node.raise_memory_alarm().await;
        for arguments in [
            &["waiting", "flush", QUEUE, POLICY, "--all", "--yes"][..],
            &["waiting", "cancel", QUEUE, POLICY, "--id=b", "--yes"],
            &["parked", "import", &file, "--again"],
            &["parked", "compact", QUEUE],
            &["parked", "drop", QUEUE, "--all", "--yes"],
            &["parked", "export", QUEUE, &file, "--remove"],
            &["parked", "forget", QUEUE, "--error=x", "--yes"],
        ] {
            let mut child = fixture.command(arguments).spawn().unwrap();
            let mut said = BufReader::new(child.stderr.take().unwrap()).lines();
            loop {
                let line = timeout(DEADLINE, said.next_line()).await;
                let line = line.expect("it says so").unwrap().expect("it says so");
                if line.contains("has stopped reading") {
                    break;
                }
            }
            kill_process(pid(&child), Signal::TERM).unwrap();
            assert_eq!(code(&mut child).await, Some(130), "{arguments:?}");
        }
        fixture.holds(WAITING_QUEUE, 2).await;
        node.set_memory_watermark(0.4).await;
        // The broker takes one more from each connection: that one may be there twice, and none is gone.
        let listed = fixture
            .run(&["--json", "parked", "ls", QUEUE])
            .await
            .exits(0);
        let ids: BTreeSet<_> = listed
            .lines()
            .iter()
            .map(|line| line["message_id"].as_str().unwrap().to_owned())
            .collect();
        assert_eq!(ids, ["a", "b"].map(str::to_owned).into());
    })
    .await;
}

#[tokio::test]
async fn what_was_chosen_stays_parked_when_a_signal_ends_the_look_at_what_waits() {
    on_brokers(|broker| async move {
        for _ in 0..20 {
            if forget_is_interrupted_while_it_looks(&broker).await {
                return;
            }
        }
        panic!("it never takes as long as a look at it");
    })
    .await;
}

/// Whether the signal came in time: the look may be over before anybody sees it.
async fn forget_is_interrupted_while_it_looks(broker: &Broker) -> bool {
    let fixture = Fixture::with_queue(broker).await;
    let made = ["topology", QUEUE, POLICY, "--apply"];
    fixture.run(&made).await.exits(0);
    let died = |number: u32| parked(&number.to_string(), 1_700_000_000, "x");
    let dead = (0..50).map(|number| (PARKED, number.to_string(), died(number)));
    fixture.amqp.publish_all("", dead).await;
    let waits = (0..3_000).map(|_| (WAITING_QUEUE, "x".to_owned(), BasicProperties::default()));
    fixture.amqp.publish_all("", waits).await;
    fixture.holds(WAITING_QUEUE, 3_000).await;
    let ids: Vec<_> = (0..50).map(|number| format!("--id={number}")).collect();
    let mut forget = vec!["parked", "forget", QUEUE, "--delay=10m", "--yes"];
    forget.extend(ids.iter().map(String::as_str));
    let mut child = fixture.command(&forget).spawn().unwrap();
    while fixture.amqp.depth(WAITING_QUEUE).await == Some(3_000) {
        if child.try_wait().unwrap().is_some() {
            return false;
        }
    }
    // What it holds while it stands still, it looks at: it has not begun to drop anything.
    let process = pid(&child);
    kill_process(process, Signal::STOP).unwrap();
    tokio::time::sleep(Duration::from_millis(300)).await;
    let looks = fixture.amqp.depth(WAITING_QUEUE).await < Some(3_000);
    kill_process(process, Signal::INT).unwrap();
    kill_process(process, Signal::CONT).unwrap();
    if !looks {
        let _ = child.wait().await;
        return false;
    }
    assert_eq!(code(&mut child).await, Some(130));
    fixture.holds(PARKED, 50).await;
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!(fixture.amqp.depth(PARKED).await, Some(50));
    true
}

/// A deferral is no failure: the one before stays its last.
#[tokio::test]
async fn what_is_put_off_after_a_long_error_stays_in_the_group_of_that() {
    on_brokers(|broker| async move {
        let fixture = Fixture::with_queue(&broker).await;
        let script = "[ \"$RETRYRMQ_ATTEMPT\" = 2 ] && echo 'defer: 10m' >&3 && exit 0; \
                      head -c 2000 /dev/zero | tr '\\0' x >&2; exit 1";
        fixture.amqp.publish_with(QUEUE, "late", id("late")).await;
        let options = ["--retry=fixed(100ms)"];
        fixture.consume(2, &options, script).await.exits(0);
        fixture.holds("orders.retry.630000", 1).await;
        fixture.amqp.publish_with(QUEUE, "dead", id("dead")).await;
        let options = ["--retry=fixed(100ms, retries=0)"];
        fixture.consume(1, &options, script).await.exits(0);
        fixture.holds(PARKED, 1).await;
        let listed = fixture
            .run(&["parked", "ls", QUEUE, "--json"])
            .await
            .exits(0);
        let alike = listed.lines()[0]["fingerprint"]
            .as_str()
            .unwrap()
            .to_owned();
        fixture
            .run(&["parked", "drop", QUEUE, "dead", "--yes"])
            .await
            .exits(0);
        fixture
            .run(&["parked", "hold", QUEUE, "--group", &alike])
            .await
            .exits(0);
        let forget = ["parked", "forget", QUEUE, "--yes"];
        let heeds = [&forget[..], &["--where", "message_id == 'late'"]].concat();
        let done = fixture.run(&heeds).await.exits(2);
        assert!(done.err.contains("on hold"), "{done:#?}");
        fixture.holds("orders.retry.630000", 1).await;
    })
    .await;
}

/// What the publisher has written may leave no room for the error.
#[tokio::test]
async fn what_has_no_room_for_its_error_stays_in_the_group_of_that() {
    on_brokers(|broker| async move {
        let fixture = Fixture::with_queue(&broker).await;
        for (name, policy) in [
            ("waits", POLICY),
            ("parked", "--retry=fixed(10m, retries=0)"),
        ] {
            let mut headers = FieldTable::default();
            let fill = AMQPValue::LongString("x".repeat(128_400).into());
            headers.insert("fill".into(), fill);
            let large = id(name).with_headers(headers);
            fixture.amqp.publish_with(QUEUE, name, large).await;
            let fails = "head -c 900 /dev/zero | tr '\\0' x >&2; exit 1";
            fixture.consume(1, &[policy], fails).await.exits(0);
        }
        fixture.holds(WAITING_QUEUE, 1).await;
        fixture.holds(PARKED, 1).await;
        let listed = fixture
            .run(&["parked", "ls", QUEUE, "--json"])
            .await
            .exits(0);
        let alike = listed.lines()[0]["fingerprint"]
            .as_str()
            .unwrap()
            .to_owned();
        let forget = ["parked", "forget", QUEUE, "--delay=10m", "--yes"];
        let done = fixture
            .run(&[&forget[..], &["--fingerprint", &alike]].concat())
            .await
            .exits(0);
        assert!(done.err.contains("1 parked, 1 waiting"), "{done:#?}");
    })
    .await;
}

/// With `dead-letter` a failure leaves no copy, and what an earlier one wrote stays on the message.
#[tokio::test]
async fn what_its_queue_rejected_last_is_not_in_the_group_of_an_earlier_failure() {
    const EARLIER: &str = "36567b941ac2e6b8";
    on_brokers(|broker| async move {
        let fixture = Fixture::of(&broker).await;
        let options = ["--strategy=dead-letter", POLICY];
        let made = [&["topology", QUEUE, "--apply"], &options[..]].concat();
        fixture.run(&made).await.exits(0);
        let mut failed = FieldTable::default();
        let text = |text: &str| AMQPValue::LongString(text.into());
        failed.insert("x-retry-count".into(), AMQPValue::LongLongInt(1));
        failed.insert("x-retry-error".into(), text("connect to 10.0.0.7:5432"));
        failed.insert("x-retry-error-type".into(), text("Timeout"));
        let failed = id("one").with_headers(failed);
        fixture.amqp.publish_with(QUEUE, "x", failed).await;
        fixture
            .consume(1, &options, "echo another >&2; exit 1")
            .await
            .exits(0);
        fixture.holds(WAITING_QUEUE, 1).await;
        let forget = ["parked", "forget", QUEUE, "--delay=10m", "--yes"];
        let earlier = [&forget[..], &["--fingerprint", EARLIER]].concat();
        fixture.run(&earlier).await.exits(3);
        fixture.holds(WAITING_QUEUE, 1).await;
    })
    .await;
}

/// While somebody thinks about the question it comes back and fails again.
#[tokio::test]
async fn what_has_come_into_a_group_on_hold_since_the_question_is_not_forgotten() {
    const FAILURE: &str = "36567b941ac2e6b8";
    on_brokers(|broker| async move {
        let fixture = Fixture::of(&broker).await;
        let made = ["topology", QUEUE, POLICY, "--queue-type=classic", "--apply"];
        fixture.run(&made).await.exits(0);
        let failed = |error: &str, kind: &str| {
            let text = |text: &str| AMQPValue::LongString(text.into());
            let mut failed = FieldTable::default();
            failed.insert("x-retry-count".into(), AMQPValue::LongLongInt(1));
            failed.insert("x-retry-error".into(), text(error));
            failed.insert("x-retry-error-type".into(), text(kind));
            id("one").with_headers(failed)
        };
        let before = failed("connect was refused", "Refused");
        fixture.amqp.publish_with(WAITING_QUEUE, "x", before).await;
        fixture.holds(WAITING_QUEUE, 1).await;
        let hold = ["parked", "hold", QUEUE, "--group", FAILURE];
        fixture.run(&hold).await.exits(0);
        let forget = ["parked", "forget", QUEUE, "--delay=10m", "--error=connect"];
        let mut prompt = AtTerminal::at_its_prompt(&fixture, &forget).await;
        fixture.holds(WAITING_QUEUE, 1).await;
        assert_eq!(fixture.amqp.drain(WAITING_QUEUE).await.len(), 1);
        let after = failed("connect to 10.0.0.7:5432", "Timeout");
        fixture.amqp.publish_with(WAITING_QUEUE, "x", after).await;
        fixture.holds(WAITING_QUEUE, 1).await;
        prompt.types("y\n");
        assert_eq!(code(&mut prompt.child).await, Some(3));
        fixture.holds(WAITING_QUEUE, 1).await;
    })
    .await;
}
