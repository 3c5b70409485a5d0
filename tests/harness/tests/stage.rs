//! A stage per test: vhosts, queues, messages, and what can be seen of them.

use retryrmq_harness::lapin::BasicProperties;
use retryrmq_harness::lapin::types::{AMQPValue, FieldTable};
use retryrmq_harness::{
    Amqp, Permissions, Policy, QueueType, Version, Vhost, eventually, on_brokers, on_brokers_where,
    on_queue_types,
};
use serde_json::json;
use std::time::Duration;

const SOON: Duration = Duration::from_secs(120);

#[tokio::test]
async fn the_broker_is_the_version_it_is_said_to_be() {
    on_brokers(|broker| async move {
        let overview = broker.management().overview().await.unwrap();
        assert_eq!(overview["rabbitmq_version"], broker.version().to_string());
    })
    .await;
}

#[tokio::test]
async fn messages_come_back_as_they_were_published() {
    on_queue_types(|broker, queue_type| async move {
        let vhost = broker.vhost().await;
        let amqp = vhost.connect().await;
        amqp.declare("orders", queue_type).await;
        let mut headers = FieldTable::default();
        headers.insert("tries".into(), AMQPValue::LongInt(-1));
        headers.insert("from".into(), AMQPValue::LongString("shop".into()));
        let properties = BasicProperties::default()
            .with_headers(headers)
            .with_message_id("m-1".into());
        amqp.publish_with("orders", "one", properties).await;
        let rest = (2..=450).map(|n| ("orders", n.to_string(), BasicProperties::default()));
        amqp.publish_all("", rest).await;
        assert_eq!(amqp.depth("orders").await, Some(450));

        let first = amqp.take("orders").await.unwrap();
        assert_eq!((first.text(), first.id()), ("one", Some("m-1")));
        assert_eq!(first.header_int("tries"), Some(-1));
        assert_eq!(first.header_text("from").as_deref(), Some("shop"));
        assert_eq!(
            (first.exchange.as_str(), first.routing_key.as_str()),
            ("", "orders")
        );
        let rest = amqp.drain("orders").await;
        assert_eq!(rest.len(), 449);
        assert_eq!(rest[448].text(), "450");
        assert_eq!(amqp.depth("orders").await, Some(0));
        assert_eq!(amqp.depth("nowhere").await, None);
    })
    .await;
}

/// lapin numbers channels from 1 to `channel_max` and round again, and never gives a number again that the broker closed.
#[tokio::test]
async fn looks_at_missing_queues_cost_no_later_look() {
    on_brokers(|broker| async move {
        let vhost = broker.vhost().await;
        let amqp = Amqp::connect(&format!("{}?channel_max=8", vhost.url())).await;
        amqp.declare("orders", QueueType::Classic).await;
        for _ in 0..3 {
            assert_eq!(amqp.depth("nowhere").await, None);
        }
        for _ in 0..20 {
            assert_eq!(amqp.depth("orders").await, Some(0));
        }
    })
    .await;
}

#[tokio::test]
async fn a_declaration_with_other_arguments_is_refused_and_the_connection_lives_on() {
    on_queue_types(|broker, queue_type| async move {
        let vhost = broker.vhost().await;
        let amqp = vhost.connect().await;
        amqp.declare("orders", queue_type).await;
        for _ in 0..20 {
            let mut other = FieldTable::default();
            other.insert("x-message-ttl".into(), AMQPValue::LongInt(1));
            let refused = amqp
                .try_declare_with("orders", queue_type, other)
                .await
                .unwrap_err();
            assert!(refused.to_string().contains("PRECONDITION"), "{refused}");
        }
        amqp.publish("orders", "still here").await;
        amqp.delete("orders").await;
    })
    .await;
}

#[tokio::test]
async fn two_vhosts_do_not_meet_and_are_gone_afterwards() {
    on_brokers(|broker| async move {
        let (one, other) = (broker.vhost().await, broker.vhost().await);
        one.connect()
            .await
            .declare("orders", QueueType::Classic)
            .await;
        assert_eq!(other.connect().await.depth("orders").await, None);
        let name = one.name().to_owned();
        drop(one);
        let gone = broker.management().queues(&name).await.unwrap_err();
        assert_eq!(gone.status(), Some(404), "{gone}");
    })
    .await;
}

#[tokio::test]
async fn the_management_interface_tells_type_arguments_and_counts() {
    on_queue_types(|broker, queue_type| async move {
        let vhost = broker.vhost().await;
        assert!(vhost.queue("orders").await.is_none());
        let amqp = vhost.connect().await;
        let mut arguments = FieldTable::default();
        arguments.insert("x-message-ttl".into(), AMQPValue::LongInt(600_000));
        amqp.declare_with("orders", queue_type, arguments).await;
        amqp.publish("orders", "1").await;
        let queue = vhost.queue("orders").await.unwrap();
        assert_eq!(queue.kind(), queue_type.as_str());
        assert_eq!(queue.arguments()["x-message-ttl"], 600_000);
        assert!(queue.is_durable());
        eventually(SOON, "the message is counted", || async {
            vhost
                .queue("orders")
                .await
                .is_some_and(|queue| queue.ready() == Some(1))
        })
        .await;
        assert_eq!(vhost.queues().await.len(), 1);
    })
    .await;
}

#[tokio::test]
async fn a_policy_applies_and_an_unknown_one_is_refused_in_words() {
    on_brokers(|broker| async move {
        let vhost = broker.vhost().await;
        let amqp = vhost.connect().await;
        amqp.declare("orders", QueueType::Quorum).await;
        let policy = Policy::new("^orders$", json!({ "dead-letter-exchange": "" }));
        vhost.put_policy("dlx", &policy).await.unwrap();
        eventually(SOON, "the policy applies", || async {
            vhost
                .queue("orders")
                .await
                .is_some_and(|queue| queue.policy() == Some("dlx"))
        })
        .await;
        let refused = vhost
            .put_policy("odd", &Policy::new(".*", json!({ "no-such-key": 1 })))
            .await
            .unwrap_err();
        assert_eq!(refused.status(), Some(400));
        assert!(refused.reason().contains("no-such-key"), "{refused}");
    })
    .await;
}

#[tokio::test]
async fn a_user_may_do_what_it_is_permitted_and_nothing_else() {
    on_brokers(|broker| async move {
        let vhost = broker.vhost().await;
        vhost
            .connect()
            .await
            .declare("orders", QueueType::Classic)
            .await;
        let user = format!("user-of-{}", vhost.name());
        let management = broker.management();
        management.create_user(&user, "secret", "").await.unwrap();
        let may = Permissions {
            configure: "^$",
            write: ".*",
            read: ".*",
        };
        management
            .set_permissions(vhost.name(), &user, may)
            .await
            .unwrap();
        let limited = retryrmq_harness::Amqp::connect(&vhost.url_as(&user, "secret")).await;
        limited.publish("orders", "1").await;
        let refused = limited
            .try_declare_with("more", QueueType::Classic, FieldTable::default())
            .await
            .unwrap_err();
        assert!(refused.to_string().contains("ACCESS_REFUSED"), "{refused}");
        management.delete_user(&user).await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn a_connection_can_be_found_and_closed_by_an_operator() {
    on_brokers(|broker| async move {
        let vhost = broker.vhost().await;
        let amqp = vhost.connect().await;
        let connection = eventually(SOON, "the connection is listed", || async {
            broker
                .management()
                .connections(vhost.name())
                .await
                .unwrap()
                .pop()
        })
        .await;
        broker
            .management()
            .close_connection(&connection.name)
            .await
            .unwrap();
        eventually(SOON, "the client notices", || async {
            !amqp.connection().status().connected()
        })
        .await;
    })
    .await;
}

#[tokio::test]
async fn a_vhost_can_have_a_default_queue_type() {
    on_brokers_where(
        |broker| broker.version() >= Version::V4_0,
        |broker| async move {
            let vhost = Vhost::with_default_queue_type(&broker, QueueType::Quorum).await;
            let amqp = vhost.connect().await;
            let options = retryrmq_harness::lapin::options::QueueDeclareOptions::durable();
            amqp.channel()
                .queue_declare("plain".into(), options, FieldTable::default())
                .await
                .unwrap();
            assert_eq!(vhost.queue("plain").await.unwrap().kind(), "quorum");
        },
    )
    .await;
}

#[tokio::test]
#[should_panic(expected = "within 50ms: pigs fly; not seen")]
async fn what_is_never_seen_fails_with_what_was_awaited() {
    eventually(Duration::from_millis(50), "pigs fly", || async { false }).await;
}
