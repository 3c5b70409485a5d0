//! The page and the stream of the history.

use retryrmq::Client;
use retryrmq_harness::{QueueType, Version, on_brokers, on_brokers_where};

use super::{Visitor, people};
use crate::fixture::{NativeConsumer, Replica, declare, id, policy};

#[tokio::test]
async fn a_stream_that_was_made_anew_is_read_again() {
    on_brokers(|broker| async move {
        let vhost = broker.vhost().await;
        let amqp = vhost.connect().await;
        let folder = tempfile::tempdir().unwrap();
        let file = policy(&people(folder.path(), "[defaults]\nrejected = \"park\"\n"));
        let replica = Replica::start(&vhost, Some(file.path())).await;
        declare(&amqp, "orders", QueueType::Quorum, true).await;
        let orders = NativeConsumer::start(&vhost, "orders", |_| false).await;
        for number in 0..6 {
            amqp.publish_with("orders", "body", id(&format!("m{number}")))
                .await;
        }
        let mut rea = Visitor::with_token(&replica, "rea-0123456789abcdef").await;
        rea.sees("/queues/orders", &["<b>6</b> parked"]).await;
        // Another replica is faster, or an operator has made it again.
        let client = Client::connect(vhost.url()).await.unwrap();
        amqp.delete("retryrmq.serve.history").await;
        let day = std::time::Duration::from_secs(86_400);
        client
            .stream("retryrmq.serve.history", day, 10_000_000)
            .await
            .unwrap();
        amqp.publish_with("orders", "body", id("late")).await;
        rea.sees("/queues/orders", &["<b>7</b> parked"]).await;
        client.close().await;
        drop(orders);
        assert!(replica.end().await.success());
    })
    .await;
}

#[tokio::test]
async fn without_a_stream_events_do_not_heap_up_with_their_bodies() {
    on_brokers_where(
        |broker| broker.version() >= Version::V4_3,
        |broker| async move {
            let vhost = broker.vhost().await;
            let amqp = vhost.connect().await;
            amqp.declare("taken", QueueType::Classic).await;
            let file = policy("[defaults]\nrejected = \"park\"\n\n[history]\nstream = \"taken\"\n");
            let replica = Replica::start(&vhost, Some(file.path())).await;
            declare(&amqp, "orders", QueueType::Quorum, true).await;
            let orders = NativeConsumer::start(&vhost, "orders", |_| false).await;
            let all = (0..4_300).map(|number| ("orders", "body", id(&format!("m{number}"))));
            amqp.publish_all("", all).await;
            replica.counts("retryrmq_serve_parked_total", 4_300).await;
            // Those that do not fit are dropped; 4096 have room.
            let (_, metrics) = replica.page("/metrics").await;
            assert!(
                metrics.contains("retryrmq_serve_events_dropped_total 0\n"),
                "{metrics}"
            );
            drop(orders);
            assert!(replica.end().await.success());
        },
    )
    .await;
}
