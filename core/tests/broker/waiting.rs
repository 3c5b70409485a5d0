//! What waits and is moved, and what is replayed: no original may go before its copy is in a queue that is old enough.

use std::time::Duration;

use retryrmq::{Client, ErrorKind, Publish, WaitingMessage, WaitingWalk};
use retryrmq_harness::{Amqp, QueueType, on_brokers};
use tokio::time::Instant;

use crate::{
    connecting::refused,
    fixture::{PARKED, QUEUE, connect, id, take},
    parking::ready,
};

/// What a killed broker loses from a younger queue.
const YOUNG: Duration = Duration::from_millis(1_900);

/// A look at these messages, which wait for an hour.
async fn look(client: &Client, amqp: &Amqp, names: &[&str]) -> (WaitingWalk, Vec<WaitingMessage>) {
    amqp.declare(QUEUE, QueueType::Quorum).await;
    for name in names {
        let message = Publish::to_queue(QUEUE, *name).message_id(name);
        let delayed = message.delay(Duration::from_secs(3_600));
        client.publish(delayed).await.unwrap();
    }
    let waiting = client.waiting(QUEUE);
    let waiting_queues = waiting.queues([]).await.unwrap();
    let waiting_queue = waiting_queues
        .iter()
        .find(|waiting_queue| waiting_queue.messages > 0)
        .unwrap();
    let mut look = waiting.walk_queue(waiting_queue).await.unwrap();
    let mut waiting_messages = Vec::new();
    while let Some(waiting_message) = look.next().await.unwrap() {
        waiting_messages.push(waiting_message);
    }
    assert_eq!(waiting_messages.len(), names.len());
    (look, waiting_messages)
}

/// The work queue is old enough by then; the parking queue is as young as its first message.
#[tokio::test]
async fn each_queue_that_a_look_moves_to_becomes_old_enough() {
    on_brokers(|broker| async move {
        let vhost = broker.vhost().await;
        let (client, amqp) = (connect(&vhost).await, vhost.connect().await);
        let (mut look, waiting_messages) = look(&client, &amqp, &["a", "b"]).await;
        let flushed = look.flush(&waiting_messages[..1]).await;
        assert!(matches!(flushed[..], [Ok(())]), "{flushed:?}");
        let began = Instant::now();
        let cancelled = look.cancel(&waiting_messages[1..]).await;
        assert!(matches!(cancelled[..], [Ok(())]), "{cancelled:?}");
        assert!(began.elapsed() >= YOUNG, "{:?}", began.elapsed());
        look.close().await.unwrap();
        take(&amqp, QUEUE, 1).await;
        take(&amqp, PARKED, 1).await;
    })
    .await;
}

#[tokio::test]
async fn a_parking_queue_that_was_deleted_is_made_again() {
    on_brokers(|broker| async move {
        let vhost = broker.vhost().await;
        let (client, amqp) = (connect(&vhost).await, vhost.connect().await);
        let (mut look, waiting_messages) = look(&client, &amqp, &["a", "b"]).await;
        let mut cancel = async |place: usize| {
            let done = look.cancel(&waiting_messages[place..=place]).await;
            done.into_iter().collect::<retryrmq::Result<()>>()
        };
        cancel(0).await.unwrap();
        amqp.delete(PARKED).await;
        refused(cancel(1).await, ErrorKind::Unroutable);
        let began = Instant::now();
        cancel(1).await.unwrap();
        assert!(began.elapsed() >= YOUNG, "{:?}", began.elapsed());
        assert_eq!(take(&amqp, PARKED, 1).await[0].id(), Some("b"));
    })
    .await;
}

#[tokio::test]
async fn a_replay_to_a_queue_that_was_made_again_waits_again() {
    on_brokers(|broker| async move {
        let vhost = broker.vhost().await;
        let (client, amqp) = (connect(&vhost).await, vhost.connect().await);
        for queue in [QUEUE, PARKED] {
            amqp.declare(queue, QueueType::Quorum).await;
        }
        for name in ["a", "b"] {
            amqp.publish_with(PARKED, name, id(name)).await;
        }
        ready(&amqp, 2).await;
        let mut walk = client.parked(QUEUE).browse().await.unwrap();
        let a = walk.next().await.unwrap().unwrap();
        let b = walk.next().await.unwrap().unwrap();
        walk.replay_to(&a, QUEUE).await.unwrap();
        amqp.delete(QUEUE).await;
        refused(walk.replay_to(&b, QUEUE).await, ErrorKind::Unroutable);
        amqp.declare(QUEUE, QueueType::Quorum).await;
        let began = Instant::now();
        walk.replay_to(&b, QUEUE).await.unwrap();
        assert!(began.elapsed() >= YOUNG, "{:?}", began.elapsed());
        walk.close().await.unwrap();
        assert_eq!(take(&amqp, QUEUE, 1).await[0].id(), Some("b"));
    })
    .await;
}
