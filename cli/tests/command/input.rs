//! A body on standard input, whatever it is and whether it is read or not.

use retryrmq_harness::{lapin::BasicProperties, on_brokers};

use crate::fixture::{Fixture, QUEUE};

#[tokio::test]
async fn a_body_arrives_byte_for_byte() {
    on_brokers(|broker| async move {
        let fixture = Fixture::with_queue(&broker).await;
        let bodies: [Vec<u8>; 4] = [
            Vec::new(),
            vec![0, 0xff, 0xfe, b'\n', 0x80, 0],
            "Grüße\n".into(),
            (0..16 * 1024 * 1024u32)
                .map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8)
                .collect(),
        ];
        for body in &bodies {
            fixture.amqp.publish(QUEUE, body).await;
        }
        // Without --json what the commands print is what we print.
        let done = fixture
            .run(&["-q", "consume", QUEUE, "--dlx", "--count=4", "--", "cat"])
            .await
            .exits(0);
        assert!(done.bytes == bodies.concat(), "{} bytes", done.bytes.len());
        assert_eq!(done.err, "");
        fixture.holds(QUEUE, 0).await;
    })
    .await;
}

#[tokio::test]
async fn a_command_need_not_read_its_input() {
    on_brokers(|broker| async move {
        let fixture = Fixture::with_queue(&broker).await;
        for _ in 0..3 {
            fixture
                .amqp
                .publish(QUEUE, vec![b'x'; 8 * 1024 * 1024])
                .await;
        }
        for script in ["exit 0", "exec 0<&-; exit 0", "head -c 10 >/dev/null"] {
            let done = fixture.consume(1, &[], script).await.exits(0);
            assert_eq!(done.events("handled").len(), 1, "{script}: {done:#?}");
        }
    })
    .await;
}

#[tokio::test]
async fn very_much_output_is_passed_on_and_only_its_end_kept() {
    on_brokers(|broker| async move {
        let fixture = Fixture::with_queue(&broker).await;
        fixture
            .amqp
            .publish_with(
                QUEUE,
                "",
                BasicProperties::default().with_message_id("a".into()),
            )
            .await;
        let script =
            "yes 'a line of the log' | head -n 100000 >&2; printf 'the reason' >&2; exit 1";
        let done = fixture
            .consume(1, &["--retry=fixed(1h, retries=0)"], script)
            .await
            .exits(0);
        assert_eq!(done.events("parked").remove(0)["error"], "the reason");
        assert_eq!(
            done.err
                .lines()
                .filter(|line| *line == "a line of the log")
                .count(),
            100_000
        );
        let shown = fixture
            .run(&["--json", "parked", "show", QUEUE, "a"])
            .await
            .exits(0)
            .json();
        let stack = shown["stack"].as_str().unwrap();
        assert!(
            stack.len() <= 8 * 1024 && stack.ends_with("a line of the log\nthe reason"),
            "{}",
            stack.len()
        );
    })
    .await;
}

#[tokio::test]
async fn what_a_command_leaves_behind_holds_nothing_up() {
    on_brokers(|broker| async move {
        let fixture = Fixture::with_queue(&broker).await;
        fixture.amqp.publish(QUEUE, "").await;
        // The sleeper keeps standard error open; the command itself has ended.
        let done = fixture.start(&["--count=1"], "sleep 600 <&- >&- & echo $!");
        let mut running = done;
        let left: i32 = running.line().await.parse().unwrap();
        assert_eq!(running.end().await.code(), Some(0));
        let left = rustix::process::Pid::from_raw(left).unwrap();
        assert!(
            rustix::process::test_kill_process(left).is_ok(),
            "it goes on: it was left on purpose"
        );
        rustix::process::kill_process(left, rustix::process::Signal::KILL).unwrap();
    })
    .await;
}
