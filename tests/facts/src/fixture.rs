//! What nearly every fact needs: queues to wait in, messages held without an ack, and the certainty that one is gone.

use crate::{int, string, table};
use lapin::Channel;
use lapin::message::BasicGetMessage;
use lapin::options::{BasicGetOptions, BasicRejectOptions};
use lapin::types::{AMQPValue, FieldTable};
use retryrmq_harness::{Amqp, QueueType, eventually};
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// How long anything may take on a busy machine before a test gives up. RabbitMQ sends a dead letter again after three minutes if the first try
/// was not confirmed in time.
pub const DEADLINE: Duration = Duration::from_secs(240);

/// The arguments of a queue that dead-letters to another one by name.
pub fn dead_letters_to(queue: &str) -> Vec<(&'static str, AMQPValue)> {
    vec![
        ("x-dead-letter-exchange", string("")),
        ("x-dead-letter-routing-key", string(queue)),
    ]
}

/// The arguments with which a quorum queue dead-letters at least once.
pub fn at_least_once() -> Vec<(&'static str, AMQPValue)> {
    vec![
        ("x-dead-letter-strategy", string("at-least-once")),
        ("x-overflow", string("reject-publish")),
    ]
}

/// The arguments of a queue whose messages go to the work queue after a while, the way retry queues are made.
pub fn wait_queue(queue_type: QueueType, milliseconds: i64, work: &str) -> FieldTable {
    let mut arguments = dead_letters_to(work);
    arguments.push(("x-message-ttl", int(milliseconds)));
    if queue_type == QueueType::Quorum {
        arguments.extend(at_least_once());
    }
    table(arguments)
}

/// Takes the next message of a queue, waiting for it, and holds it without an ack.
///
/// # Panics
/// When none comes.
pub async fn hold(channel: &Channel, queue: &str) -> BasicGetMessage {
    eventually(DEADLINE, &format!("{queue} has a message"), || {
        peek(channel, queue)
    })
    .await
}

/// Takes the next message of a queue, if there is one now, and holds it without an ack.
///
/// # Panics
/// When the broker refuses.
pub async fn peek(channel: &Channel, queue: &str) -> Option<BasicGetMessage> {
    channel
        .basic_get(queue.into(), BasicGetOptions::default())
        .await
        .expect("basic.get is allowed")
}

/// Gives a message back with `basic.reject`.
///
/// # Panics
/// When that fails.
pub async fn requeue(message: &BasicGetMessage) {
    message
        .reject(BasicRejectOptions { requeue: true })
        .await
        .expect("basic.reject is sent");
}

/// Waits until queues have been empty for so long that a message on its way between them would have been seen. What a
/// consumer holds is not looked at.
///
/// # Panics
/// When there is a message again and again.
pub async fn all_gone(amqp: &Amqp, queues: &[&str]) {
    let end = Instant::now() + DEADLINE;
    let mut empty = 0;
    while empty < 20 {
        assert!(Instant::now() < end, "something is left in {queues:?}");
        let mut depth = 0;
        for queue in queues {
            depth += amqp.depth(queue).await.expect("the queue exists");
        }
        empty = if depth == 0 { empty + 1 } else { 0 };
        sleep(Duration::from_millis(50)).await;
    }
}

/// Whether a message shows up in a queue where it is due at once. It is given ten seconds, for a busy machine: brokers take a millisecond.
///
/// # Panics
/// When the queue does not exist.
pub async fn comes_back(amqp: &Amqp, queue: &str) -> bool {
    for _ in 0..200 {
        if amqp.depth(queue).await.expect("the queue exists") > 0 {
            return true;
        }
        sleep(Duration::from_millis(50)).await;
    }
    false
}
