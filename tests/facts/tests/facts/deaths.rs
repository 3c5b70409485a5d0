//! The record of a message's deaths in `x-death`: its order, its counts, and who else can write it.

use futures_util::StreamExt;
use lapin::ExchangeKind;
use lapin::options::{
    BasicPublishOptions, BasicRejectOptions, ConfirmSelectOptions, ExchangeDeclareOptions,
    QueueBindOptions,
};
use lapin::types::AMQPValue;
use retryrmq_facts::*;
use retryrmq_harness::{QueueType, Version, on_every_broker, on_every_queue_type};

/// Fact 1.
#[tokio::test]
async fn deaths_come_newest_first_and_their_counts_grow_with_each_loop() {
    on_every_queue_type(|broker, queue_type| async move {
        let vhost = broker.vhost().await;
        let amqp = vhost.connect().await;
        amqp.declare_with("work", queue_type, table(dead_letters_to("wait")))
            .await;
        amqp.declare_with("wait", queue_type, wait_queue(queue_type, 50, "work"))
            .await;
        amqp.publish("work", "").await;
        for round in 1..=3 {
            hold(amqp.channel(), "work")
                .await
                .reject(BasicRejectOptions { requeue: false })
                .await
                .unwrap();
            let message = hold(amqp.channel(), "work").await;
            let found = deaths(&message.properties);
            let brief: Vec<_> = found.iter().map(XDeath::brief).collect();
            assert_eq!(
                brief,
                [("wait", "expired", round), ("work", "rejected", round)]
            );
            let last = header(&message.properties, "x-last-death-reason");
            assert_eq!(
                last,
                (broker.version() >= Version::V4_0).then(|| string("expired"))
            );
            assert_eq!(
                header(&message.properties, "x-first-death-reason"),
                Some(string("rejected"))
            );
            requeue(&message).await;
        }
    })
    .await;
}

/// Fact 2.
#[tokio::test]
async fn a_forged_death_is_counted_on_by_old_brokers_only() {
    on_every_queue_type(|broker, queue_type| async move {
        let vhost = broker.vhost().await;
        let amqp = vhost.connect().await;
        amqp.declare_with("work", queue_type, table(dead_letters_to("dead")))
            .await;
        amqp.declare("dead", queue_type).await;
        let forged = headers([("x-death", array([forged_death("work", "rejected", 41)]))]);
        amqp.publish_with("work", "", forged.clone()).await;
        let message = hold(amqp.channel(), "work").await;
        assert_eq!(
            header(&message.properties, "x-death"),
            header(&forged, "x-death"),
            "it arrives as it was sent"
        );
        message
            .reject(BasicRejectOptions { requeue: false })
            .await
            .unwrap();
        let message = hold(amqp.channel(), "dead").await;
        let count = if broker.version() < Version::V4_0 {
            42
        } else {
            1
        };
        assert_eq!(
            deaths(&message.properties)[0].brief(),
            ("work", "rejected", count)
        );
    })
    .await;
}

/// Fact 2.
#[tokio::test]
async fn a_forged_death_of_another_type_is_delivered_and_then_replaced() {
    on_every_queue_type(|broker, queue_type| async move {
        let vhost = broker.vhost().await;
        let amqp = vhost.connect().await;
        amqp.declare_with("work", queue_type, table(dead_letters_to("dead")))
            .await;
        amqp.declare("dead", queue_type).await;
        amqp.publish_with("work", "", headers([("x-death", string("41 times"))]))
            .await;
        let message = hold(amqp.channel(), "work").await;
        assert_eq!(
            header(&message.properties, "x-death"),
            Some(string("41 times"))
        );
        message
            .reject(BasicRejectOptions { requeue: false })
            .await
            .unwrap();
        let message = hold(amqp.channel(), "dead").await;
        assert_eq!(
            deaths(&message.properties)[0].brief(),
            ("work", "rejected", 1)
        );
    })
    .await;
}

/// Fact 75. The service believes nothing that did not come through its exchange, and of `x-death` the first entry alone.
#[tokio::test]
async fn only_what_died_comes_through_an_internal_exchange_and_its_newest_death_is_true() {
    on_every_broker(|broker| async move {
        let vhost = broker.vhost().await;
        let amqp = vhost.connect().await;
        let internal = ExchangeDeclareOptions {
            durable: true,
            internal: true,
            ..Default::default()
        };
        let channel = amqp.new_channel().await;
        channel
            .exchange_declare("graves".into(), ExchangeKind::Fanout, internal, table([]))
            .await
            .unwrap();
        amqp.declare("intake", QueueType::Quorum).await;
        channel
            .queue_bind(
                "intake".into(),
                "graves".into(),
                "".into(),
                QueueBindOptions::default(),
                table([]),
            )
            .await
            .unwrap();
        channel
            .confirm_select(ConfirmSelectOptions::default())
            .await
            .unwrap();
        let published = async {
            let options = BasicPublishOptions::default();
            let properties = lapin::BasicProperties::default();
            let sent = channel.basic_publish("graves".into(), "".into(), options, b"", properties);
            sent.await?.await
        };
        let (code, text) = refusal(published.await);
        assert_eq!(code, 403);
        assert!(
            text.starts_with("ACCESS_REFUSED - cannot publish to internal exchange 'graves'"),
            "{text}"
        );

        let mut arrived = amqp.consume("intake", 9).await;
        let route = || vec![("x-dead-letter-exchange", string("graves"))];
        let at_least_once = || [route(), at_least_once()].concat();
        for (queue, kind, arguments) in [
            ("classic", QueueType::Classic, route()),
            ("at-most-once", QueueType::Quorum, route()),
            ("at-least-once", QueueType::Quorum, at_least_once()),
        ] {
            amqp.declare_with(queue, kind, table(arguments)).await;
            let forged = array([
                forged_death("victim", "rejected", 1),
                forged_death("other", "rejected", 1),
            ]);
            let forged = headers([
                ("x-death", forged),
                ("x-first-death-queue", string("victim")),
                ("x-last-death-queue", string("victim")),
            ]);
            amqp.publish_with(queue, "", forged).await;
            hold(amqp.channel(), queue)
                .await
                .reject(BasicRejectOptions { requeue: false })
                .await
                .unwrap();
            let delivery = arrived.next().await.unwrap().unwrap();
            assert_eq!(delivery.exchange.as_str(), "graves", "from {queue}");
            assert_eq!(delivery.routing_key.as_str(), queue);
            let newest = &deaths(&delivery.properties)[0];
            assert_eq!(newest.brief(), (queue, "rejected", 1));
            assert_eq!(newest.routing_keys, [queue]);
        }
    })
    .await;
}

fn forged_death(queue: &str, reason: &str, count: i64) -> AMQPValue {
    let fields = [
        ("queue", string(queue)),
        ("reason", string(reason)),
        ("count", int(count)),
        ("exchange", string("")),
        ("routing-keys", array([string(queue)])),
        ("time", AMQPValue::Timestamp(1_700_000_000)),
    ];
    AMQPValue::FieldTable(table(fields))
}
