//! Moleculer Channels (Node) with its AMQP adapter: after the last retry it publishes the body to its dead-letter exchange, with the channel and the
//! group as the only headers. The error, the count and the publisher's own headers are lost.
//!
//! Measured with Moleculer Channels 0.1.8; the fixture is in `tests/fixtures/moleculer`.

use super::raw_dead_letter::{
    DeadLetter, DeadLetterSource, Library, NAME, RawDeadLetter, ReplayedMessage,
};

const ADDED: [&str; 3] = [
    "x-original-channel",
    "x-original-group",
    "x-redelivered-count",
];

pub(crate) fn read(dead_letter: &RawDeadLetter<'_>) -> Option<DeadLetter> {
    let channel = dead_letter.text("x-original-channel", NAME)?;
    let group = dead_letter.text("x-original-group", NAME)?;
    let queue = format!("{group}.{channel}");
    let source = if queue.len() <= NAME {
        DeadLetterSource::Queue(queue)
    } else {
        DeadLetterSource::Unknown(
            "the names of its group and channel are too long for a queue".to_owned(),
        )
    };
    Some(DeadLetter {
        error: format!(
            "channel {channel} gave it up; Moleculer writes no error down, the service's log says more"
        ),
        replay: ReplayedMessage::Without(dead_letter.names(&ADDED)),
        ..DeadLetter::of(Library::Moleculer, source)
    })
}
