//! Messages that are retried by somebody who did not consume them from their queue.

use std::time::Instant;

use retryrmq::{ErrorKind, Event, FailedMessage, Failure, Outcome, ParkReason};
use retryrmq_harness::{QueueType, on_brokers, on_queue_types};

use crate::fixture::{
    DEADLINE, PARKED, QUEUE, connect, connect_with, id, int, parked, policy, table, take,
    with_headers,
};

fn failed(properties: retryrmq::BasicProperties) -> FailedMessage {
    FailedMessage::new(QUEUE, "shop", "eu.de", properties, b"a body".to_vec()).unwrap()
}

fn no() -> Outcome {
    Outcome::retry(Failure::new("no such customer").of_type("NotFound"))
}

#[tokio::test]
async fn a_message_waits_comes_back_counted_and_is_parked_with_its_record() {
    on_queue_types(|broker, kind| async move {
        let vhost = broker.vhost().await;
        let amqp = vhost.connect().await;
        amqp.declare(QUEUE, kind).await;
        let client = connect_with(&vhost, kind).await;
        let orders = client.retrier(QUEUE).unwrap().retry(policy("list(300ms)"));
        assert!(orders.exists().await.unwrap());
        let decision = orders.after(&failed(id("one")), &no()).await.unwrap();
        let decision = decision.unwrap();
        assert_eq!(decision.queue, "orders.retry.300");
        assert!(matches!(decision.event, Event::Retried { attempt: 1, .. }));
        let back = take(&amqp, QUEUE, 1).await.remove(0);
        assert_eq!(back.text(), "a body");
        assert_eq!(back.id(), Some("one"));
        assert_eq!(back.header_int("x-retry-count"), Some(1));
        assert_eq!(
            back.header_text("x-retry-exchange").as_deref(),
            Some("shop")
        );
        // It failed again: its headers say how often.
        let again =
            FailedMessage::new(QUEUE, "", QUEUE, back.properties, b"a body".to_vec()).unwrap();
        assert_eq!((again.attempt(), again.routing_key()), (2, "eu.de"));
        let decision = orders.after(&again, &no()).await.unwrap().unwrap();
        assert!(matches!(
            decision.event,
            Event::Parked {
                attempt: 2,
                reason: ParkReason::Exhausted,
                ..
            }
        ));
        let parked = parked(&amqp).await;
        assert_eq!(
            parked.header_text("x-retry-error").as_deref(),
            Some("no such customer")
        );
        assert_eq!(
            parked.header_text("x-retry-routing-key").as_deref(),
            Some("eu.de")
        );
        assert!(orders.after(&again, &Outcome::Ack).await.unwrap().is_none());
    })
    .await;
}

/// A connection has 2047 channels unless somebody has said otherwise.
#[tokio::test]
async fn however_many_ask_whether_the_queue_exists_it_is_looked_at_once() {
    on_brokers(|broker| async move {
        let vhost = broker.vhost().await;
        let amqp = vhost.connect().await;
        amqp.declare(QUEUE, QueueType::Quorum).await;
        let orders = connect(&vhost).await.retrier(QUEUE).unwrap();
        let mut asked = tokio::task::JoinSet::new();
        for _ in 0..3_000 {
            let orders = orders.clone();
            asked.spawn(async move { orders.exists().await });
        }
        for there in asked.join_all().await {
            assert!(there.unwrap());
        }
    })
    .await;
}

#[tokio::test]
async fn queues_are_made_when_they_are_needed_and_made_again_and_never_the_work_queue() {
    on_brokers(|broker| async move {
        let vhost = broker.vhost().await;
        let amqp = vhost.connect().await;
        let client = connect(&vhost).await;
        let orders = client.retrier(QUEUE).unwrap().retry(policy("fixed(1h)"));
        assert!(!orders.exists().await.unwrap());
        orders.after(&failed(id("one")), &no()).await.unwrap();
        assert_eq!(amqp.depth("orders.retry.3600000").await, Some(1));
        assert_eq!(
            amqp.depth(QUEUE).await,
            None,
            "the work queue is its owner's"
        );
        assert_eq!(amqp.depth(PARKED).await, None, "nothing was parked");
        amqp.delete("orders.retry.3600000").await;
        let error = orders.after(&failed(id("two")), &no()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unroutable);
        orders.after(&failed(id("two")), &no()).await.unwrap();
        let waits = amqp.drain("orders.retry.3600000").await;
        assert_eq!(waits.len(), 1);
        assert_eq!(waits[0].id(), Some("two"));
        // What was not seen for a while is looked for again.
        amqp.declare(QUEUE, QueueType::Quorum).await;
        let end = Instant::now() + DEADLINE;
        while !orders.exists().await.unwrap() {
            assert!(Instant::now() < end, "the new queue is not seen");
            tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_young_queue_is_awaited_before_the_original_may_go() {
    on_brokers(|broker| async move {
        let vhost = broker.vhost().await;
        let client = connect(&vhost).await;
        let orders = client.retrier(QUEUE).unwrap().retry(policy("fixed(1h)"));
        let began = Instant::now();
        orders.after(&failed(id("one")), &no()).await.unwrap();
        // A lower bound, which no busy machine breaks.
        assert!(began.elapsed() >= std::time::Duration::from_secs(2));
    })
    .await;
}

#[tokio::test]
async fn names_that_nothing_can_be_made_of_are_refused() {
    on_brokers(|broker| async move {
        let vhost = broker.vhost().await;
        let client = connect(&vhost).await;
        for (queue, kind) in [
            ("", ErrorKind::InvalidOption),
            ("orders.parked", ErrorKind::InvalidOption),
            ("orders.retry.1000", ErrorKind::InvalidOption),
            (&"q".repeat(250), ErrorKind::TooLarge),
        ] {
            assert_eq!(client.retrier(queue).unwrap_err().kind(), kind, "{queue}");
        }
        let forged = with_headers("one", table([("x-retry-count", int(-4))]));
        assert_eq!(
            failed(forged).distrusted(),
            [("x-retry-count", "is negative")]
        );
    })
    .await;
}
