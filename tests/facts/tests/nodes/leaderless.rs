//! What is said of queues that are there, when those who have their messages are not.

use lapin::{
    options::{BasicConsumeOptions, BasicGetOptions, QueueDeclareOptions},
    types::{AMQPValue, FieldTable},
};
use retryrmq_facts::*;
use retryrmq_harness::{Amqp, Broker, QueueType, Version, eventually, on_brokers_where};

/// A passive declaration: messages and consumers, or the refusal.
async fn look(amqp: &Amqp, queue: &str) -> lapin::Result<(u32, u32)> {
    let options = QueueDeclareOptions {
        passive: true,
        ..QueueDeclareOptions::default()
    };
    let channel = amqp.new_channel().await;
    let looked = channel
        .queue_declare(queue.into(), options, FieldTable::default())
        .await?;
    Ok((looked.message_count(), looked.consumer_count()))
}

/// Fact 80. The one member of a queue goes; in a larger one the same is seen until the others have elected a leader, or for as long
/// as a majority is away.
#[tokio::test]
async fn a_quorum_queue_without_a_leader_is_taken_for_empty_and_only_a_get_tells() {
    on_brokers_where(Broker::is_controllable, |broker| async move {
        let (near, far) = tokio::join!(broker.own_node(&[]), broker.own_node(&[]));
        far.join(&near).await;
        let (here, there) = tokio::join!(near.connect(), far.connect());
        let mut alone = FieldTable::default();
        alone.insert("x-quorum-initial-group-size".into(), AMQPValue::LongInt(1));
        for queue in ["filled", "consumed"] {
            there
                .declare_with(queue, QueueType::Quorum, alone.clone())
                .await;
            there.publish(queue, "").await;
        }
        here.declare_with("empty", QueueType::Quorum, alone).await;
        // On a connection of its own: what it says of a queue without a leader costs that.
        let elsewhere = near.connect().await;
        let _consumer = elsewhere.consume("consumed", 1).await;
        let counted = || async { look(&here, "consumed").await.ok() == Some((0, 1)) };
        eventually(DEADLINE, "it is with its consumer", counted).await;
        far.kill().await;

        // Who consumes it counts for nothing either.
        for queue in ["filled", "consumed"] {
            eventually(DEADLINE, "its leader is gone", || async {
                look(&here, queue).await.ok() == Some((0, 0))
            })
            .await;
        }
        // Its type is known all the same.
        let mut offset = FieldTable::default();
        offset.insert(
            "x-stream-offset".into(),
            AMQPValue::LongString("next".into()),
        );
        let channel = here.new_channel().await;
        let consumed = channel.basic_consume(
            "filled".into(),
            "".into(),
            BasicConsumeOptions::default(),
            offset,
        );
        let said = consumed.await.unwrap_err().to_string();
        assert!(said.contains("of queue type rabbit_quorum_queue"), "{said}");
        // One that is empty says so.
        assert!(here.take("empty").await.is_none());
        assert_eq!(look(&here, "empty").await.unwrap(), (0, 0));
        assert_eq!(here.consumers("empty").await, Some(0));
        let connection = near.connect().await;
        let got = connection.new_channel().await;
        let got = got.basic_get("filled".into(), BasicGetOptions::default());
        let (code, text) = refusal(got.await.map(drop));
        assert_eq!(code, 541, "{text}");
        assert!(text.contains("Cannot get a message"), "{text}");
        // Nor can it be consumed. Not every version says why.
        let connection = near.connect().await;
        let channel = connection.new_channel().await;
        let (options, none) = (BasicConsumeOptions::default(), FieldTable::default());
        let consumed = channel.basic_consume("filled".into(), "".into(), options, none);
        let (code, text) = refusal(consumed.await.map(drop));
        assert_eq!(code, 541, "{text}");
        let says_why = text.contains("consuming from quorum queue 'filled'");
        assert!(says_why || text == "INTERNAL_ERROR", "{text}");

        far.start().await;
        eventually(DEADLINE, "it has its message again", || async {
            look(&here, "filled").await.ok() == Some((1, 0))
        })
        .await;
    })
    .await;
}

/// Fact 81. RabbitMQ 4.3 finds out by waiting for longer than anybody listens where it does not know that the node is stopped.
#[tokio::test]
async fn a_classic_queue_whose_node_is_stopped_is_not_found_in_other_words() {
    on_brokers_where(Broker::is_controllable, |broker| async move {
        let (near, far) = tokio::join!(broker.own_node(&[]), broker.own_node(&[]));
        far.join(&near).await;
        let (here, there) = tokio::join!(near.connect(), far.connect());
        there.declare("away", QueueType::Classic).await;
        far.stop().await;
        let said = look(&here, "away").await.unwrap_err().to_string();
        let words = if broker.version() < Version::V4_0 {
            "home node '"
        } else {
            "NOT_FOUND - queue 'away' in vhost '/' process is stopped by supervisor"
        };
        let of_time = "NOT_FOUND - failed to perform operation on queue 'away'";
        assert!(said.contains(words) || said.contains(of_time), "{said}");
        let said = look(&here, "missing").await.unwrap_err().to_string();
        assert!(said.contains("NOT_FOUND - no queue 'missing'"), "{said}");
    })
    .await;
}
