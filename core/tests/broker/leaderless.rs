//! Quorum queues that have lost their leader, beside others of the same client.

use retryrmq::Message;
use retryrmq_harness::{Broker, Node, QueueType, Vhost, eventually, on_brokers_where};

use crate::{
    fixture::{DEADLINE, Observations, connect, id, start},
    log_capture,
};

/// Calls a function of Ra with the only member of a quorum queue.
async fn tell(node: &Node, vhost: &Vhost, queue: &str, function: &str) {
    let expression = format!("ok = ra:{function}(quorum_queues, {{Name, node()}}).");
    node.eval_on_quorum_queue(vhost.name(), queue, &expression)
        .await;
}

/// RabbitMQ closes the connection of whoever consumes such a queue (541), and so that of all consumers of the client. That is no reason to look for
/// a message that cannot be delivered, or to stop in front of it.
#[tokio::test]
async fn consumers_go_on_when_a_queue_has_its_leader_again() {
    log_capture::start();
    on_brokers_where(Broker::is_controllable, |broker| async move {
        let node = broker.own_node(&[]).await;
        let vhost = node.vhost().await;
        let (amqp, client) = (vhost.connect().await, connect(&vhost).await);
        let queues = ["led", "leaderless"].map(|queue| format!("{queue}-{}", vhost.name()));
        let mut consumers = Vec::new();
        for queue in &queues {
            amqp.declare(queue, QueueType::Quorum).await;
            let observations = Observations::default();
            let consumer = client.consumer(queue).dlx(true);
            let running = start(consumer, &observations, |_: &Message| Ok(())).await;
            consumers.push((queue, observations, running));
        }
        let [led, leaderless] = &queues;
        tell(&node, &vhost, leaderless, "stop_server").await;
        node.ctl(&["close_all_connections", "-p", vhost.name(), "test"])
            .await;
        eventually(DEADLINE, "it is told that there is no leader", || async {
            let told = log_capture::lines().into_iter().any(|line| {
                line.contains("cannot consume")
                    && line.contains(leaderless)
                    && line.contains("has no leader")
            });
            told.then_some(())
        })
        .await;
        vhost.connect().await.publish_with(led, "", id("a")).await;
        consumers[0].1.until("a", 1).await;
        tell(&node, &vhost, leaderless, "restart_server").await;
        let amqp = vhost.connect().await;
        for (queue, observations, running) in consumers {
            amqp.publish_with(queue, "", id("b")).await;
            observations.until("b", 1).await;
            let names = observations.event_names();
            assert!(!names.contains(&"consuming_stopped"), "{queue}: {names:?}");
            running.close().await;
        }
    })
    .await;
}
