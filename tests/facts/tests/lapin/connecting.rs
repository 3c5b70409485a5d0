//! What lapin does while it connects, and what it needs for it.

use futures_util::{FutureExt, StreamExt};
use lapin::{Connection, ConnectionProperties};
use retryrmq_facts::*;
use retryrmq_harness::{Amqp, QueueType, brokers, eventually, on_every_broker};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::time::timeout;

/// Lapin fact 2.
#[tokio::test]
async fn a_peer_that_never_answers_is_waited_for_whatever_the_address_says() {
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!(
        "amqp://127.0.0.1:{}/%2f?connection_timeout=100",
        silent.local_addr().unwrap().port()
    );
    let connect = Connection::connect(&address, ConnectionProperties::default());
    assert!(
        timeout(Duration::from_secs(2), connect).await.is_err(),
        "there is a time limit"
    );
}

/// Lapin fact 6.
#[test]
fn connecting_outside_a_runtime_panics() {
    let url = brokers()[0].url().to_owned();
    let connect = || Connection::connect(&url, ConnectionProperties::default()).now_or_never();
    assert!(catch_unwind(AssertUnwindSafe(connect)).is_err());
}

/// Lapin fact 4.
#[tokio::test]
async fn listeners_share_the_events_instead_of_getting_all_of_them() {
    let broker = brokers().pop().unwrap();
    let mut events = Vec::new();
    for listeners in [1, 2] {
        let vhost = broker.vhost().await;
        let amqp = vhost.connect().await;
        let streams: Vec<_> = (0..listeners)
            .map(|_| amqp.connection().events_listener())
            .collect();
        be_thrown_out(&amqp).await;
        let mut seen = 0;
        for stream in streams {
            let mut stream = pin!(stream);
            while timeout(Duration::from_secs(3), stream.next())
                .await
                .is_ok_and(|event| event.is_some())
            {
                seen += 1;
            }
        }
        events.push(seen);
    }
    assert!(events[0] > 0, "there is an event");
    assert_eq!(
        events[0], events[1],
        "two listeners see no more of them than one"
    );
}

/// Lapin fact 16.
#[tokio::test]
async fn the_end_of_a_connection_is_an_error_and_then_the_end_of_the_stream() {
    on_every_broker(|broker| async move {
        let vhost = broker.vhost().await;
        let amqp = vhost.connect().await;
        amqp.declare("work", QueueType::Classic).await;
        let mut consumer = amqp.consume("work", 1).await;
        be_thrown_out(&amqp).await;
        let end = timeout(DEADLINE, consumer.next())
            .await
            .unwrap()
            .expect("an error comes first");
        assert!(end.is_err());
        assert!(timeout(DEADLINE, consumer.next()).await.unwrap().is_none());
    })
    .await;
}

/// Has the broker close the connection, for properties that no frame holds.
async fn be_thrown_out(amqp: &Amqp) {
    let channel = amqp.new_channel().await;
    let big = headers([("big", string(&"x".repeat(140_000)))]);
    let _ = channel
        .basic_publish("".into(), "".into(), Default::default(), b"", big)
        .await;
    eventually(DEADLINE, "the connection is closed", || async {
        !amqp.connection().status().connected()
    })
    .await;
}
