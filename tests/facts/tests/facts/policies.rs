//! What policies and vhost settings do to queues behind a client's back.

use lapin::options::{BasicRejectOptions, QueueDeclareOptions};
use retryrmq_facts::*;
use retryrmq_harness::{
    Policy, QueueType, Version, Vhost, eventually, on_every_broker, on_every_queue_type,
};
use serde_json::json;

/// Fact 12.
#[tokio::test]
async fn a_second_policy_takes_the_first_ones_dead_letter_route_away() {
    on_every_queue_type(|broker, queue_type| async move {
        let vhost = broker.vhost().await;
        let amqp = vhost.connect().await;
        amqp.declare("work", queue_type).await;
        amqp.declare("dead", queue_type).await;
        let route = json!({ "dead-letter-exchange": "", "dead-letter-routing-key": "dead" });
        vhost
            .put_policy("route", &Policy::new("^work$", route))
            .await
            .unwrap();
        applied(&vhost, "route").await;
        amqp.publish("work", "").await;
        hold(amqp.channel(), "work")
            .await
            .reject(BasicRejectOptions { requeue: false })
            .await
            .unwrap();
        hold(amqp.channel(), "dead")
            .await
            .ack(Default::default())
            .await
            .unwrap();

        let mut length = Policy::new("^work$", json!({ "max-length": 1000 }));
        length.priority = 1;
        vhost.put_policy("length", &length).await.unwrap();
        applied(&vhost, "length").await;
        amqp.publish("work", "").await;
        hold(amqp.channel(), "work")
            .await
            .reject(BasicRejectOptions { requeue: false })
            .await
            .unwrap();
        all_gone(&amqp, &["work", "dead"]).await;
    })
    .await;
}

/// Fact 12.
#[tokio::test]
async fn operators_cannot_add_a_dead_letter_route_to_the_policies_of_users() {
    on_every_broker(|broker| async move {
        let vhost = broker.vhost().await;
        let route = json!({ "pattern": "^work$", "apply-to": "queues", "definition": { "dead-letter-exchange": "" } });
        let path = format!("operator-policies/{}/route", vhost.name());
        let refused = broker.management().put(path, route).await.expect_err("operator policies may not dead-letter");
        assert_eq!(refused.status(), Some(400));
    })
    .await;
}

/// Fact 12. What a queue's own arguments say is stronger than a policy.
#[tokio::test]
async fn the_arguments_of_a_queue_win_over_a_policy() {
    on_every_queue_type(|broker, queue_type| async move {
        let vhost = broker.vhost().await;
        let amqp = vhost.connect().await;
        amqp.declare("dead", queue_type).await;
        amqp.declare_with("work", queue_type, table(dead_letters_to("dead")))
            .await;
        let route = json!({ "dead-letter-exchange": "", "dead-letter-routing-key": "elsewhere" });
        vhost
            .put_policy("route", &Policy::new("^work$", route))
            .await
            .unwrap();
        applied(&vhost, "route").await;
        amqp.publish("work", "").await;
        hold(amqp.channel(), "work")
            .await
            .reject(BasicRejectOptions { requeue: false })
            .await
            .unwrap();
        hold(amqp.channel(), "dead").await;
    })
    .await;
}

/// Fact 19.
#[tokio::test]
async fn a_policy_for_quorum_queues_alone_needs_4_0() {
    on_every_broker(|broker| async move {
        let vhost = broker.vhost().await;
        let mut policy = Policy::new("^work$", json!({ "max-length": 1000 }));
        policy.apply_to = "quorum_queues".into();
        let answer = vhost.put_policy("policy", &policy).await;
        if broker.version() < Version::V4_0 {
            assert_eq!(answer.unwrap_err().status(), Some(400));
        } else {
            answer.unwrap();
        }
    })
    .await;
}

/// Fact 19.
#[tokio::test]
async fn a_policy_with_delayed_retry_needs_4_3() {
    on_every_broker(|broker| async move {
        let vhost = broker.vhost().await;
        let delayed = json!({ "delayed-retry-type": "failed", "delayed-retry-min": 1000, "delayed-retry-max": 2000 });
        let answer = vhost.put_policy("policy", &Policy::new("^work$", delayed)).await;
        if broker.version() < Version::V4_3 {
            assert_eq!(answer.unwrap_err().status(), Some(400));
        } else {
            answer.unwrap();
        }
    })
    .await;
}

/// Fact 21. The reason why the type is always written down.
#[tokio::test]
async fn a_vhost_may_turn_every_queue_without_a_type_into_a_quorum_queue() {
    on_every_broker(|broker| async move {
        let vhost = Vhost::with_default_queue_type(&broker, QueueType::Quorum).await;
        let amqp = vhost.connect().await;
        let durable = QueueDeclareOptions::durable();
        amqp.channel()
            .queue_declare("without".into(), durable, table([]))
            .await
            .unwrap();
        amqp.declare("with", QueueType::Classic).await;
        let expected = if broker.version() < Version::V4_0 {
            "classic"
        } else {
            "quorum"
        };
        assert_eq!(vhost.queue("without").await.unwrap().kind(), expected);
        assert_eq!(vhost.queue("with").await.unwrap().kind(), "classic");
    })
    .await;
}

async fn applied(vhost: &Vhost, policy: &str) {
    let what = format!("the policy {policy} applies");
    eventually(PATIENCE, &what, || async {
        let queue = vhost.queue("work").await.ok_or("no queue")?;
        if queue.policy() == Some(policy) {
            Ok(())
        } else {
            Err("another one")
        }
    })
    .await;
}

/// Fact 44. The limit that a client sees in the arguments is not the one that counts.
#[tokio::test]
async fn the_lower_of_two_delivery_limits_counts_and_a_declaration_does_not_show_the_policys() {
    on_every_broker(|broker| async move {
        let vhost = broker.vhost().await;
        let amqp = vhost.connect().await;
        let policy = Policy::new("^work$", json!({ "delivery-limit": 2 }));
        vhost.put_policy("limit", &policy).await.unwrap();
        let arguments = || table([("x-delivery-limit", int(1_000_000_000))]);
        amqp.declare_with("work", QueueType::Quorum, arguments())
            .await;
        // Again, with the policy in force: not a word.
        amqp.declare_with("work", QueueType::Quorum, arguments())
            .await;
        amqp.publish("work", "").await;
        let mut deliveries = 0;
        while deliveries < 10 && comes_back(&amqp, "work").await {
            let channel = amqp.new_channel().await;
            hold(&channel, "work").await;
            channel.close(200, "".into()).await.unwrap();
            deliveries += 1;
        }
        assert_eq!(deliveries, 3);
    })
    .await;
}
