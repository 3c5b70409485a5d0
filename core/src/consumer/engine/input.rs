//! What happens to an engine.

use super::super::{Token, inbox::Ending, moment::Moment};
use crate::{BasicProperties, Error, Result, types::ShortString};

/// A delivery as it comes from the wire (AMQP `basic.deliver`).
#[derive(Clone, Debug, Default)]
pub(crate) struct Arrival {
    pub(crate) tag: u64,
    pub(crate) redelivered: bool,
    pub(crate) exchange: ShortString,
    pub(crate) routing_key: ShortString,
    pub(crate) properties: BasicProperties,
    pub(crate) body: Vec<u8>,
    /// What had to be mended before it could be read at all.
    pub(crate) mended: Option<String>,
}

/// What happens to an engine. Sessions and consumers are numbers that the engine itself gave out.
#[derive(Debug)]
pub(crate) enum Input {
    /// The channel that was asked for is open, and what the consumer needs is there.
    Opened { session: u64 },
    /// It could not be opened.
    OpenFailed { session: u64, error: Error },
    /// The broker has begun to serve a consumer (`basic.consume-ok`).
    Consuming { session: u64, consumer: u64 },
    /// The broker has ended a consumer as it was told to (`basic.cancel-ok`); all that it sent before has been delivered.
    Cancelled { session: u64, consumer: u64 },
    /// The broker ended a consumer by itself (`basic.cancel`): its queue was deleted or moved, or it took too long.
    CancelledByBroker { session: u64, consumer: u64 },
    /// A message.
    Delivered {
        session: u64,
        consumer: u64,
        arrival: Box<Arrival>,
    },
    /// The broker has read all that was sent before this was asked for.
    Synced { session: u64, number: u64 },
    /// The channel or its connection is gone.
    Lost { session: u64, why: Option<Error> },
    /// What became of a copy: stored, and from when on it survives the death of its broker; or not.
    Copied {
        token: Token,
        stored: Result<Option<Moment>>,
    },
    /// What became of a message that was handed out.
    Ended { token: Token, ending: Ending },
    /// Messages that were handed out and that no handler had begun with.
    Recalled(Vec<Token>),
    /// The end is wanted: take nothing more, settle what runs.
    Close,
    /// The end is wanted now, whatever runs.
    Abandon,
}
