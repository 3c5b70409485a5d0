//! Messages as a stream, each answered by hand.

use retryrmq::{Message, park};
use retryrmq_harness::{eventually, on_queue_types};

use crate::fixture::{DEADLINE, QUEUE, connect_with, policy};

fn body(message: &Message) -> String {
    String::from_utf8_lossy(message.body()).into_owned()
}

#[tokio::test]
async fn each_message_is_answered_and_what_is_dropped_is_a_failed_attempt() {
    on_queue_types(|broker, kind| async move {
        let vhost = broker.vhost().await;
        let (client, amqp) = (connect_with(&vhost, kind).await, vhost.connect().await);
        amqp.declare(QUEUE, kind).await;
        for text in ["fine", "dropped", "junk"] {
            amqp.publish(QUEUE, text).await;
        }
        let consumer = client.consumer(QUEUE).dlx(true);
        let consumer = consumer.retry(policy("fixed(50ms, retries=2)"));
        let mut messages = consumer.messages().await.unwrap();
        let mut seen = Vec::new();
        // One each, and two more of the one that is dropped.
        for _ in 0..5 {
            let attempt = messages.next().await.unwrap();
            let text = body(attempt.message());
            seen.push((text.clone(), attempt.message().attempt()));
            match &text[..] {
                "fine" => attempt.ack(),
                "junk" => attempt.settle(Err(park("no such customer"))),
                _ => drop(attempt),
            }
        }
        seen.sort();
        let expected = [
            ("dropped", 1),
            ("dropped", 2),
            ("dropped", 3),
            ("fine", 1),
            ("junk", 1),
        ];
        assert_eq!(
            seen,
            expected.map(|(text, attempt)| (text.to_owned(), attempt))
        );
        eventually(DEADLINE, "both are parked", || async {
            let stats = messages.stats();
            ((stats.parked, stats.acked, stats.outstanding) == (2, 1, 0))
                .then_some(())
                .ok_or_else(|| format!("{stats:?}"))
        })
        .await;
        messages.close().await;
        assert_eq!(amqp.depth(QUEUE).await, Some(0));
        client.close().await;
    })
    .await;
}

#[tokio::test]
async fn what_is_dropped_at_the_end_comes_again_uncounted() {
    on_queue_types(|broker, kind| async move {
        let vhost = broker.vhost().await;
        let (client, amqp) = (connect_with(&vhost, kind).await, vhost.connect().await);
        amqp.declare(QUEUE, kind).await;
        for text in ["one", "two"] {
            amqp.publish(QUEUE, text).await;
        }
        let mut messages = client.consumer(QUEUE).dlx(true).messages().await.unwrap();
        let held = messages.next().await.unwrap();
        let name = body(held.message());
        drop(messages);
        drop(held);
        eventually(DEADLINE, "both are back", || async {
            let depth = amqp.depth(QUEUE).await;
            (depth == Some(2))
                .then_some(())
                .ok_or_else(|| format!("{depth:?}"))
        })
        .await;
        let mut messages = client.consumer(QUEUE).dlx(true).messages().await.unwrap();
        let mut seen = Vec::new();
        while seen.len() < 2 {
            let attempt = messages.next().await.unwrap();
            assert_eq!(attempt.message().attempt(), 1, "{name}");
            seen.push(body(attempt.message()));
            attempt.ack();
        }
        seen.sort();
        assert_eq!(seen, ["one", "two"]);
        messages.close().await;
        client.close().await;
    })
    .await;
}

#[tokio::test]
async fn without_dlx_what_is_dropped_is_not_lost() {
    on_queue_types(|broker, kind| async move {
        let vhost = broker.vhost().await;
        let (client, amqp) = (connect_with(&vhost, kind).await, vhost.connect().await);
        amqp.declare(QUEUE, kind).await;
        amqp.publish(QUEUE, "one").await;
        let mut messages = client.consumer(QUEUE).messages().await.unwrap();
        drop(messages.next().await.unwrap());
        let again = messages.next().await.unwrap();
        assert_eq!(
            (body(again.message()), again.message().redelivered()),
            ("one".to_owned(), true)
        );
        again.ack();
        messages.close().await;
        assert_eq!(amqp.depth(QUEUE).await, Some(0));
        client.close().await;
    })
    .await;
}
