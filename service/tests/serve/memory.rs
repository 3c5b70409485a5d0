//! What small messages that unpack to a lot may cost.

use std::{fs, io::Write};

use flate2::{Compression, write::GzEncoder};
use retryrmq_harness::{Amqp, QueueType, Vhost, eventually, on_brokers};
use tokio::{sync::mpsc, time::timeout};

use super::page::depth;
use crate::fixture::{DEADLINE, NativeConsumer, Replica, declare, id, policy};

const BOMBS: u32 = 100;

/// JSON that unpacks to 31 MiB.
fn bomb() -> Vec<u8> {
    let text = format!(
        "{{\"a\": \"{}\"}}{}",
        "x".repeat((16 << 20) - 100),
        " ".repeat(15 << 20)
    );
    let mut packed = GzEncoder::new(Vec::new(), Compression::best());
    packed.write_all(text.as_bytes()).unwrap();
    packed.finish().unwrap()
}

/// The most memory that it had, in MiB.
fn peak(replica: &Replica) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", replica.pid())).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:"));
    let kib = line.and_then(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok());
    kib.unwrap() >> 10
}

async fn publish_bombs(amqp: &Amqp, queue: &str) {
    let body = bomb();
    assert!(body.len() < 64 << 10, "{}", body.len());
    for number in 0..BOMBS {
        let properties = id(&number.to_string()).with_content_encoding("gzip".into());
        amqp.publish_with(queue, body.clone(), properties).await;
    }
}

/// A message of another queue comes back meanwhile.
async fn neighbor_is_retried(vhost: &Vhost, amqp: &Amqp) -> NativeConsumer {
    let (handled, mut handles) = mpsc::unbounded_channel();
    let neighbor = NativeConsumer::start(vhost, "neighbor", move |seen| {
        let is_retry = seen.attempt() > 1;
        if is_retry {
            handled.send(()).unwrap();
        }
        is_retry
    })
    .await;
    amqp.publish_with("neighbor", "a body", id("neighbor"))
        .await;
    timeout(DEADLINE, handles.recv()).await.unwrap();
    neighbor
}

#[tokio::test]
async fn a_hundred_bodies_that_unpack_to_a_lot_fit_into_a_small_container() {
    on_brokers(|broker| async move {
        let vhost = broker.vhost().await;
        let amqp = vhost.connect().await;
        let file = policy(
            r#"
[defaults]
retry = "fixed(1s, retries=3)"

[[rules]]
queue = "orders"
retry = "fixed(1s, retries=0)"

[alerts]
tick = "200ms"

[[alerts.rules]]
name = "gold"
where = 'body.tier == "gold"'
severity = "wake"

[alerts.channels.log]
log = {}
"#,
        );
        let more = [
            "--config",
            file.path().to_str().unwrap(),
            "--memory",
            "128MiB",
        ];
        let replica = Replica::start_at(vhost.url(), None, &more).await;
        for queue in ["orders", "neighbor"] {
            declare(&amqp, queue, QueueType::Quorum, true).await;
        }
        publish_bombs(&amqp, "orders").await;
        let orders = NativeConsumer::start(&vhost, "orders", |_| false).await;
        let neighbor = neighbor_is_retried(&vhost, &amqp).await;
        depth(&amqp, "orders.parked", BOMBS).await;
        // All are judged, with their body or without it.
        eventually(DEADLINE, "all are told", || async {
            let (_, metrics) = replica.page("/metrics").await;
            let number = |name: &str| {
                let line = metrics.lines().find(|line| line.starts_with(name));
                line.and_then(|line| line.rsplit(' ').next()?.parse::<u32>().ok())
            };
            let told = number("retryrmq_serve_alerts_received_total ");
            match told {
                Some(told) if told >= BOMBS => Ok(()),
                told => Err(format!("{told:?}")),
            }
        })
        .await;
        // Each is decoded before it is told.
        let peak = peak(&replica);
        println!("{broker}: {peak} MiB at most");
        assert!(peak < 256, "{peak} MiB");
        drop((orders, neighbor));
        assert!(replica.end().await.success());
    })
    .await;
}

/// Nobody reads bodies there.
#[tokio::test]
async fn what_is_delayed_and_parked_is_not_decoded() {
    on_brokers(|broker| async move {
        let vhost = broker.vhost().await;
        let amqp = vhost.connect().await;
        let file = policy("[delayed.later]\nto = \"shop\"\n");
        let replica = Replica::start(&vhost, Some(file.path())).await;
        replica.says("kept until they are due").await;
        let body = bomb();
        for number in 0..BOMBS {
            let mut headers = retryrmq::types::FieldTable::default();
            headers.insert("x-delay".into(), retryrmq::types::AMQPValue::LongInt(-1));
            let properties = id(&number.to_string())
                .with_content_encoding("gzip".into())
                .with_headers(headers);
            amqp.publish_to("later", "orders", body.clone(), properties)
                .await;
        }
        replica
            .counts(
                "retryrmq_serve_delayed_total{result=\"parked\"}",
                u64::from(BOMBS),
            )
            .await;
        let peak = peak(&replica);
        println!("{broker}: {peak} MiB at most");
        assert!(peak < 128, "{peak} MiB");
        assert!(replica.end().await.success());
    })
    .await;
}
