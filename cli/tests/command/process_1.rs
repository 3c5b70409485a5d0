//! The command as process 1, as in a container.

use std::{fs, process::Stdio};

use retryrmq_harness::{eventually, on_brokers};
use rustix::process::{Pid, Signal, getuid, kill_process};
use tokio::process::Command;

use crate::fixture::{DEADLINE, Fixture, QUEUE, Running};

/// Runs a program as process 1 of a PID namespace.
fn alone() -> Command {
    let mut command = Command::new("unshare");
    if !getuid().is_root() {
        command.args(["--user", "--map-root-user"]);
    }
    command.args(["--pid", "--fork", "--kill-child", "--mount-proc"]);
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true);
    command
}

async fn is_possible() -> bool {
    let tried = alone().arg("true").output().await;
    let works = tried.is_ok_and(|tried| tried.status.success());
    if !works {
        eprintln!("skipped: this machine lets nobody make a PID namespace");
    }
    works
}

/// The children of a process, zombies included: number and name.
fn children(of: Pid) -> Vec<(Pid, String)> {
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let stats = processes.filter_map(|process| {
        let stat = fs::read_to_string(process.path().join("stat")).ok()?;
        let (start, rest) = stat.rsplit_once(')')?;
        let parent = rest.split_whitespace().nth(1)?;
        let (pid, name) = start.split_once(" (")?;
        let pid = Pid::from_raw(pid.parse().ok()?)?;
        (parent == of.as_raw_nonzero().to_string()).then(|| (pid, name.to_owned()))
    });
    stats.collect()
}

/// What it started ends as it does elsewhere, and what that left behind is reaped.
#[tokio::test]
async fn as_process_1_it_reaps_what_commands_leave_behind() {
    if !is_possible().await {
        return;
    }
    on_brokers(|broker| async move {
        let fixture = Fixture::with_queue(&broker).await;
        let flags = tempfile::tempdir().unwrap();
        let go_on = flags.path().join("go-on");
        for n in 0..40 {
            fixture.amqp.publish(QUEUE, n.to_string()).await;
        }
        // In its own group, and in one that it left.
        let script = r#"
            n=$(cat)
            exec 3>&-
            (sleep 0.1; sleep 0.1) </dev/null >/dev/null 2>&1 &
            setsid sleep 0.1 </dev/null >/dev/null 2>&1 &
            [ "$n" != last ] || { echo began; while [ ! -e "$0" ]; do sleep 0.05; done; echo ended; exit 0; }
            exit $((n % 2))
        "#;
        let mut command = alone();
        command
            .arg(env!("CARGO_BIN_EXE_retryrmq"))
            .args(["consume", QUEUE, "--dlx", "--retry=fixed(1h)", "--concurrency=8"])
            .args(["--", "sh", "-c", script])
            .arg(&go_on)
            .env("RETRYRMQ_URL", fixture.vhost.url());
        let mut running = Running::of(command);
        fixture.holds("orders.retry.3600000", 20).await;
        let process_1 = children(running.pid())[0].0;
        let is_one = |(_, name): &(Pid, String)| name == "retryrmq";
        eventually(DEADLINE, "only the second process is left", || async {
            let left = children(process_1);
            if left.len() == 1 && left.iter().all(is_one) {
                Ok(())
            } else {
                Err(format!("{left:?}"))
            }
        })
        .await;
        fixture.holds(QUEUE, 0).await;

        fixture.amqp.publish(QUEUE, "last").await;
        assert_eq!(running.line().await, "began");
        kill_process(process_1, Signal::TERM).unwrap();
        running.drains().await;
        fs::write(&go_on, "").unwrap();
        assert_eq!(running.line().await, "ended");
        assert_eq!(running.end().await.code(), Some(0));
        fixture.holds(QUEUE, 0).await;
        fixture.holds("orders.retry.3600000", 20).await;
    })
    .await;
}
