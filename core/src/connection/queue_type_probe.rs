//! Which type a queue has.
//!
//! AMQP has no such question. But each type refuses to be consumed from an offset in its own words (a stream because the prefetch is
//! missing, fact 53), so the attempt has no effect. A queue without a leader answers as well.

use lapin::{
    Channel,
    options::{BasicConsumeOptions, BasicQosOptions, QueueDeclareOptions},
    types::{AMQPValue, FieldTable, ShortString},
};

use super::{Connection, Operation, ask, broker_says};
use crate::{Error, ErrorKind, Result};

/// The type of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProbedQueueType {
    Classic,
    Quorum,
    Stream,
}

/// The longest of the refusals, without the names of the queue and the virtual host.
const REFUSAL: &str = "PRECONDITION_FAILED - invalid arg 'x-stream-offset' for queue '' in vhost '' of queue type rabbit_classic_queue";

/// Asks for the type; `None` if the broker does not tell, or would make a consumer. The channel is closed if it was asked.
///
/// # Errors
/// [`ErrorKind::AccessRefused`] without permission to read the queue, and those that may pass.
pub(crate) async fn kind_of(
    connection: &Connection,
    channel: &Channel,
    queue: ShortString,
) -> Result<Option<ProbedQueueType>> {
    let names = connection.limits().names();
    let capabilities = connection.server().capabilities();
    if !capabilities.refuses_offsets || !names.can_say(REFUSAL, queue.as_str()) {
        return Ok(None);
    }
    // A node can have another default (`default_consumer_prefetch`), and then a stream would be consumed.
    let unlimited = channel.basic_qos(0, BasicQosOptions::default());
    ask(Operation::Consuming(queue.as_str()), unlimited).await?;
    let mut offset = FieldTable::default();
    offset.insert(
        ShortString::from("x-stream-offset"),
        AMQPValue::LongString("next".into()),
    );
    let consumed = channel.basic_consume(
        queue.clone(),
        ShortString::default(),
        BasicConsumeOptions::default(),
        offset,
    );
    match ask(Operation::Consuming(queue.as_str()), consumed).await {
        Err(error) if error.is_transient() || error.kind() == ErrorKind::AccessRefused => {
            Err(error)
        }
        Err(error) => Ok(type_in_refusal(&error.to_string())),
        // Nothing else takes an offset.
        Ok(_) => {
            let _ = channel.close(200, ShortString::default()).await;
            Ok(Some(ProbedQueueType::Stream))
        }
    }
}

/// Whether the queue is deleted with its last consumer. AMQP shows that only in the refusal of a declaration: first whether the queue is
/// durable, then this. The declaration has an impossible argument, so that it creates nothing if the queue is gone meanwhile.
///
/// # Errors
/// Those that may pass.
pub(crate) async fn is_auto_delete(connection: &Connection, queue: &ShortString) -> Result<bool> {
    const REFUSAL: &str = "PRECONDITION_FAILED - inequivalent arg 'auto_delete' for queue '' in vhost '': received 'false' but current is 'true'";
    let names = connection.limits().names();
    if !names.can_say(REFUSAL, queue.as_str()) {
        return Ok(false);
    }
    let mut impossible = FieldTable::default();
    impossible.insert(
        ShortString::from("x-message-ttl"),
        AMQPValue::LongString("never".into()),
    );
    for durable in [true, false] {
        let options = QueueDeclareOptions {
            durable,
            ..QueueDeclareOptions::default()
        };
        let channel = connection.channel().await?;
        let declared = channel
            .lapin()
            .queue_declare(queue.clone(), options, impossible.clone());
        let differs = |error: &Error, what| {
            let words = format!("inequivalent arg '{what}'");
            broker_says(error, &words)
        };
        match ask(Operation::Declaring(queue.as_str()), declared).await {
            Err(error) if error.is_transient() => return Err(error),
            Err(error) if differs(&error, "durable") => {}
            Err(error) => return Ok(differs(&error, "auto_delete")),
            Ok(_) => return Ok(false),
        }
    }
    Ok(false)
}

/// What the refusal tells.
fn type_in_refusal(refusal: &str) -> Option<ProbedQueueType> {
    [
        ("prefetch count is not set", ProbedQueueType::Stream),
        (
            "of queue type rabbit_classic_queue",
            ProbedQueueType::Classic,
        ),
        ("of queue type rabbit_quorum_queue", ProbedQueueType::Quorum),
    ]
    .into_iter()
    .find_map(|(words, kind)| refusal.contains(words).then_some(kind))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_tells_the_type() {
        for (said, kind) in [
            (
                "PRECONDITION_FAILED - invalid arg 'x-stream-offset' for queue 'q' in vhost '/' of queue type rabbit_quorum_queue",
                Some(ProbedQueueType::Quorum),
            ),
            (
                "PRECONDITION_FAILED - invalid arg 'x-stream-offset' for queue 'q' in vhost '/' of queue type rabbit_classic_queue",
                Some(ProbedQueueType::Classic),
            ),
            (
                "PRECONDITION_FAILED - consumer prefetch count is not set for queue 'q' in vhost '/'",
                Some(ProbedQueueType::Stream),
            ),
            ("NOT_FOUND - no queue 'q' in vhost '/'", None),
        ] {
            assert_eq!(type_in_refusal(said), kind, "{said}");
        }
    }
}
