//! Delivery limits that the owner of a queue set, and that no client can see.

use std::{future::pending, time::Duration};

use retryrmq::Subscription;
use retryrmq_harness::{Broker, QueueType, Version, on_brokers, on_brokers_where};
use tokio::time::timeout;

use crate::fixture::{
    Observations, PARKED, QUEUE, connect, id, int, policy, settled, start, table,
};

/// Takes what comes and ends as if the process had crashed, before anything is settled.
async fn crash(subscription: Subscription) {
    assert!(subscription.ready().await);
    let batch = subscription.try_next_batch(64);
    assert!(!batch.is_empty());
    // Others may be on their way to it.
    let _ = timeout(Duration::from_millis(50), pending::<()>()).await;
    subscription.abandon();
    subscription.wait_closed().await.unwrap();
}

/// Each crash counts for all messages that the consumer holds. With a limit of 2 a message comes with a count of 2, and never again.
#[tokio::test]
async fn a_limit_of_two_drops_neither_what_crashes_its_consumers_nor_its_neighbours() {
    on_brokers(|broker| async move {
        let vhost = broker.vhost().await;
        let (client, amqp) = (connect(&vhost).await, vhost.connect().await);
        let limit = table([("x-delivery-limit", int(2))]);
        amqp.declare_with(QUEUE, QueueType::Quorum, limit).await;
        let names: Vec<String> = (0..20).map(|number| format!("m{number}")).collect();
        amqp.publish_all("", names.iter().map(|name| (QUEUE, "x", id(name))))
            .await;
        let consumer = || {
            let consumer = client.consumer(QUEUE).dlx(true);
            consumer
                .prefetch(64)
                .retry(policy("fixed(100ms, retries=3)"))
        };
        for _ in 0..4 {
            crash(consumer().subscribe().await.unwrap()).await;
        }
        let observations = Observations::default();
        let running = start(consumer(), &observations, |_| Ok(())).await;
        for name in &names {
            observations.until(name, 1).await;
        }
        settled(&vhost, &amqp, &running, QUEUE).await;
        assert_eq!(amqp.depth(PARKED).await, Some(0));
        running.close().await;
    })
    .await;
}

/// `quorum_queue.property_equivalence.relaxed_checks_on_redeclaration`, for programs that still declare a classic queue where there is a quorum
/// queue by now.
#[tokio::test]
async fn looks_do_not_use_up_a_limit_where_a_quorum_queue_passes_for_a_classic_one() {
    on_brokers_where(
        |broker: &Broker| broker.is_controllable() && broker.version() >= Version::V4_0,
        |broker| async move {
            let node = broker.own_node(&[]).await;
            let set = "application:set_env(rabbit, quorum_relaxed_checks_on_redeclaration, true).";
            node.ctl(&["eval", set]).await;
            let vhost = node.vhost().await;
            let (client, amqp) = (connect(&vhost).await, vhost.connect().await);
            let limit = table([("x-delivery-limit", int(1))]);
            amqp.declare_with(QUEUE, QueueType::Quorum, limit).await;
            amqp.declare(QUEUE, QueueType::Classic).await; // it does pass for one
            let names = ["a", "b", "c"];
            amqp.publish_all("", names.map(|name| (QUEUE, "x", id(name))))
                .await;
            for look in 0..3 {
                let mut walk = client.dead_letters(QUEUE).browse().await.unwrap();
                let mut seen = Vec::new();
                while let Some(record) = walk.next().await.unwrap() {
                    seen.push(record.message().message_id().unwrap().to_owned());
                }
                walk.close().await.unwrap();
                assert_eq!(seen, names, "look {look}");
            }
        },
    )
    .await;
}
