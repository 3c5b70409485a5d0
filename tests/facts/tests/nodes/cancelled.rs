//! What becomes of messages whose consumer had been cancelled when its node was killed.

use futures_util::StreamExt;
use lapin::options::{BasicCancelOptions, BasicConsumeOptions, BasicQosOptions};
use retryrmq_facts::*;
use retryrmq_harness::{Amqp, Broker, QueueType, Version, on_brokers_where};
use std::time::{Duration, Instant};
use tokio::time::timeout;

/// Longer than a cluster takes to give back what a killed node's other consumers held.
const WHILE: Duration = Duration::from_secs(15);

/// Fact 56. On a cluster of two, in one life of it.
#[tokio::test]
async fn a_quorum_queue_keeps_what_a_cancelled_consumer_on_a_killed_node_held() {
    on_brokers_where(Broker::is_controllable, |broker| async move {
        let (leader, other) = tokio::join!(broker.own_node(&[]), broker.own_node(&[]));
        other.join(&leader).await;
        let amqp = leader.connect().await;
        let consumer = other.connect().await;
        for queue in ["consumed", "cancelled"] {
            amqp.declare(queue, QueueType::Quorum).await;
            amqp.publish(queue, "").await;
            hold_one(&consumer, queue, queue == "cancelled").await;
        }
        other.kill().await;
        other.start().await;
        assert!(ready(&amqp, "consumed", DEADLINE).await);
        if broker.version() >= Version::V4_3 {
            assert!(ready(&amqp, "cancelled", DEADLINE).await);
            return;
        }
        assert!(!ready(&amqp, "cancelled", WHILE).await, "it is kept");
        // A member that has just started may not win the first time.
        let asked = Instant::now();
        loop {
            leader.move_leader("/", "cancelled").await;
            if ready(&amqp, "cancelled", WHILE).await {
                break;
            }
            assert!(asked.elapsed() < DEADLINE, "it stays with its consumer");
        }
    })
    .await;
}

/// Takes a message, cancels or not, and does not answer.
async fn hold_one(amqp: &Amqp, queue: &str, cancel: bool) {
    let channel = amqp.new_channel().await;
    channel
        .basic_qos(1, BasicQosOptions::default())
        .await
        .unwrap();
    let consume = channel.basic_consume(
        queue.into(),
        queue.into(),
        BasicConsumeOptions::default(),
        Default::default(),
    );
    let mut deliveries = consume.await.unwrap();
    let delivery = timeout(DEADLINE, deliveries.next()).await.unwrap();
    delivery.unwrap().unwrap();
    if cancel {
        let cancel = channel.basic_cancel(queue.into(), BasicCancelOptions::default());
        cancel.await.unwrap();
    }
    // The channel is open for as long as its connection is.
    std::mem::forget(channel);
    std::mem::forget(deliveries);
}

/// Whether its message can be had again in this time.
async fn ready(amqp: &Amqp, queue: &str, time: Duration) -> bool {
    let seen = async {
        while amqp.depth(queue).await != Some(1) {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    timeout(time, seen).await.is_ok()
}
