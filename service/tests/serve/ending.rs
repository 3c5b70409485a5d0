//! Probes, replicas that die, brokers that die, and the end.

use std::{collections::BTreeSet, sync::Mutex};

use retryrmq_harness::{QueueType, eventually, free_port, on_brokers};

use crate::fixture::{
    DEADLINE, INTAKE, INTAKE_PARKED, NativeConsumer, Replica, declare, id, policy, program, take,
};

#[tokio::test]
async fn probes_and_metrics_say_how_it_is() {
    on_brokers(|broker| async move {
        let vhost = broker.vhost().await;
        let replica = Replica::start(&vhost, None).await;
        assert_eq!(replica.page("/healthz").await, (200, "ok\n".to_owned()));
        assert_eq!(replica.page("/readyz").await, (200, "ok\n".to_owned()));
        let (status, text) = replica.page("/metrics").await;
        assert_eq!(status, 200);
        assert_eq!(text.matches("# EOF").count(), 1, "{text}");
        for metric in [
            "retryrmq_serve_ready 1",
            "retryrmq_connection",
            "retryrmq_messages_delivered_total{queue=\"retryrmq.intake\"}",
        ] {
            assert!(text.contains(metric), "{metric}: {text}");
        }
        // The queue is deleted under it: not ready until it is there again, which it sees to itself.
        let amqp = vhost.connect().await;
        amqp.delete(INTAKE).await;
        replica
            .counts(
                "retryrmq_consumer_reconnects_total{queue=\"retryrmq.intake\"}",
                1,
            )
            .await;
        eventually(DEADLINE, "it is ready again", || async {
            replica.page("/readyz").await.0 == 200
        })
        .await;
        declare(&amqp, "orders", QueueType::Classic, false).await;
        amqp.publish_with("orders", "x", id("late").with_expiration("1".into()))
            .await;
        take(&amqp, "orders.parked", 1).await;
    })
    .await;
}

#[tokio::test]
async fn a_broker_that_is_not_there_is_waited_for_and_the_end_is_heard_meanwhile() {
    let port = free_port();
    let mut child = program()
        .env(
            "RETRYRMQ_URL",
            format!("amqp://guest:secret@127.0.0.1:{port}"),
        )
        .args(["--listen", "127.0.0.1:0", "--log", "json"])
        .spawn()
        .unwrap();
    use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};
    let mut err = BufReader::new(child.stderr.take().unwrap());
    let mut log = String::new();
    while !log.contains("not there yet") {
        assert!(
            err.read_line(&mut log).await.unwrap() > 0,
            "it ended: {log}"
        );
    }
    let pid = rustix::process::Pid::from_raw(i32::try_from(child.id().unwrap()).unwrap()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    assert!(child.wait().await.unwrap().success());
    err.read_to_string(&mut log).await.unwrap();
    assert!(!log.contains("secret"), "{log}");
}

#[tokio::test]
async fn the_end_leaves_nothing_in_the_intake_that_was_on_its_way() {
    on_brokers(|broker| async move {
        let vhost = broker.vhost().await;
        let amqp = vhost.connect().await;
        let file = policy("[defaults]\nretry = \"fixed(1h)\"\n");
        let replica = Replica::start(&vhost, Some(file.path())).await;
        declare(&amqp, "orders", QueueType::Quorum, true).await;
        for number in 0..50 {
            amqp.publish_with("orders", "x", id(&number.to_string()))
                .await;
        }
        let _native = NativeConsumer::start(&vhost, "orders", |_| false).await;
        // Their waiting queue is young, so that all of them are on their way for two seconds.
        eventually(DEADLINE, "all of them wait", || async {
            amqp.depth("orders.retry.3600000").await == Some(50)
        })
        .await;
        assert!(replica.end().await.success());
        assert_eq!(amqp.depth(INTAKE).await, Some(0), "all were acknowledged");
        assert_eq!(
            amqp.depth("orders.retry.3600000").await,
            Some(50),
            "none twice"
        );
    })
    .await;
}

#[tokio::test]
async fn a_broker_that_is_killed_costs_nothing() {
    on_brokers(|broker| async move {
        if !broker.is_controllable() {
            eprintln!("skipped: this broker cannot be killed");
            return;
        }
        let node = broker.own_node(&[]).await;
        let vhost = node.vhost().await;
        let amqp = vhost.connect().await;
        let file = policy("[defaults]\nretry = \"fixed(1h)\"\n");
        // Places for two of one queue: what is held beyond them must not lose its retry for a restart.
        let few = ["--prefetch", "8"];
        let replica = Replica::start_at(vhost.url(), Some(file.path()), &few).await;
        declare(&amqp, "orders", QueueType::Quorum, true).await;
        let native = NativeConsumer::start(&vhost, "orders", |_| false).await;
        amqp.publish_with("orders", "x", id("first")).await;
        let waiting = async |least: u32| {
            eventually(DEADLINE, &format!("{least} wait"), || async {
                let depth = amqp.depth("orders.retry.3600000").await;
                depth.is_some_and(|depth| depth >= least)
            })
            .await;
        };
        waiting(1).await;
        // All queues are old enough to survive: before RabbitMQ 4.3 a young one may be without a leader for good (fact 57).
        tokio::time::sleep(std::time::Duration::from_secs(3)).await;
        for number in 0..40 {
            amqp.publish_with("orders", "x", id(&number.to_string()))
                .await;
        }
        waiting(2).await;
        node.kill().await;
        drop(native);
        node.start().await;
        let amqp = vhost.connect().await;
        let _native = NativeConsumer::start(&vhost, "orders", |_| false).await;
        let names = Mutex::new(BTreeSet::new());
        // Some wait twice, so their number says nothing.
        eventually(DEADLINE, "all of them wait", || async {
            let waiting = amqp.drain("orders.retry.3600000").await;
            let ids = waiting.iter().filter_map(|message| message.id());
            let mut names = names.lock().unwrap();
            names.extend(ids.map(str::to_owned));
            let rest = (names.len() != 41).then(|| format!("{names:?} wait"));
            rest.map_or(Ok(()), Err)
        })
        .await;
        eventually(DEADLINE, "nothing is left elsewhere", || async {
            let rest = [amqp.depth("orders").await, amqp.depth(INTAKE).await];
            if rest == [Some(0), Some(0)] {
                Ok(())
            } else {
                Err(format!("{rest:?}"))
            }
        })
        .await;
        assert_eq!(amqp.depth(INTAKE_PARKED).await, Some(0), "none was parked");
        assert!(replica.end().await.success());
    })
    .await;
}
