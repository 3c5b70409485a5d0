//! What lies in a parking queue that the broker itself put there, and how it can be looked at without harm.

use lapin::options::{BasicNackOptions, BasicRejectOptions, ExchangeDeclareOptions};
use lapin::{BasicProperties, ExchangeKind};
use retryrmq_facts::*;
use retryrmq_harness::{Amqp, QueueType, Version, on_every_broker, on_every_queue_type};

/// Fact 39.
#[tokio::test]
async fn what_a_broker_parks_says_where_it_died_and_of_what_and_where_it_came_from() {
    on_every_queue_type(|broker, queue_type| async move {
        for cause in Cause::of(queue_type) {
            let vhost = broker.vhost().await;
            let amqp = vhost.connect().await;
            let expiration = (cause == Cause::Expired).then_some("50");
            kill(&amqp, queue_type, cause).await;
            let message = hold(amqp.channel(), "parked").await;
            assert_eq!(
                (message.exchange.as_str(), message.routing_key.as_str()),
                ("", "parked")
            );
            let reason = cause.reason();
            let death = XDeath {
                queue: "work".into(),
                reason: reason.into(),
                count: 1,
                exchange: "orders".into(),
                routing_keys: vec!["order.new".into()],
                original_expiration: expiration.map(Into::into),
            };
            assert_eq!(deaths(&message.properties), [death]);
            assert_eq!(*message.properties.expiration(), None);
            for (field, value) in [
                ("exchange", "orders"),
                ("queue", "work"),
                ("reason", reason),
            ] {
                let value = Some(string(value));
                assert_eq!(
                    header(&message.properties, &format!("x-first-death-{field}")),
                    value
                );
                let last = header(&message.properties, &format!("x-last-death-{field}"));
                assert_eq!(
                    last,
                    if broker.version() < Version::V4_0 {
                        None
                    } else {
                        value
                    }
                );
            }
        }
    })
    .await;
}

/// Fact 40. The counts that a parked message brings along say something about its past, not about the parking queue.
#[tokio::test]
async fn what_a_broker_parks_may_look_redelivered_at_first_sight() {
    on_every_queue_type(|broker, queue_type| async move {
        let quorum = queue_type == QueueType::Quorum;
        let (v4_0, v4_3) = (
            broker.version() >= Version::V4_0,
            broker.version() >= Version::V4_3,
        );
        for cause in Cause::of(queue_type) {
            let vhost = broker.vhost().await;
            let amqp = vhost.connect().await;
            kill(&amqp, queue_type, cause).await;
            let message = hold(amqp.channel(), "parked").await;
            let carried = match cause {
                Cause::Rejected if v4_3 || (v4_0 && quorum) => Some(1),
                Cause::Nacked if v4_0 && !v4_3 && quorum => Some(1),
                Cause::DeliveryLimit if v4_3 => Some(2),
                _ => None,
            };
            let shown = if v4_0 { carried } else { Some(0) };
            assert_eq!(message.redelivered, carried.is_some(), "{cause:?}");
            assert_eq!(
                count(&message.properties, "x-delivery-count"),
                shown,
                "{cause:?}"
            );
            assert_eq!(
                count(&message.properties, "x-acquired-count"),
                carried.filter(|_| v4_3),
                "{cause:?}"
            );
        }
    })
    .await;
}

/// Fact 20. A parking queue that is looked at often must not lose what is in it.
#[tokio::test]
async fn thirty_looks_at_a_parked_message_drop_it_without_a_high_delivery_limit() {
    on_every_broker(|broker| async move {
        let vhost = broker.vhost().await;
        let amqp = vhost.connect().await;
        for (name, limit) in [
            ("without", None),
            ("with", Some(("x-delivery-limit", int(1_000_000_000)))),
        ] {
            amqp.declare_with(name, QueueType::Quorum, table(limit))
                .await;
            amqp.publish(name, "").await;
            let mut looks = 0;
            while looks < 30 && comes_back(&amqp, name).await {
                let channel = amqp.new_channel().await;
                hold(&channel, name).await;
                channel.close(200, "".into()).await.unwrap();
                looks += 1;
            }
            let dropped = name == "without" && broker.version() >= Version::V4_0;
            assert_eq!(looks, if dropped { 21 } else { 30 }, "{name}");
        }
    })
    .await;
}

/// Fact 45.
#[tokio::test]
async fn quorum_queues_of_4_hand_out_what_has_a_priority_first() {
    on_every_broker(|broker| async move {
        let vhost = broker.vhost().await;
        let amqp = vhost.connect().await;
        amqp.declare("parked", QueueType::Quorum).await;
        for (body, priority) in [("old", 0), ("urgent", 9)] {
            let properties = BasicProperties::default().with_priority(priority);
            amqp.publish_with("parked", body, properties).await;
        }
        let first = amqp.take("parked").await.unwrap();
        let expected = if broker.version() < Version::V4_0 {
            "old"
        } else {
            "urgent"
        };
        assert_eq!(first.text(), expected);
    })
    .await;
}

/// How the broker came to dead-letter a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cause {
    Rejected,
    Nacked,
    Expired,
    ExpiredByQueue,
    PushedOut,
    DeliveryLimit,
}

impl Cause {
    fn of(queue_type: QueueType) -> Vec<Self> {
        let mut all = vec![
            Self::Rejected,
            Self::Nacked,
            Self::Expired,
            Self::ExpiredByQueue,
            Self::PushedOut,
        ];
        if queue_type == QueueType::Quorum {
            all.push(Self::DeliveryLimit);
        }
        all
    }

    fn reason(self) -> &'static str {
        match self {
            Self::Rejected | Self::Nacked => "rejected",
            Self::Expired | Self::ExpiredByQueue => "expired",
            Self::PushedOut => "maxlen",
            Self::DeliveryLimit => "delivery_limit",
        }
    }
}

/// Publishes a message to an exchange and has it dead-lettered into a quorum parking queue.
async fn kill(amqp: &Amqp, queue_type: QueueType, cause: Cause) {
    let mut arguments = dead_letters_to("parked");
    arguments.extend(match cause {
        Cause::ExpiredByQueue => Some(("x-message-ttl", int(50))),
        Cause::PushedOut => Some(("x-max-length", int(1))),
        Cause::DeliveryLimit => Some(("x-delivery-limit", int(1))),
        _ => None,
    });
    amqp.declare_with("work", queue_type, table(arguments))
        .await;
    amqp.declare("parked", QueueType::Quorum).await;
    let channel = amqp.channel();
    let options = ExchangeDeclareOptions::default();
    channel
        .exchange_declare("orders".into(), ExchangeKind::Topic, options, table([]))
        .await
        .unwrap();
    channel
        .queue_bind(
            "work".into(),
            "orders".into(),
            "order.*".into(),
            Default::default(),
            table([]),
        )
        .await
        .unwrap();

    let mut properties = BasicProperties::default();
    if cause == Cause::Expired {
        properties = properties.with_expiration("50".into());
    }
    amqp.publish_to("orders", "order.new", "", properties).await;
    match cause {
        Cause::Rejected => {
            hold(channel, "work")
                .await
                .reject(BasicRejectOptions { requeue: false })
                .await
                .unwrap();
        }
        Cause::Nacked => {
            hold(channel, "work")
                .await
                .nack(BasicNackOptions::default())
                .await
                .unwrap();
        }
        Cause::PushedOut => {
            amqp.publish_to("orders", "order.new", "", BasicProperties::default())
                .await
        }
        Cause::DeliveryLimit => {
            for _ in 0..2 {
                requeue(&hold(channel, "work").await).await;
            }
        }
        Cause::Expired | Cause::ExpiredByQueue => {}
    }
}
