//! Watermill (Go): its middleware `PoisonQueue` publishes a message whose handler failed to a topic of its own, with the reason in the metadata,
//! which watermill-amqp writes as headers.
//!
//! Measured with Watermill 1.5 and watermill-amqp 3.0; the fixture is in `tests/fixtures/watermill`.

use super::raw_dead_letter::{
    DeadLetter, DeadLetterSource, ERROR, Library, NAME, RawDeadLetter, ReplayedMessage,
};

const ADDED: [&str; 4] = [
    "reason_poisoned",
    "topic_poisoned",
    "handler_poisoned",
    "subscriber_poisoned",
];

pub(crate) fn read(dead_letter: &RawDeadLetter<'_>) -> Option<DeadLetter> {
    if !ADDED.iter().all(|name| dead_letter.has(name)) {
        return None;
    }
    // A consumer of watermill-amqp refuses headers that are no text, such as the count of replays, and requeues the message without end. So a
    // replay has to be asked for. The topic is the queue, unless the program names its queues by a function.
    let topic = dead_letter.text("topic_poisoned", NAME).unwrap_or_default();
    let source = DeadLetterSource::Unknown(format!(
        "its topic was `{topic}`; consumers of watermill-amqp requeue a replayed message without end, those of watermillretryrmq take it"
    ));
    Some(DeadLetter {
        error: dead_letter
            .text("reason_poisoned", ERROR)
            .unwrap_or_default(),
        // As the marshalers of Watermill's CQRS component write it.
        message_type: dead_letter.text("name", NAME),
        replay: ReplayedMessage::Without(dead_letter.names(&ADDED)),
        ..DeadLetter::of(Library::Watermill, source)
    })
}
