//! What happens where an exchange, or its type, is missing.

use lapin::options::{BasicPublishOptions, ExchangeDeclareOptions};
use lapin::types::FieldTable;
use lapin::{BasicProperties, ExchangeKind};
use retryrmq_facts::*;
use retryrmq_harness::{QueueType, Version, on_every_broker};

/// Fact 33. The core asks for it only where nothing else uses the connection.
#[tokio::test]
async fn an_exchange_type_that_is_missing_costs_the_whole_connection_on_3_10() {
    on_every_broker(|broker| async move {
        let vhost = broker.vhost().await;
        let amqp = vhost.connect().await;
        let delayed = || ExchangeKind::Custom("x-delayed-message".into());
        let declare = |channel: lapin::Channel, passive| async move {
            let options = ExchangeDeclareOptions {
                passive,
                durable: true,
                ..Default::default()
            };
            let arguments = table([("x-delayed-type", string("direct"))]);
            let declared = channel
                .exchange_declare("delayed".into(), delayed(), options, arguments)
                .await;
            closed(&channel).await;
            declared
        };
        let (code, text) = refusal(declare(amqp.new_channel().await, true).await);
        assert_eq!(
            (code, text),
            (
                404,
                format!(
                    "NOT_FOUND - no exchange 'delayed' in vhost '{}'",
                    vhost.name()
                )
            )
        );
        assert!(amqp.connection().status().connected());

        let refused = refusal(declare(amqp.new_channel().await, false).await);
        let old = broker.version() < Version::V4_0;
        let (code, name) = if old {
            (503, "COMMAND_INVALID")
        } else {
            (406, "PRECONDITION_FAILED")
        };
        assert_eq!(
            refused,
            (
                code,
                format!("{name} - unknown exchange type 'x-delayed-message'")
            )
        );
        assert_eq!(amqp.connection().status().connected(), !old);
    })
    .await;
}

/// Fact 87. The core believes that a queue is old if its marker is bound, and only then.
#[tokio::test]
async fn an_exchange_tells_whether_its_queue_is_bound_to_it_and_the_binding_goes_with_the_queue() {
    on_every_broker(|broker| async move {
        let vhost = broker.vhost().await;
        let amqp = vhost.connect().await;
        let name = vhost.name();
        for kind in QueueType::ALL {
            let queue = format!("marked-{kind}");
            amqp.declare(&queue, kind).await;
            mark(&amqp, &queue).await;
            let (code, text) = refusal(delete_unbound_marker(&amqp, &queue).await);
            let in_use =
                format!("PRECONDITION_FAILED - exchange '{queue}' in vhost '{name}' in use");
            assert_eq!((code, text), (406, in_use));
            let channel = amqp.new_channel().await;
            let (options, properties) =
                (BasicPublishOptions::default(), BasicProperties::default());
            let _ = channel
                .basic_publish(queue.as_str().into(), "".into(), options, b"", properties)
                .await;
            closed(&channel).await;
            assert_eq!(
                amqp.depth(&queue).await,
                Some(0),
                "no client may publish to it"
            );
            amqp.delete(&queue).await;
            // A queue of the same name is not bound to it.
            look_for_marker(&amqp, &queue).await.unwrap();
            declare_marker(&amqp, &queue).await.unwrap();
            amqp.declare(&queue, kind).await;
            delete_unbound_marker(&amqp, &queue).await.unwrap();
            let (code, _) = refusal(look_for_marker(&amqp, &queue).await);
            assert_eq!(code, 404);
            delete_unbound_marker(&amqp, &queue).await.unwrap(); // one that is missing counts as deleted
        }
        // An exchange of somebody else.
        let options = ExchangeDeclareOptions {
            durable: true,
            auto_delete: true,
            ..Default::default()
        };
        amqp.channel()
            .exchange_declare(
                "other".into(),
                ExchangeKind::Fanout,
                options,
                FieldTable::default(),
            )
            .await
            .unwrap();
        let (code, text) = refusal(declare_marker(&amqp, "other").await);
        assert_eq!(code, 406);
        assert!(text.contains("inequivalent arg 'auto_delete'"), "{text}");
    })
    .await;
}
