//! What a broker does that was upgraded from an earlier version without the feature flags of its own.

use retryrmq_facts::*;
use retryrmq_harness::{Policy, QueueType, Version, Vhost, eventually, on_brokers_where};
use serde_json::json;

/// What 3.8 had.
const OLD_FLAGS: &str = "feature_flags = quorum_queue implicit_default_bindings virtual_host_metadata maintenance_mode_status \
                         user_limits drop_unroutable_metric empty_basic_get_metric";

/// Fact 91. From 3.12 on the flag is required, and 4.x refuses to start without.
#[tokio::test]
async fn without_the_flag_for_streams_3_10_dead_letters_at_most_once_and_says_so_in_its_api() {
    on_brokers_where(
        |broker| broker.is_controllable() && broker.version() < Version::V4_0,
        |broker| async move {
            let node = broker.own_node(&[OLD_FLAGS]).await;
            let vhost = node.vhost().await;
            let amqp = vhost.connect().await;
            let flags = node.management().get("feature-flags".into()).await.unwrap();
            let streams = flags.as_array().unwrap().iter();
            let streams = streams.filter(|flag| flag["name"] == "stream_queue");
            let states: Vec<_> = streams.map(|flag| flag["state"].clone()).collect();
            assert_eq!(states, ["disabled"]);
            let wait = || wait_queue(QueueType::Quorum, 50, "missing");
            amqp.declare_with("wait", QueueType::Quorum, wait()).await;
            amqp.publish("wait", "").await;
            all_gone(&amqp, &["wait"]).await;
            holds(&vhost, "wait", 0).await;

            // Enabled, it applies to new queues alone; one that is there already goes on as before.
            node.ctl(&["enable_feature_flag", "stream_queue"]).await;
            amqp.declare_with("new", QueueType::Quorum, wait()).await;
            for queue in ["wait", "new"] {
                amqp.publish(queue, "").await;
            }
            all_gone(&amqp, &["wait", "new"]).await;
            holds(&vhost, "new", 1).await;
            holds(&vhost, "wait", 0).await;
            // Until a policy has it configured anew.
            let policy = Policy::new("^wait$", json!({ "max-length": 1_000_000 }));
            vhost.put_policy("any", &policy).await.unwrap();
            eventually(DEADLINE, "the policy applies", || async {
                let queue = vhost.queue("wait").await.ok_or("no queue")?;
                (queue.policy() == Some("any"))
                    .then_some(())
                    .ok_or("not yet")
            })
            .await;
            amqp.publish("wait", "").await;
            all_gone(&amqp, &["wait"]).await;
            holds(&vhost, "wait", 1).await;
        },
    )
    .await;
}

/// Waits until the broker counts so many messages in a queue that has none ready.
async fn holds(vhost: &Vhost, queue: &str, expected: u64) {
    eventually(DEADLINE, &format!("{queue} holds {expected}"), || async {
        let queue = vhost.queue(queue).await.ok_or("no queue")?;
        let seen = (queue.messages(), queue.dead_lettering());
        (seen == (Some(expected), Some(expected)))
            .then_some(())
            .ok_or_else(|| format!("{seen:?}"))
    })
    .await;
}
