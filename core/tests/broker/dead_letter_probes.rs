//! Waiting messages that the broker would drop, and not keep, while their work queue is missing: a consumer does not start there.

use std::time::Duration;

use retryrmq::{Client, ErrorKind, Publish, Strategy};
use retryrmq_harness::{
    Permissions, Policy, QueueType, Version, Vhost, eventually, lapin::BasicProperties, on_brokers,
    on_brokers_where, on_every_broker,
};
use serde_json::json;

use crate::fixture::{DEADLINE, QUEUE, connect, connect_with, policy};

/// What 3.8 had.
const OLD_FLAGS: &str = "feature_flags = quorum_queue implicit_default_bindings virtual_host_metadata maintenance_mode_status \
                         user_limits drop_unroutable_metric empty_basic_get_metric";

/// The names of the queues there are.
async fn queues(vhost: &Vhost) -> Vec<String> {
    let all = vhost.queues().await;
    let mut names: Vec<_> = all.iter().map(|queue| queue.name().to_owned()).collect();
    names.sort();
    names
}

/// Whether a consumer starts, or is refused for that reason.
async fn starts(client: &Client, strategy: Strategy) -> bool {
    let consumer = client
        .consumer(QUEUE)
        .dlx(true)
        .strategy(strategy)
        .retry(policy("fixed(15s, retries=3)"));
    match consumer.subscribe().await {
        Ok(subscription) => {
            subscription.close();
            subscription.wait_closed().await.unwrap();
            true
        }
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::StrategyRefused, "{error}");
            let text = error.to_string();
            assert!(
                text.contains("RQ108") && text.contains("overflow"),
                "{text}"
            );
            false
        }
    }
}

#[tokio::test]
async fn a_consumer_does_not_start_where_a_policy_makes_waiting_queues_drop_messages() {
    on_every_broker(|broker| async move {
        let vhost = broker.vhost().await;
        for (pattern, overflow, expected) in [
            (".*", "drop-head", false),
            ("^orders", "reject-publish-dlx", false),
            ("\\.retry\\.[0-9]+$", "drop-head", false),
            ("^orders$", "drop-head", true),
            (".*", "reject-publish", true),
        ] {
            let overflow = Policy::new(pattern, json!({ "overflow": overflow }));
            vhost.put_policy("policy", &overflow).await.unwrap();
            // A client remembers what it found out.
            let client = connect(&vhost).await;
            let started = starts(&client, Strategy::RetryQueues).await;
            assert_eq!(started, expected, "{pattern}");
            client.close().await;
        }
        let expected = [
            "orders",
            "orders.parked",
            "orders.retry.100",
            "orders.retry.15000",
        ];
        assert_eq!(
            queues(&vhost).await,
            expected,
            "nothing is left of the probes"
        );
    })
    .await;
}

#[tokio::test]
async fn nor_where_an_operator_policy_does_it_or_with_the_strategy_dead_letter() {
    on_brokers_where(
        |broker| broker.version() >= Version::V4_0,
        |broker| async move {
            let vhost = broker.vhost().await;
            let path = format!("operator-policies/{}/all", vhost.name());
            let drops = json!({ "pattern": ".*", "apply-to": "queues", "definition": { "overflow": "drop-head" } });
            broker.management().put(path, drops).await.unwrap();
            for strategy in [Strategy::RetryQueues, Strategy::DeadLetter] {
                let client = connect(&vhost).await;
                assert!(!starts(&client, strategy).await, "{strategy:?}");
                for queue in queues(&vhost).await {
                    vhost.connect().await.delete(&queue).await;
                }
            }
        },
    )
    .await;
}

#[tokio::test]
async fn nor_on_3_10_without_the_feature_flag_for_streams() {
    on_brokers_where(
        |broker| broker.is_controllable() && broker.version() < Version::V4_0,
        |broker| async move {
            let node = broker.own_node(&[OLD_FLAGS]).await;
            let vhost = node.vhost().await;
            let client = connect(&vhost).await;
            assert!(!starts(&client, Strategy::RetryQueues).await);
            let left = queues(&vhost).await;
            assert!(left.is_empty(), "they would stay as they are: {left:?}");
            node.ctl(&["enable_feature_flag", "stream_queue"]).await;
            assert!(starts(&client, Strategy::RetryQueues).await);
            let amqp = vhost.connect().await;
            amqp.delete(QUEUE).await;
            let soon = BasicProperties::default().with_expiration("1".into());
            amqp.publish_with("orders.retry.15000", "held", soon).await;
            eventually(DEADLINE, "the waiting queue holds it", || async {
                let queue = vhost.queue("orders.retry.15000").await.ok_or("no queue")?;
                let held = queue.dead_lettering();
                (held == Some(1)).then_some(()).ok_or(format!("{held:?}"))
            })
            .await;
        },
    )
    .await;
}

/// A waiting queue that is made on first use holds nothing there either.
#[tokio::test]
async fn nor_is_a_message_published_with_a_delay() {
    on_brokers(|broker| async move {
        let vhost = broker.vhost().await;
        vhost
            .connect()
            .await
            .declare(QUEUE, QueueType::Quorum)
            .await;
        let drops = Policy::new(".*", json!({ "overflow": "drop-head" }));
        vhost.put_policy("all", &drops).await.unwrap();
        let client = connect(&vhost).await;
        let message = || Publish::to_queue(QUEUE, "later").delay(Duration::from_secs(60));
        let refused = client.publish(message()).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::StrategyRefused, "{refused}");
        let mut harmless = drops;
        harmless.pattern = "^elsewhere$".to_owned();
        vhost.put_policy("all", &harmless).await.unwrap();
        client.close().await;
        let client = connect(&vhost).await;
        client.publish(message()).await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn classic_waiting_queues_are_not_tried_out() {
    on_brokers(|broker| async move {
        let vhost = broker.vhost().await;
        let drops = Policy::new(".*", json!({ "overflow": "drop-head" }));
        vhost.put_policy("all", &drops).await.unwrap();
        let client = connect_with(&vhost, QueueType::Classic).await;
        assert!(starts(&client, Strategy::RetryQueues).await);
    })
    .await;
}

#[tokio::test]
async fn who_may_not_try_it_out_consumes_all_the_same() {
    on_every_broker(|broker| async move {
        let vhost = broker.vhost().await;
        let management = broker.management();
        let user = format!("{}-u", vhost.name());
        management.create_user(&user, "secret", "").await.unwrap();
        let exactly = Permissions {
            configure: "^orders(\\.parked|\\.retry\\.(100|15000))?$",
            write: ".*",
            read: ".*",
        };
        management
            .set_permissions(vhost.name(), &user, exactly)
            .await
            .unwrap();
        let url = vhost.url_as(&user, "secret");
        let client = Client::connect(&url).await.unwrap();
        assert!(starts(&client, Strategy::RetryQueues).await);
        client.close().await;
        management.delete_user(&user).await.unwrap();
    })
    .await;
}
