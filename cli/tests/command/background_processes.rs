//! What runs beside the commands: what they left behind, and the process that ends them.

use std::path::PathBuf;

use retryrmq_harness::{eventually, on_brokers};
use rustix::process::{Pid, Signal, kill_process};
use tokio::net::unix::pipe;

use crate::fixture::{DEADLINE, Fixture, QUEUE};

/// With the five seconds that our own standard error may hold each of them up they would take longer than a test waits.
const NOISY: usize = 60;

#[tokio::test]
async fn what_goes_on_writing_holds_no_acknowledgement_up() {
    on_brokers(|broker| async move {
        let fixture = Fixture::with_queue(&broker).await;
        for _ in 0..NOISY {
            fixture.amqp.publish(QUEUE, "").await;
        }
        // It starts no process each time, and ends by itself once nobody reads what it writes.
        let script = "bash -c 'exec 9<> <(:); while :; do echo noise >&2; read -t 0.1 -u 9; done' <&- >&- & exit 0";
        // A command is over when it has exited, not when its noise is.
        fixture.consume(NOISY, &[], script).await.exits(0);
        fixture.holds(QUEUE, 0).await;
    })
    .await;
}

#[tokio::test]
async fn all_that_a_command_wrote_is_passed_on_before_the_end() {
    on_brokers(|broker| async move {
        let fixture = Fixture::with_queue(&broker).await;
        fixture.amqp.publish(QUEUE, "").await;
        let script = "yes 'a line of the log' | head -n 100000 >&2; printf last >&2; (while kill -0 $PPID; do sleep 0.1; done) <&- >&- & exit 0";
        let done = fixture.consume(1, &[], script).await.exits(0);
        assert_eq!(done.err.lines().filter(|line| *line == "a line of the log").count(), 100_000);
        assert_eq!(done.err.lines().filter(|line| *line == "last").count(), 1);
    })
    .await;
}

/// The process that ends commands when their consumer was killed.
fn orphan_reaper_of(consumer: Pid) -> Option<(Pid, PathBuf)> {
    let consumer = consumer.as_raw_nonzero().to_string();
    std::fs::read_dir("/proc")
        .unwrap()
        .flatten()
        .find_map(|entry| {
            let id: i32 = entry.file_name().to_str()?.parse().ok()?;
            let stat = std::fs::read_to_string(entry.path().join("stat")).ok()?;
            let parent = stat.rsplit_once(") ")?.1.split(' ').nth(1)?;
            let line = std::fs::read_to_string(entry.path().join("cmdline")).ok()?;
            (parent == consumer && line.contains("__orphan-reaper"))
                .then_some((Pid::from_raw(id)?, entry.path()))
        })
}

#[tokio::test]
async fn an_orphan_reaper_that_was_stopped_stops_nobody() {
    on_brokers(|broker| async move {
        let fixture = Fixture::with_queue(&broker).await;
        let mut running = fixture.start(
            &["--concurrency=2"],
            "read line; echo $line; test $line != stay || exec sleep 600",
        );
        fixture.amqp.publish(QUEUE, "first\n").await;
        assert_eq!(running.line().await, "first");
        let (orphan_reaper, folder) =
            orphan_reaper_of(running.pid()).expect("it runs beside the consumer");
        kill_process(orphan_reaper, Signal::STOP).unwrap();
        let line = pipe::OpenOptions::new()
            .open_sender(folder.join("fd/0"))
            .unwrap();
        line.writable().await.unwrap();
        while line.try_write(&[b'\n'; 4096]).is_ok() {}
        while line.try_write(b"\n").is_ok() {}
        for n in 0..10 {
            fixture.amqp.publish(QUEUE, format!("{n}\n")).await;
        }
        for _ in 0..10 {
            running.line().await;
        }
        eventually(DEADLINE, "all are acknowledged", || async {
            fixture.amqp.depth(QUEUE).await == Some(0)
        })
        .await;
        drop(line);
        kill_process(orphan_reaper, Signal::CONT).unwrap();
        running.signal(Signal::TERM);
        assert_eq!(running.end().await.code(), Some(0));
        fixture.holds(QUEUE, 0).await;
    })
    .await;
}
