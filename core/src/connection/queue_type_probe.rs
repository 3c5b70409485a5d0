//! Which type a queue has.
//!
//! AMQP has no such question. But each type refuses to be consumed from an offset in its own words (a stream because the prefetch is
//! missing, fact 53), so the attempt has no effect. A queue without a leader answers as well.

use lapin::{
    Channel,
    options::BasicConsumeOptions,
    types::{AMQPValue, FieldTable, ShortString},
};

use super::{Connection, Operation, ask};
use crate::{ErrorKind, Result};

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
        Ok(_) => Ok(None),
    }
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
