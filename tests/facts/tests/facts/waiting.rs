//! What a look at a waiting queue does to what waits in it.

use std::time::Duration;

use futures_util::StreamExt;
use lapin::Channel;
use lapin::options::{
    BasicCancelOptions, BasicConsumeOptions, BasicNackOptions, BasicQosOptions, QueueDeleteOptions,
};
use lapin::types::FieldTable;
use retryrmq_facts::*;
use retryrmq_harness::{Amqp, Broker, QueueType, Version, on_every_queue_type};
use tokio::time::sleep;

/// Consumes so many messages and holds them.
async fn hold_all(
    amqp: &Amqp,
    queue: &str,
    count: usize,
) -> (Channel, Vec<lapin::message::Delivery>) {
    let channel = amqp.new_channel().await;
    channel
        .basic_qos(100, BasicQosOptions::default())
        .await
        .unwrap();
    let mut stream = channel
        .basic_consume(
            queue.into(),
            "look".into(),
            BasicConsumeOptions::default(),
            FieldTable::default(),
        )
        .await
        .unwrap();
    let mut held = Vec::new();
    while held.len() < count {
        held.push(stream.next().await.unwrap().unwrap());
    }
    (channel, held)
}

/// Fact 72. Neither the order nor the time changes, but a count may come along.
#[tokio::test]
async fn a_look_at_what_waits_changes_neither_its_order_nor_its_time_and_may_leave_a_count() {
    on_every_queue_type(|broker, waiting| async move {
        let version = broker.version();
        let tries = [QueueType::Classic, QueueType::Quorum]
            .into_iter()
            .flat_map(|work| [(work, false), (work, true)]);
        let tries = tries.map(|(work, nacked)| {
            let broker = &broker;
            async move {
                let seen = looked_at(broker, waiting, work, nacked).await;
                let order: Vec<_> = seen.iter().map(|seen| seen.0.as_str()).collect();
                let place = format!("{waiting} to {work}, nacked {nacked}: {seen:?}");
                assert_eq!(order, ["0", "1", "2", "3"], "{place}");
                let is_marked = work == QueueType::Quorum
                    && if version >= Version::V4_3 {
                        !nacked
                    } else {
                        version >= Version::V4_0 && waiting == QueueType::Quorum
                    };
                if nacked && (Version::V4_0..Version::V4_3).contains(&version) {
                    return; // seen with and without a mark
                }
                for (body, redelivered, count) in &seen {
                    let marked = is_marked && body != "3";
                    assert_eq!(*redelivered, marked, "{place}");
                    assert_eq!(*count, marked.then_some(1), "{place}");
                }
            }
        });
        futures_util::future::join_all(tries).await;
    })
    .await;
}

/// What a consumer of the work queue sees (body, redelivered, count of deliveries) of three messages that were looked at while they
/// waited, and of one that began to wait after them in another queue and was not.
async fn looked_at(
    broker: &Broker,
    waiting: QueueType,
    work: QueueType,
    nacked: bool,
) -> Vec<(String, bool, Option<i64>)> {
    let vhost = broker.vhost().await;
    let amqp = vhost.connect().await;
    amqp.declare("work", work).await;
    for queue in ["looked at", "left alone"] {
        // Long enough for a look on a busy machine.
        amqp.declare_with(queue, waiting, wait_queue(waiting, 28_000, "work"))
            .await;
    }
    for body in ["0", "1", "2"] {
        amqp.publish("looked at", body).await;
    }
    // So that the times of two queues differ by more than a busy broker is late.
    sleep(Duration::from_secs(8)).await;
    amqp.publish("left alone", "3").await;
    let (channel, held) = hold_all(&amqp, "looked at", 3).await;
    // Otherwise what is given back by nack comes again at once.
    channel
        .basic_cancel("look".into(), BasicCancelOptions::default())
        .await
        .unwrap();
    if nacked {
        let all = BasicNackOptions {
            multiple: true,
            requeue: true,
        };
        channel.basic_nack(held[2].delivery_tag, all).await.unwrap();
    }
    channel.close(200, "".into()).await.unwrap();
    let (_channel, came) = hold_all(&amqp, "work", 4).await;
    came.iter()
        .map(|message| {
            (
                String::from_utf8_lossy(&message.data).into_owned(),
                message.redelivered,
                count(&message.properties, "x-delivery-count"),
            )
        })
        .collect()
}

/// Fact 73.
#[tokio::test]
async fn only_a_classic_queue_is_deleted_on_conditions() {
    on_every_queue_type(|broker, queue_type| async move {
        let vhost = broker.vhost().await;
        let amqp = vhost.connect().await;
        amqp.declare("queue", queue_type).await;
        amqp.publish("queue", "x").await;
        for (if_empty, if_unused) in [(true, false), (true, true)] {
            // The refusal of a quorum queue costs the connection.
            let other = vhost.connect().await;
            let conditions = QueueDeleteOptions {
                if_empty,
                if_unused,
                ..QueueDeleteOptions::default()
            };
            let refused = other
                .channel()
                .queue_delete("queue".into(), conditions)
                .await
                .unwrap_err();
            let words = match queue_type {
                QueueType::Quorum => "not supported by quorum queues",
                _ => "not empty",
            };
            assert!(refused.to_string().contains(words), "{refused}");
        }
        assert_eq!(amqp.depth("queue").await, Some(1));
    })
    .await;
}
