//! The end of a consumer: counted, idle, asked for, forced, or killed.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use retryrmq_harness::{Broker, Permissions, eventually, free_port, on_brokers};
use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use tokio::{io::AsyncReadExt, time::timeout};

use crate::fixture::{DEADLINE, Fixture, PARKED, QUEUE};

fn process(text: &str) -> Pid {
    Pid::from_raw(text.trim().parse().expect("a process id")).expect("a process id")
}

async fn gone(process: Pid) {
    eventually(DEADLINE, "the process ends", || async {
        test_kill_process(process).is_err()
    })
    .await;
}

#[tokio::test]
async fn after_so_many_attempts_no_more_messages_are_touched() {
    on_brokers(|broker| async move {
        let fixture = Fixture::with_queue(&broker).await;
        for n in 0..5 {
            fixture.amqp.publish(QUEUE, n.to_string()).await;
        }
        let options = ["--concurrency=4", "--prefetch=50"];
        let done = fixture.consume(1, &options, "exit 0").await.exits(0);
        assert_eq!(done.events("handled").len(), 1);
        fixture.holds(QUEUE, 4).await;
        let done = fixture.consume(2, &options, "exit 0").await.exits(0);
        assert_eq!(done.events("handled").len(), 2);
        fixture.holds(QUEUE, 2).await;
    })
    .await;
}

#[tokio::test]
async fn an_idle_consumer_ends() {
    on_brokers(|broker| async move {
        let fixture = Fixture::with_queue(&broker).await;
        fixture.amqp.publish(QUEUE, "").await;
        let done = fixture
            .run(&[
                "--json",
                "consume",
                QUEUE,
                "--dlx",
                "--idle=5s",
                "--",
                "true",
            ])
            .await
            .exits(0);
        assert_eq!(done.events("done").remove(0)["handled"], 1);
    })
    .await;
}

/// Its retry is due by then, and finds somebody.
#[tokio::test]
async fn a_consumer_is_idle_from_the_end_of_its_last_command_on() {
    on_brokers(|broker| async move {
        let fixture = Fixture::with_queue(&broker).await;
        fixture.amqp.publish(QUEUE, "").await;
        let done = fixture
            .run(&[
                "--json",
                "consume",
                QUEUE,
                "--idle=3s",
                "--",
                "sh",
                "-c",
                "sleep 4; date +%s%N >&2",
            ])
            .await
            .exits(0);
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .expect("it is after 1970");
        let mut lines = done.err.lines();
        let end: u64 = lines
            .find_map(|line| line.trim().parse().ok())
            .unwrap_or_else(|| panic!("no time: {done:#?}"));
        let idle = now.saturating_sub(Duration::from_nanos(end));
        assert!(idle >= Duration::from_secs(3), "{idle:?}");
    })
    .await;
}

#[tokio::test]
async fn asked_to_end_it_lets_commands_finish() {
    on_brokers(|broker| async move {
        for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
            let fixture = Fixture::with_queue(&broker).await;
            for _ in 0..3 {
                fixture.amqp.publish(QUEUE, "").await;
            }
            // It goes on when it is told to, by a signal of its own.
            let mut running = fixture.start(
                &[],
                "trap 'exit 0' USR1; echo $$; while :; do sleep 0.05; done",
            );
            let command = process(&running.line().await);
            running.drain(signal).await;
            kill_process(command, Signal::USR1).unwrap();
            assert_eq!(running.end().await.code(), Some(0));
            fixture.holds(QUEUE, 2).await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_command_that_the_same_signal_ended_has_not_failed() {
    on_brokers(|broker| async move {
        for signal in [Signal::TERM, Signal::HUP] {
            let fixture = Fixture::with_queue(&broker).await;
            fixture.amqp.publish(QUEUE, "").await;
            let mut running = fixture.start(&["--retry=fixed(1h)"], "echo $$; exec sleep 600");
            let command = process(&running.line().await);
            running.drain(signal).await;
            kill_process(command, signal).unwrap();
            assert_eq!(running.end().await.code(), Some(0));
            fixture.holds(QUEUE, 1).await;
            assert_eq!(fixture.amqp.depth("orders.retry.3600000").await, Some(0));
        }
    })
    .await;
}

#[tokio::test]
async fn a_second_signal_and_the_end_of_the_drain_stop_commands() {
    on_brokers(|broker| async move {
        let deaf = "trap '' TERM; echo $$; while :; do sleep 0.05; done";
        for (options, second, code) in [
            (&["--drain=10m"][..], true, 130),
            (&["--drain=100ms", "--grace=100ms"], false, 0),
        ] {
            let fixture = Fixture::with_queue(&broker).await;
            fixture.amqp.publish(QUEUE, "").await;
            let mut running = fixture.start(options, deaf);
            let command = process(&running.line().await);
            running.drain(Signal::TERM).await;
            if second {
                running.signal(Signal::TERM);
            }
            assert_eq!(running.end().await.code(), Some(code));
            gone(command).await;
            fixture.holds(QUEUE, 1).await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_timeout_ends_all_that_the_command_started() {
    on_brokers(|broker| async move {
        let fixture = Fixture::with_queue(&broker).await;
        fixture.amqp.publish(QUEUE, "").await;
        let script = "trap '' TERM; sh -c 'trap \"\" TERM; echo $$; while :; do sleep 0.05; done' & wait; wait";
        let mut running = fixture.start(&["--count=1", "--timeout=5s", "--grace=100ms", "--retry=fixed(1h)"], script);
        let grandchild = process(&running.line().await);
        gone(grandchild).await;
        assert_eq!(running.end().await.code(), Some(0));
        fixture.holds("orders.retry.3600000", 1).await;
    })
    .await;
}

#[tokio::test]
async fn the_whole_group_has_its_grace() {
    on_brokers(|broker| async move {
        // The shell in front dies of the first signal; what it waited for cleans up.
        let worker =
            "trap 'sleep 0.2; echo cleaned; exit 0' TERM; echo ready; while :; do sleep 0.05; done";
        let script = format!("sh -c \"{worker}\"; true");
        for options in [
            // Again until the worker was ready before its time was over.
            &[
                "--timeout=1s",
                "--grace=10m",
                "--retry=fixed(10ms, retries=1000)",
            ][..],
            &["--drain=0s", "--grace=10m"],
        ] {
            let fixture = Fixture::with_queue(&broker).await;
            fixture.amqp.publish(QUEUE, "").await;
            let mut running = fixture.start(options, &script);
            while running.line().await != "ready" {}
            if options[0].starts_with("--drain") {
                running.signal(Signal::TERM);
            }
            while running.line().await != "cleaned" {}
            running.signal(Signal::TERM);
            assert!(running.end().await.code().is_some(), "it was not killed");
        }
    })
    .await;
}

#[tokio::test]
async fn a_second_signal_cuts_the_grace_of_a_timeout_short() {
    on_brokers(|broker| async move {
        let fixture = Fixture::with_queue(&broker).await;
        fixture.amqp.publish(QUEUE, "").await;
        let deaf = "trap 'echo asked' TERM; while :; do sleep 0.05; done";
        let options = [
            "--timeout=1s",
            "--grace=10m",
            "--retry=fixed(10ms, retries=1000)",
        ];
        let mut running = fixture.start(&options, deaf);
        assert_eq!(running.line().await, "asked");
        running.drain(Signal::TERM).await;
        running.signal(Signal::TERM);
        assert_eq!(running.end().await.code(), Some(130));
    })
    .await;
}

#[tokio::test]
async fn an_ignored_hangup_stays_ignored() {
    on_brokers(|broker| async move {
        let fixture = Fixture::with_queue(&broker).await;
        let mut running = fixture.start_without_hangups("echo handled");
        for _ in 0..2 {
            fixture.amqp.publish(QUEUE, "").await;
            assert_eq!(running.line().await, "handled");
            running.signal(Signal::HUP);
        }
        running.signal(Signal::TERM);
        assert_eq!(running.end().await.code(), Some(0));
        fixture.holds(QUEUE, 0).await;
    })
    .await;
}

#[tokio::test]
async fn counted_attempts_may_take_as_long_as_they_like() {
    on_brokers(|broker| async move {
        // --drain is for commands that were asked to end, not for the last of a count.
        let options = ["--count=1", "--drain=0s", "--grace=10m"];
        let script = "trap 'echo asked; exit 0' TERM; echo ready; n=0; \
            while [ $n -lt 40 ]; do sleep 0.05; n=$((n+1)); done; echo finished";
        for (signal, end, left) in [(None, "finished", 0), (Some(Signal::INT), "asked", 1)] {
            let fixture = Fixture::with_queue(&broker).await;
            fixture.amqp.publish(QUEUE, "").await;
            let mut running = fixture.start(&options, script);
            assert_eq!(running.line().await, "ready");
            if let Some(signal) = signal {
                running.signal(signal);
            }
            assert_eq!(running.line().await, end);
            assert_eq!(running.end().await.code(), Some(0));
            fixture.holds(QUEUE, left).await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_status_that_tells_of_the_same_signal_is_no_failure_either() {
    on_brokers(|broker| async move {
        let fixture = Fixture::with_queue(&broker).await;
        fixture.amqp.publish(QUEUE, "").await;
        // As Java, Node and shells end when a service manager signals the whole group.
        let script = "trap 'exit 143' TERM; echo $$; while :; do sleep 0.05; done";
        let mut running = fixture.start(&["--retry=fixed(1h)"], script);
        let command = process(&running.line().await);
        running.drain(Signal::TERM).await;
        kill_process(command, Signal::TERM).unwrap();
        assert_eq!(running.end().await.code(), Some(0));
        fixture.holds(QUEUE, 1).await;
        assert_eq!(fixture.amqp.depth("orders.retry.3600000").await, Some(0));
    })
    .await;
}

#[tokio::test]
async fn the_command_may_hear_of_the_end_before_we_do() {
    on_brokers(|broker| async move {
        let fixture = Fixture::with_queue(&broker).await;
        fixture.amqp.publish(QUEUE, "").await;
        let mut running = fixture.start(&["--retry=fixed(1h)"], "echo $$; exec sleep 600");
        let command = process(&running.line().await);
        // A service manager signals one process after the other, in no order. Neither runs between the two signals, so that a busy machine
        // cannot have them come far apart.
        running.signal(Signal::STOP);
        kill_process(command, Signal::TERM).unwrap();
        running.signal(Signal::TERM);
        running.signal(Signal::CONT);
        assert_eq!(running.end().await.code(), Some(0));
        fixture.holds(QUEUE, 1).await;
        assert_eq!(fixture.amqp.depth("orders.retry.3600000").await, Some(0));
    })
    .await;
}

#[tokio::test]
async fn commands_do_not_outlive_a_consumer_that_was_killed() {
    on_brokers(|broker| async move {
        let fixture = Fixture::with_queue(&broker).await;
        fixture.amqp.publish(QUEUE, "").await;
        // Once the body is through, the process that ends commands knows of this one.
        let mut running = fixture.start(
            &["--grace=200ms"],
            "trap '' TERM; cat >/dev/null; echo $$; while :; do sleep 0.05; done",
        );
        let command = process(&running.line().await);
        running.signal(Signal::KILL);
        gone(command).await;
        fixture.holds(QUEUE, 1).await;
        assert!(!running.end().await.success());
    })
    .await;
}

#[tokio::test]
async fn a_program_that_is_gone_costs_no_attempt() {
    on_brokers(|broker| async move {
        let fixture = Fixture::with_queue(&broker).await;
        let name = format!("retryrmq-{}-{}", std::process::id(), fixture.vhost.name());
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir(&folder).unwrap();
        let path = folder.join("handler");
        let path = path.to_str().unwrap();
        std::fs::write(path, "#!/nonexistent/interpreter\n").unwrap();
        let folder_name = folder.to_str().unwrap();
        for name in ["/nonexistent/handler", "no-such-program", folder_name, path] {
            let done = fixture
                .run(&["--json", "consume", QUEUE, "--dlx", "--", name])
                .await
                .exits(2);
            assert!(
                done.err.contains("cannot run") && done.err.contains(name),
                "{done:#?}"
            );
            assert_eq!(done.out, "", "found before anything is subscribed");
        }
        // Found and executable, and yet it cannot be started: its interpreter does not exist.
        std::fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o755))
            .unwrap();
        let count = 3;
        for n in 0..count {
            fixture.amqp.publish(QUEUE, n.to_string()).await;
        }
        // A supervisor starts it again and again, more often than a message may crash its consumer.
        for _ in 0..5 {
            let done = fixture
                .run(&[
                    "--json",
                    "consume",
                    QUEUE,
                    "--dlx",
                    "--max-crashes=2",
                    "--",
                    path,
                ])
                .await
                .exits(1);
            assert!(done.err.contains("cannot run"), "{done:#?}");
            fixture.holds(QUEUE, count).await;
        }
        assert_eq!(fixture.amqp.depth(PARKED).await, Some(0));
        // Once the interpreter is there, all of them are as they were.
        std::fs::write(path, "#!/bin/sh\n").unwrap();
        let done = fixture
            .run(&[
                "--json",
                "consume",
                QUEUE,
                "--dlx",
                "--max-crashes=2",
                "--count=3",
                "--",
                path,
            ])
            .await
            .exits(0);
        let handled = done.events("handled");
        assert_eq!(handled.len(), 3, "{done:#?}");
        assert!(handled.iter().all(|line| line["attempt"] == 1), "{done:#?}");
        std::fs::remove_dir_all(&folder).unwrap();
    })
    .await;
}

#[tokio::test]
async fn a_broker_that_is_not_there_yet_is_waited_for_where_that_is_asked() {
    on_brokers(|broker| async move {
        let fixture = Fixture::with_queue(&broker).await;
        fixture.amqp.publish(QUEUE, "x").await;
        // Where nothing listens yet, and a way to the broker is opened later.
        let port = free_port();
        let (_, at) = fixture.vhost.url().rsplit_once('@').unwrap();
        let (authority, _) = at.split_once('/').unwrap();
        let there = format!("127.0.0.1:{port}");
        let url = fixture.vhost.url().replacen(authority, &there, 1);
        let consume = ["--url", &url, "consume", QUEUE, "--count=1"];
        let at_once = [&consume[..], &["--", "true"]].concat();
        let waits = [&consume[..], &["--wait", "--", "true"]].concat();
        fixture.run(&at_once).await.exits(4);
        let waiting = fixture.start_with(&waits);
        let mut asked = fixture.start_with(&waits);
        asked.says("not there yet").await;
        asked.signal(Signal::TERM);
        assert_eq!(asked.end().await.code(), Some(0), "nothing was begun");
        let listener = tokio::net::TcpListener::bind(("127.0.0.1", port)).await;
        let (listener, authority) = (listener.unwrap(), authority.to_owned());
        let door = tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let mut broker = tokio::net::TcpStream::connect(&authority).await.unwrap();
                tokio::spawn(async move {
                    let _ = tokio::io::copy_bidirectional(&mut stream, &mut broker).await;
                });
            }
        });
        assert_eq!(waiting.end().await.code(), Some(0));
        fixture.holds(QUEUE, 0).await;
        door.abort();
    })
    .await;
}

#[tokio::test]
async fn asked_to_end_while_nobody_answers_it_ends() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let url = format!("amqp://127.0.0.1:{port}?connection_timeout=600000");
    let mut command = crate::fixture::retryrmq();
    command.args(["--url", &url, "consume", QUEUE, "--", "true"]);
    let child = command.spawn().unwrap();
    // It listens to signals before it connects.
    let (mut silent, _) = timeout(DEADLINE, listener.accept()).await.unwrap().unwrap();
    let mut greeting = [0; 8];
    silent.read_exact(&mut greeting).await.unwrap();
    let pid = i32::try_from(child.id().unwrap()).unwrap();
    kill_process(Pid::from_raw(pid).unwrap(), Signal::INT).unwrap();
    // Sooner than the connection is given up.
    let done = timeout(DEADLINE, child.wait_with_output()).await;
    assert_eq!(done.unwrap().unwrap().status.code(), Some(0));
}

#[tokio::test]
async fn a_login_that_is_refused_later_ends_it_where_that_is_asked() {
    ends_when_refused(&[], &["true"]).await;
}

/// What it does cannot be told to the broker any more.
#[tokio::test]
async fn a_command_that_runs_when_the_login_is_refused_has_as_long_as_after_a_signal() {
    ends_when_refused(&[], &["sleep", "10000"]).await;
}

/// The last of a count may take its time otherwise.
#[tokio::test]
async fn the_last_of_a_count_has_no_longer_when_the_login_is_refused() {
    ends_when_refused(&["--count", "1"], &["sleep", "10000"]).await;
}

/// With these options, and a message for this command.
async fn ends_when_refused(options: &'static [&'static str], command: &'static [&'static str]) {
    on_brokers(|broker| async move {
        let fixture = Fixture::with_queue(&broker).await;
        let management = broker.management();
        let user = format!("{}-maria", fixture.vhost.name());
        management.create_user(&user, "old", "").await.unwrap();
        management
            .set_permissions(fixture.vhost.name(), &user, Permissions::ALL)
            .await
            .unwrap();
        let url = fixture.vhost.url_as(&user, "old");
        fixture.amqp.publish(QUEUE, "x").await;
        let consume = ["--url", &url, "consume", QUEUE, "--dlx"];
        let ends = ["--end-when-refused", "--drain", "1s", "--"];
        let running = fixture.start_with(&[&consume[..], options, &ends, command].concat());
        eventually(DEADLINE, "it has the message", || async {
            (fixture.amqp.depth(QUEUE).await == Some(0)).then_some(())
        })
        .await;
        refuse(&broker, &fixture, &user).await;
        assert_eq!(running.end().await.code(), Some(4));
        management.delete_user(&user).await.unwrap();
    })
    .await;
}

/// Nobody has asked for an end before.
#[tokio::test]
async fn the_first_signal_kills_nothing_when_the_login_was_refused() {
    on_brokers(|broker| async move {
        let folder = tempfile::tempdir().unwrap();
        let [began, go, ended] = ["began", "go", "ended"].map(|name| folder.path().join(name));
        let fixture = Fixture::with_queue(&broker).await;
        let management = broker.management();
        let user = format!("{}-maria", fixture.vhost.name());
        management.create_user(&user, "old", "").await.unwrap();
        let allowed = management.set_permissions(fixture.vhost.name(), &user, Permissions::ALL);
        allowed.await.unwrap();
        let url = fixture.vhost.url_as(&user, "old");
        fixture.amqp.publish(QUEUE, "x").await;
        let script = format!(
            "touch {}; until [ -e {} ]; do sleep 0.1; done; touch {}",
            began.display(),
            go.display(),
            ended.display()
        );
        let consume = [
            "--json",
            "--url",
            &url,
            "consume",
            QUEUE,
            "--dlx",
            "--end-when-refused",
        ];
        let command = ["--drain", "120s", "--", "sh", "-c", &script];
        let mut running = fixture.start_with(&[&consume[..], &command].concat());
        eventually(DEADLINE, "it runs", || async { began.exists() }).await;
        refuse(&broker, &fixture, &user).await;
        while !running.line().await.contains("draining") {}
        running.signal(Signal::TERM);
        tokio::time::sleep(std::time::Duration::from_secs(5)).await; // long after any kill
        std::fs::write(&go, "").unwrap();
        assert_eq!(running.end().await.code(), Some(4));
        assert!(ended.exists(), "it was killed");
        management.delete_user(&user).await.unwrap();
    })
    .await;
}

/// Closes the connections of a command, and changes the password.
async fn refuse(broker: &Broker, fixture: &Fixture, user: &str) {
    let management = broker.management();
    management.create_user(user, "new", "").await.unwrap();
    // Known to the management API a moment after they are open.
    let all = eventually(DEADLINE, "its connections are known", || async {
        let mut all = management.connections(fixture.vhost.name()).await.unwrap();
        all.retain(|one| {
            let name = one.client_name.as_deref().unwrap_or_default();
            name.contains("(consume)") || name.contains("(publish)")
        });
        (all.len() == 2).then_some(all)
    })
    .await;
    for connection in all {
        let _ = management.close_connection(&connection.name).await;
    }
}
