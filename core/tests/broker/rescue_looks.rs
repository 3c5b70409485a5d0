//! Looks for messages that cannot be delivered must not destroy others.

use lapin::options::QueueDeclareOptions;
use retryrmq::{ErrorKind, types::FieldTable};
use retryrmq_harness::{Broker, Version, on_every_broker_where};

use crate::{
    connecting::refused,
    fixture::{QUEUE, connect},
};

/// RabbitMQ deletes an auto-delete queue when its last reader leaves.
#[tokio::test]
async fn an_auto_delete_queue_is_not_looked_at_where_the_look_would_delete_it() {
    let serves = |broker: &Broker| broker.version() >= Version::V4_0;
    on_every_broker_where(serves, |broker| async move {
        let vhost = broker.vhost().await;
        let (client, amqp) = (connect(&vhost).await, vhost.connect().await);
        for durable in [true, false] {
            let options = QueueDeclareOptions {
                durable,
                auto_delete: true,
                ..QueueDeclareOptions::default()
            };
            amqp.channel()
                .queue_declare(QUEUE.into(), options, FieldTable::default())
                .await
                .unwrap();
            amqp.publish(QUEUE, "1").await;
            let unreadable = client.unreadable(QUEUE);
            for taken in [
                unreadable.take_from(QUEUE, 10).await,
                unreadable.try_each_from(QUEUE, 10).await,
            ] {
                let why = refused(taken, ErrorKind::Mismatch);
                assert!(why.contains("auto-delete"), "{why}");
            }
            assert_eq!(amqp.depth(QUEUE).await, Some(1));
            // Beside a reader that stays, it is harmless.
            let reader = vhost.connect().await;
            let _held = reader.consume(QUEUE, 1).await;
            assert!(unreadable.take_from(QUEUE, 10).await.unwrap().is_empty());
            amqp.delete(QUEUE).await;
        }
    })
    .await;
}
