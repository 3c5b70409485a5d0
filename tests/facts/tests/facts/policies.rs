//! What policies and vhost settings do to queues behind a client's back.

use lapin::options::{BasicRejectOptions, QueueDeclareOptions};
use retryrmq_facts::*;
use retryrmq_harness::{
    Amqp, Policy, QueueType, Version, Vhost, eventually, on_every_broker, on_every_queue_type,
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

/// Fact 90.
#[tokio::test]
async fn a_policys_overflow_wins_over_the_argument_of_a_quorum_queue_and_loses_to_that_of_a_classic_one()
 {
    on_every_queue_type(|broker, queue_type| async move {
        let vhost = broker.vhost().await;
        let amqp = vhost.connect().await;
        let full = table([
            ("x-max-length", int(0)),
            ("x-overflow", string("reject-publish")),
        ]);
        amqp.declare_with("work", queue_type, full.clone()).await;
        is_refused(&amqp).await; // a quorum queue takes one
        assert!(is_refused(&amqp).await, "without a policy");
        let by_policy = queue_type == QueueType::Quorum;
        for (name, overflow) in [("drops", "drop-head"), ("dlx", "reject-publish-dlx")] {
            let mut policy = Policy::new("^work$", json!({ "overflow": overflow }));
            policy.priority = if name == "dlx" { 1 } else { 0 };
            vhost.put_policy(name, &policy).await.unwrap();
            amqp.delete("work").await;
            amqp.declare_with("work", queue_type, full.clone()).await;
            applied(&vhost, name).await;
            is_refused(&amqp).await; // a quorum queue takes one
            assert_eq!(!is_refused(&amqp).await, by_policy, "{overflow}");
        }
    })
    .await;
}

/// Fact 90.
#[tokio::test]
async fn an_operator_policys_overflow_wins_as_well_and_needs_4_0() {
    on_every_broker(|broker| async move {
        let vhost = broker.vhost().await;
        let amqp = vhost.connect().await;
        let path = format!("operator-policies/{}/overflow", vhost.name());
        let drops = json!({ "pattern": ".*", "apply-to": "queues", "definition": { "overflow": "drop-head" } });
        let answer = broker.management().put(path, drops).await;
        if broker.version() < Version::V4_0 {
            return assert_eq!(answer.unwrap_err().status(), Some(400));
        }
        answer.unwrap();
        let full = table([
            ("x-max-length", int(0)),
            ("x-overflow", string("reject-publish")),
        ]);
        amqp.declare_with("work", QueueType::Quorum, full).await;
        publish_confirmed(&amqp).await;
        assert!(!is_refused(&amqp).await);
    })
    .await;
}

/// Fact 90. What that does to a waiting queue whose work queue is missing for a moment.
#[tokio::test]
async fn a_policy_with_overflow_makes_a_waiting_queue_dead_letter_at_most_once() {
    on_every_broker(|broker| async move {
        let vhost = broker.vhost().await;
        let amqp = vhost.connect().await;
        let drops = Policy::new(".*", json!({ "overflow": "drop-head" }));
        vhost.put_policy("all", &drops).await.unwrap();
        amqp.declare_with(
            "work",
            QueueType::Quorum,
            wait_queue(QueueType::Quorum, 50, "missing"),
        )
        .await;
        amqp.publish("work", "").await;
        all_gone(&amqp, &["work"]).await;
        let nothing = (Some(0), Some(0));
        eventually(DEADLINE, "nothing is held", || async {
            let queue = vhost.queue("work").await.ok_or("no queue")?;
            let seen = (queue.messages(), queue.dead_lettering());
            (seen == nothing).then_some(()).ok_or("not yet")
        })
        .await;
    })
    .await;
}

/// Fact 92. Held dead letters count as messages of their queue, so a queue with a maximum of 0 tells whether it holds any. A
/// channel that publishes to it for the first time is told at once.
#[tokio::test]
async fn a_queue_with_a_maximum_of_0_tells_whether_it_holds_what_it_cannot_dead_letter() {
    on_every_broker(|broker| async move {
        let vhost = broker.vhost().await;
        let amqp = vhost.connect().await;
        let mut arguments = dead_letters_to("missing");
        arguments.extend(at_least_once());
        arguments.extend([("x-message-ttl", int(1)), ("x-max-length", int(0))]);
        for (pattern, overflow, expected) in [
            ("^other$", "drop-head", true),
            ("^work$", "drop-head", false),
            ("^work$", "reject-publish-dlx", false),
            ("^work$", "reject-publish", true),
        ] {
            let policy = Policy::new(pattern, json!({ "overflow": overflow }));
            vhost.put_policy("policy", &policy).await.unwrap();
            amqp.declare_with("work", QueueType::Quorum, table(arguments.clone()))
                .await;
            for _ in 0..20 {
                publish_confirmed(&amqp).await;
                all_gone_now(&amqp).await;
                assert_eq!(is_refused(&amqp).await, expected, "{pattern} {overflow}");
                amqp.delete("work").await;
                amqp.declare_with("work", QueueType::Quorum, table(arguments.clone()))
                    .await;
            }
            amqp.delete("work").await;
        }
    })
    .await;
}

/// Waits until nothing in `work` is ready.
async fn all_gone_now(amqp: &Amqp) {
    eventually(DEADLINE, "nothing is ready", || async {
        (amqp.depth("work").await == Some(0))
            .then_some(())
            .ok_or("a message")
    })
    .await;
}

/// Publishes to `work`, and expects the broker to take it.
async fn publish_confirmed(amqp: &Amqp) {
    assert!(!is_refused(amqp).await, "the first one is taken");
}

/// Whether `work` refuses what a new channel publishes.
async fn is_refused(amqp: &Amqp) -> bool {
    let channel = amqp.new_channel().await;
    channel.confirm_select(Default::default()).await.unwrap();
    let publish = channel.basic_publish(
        "".into(),
        "work".into(),
        Default::default(),
        b"x",
        Default::default(),
    );
    let answer = publish.await.unwrap().await.unwrap();
    channel.close(200, "".into()).await.unwrap();
    answer.is_nack()
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
    eventually(DEADLINE, &what, || async {
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
