//! Moleculer Channels (Node) with its AMQP adapter: after the last retry it publishes the body to its dead-letter exchange, with the channel and the
//! group as the only headers. The error, the count and the publisher's own headers are lost.
//!
//! Measured with Moleculer Channels 0.1.8; the fixture is in `tests/fixtures/moleculer`.

use super::raw_dead_letter::{DeadLetter, Letter, Library, NAME, Replay, Source};

const ADDED: [&str; 3] = [
    "x-original-channel",
    "x-original-group",
    "x-redelivered-count",
];

pub(crate) fn read(letter: &Letter<'_>) -> Option<DeadLetter> {
    let channel = letter.text("x-original-channel", NAME)?;
    let group = letter.text("x-original-group", NAME)?;
    let queue = format!("{group}.{channel}");
    let source = if queue.len() <= NAME {
        Source::Queue(queue)
    } else {
        Source::Unknown("the names of its group and channel are too long for a queue".to_owned())
    };
    Some(DeadLetter {
        error: format!(
            "channel {channel} gave it up; Moleculer writes no error down, the service's log says more"
        ),
        replay: Replay::Without(letter.names(&ADDED)),
        ..DeadLetter::of(Library::Moleculer, source)
    })
}
