//! Which consumer of a queue gets its messages.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use retryrmq::{Client, Consumer, Message, RunningConsumer};
use retryrmq_harness::{eventually, on_queue_types};
use tokio::sync::watch;

use crate::fixture::{DEADLINE, QUEUE, connect_with};

/// A consumer whose handlers wait while the gate is closed, and what they have begun with.
async fn begin(
    consumer: Consumer,
    gate: watch::Receiver<bool>,
) -> (RunningConsumer, Arc<AtomicUsize>) {
    let begun = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&begun);
    let running = consumer
        .concurrency(100)
        .start(move |_: Message| {
            count.fetch_add(1, Ordering::SeqCst);
            let mut gate = gate.clone();
            async move { gate.wait_for(|open| *open).await.map(drop) }
        })
        .await
        .unwrap();
    (running, begun)
}

fn consumer(client: &Client) -> Consumer {
    client.consumer(QUEUE).dlx(true).prefetch(16)
}

async fn until(what: &str, holds: impl Fn() -> bool) {
    eventually(DEADLINE, what, || async {
        if holds() { Ok(()) } else { Err("not yet") }
    })
    .await;
}

#[tokio::test]
async fn the_higher_priority_gets_the_messages_while_it_has_room() {
    on_queue_types(|broker, kind| async move {
        let vhost = broker.vhost().await;
        let (client, amqp) = (connect_with(&vhost, kind).await, vhost.connect().await);
        amqp.declare(QUEUE, kind).await;
        let (gate, opened) = watch::channel(true);
        let (high, by_high) = begin(consumer(&client).priority(7), opened.clone()).await;
        let of_high = || by_high.load(Ordering::SeqCst);
        // It takes one message at a time before it has seen some.
        for number in 0..3 {
            amqp.publish(QUEUE, "x").await;
            until("the only consumer has it", || of_high() > number).await;
            until("it is acknowledged", || high.stats().outstanding == 0).await;
        }
        let (_always, open) = watch::channel(true);
        let (low, by_low) = begin(consumer(&client).priority(-7), open).await;
        let of_low = || by_low.load(Ordering::SeqCst);
        for number in 3..30 {
            amqp.publish(QUEUE, "x").await;
            until("the higher priority has it", || of_high() > number).await;
        }
        assert_eq!(of_low(), 0, "{kind:?}");
        until("all are acknowledged", || high.stats().outstanding == 0).await;
        gate.send(false).unwrap();
        for number in 30..80 {
            amqp.publish(QUEUE, "x").await;
            until("somebody has it", || of_high() + of_low() > number).await;
        }
        // Its prefetch, and what a change of that may leave beside it.
        assert!(
            (16..=17).contains(&(of_high() - 30)),
            "{} of 50",
            of_high() - 30
        );
        gate.send(true).unwrap();
        until("all are handled", || high.stats().outstanding == 0).await;
        high.close().await;
        low.close().await;
        assert_eq!(amqp.depth(QUEUE).await, Some(0));
    })
    .await;
}
