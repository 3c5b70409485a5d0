//! Readers who stop reading, and those who leave: neither holds a message up.

use retryrmq_harness::on_brokers;
use tokio::{io::AsyncReadExt, time::timeout};

use crate::fixture::{DEADLINE, Fixture, QUEUE};

#[tokio::test]
async fn whoever_stops_reading_holds_no_message_up() {
    on_brokers(|broker| async move {
        const COUNT: u32 = 90;
        let fixture = Fixture::with_queue(&broker).await;
        for _ in 0..2 * COUNT {
            fixture.amqp.publish(QUEUE, "").await;
        }
        // Each failure is a line with a kilobyte, together more than fits into a pipe: as JSON on standard output, and for
        // people on standard error.
        let script = "printf '%01000d' 0 >&2; exit 1";
        let count = format!("--count={COUNT}");
        for options in [
            &["--retry=fixed(1h)", &count, "--json"][..],
            &["--retry=fixed(1h)", &count],
        ] {
            let running = fixture.start(options, script);
            assert_eq!(running.end().await.code(), Some(0));
        }
        fixture.holds("orders.retry.3600000", 2 * COUNT).await;
    })
    .await;
}

#[tokio::test]
async fn what_a_command_writes_to_nobody_holds_only_itself_up() {
    on_brokers(|broker| async move {
        let fixture = Fixture::with_queue(&broker).await;
        for _ in 0..40 {
            fixture.amqp.publish(QUEUE, "").await;
        }
        let script = "head -c 100000 /dev/zero | tr '\\0' '\\n' >&2";
        let running = fixture.start(&["--count=40"], script);
        assert_eq!(running.end().await.code(), Some(0));
        fixture.holds(QUEUE, 0).await;
    })
    .await;
}

#[tokio::test]
async fn when_the_reader_leaves_it_ends_in_good_order() {
    on_brokers(|broker| async move {
        let fixture = Fixture::with_queue(&broker).await;
        let mut running = fixture.start(&["--json", "--retry=fixed(1h)"], "exit 1");
        assert!(running.line().await.contains("consuming"));
        let ended = running.end_unread();
        fixture.amqp.publish(QUEUE, "").await;
        assert_eq!(ended.await.code(), Some(0));
        fixture.holds("orders.retry.3600000", 1).await;
    })
    .await;
}

#[tokio::test]
async fn how_many_lines_nobody_read_is_told_to_who_reads_the_other_output() {
    on_brokers(|broker| async move {
        const COUNT: u32 = 90;
        let fixture = Fixture::with_queue(&broker).await;
        for _ in 0..COUNT {
            fixture.amqp.publish(QUEUE, "").await;
        }
        let script = "printf '%01000d' 0 >&2; exit 1";
        let count = format!("--count={COUNT}");
        let consume = [
            "--json",
            "consume",
            QUEUE,
            "--dlx",
            "--retry=fixed(1h)",
            &count,
        ];
        let mut command = fixture.command(&[&consume[..], &["--", "sh", "-c", script]].concat());
        let mut child = command.spawn().unwrap();
        let mut said = String::new();
        let mut reader = child.stderr.take().unwrap();
        let read = reader.read_to_string(&mut said);
        timeout(DEADLINE, read).await.expect("it ends").unwrap();
        assert_eq!(child.wait().await.unwrap().code(), Some(0));
        assert!(said.contains("lines are not on standard output"), "{said}");
    })
    .await;
}
