//! Files of parked messages that are not written, or not read, to their end.

use retryrmq::types::{AMQPValue, FieldTable};
use retryrmq_harness::{QueueType, on_brokers};
use serde_json::json;

use crate::{
    fixture::{Fixture, PARKED, QUEUE},
    interrupted_walks::parked,
};

/// Lines of a file that `parked export` wrote, one of them with more headers than a frame has room for.
async fn exported(fixture: &Fixture, count: u64, too_large: Option<usize>) -> String {
    fixture.amqp.declare(PARKED, QueueType::Quorum).await;
    for number in 1..=count {
        let id = format!("m{number}");
        let record = parked(&id, 1_700_000_000 + number, "no answer");
        fixture.amqp.publish_with(PARKED, &id, record).await;
    }
    fixture.holds(PARKED, u32::try_from(count).unwrap()).await;
    let done = fixture.run(&["parked", "export", QUEUE]).await.exits(0);
    fixture.amqp.drain(PARKED).await;
    let lines = done.lines().into_iter().enumerate().map(|(at, mut line)| {
        if Some(at + 1) == too_large {
            line["headers"]["filler"] = json!("x".repeat(200_000));
        }
        format!("{line}\n")
    });
    lines.collect()
}

/// Takes all messages of a queue. Their ids, in order.
async fn ids(fixture: &Fixture, queue: &str) -> Vec<String> {
    let messages = fixture.amqp.drain(queue).await;
    let id = |message: &retryrmq_harness::Message| message.id().unwrap_or_default().to_owned();
    let mut ids: Vec<_> = messages.iter().map(id).collect();
    ids.sort();
    ids
}

#[tokio::test]
async fn a_line_that_no_broker_takes_keeps_no_other_out_and_doubles_none() {
    on_brokers(|broker| async move {
        let fixture = Fixture::with_queue(&broker).await;
        let text = exported(&fixture, 5, Some(3)).await;
        let import = ["--json", "parked", "import", "-"];
        let done = fixture.feed(&import, text.as_bytes()).await.exits(1);
        let told = done.json();
        assert_eq!(
            (&told["imported"], &told["refused"]),
            (&json!(4), &json!([3]))
        );
        assert!(
            done.err.contains("not imported: line 3") && !done.err.contains("--from-line"),
            "to go on behind it would double the others: {done:#?}"
        );
        assert_eq!(ids(&fixture, PARKED).await, ["m1", "m2", "m4", "m5"]);
    })
    .await;
}

#[tokio::test]
async fn a_second_import_of_a_file_is_refused_unless_somebody_insists() {
    on_brokers(|broker| async move {
        let fixture = Fixture::with_queue(&broker).await;
        let text = exported(&fixture, 5, None).await;
        let first_three: String = text.split_inclusive('\n').take(3).collect();
        let import = ["parked", "import", "-"];
        fixture.feed(&import, first_three.as_bytes()).await.exits(0);
        let refused = fixture.feed(&import, text.as_bytes()).await.exits(5);
        assert!(
            refused.err.contains("lines 1-3 of the file are parked in")
                && refused.err.contains("nothing was imported")
                && refused.err.contains("--from-line 4"),
            "{refused:#?}"
        );
        fixture.holds(PARKED, 3).await;
        let rest = ["parked", "import", "-", "--from-line=4"];
        fixture.feed(&rest, text.as_bytes()).await.exits(0);
        fixture.holds(PARKED, 5).await;
        fixture.feed(&rest, text.as_bytes()).await.exits(5);
        let again = ["parked", "import", "-", "--again"];
        fixture.feed(&again, text.as_bytes()).await.exits(0);
        fixture.holds(PARKED, 10).await;
        // Into another queue it is no second import.
        let orders_copy = ["parked", "import", "-", "--queue=orders-copy"];
        fixture
            .amqp
            .declare("orders-copy.parked", QueueType::Quorum)
            .await;
        fixture.feed(&orders_copy, text.as_bytes()).await.exits(0);
        fixture.feed(&orders_copy, text.as_bytes()).await.exits(5);
    })
    .await;
}

#[tokio::test]
async fn lines_between_parked_ones_are_not_passed_over() {
    on_brokers(|broker| async move {
        let fixture = Fixture::with_queue(&broker).await;
        let text = exported(&fixture, 5, None).await;
        let all: Vec<&str> = text.split_inclusive('\n').collect();
        let import = ["parked", "import", "-"];
        let some = [all[1], all[3]].concat();
        fixture.feed(&import, some.as_bytes()).await.exits(0);
        let refused = fixture.feed(&import, text.as_bytes()).await.exits(5);
        assert!(
            refused.err.contains("lines 2, 4 of the file are parked in")
                && refused.err.contains("--again")
                && !refused.err.contains("--from-line"),
            "{refused:#?}"
        );
        let dry = ["parked", "import", "-", "--dry-run"];
        let dry = fixture.feed(&dry, text.as_bytes()).await.exits(0);
        assert!(dry.err.contains("the broker was not asked"), "{dry:#?}");
        fixture.holds(PARKED, 2).await;
    })
    .await;
}

#[tokio::test]
async fn of_messages_that_look_alike_as_many_lines_count_as_are_parked() {
    on_brokers(|broker| async move {
        let fixture = Fixture::with_queue(&broker).await;
        let one = exported(&fixture, 1, None).await;
        let three = one.repeat(3);
        let import = ["parked", "import", "-"];
        fixture.feed(&import, one.as_bytes()).await.exits(0);
        let refused = fixture.feed(&import, three.as_bytes()).await.exits(5);
        assert!(
            refused.err.contains("line 1 of the file is parked in")
                && refused.err.contains("--from-line 2 "),
            "{refused:#?}"
        );
        let rest = ["parked", "import", "-", "--from-line=2"];
        fixture.feed(&rest, three.as_bytes()).await.exits(0);
        fixture.holds(PARKED, 3).await;
        let refused = fixture.feed(&rest, three.as_bytes()).await.exits(5);
        assert!(
            refused.err.contains("lines 2-3 of the file are parked in"),
            "{refused:#?}"
        );
    })
    .await;
}

#[tokio::test]
async fn a_line_without_a_mark_is_imported_and_told() {
    on_brokers(|broker| async move {
        let fixture = Fixture::with_queue(&broker).await;
        let text = exported(&fixture, 1, None).await;
        let mut line: serde_json::Value = serde_json::from_str(&text).unwrap();
        line.as_object_mut().unwrap().remove("mark");
        let text = line.to_string();
        let import = ["parked", "import", "-"];
        let done = fixture.feed(&import, text.as_bytes()).await.exits(0);
        assert!(
            done.err.contains("1 message of the file has no mark"),
            "{done:#?}"
        );
        fixture.holds(PARKED, 1).await;
    })
    .await;
}

#[tokio::test]
async fn an_import_into_a_full_queue_goes_on_where_it_stopped() {
    on_brokers(|broker| async move {
        let fixture = Fixture::with_queue(&broker).await;
        let text = exported(&fixture, 5, None).await;
        let mut arguments = FieldTable::default();
        arguments.insert("x-max-length".into(), AMQPValue::LongInt(2));
        arguments.insert(
            "x-overflow".into(),
            AMQPValue::LongString("reject-publish".into()),
        );
        fixture
            .amqp
            .declare_with("small", QueueType::Classic, arguments)
            .await;
        let import = ["parked", "import", "-", "--queue=small", "--dlq"];
        let done = fixture.feed(&import, text.as_bytes()).await.exits(1);
        assert!(
            done.err.contains("2 of 5 messages imported")
                && done.err.contains("go on with --from-line 3"),
            "{done:#?}"
        );
        assert_eq!(fixture.amqp.drain("small").await.len(), 2);
        let mut on = import.to_vec();
        on.extend(["--from-line=5"]);
        fixture.feed(&on, text.as_bytes()).await.exits(0);
        let last = fixture.amqp.drain("small").await;
        assert_eq!(last.len(), 1);
        assert_eq!(last[0].id(), Some("m5"));
    })
    .await;
}

#[tokio::test]
async fn an_import_whose_copy_fails_in_the_middle_doubles_and_loses_none() {
    on_brokers(|broker| async move {
        let fixture = Fixture::with_queue(&broker).await;
        let orders = exported(&fixture, 3, None).await;
        let mut lines: Vec<serde_json::Value> = orders
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        lines[1]["queue"] = json!("bills");
        let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
        let mut arguments = FieldTable::default();
        arguments.insert("x-max-length".into(), AMQPValue::LongInt(1));
        arguments.insert(
            "x-overflow".into(),
            AMQPValue::LongString("reject-publish".into()),
        );
        let amqp = &fixture.amqp;
        amqp.declare_with("bills.parked", QueueType::Classic, arguments)
            .await;
        amqp.publish("bills.parked", "full").await;
        let import = ["--json", "parked", "import", "-"];
        let done = fixture.feed(&import, text.as_bytes()).await.exits(1);
        let told = done.json();
        assert_eq!(
            (&told["imported"], &told["refused"], &told["next_line"]),
            (&json!(1), &json!([]), &json!(2))
        );
        assert!(
            done.err.contains("1 of 3 messages imported")
                && done.err.contains("this was line 2")
                && done.err.contains("go on with --from-line 2"),
            "{done:#?}"
        );
        fixture.holds(PARKED, 1).await;
        assert_eq!(amqp.drain("bills.parked").await[0].text(), "full");

        // From its beginning it is refused; from where it stopped, each message is there once.
        let refused = fixture.feed(&import, text.as_bytes()).await.exits(5);
        assert!(
            refused
                .err
                .contains("line 1 of the file is parked in orders.parked already"),
            "{refused:#?}"
        );
        let rest = [&import[..], &["--from-line=2"]].concat();
        let told = fixture.feed(&rest, text.as_bytes()).await.exits(0).json();
        assert_eq!(
            (&told["imported"], &told["next_line"]),
            (&json!(2), &json!(null))
        );
        assert_eq!(ids(&fixture, PARKED).await, ["m1", "m3"]);
        assert_eq!(ids(&fixture, "bills.parked").await, ["m2"]);
    })
    .await;
}

#[tokio::test]
async fn a_second_import_into_a_dead_letter_queue_is_refused_too() {
    on_brokers(|broker| async move {
        let fixture = Fixture::with_queue(&broker).await;
        fixture.amqp.declare("morgue", QueueType::Quorum).await;
        for number in 1..=3 {
            let id = format!("m{number}");
            let record = parked(&id, 1_700_000_000 + number, "no answer");
            fixture.amqp.publish_with("morgue", &id, record).await;
        }
        let export = ["parked", "export", "morgue", "--dlq"];
        let text = fixture.run(&export).await.exits(0).out;
        let import = ["--json", "parked", "import", "-"];
        // They are still there: an export takes nothing away.
        let refused = fixture.feed(&import, text.as_bytes()).await.exits(5);
        assert!(
            refused
                .err
                .contains("lines 1-3 of the file are parked in morgue already")
                && refused.err.contains("nothing was imported")
                && refused.err.contains("--from-line 4"),
            "{refused:#?}"
        );
        fixture.holds("morgue", 3).await;
        assert_eq!(ids(&fixture, "morgue").await, ["m1", "m2", "m3"]);
        let told = fixture.feed(&import, text.as_bytes()).await.exits(0).json();
        assert_eq!(told["imported"], 3);
        fixture.feed(&import, text.as_bytes()).await.exits(5);
        let again = [&import[..], &["--again"]].concat();
        let told = fixture.feed(&again, text.as_bytes()).await.exits(0).json();
        assert_eq!(told["imported"], 3);
        let twice = ["m1", "m1", "m2", "m2", "m3", "m3"];
        assert_eq!(ids(&fixture, "morgue").await, twice);
    })
    .await;
}

#[tokio::test]
async fn an_export_that_nobody_reads_to_the_end_does_not_end_well() {
    on_brokers(|broker| async move {
        let fixture = Fixture::with_queue(&broker).await;
        fixture.amqp.declare(PARKED, QueueType::Quorum).await;
        for number in 0..50 {
            let record = parked(&format!("m{number}"), 1_700_000_000, "no answer");
            // More than a pipe holds.
            let body = "x".repeat(4_000);
            fixture.amqp.publish_with(PARKED, &body, record).await;
        }
        fixture.holds(PARKED, 50).await;
        let mut export = fixture.start_with(&["parked", "export", QUEUE]);
        export.line().await;
        let status = export.end_unread().await;
        assert_eq!(status.code(), Some(1), "it is no whole copy");
        fixture.holds(PARKED, 50).await;
    })
    .await;
}
