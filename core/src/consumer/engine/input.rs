//! The events of an engine.

use super::super::{Token, delivery_queue::HandlerEnd, engine_time::EngineTime};
use crate::{BasicProperties, Error, Result, types::ShortString};

/// A delivery as it comes from the wire (AMQP `basic.deliver`).
#[derive(Clone, Debug, Default)]
pub(crate) struct IncomingDelivery {
    pub(crate) tag: u64,
    pub(crate) redelivered: bool,
    pub(crate) exchange: ShortString,
    pub(crate) routing_key: ShortString,
    pub(crate) properties: BasicProperties,
    pub(crate) body: Vec<u8>,
    /// What had to be repaired before the message could be read.
    pub(crate) mended: Option<String>,
}

/// An event. Sessions and consumers are numbers that the engine gave out.
#[derive(Debug)]
pub(crate) enum Input {
    /// The requested channel is open, and what the consumer needs exists.
    Opened { session: u64 },
    /// The waiting queues that existed when this channel was opened were old then.
    QueuesAreOld { session: u64 },
    /// It could not be opened.
    OpenFailed { session: u64, error: Error },
    /// The broker serves a consumer (`basic.consume-ok`).
    Consuming { session: u64, consumer: u64 },
    /// The broker has ended a consumer on request (`basic.cancel-ok`). Everything that it sent before has arrived.
    Cancelled { session: u64, consumer: u64 },
    /// The broker ended a consumer by itself (`basic.cancel`): its queue was deleted or moved, or it took too long.
    CancelledByBroker { session: u64, consumer: u64 },
    /// A message.
    Delivered {
        session: u64,
        consumer: u64,
        arrival: Box<IncomingDelivery>,
    },
    /// The broker has read everything sent before the question.
    Synced { session: u64, number: u64 },
    /// The channel or its connection is gone.
    Lost { session: u64, why: Option<Error> },
    /// The result of a copy: stored, and from when on it survives a crash of its broker, if it did not when it was sent; or an error.
    Copied {
        token: Token,
        stored: Result<Option<EngineTime>>,
    },
    /// The result of a message that was handed out.
    Ended { token: Token, ending: HandlerEnd },
    /// Messages that were handed out and not started.
    Recalled(Vec<Token>),
    /// Drain: take nothing more, settle what runs.
    Close,
    /// End now, whatever runs.
    Abandon,
}
