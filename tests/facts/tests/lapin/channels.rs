//! What lapin says when a channel dies, and what dies with it.

use futures_util::StreamExt;
use lapin::options::QueueDeclareOptions;
use retryrmq_facts::*;
use retryrmq_harness::{QueueType, brokers, on_every_broker};
use std::time::Duration;
use tokio::time::timeout;

/// Lapin fact 15.
#[tokio::test]
async fn an_ack_that_the_broker_does_not_know_succeeds_and_then_costs_the_channel() {
    on_every_broker(|broker| async move {
        let vhost = broker.vhost().await;
        let amqp = vhost.connect().await;
        amqp.declare("work", QueueType::Classic).await;
        let mut consumer = amqp.consume("work", 1).await;
        amqp.publish("work", "").await;
        let delivery = timeout(DEADLINE, consumer.next())
            .await
            .unwrap()
            .unwrap()
            .unwrap();
        let channel = amqp.new_channel().await;
        channel
            .basic_ack(delivery.delivery_tag + 40, Default::default())
            .await
            .unwrap();
        closed(&channel).await;
        let late = channel
            .queue_declare("work".into(), QueueDeclareOptions::default(), table([]))
            .await;
        assert!(late.is_err());
    })
    .await;
}

/// Lapin fact 15.
#[tokio::test]
async fn an_acker_that_another_ack_has_covered_says_that_it_is_usable() {
    let broker = brokers().pop().unwrap();
    let vhost = broker.vhost().await;
    let amqp = vhost.connect().await;
    amqp.declare("work", QueueType::Classic).await;
    for _ in 0..2 {
        amqp.publish("work", "").await;
    }
    let mut consumer = amqp.consume("work", 2).await;
    let first = timeout(DEADLINE, consumer.next())
        .await
        .unwrap()
        .unwrap()
        .unwrap();
    let second = timeout(DEADLINE, consumer.next())
        .await
        .unwrap()
        .unwrap()
        .unwrap();
    second
        .ack(lapin::options::BasicAckOptions { multiple: true })
        .await
        .unwrap();
    assert!(first.acker.usable(), "it is covered by the other");
    first
        .ack(Default::default())
        .await
        .expect("which nobody notices here");
    let end = timeout(DEADLINE, consumer.next())
        .await
        .unwrap()
        .expect("the channel is closed for it");
    assert_eq!(code(end), 406);
}

/// Lapin fact 16.
#[tokio::test]
async fn a_stream_that_has_ended_without_an_error_pends_for_ever_after() {
    let broker = brokers().pop().unwrap();
    let vhost = broker.vhost().await;
    let amqp = vhost.connect().await;
    amqp.declare("work", QueueType::Classic).await;
    let mut consumer = amqp.consume("work", 1).await;
    amqp.delete("work").await;
    assert!(timeout(DEADLINE, consumer.next()).await.unwrap().is_none());
    assert!(
        timeout(Duration::from_millis(500), consumer.next())
            .await
            .is_err()
    );
}

/// Lapin fact 17. It takes two or three tries.
#[tokio::test]
async fn a_channel_that_is_dropped_while_the_broker_closes_it_takes_the_connection_along() {
    let broker = brokers().pop().unwrap();
    let vhost = broker.vhost().await;
    let amqp = vhost.connect().await;
    for _ in 0..100 {
        let Ok(channel) = amqp.connection().create_channel().await else {
            break;
        };
        // An ack for what was never delivered; the broker will not have it.
        let Ok(()) = channel.basic_ack(1, Default::default()).await else {
            break;
        };
        drop(channel);
    }
    assert!(
        !amqp.connection().status().connected(),
        "it has survived a hundred channels"
    );
}

/// Lapin fact 20.
#[tokio::test]
async fn the_number_of_a_channel_that_the_broker_closed_is_refused_for_good_with_its_error() {
    let broker = brokers().pop().unwrap();
    let node = broker.own_node(&["channel_max = 3"]).await;
    let amqp = node.connect().await;
    let connection = amqp.connection();
    let mut refused = 0;
    let why = loop {
        let channel = match connection.create_channel().await {
            Ok(channel) => channel,
            Err(why) => break why,
        };
        let missing = QueueDeclareOptions {
            passive: true,
            ..QueueDeclareOptions::default()
        };
        let looked = channel.queue_declare("missing".into(), missing, table([]));
        assert!(looked.await.is_err());
        closed(&channel).await;
        refused += 1;
        assert!(refused < 20, "numbers are used again as they should be");
    };
    assert!(why.to_string().contains("no queue 'missing'"), "{why}");
    assert!(connection.status().connected());
    // Nor is there ever a channel again: each number that was refused counts as taken.
    let why = loop {
        let why = connection.create_channel().await.unwrap_err();
        if !why.to_string().contains("no queue") {
            break why;
        }
    };
    assert!(
        matches!(why.kind(), lapin::ErrorKind::ChannelsLimitReached),
        "{why}"
    );
}
