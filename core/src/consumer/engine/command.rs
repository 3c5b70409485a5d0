//! What an engine wants done.

use std::time::Duration;

use super::super::{Delivery, Token};
use crate::{BasicProperties, telemetry::Event};

/// How a message goes back to the broker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Return {
    /// Into the queue, counted: `basic.reject`, because RabbitMQ 4.3 does not count a `basic.nack`.
    Requeue,
    /// Into the queue, no handler having begun with it: `basic.nack`, which RabbitMQ 4.3 does not count. Other queues mark
    /// it; from where that would matter, a copy goes back instead.
    Unstarted,
    /// To the queue's dead-letter route, or dropped where it has none: `basic.reject`.
    Reject,
    /// To the queue's dead-letter route, uncounted: `basic.nack`.
    DeadLetter,
}

/// A copy of a message to be published, persistent and confirmed.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Copy {
    pub(crate) exchange: String,
    pub(crate) routing_key: String,
    pub(crate) properties: BasicProperties,
    /// Whether the broker must say when no queue takes it.
    pub(crate) mandatory: bool,
}

/// What an engine wants done. Those of one session are done in this order.
#[derive(Debug)]
pub(crate) enum Command {
    /// Open the next channel after a pause, and look whether what the consumer needs is there.
    Open { session: u64, pause: Duration },
    /// Let go of a channel that is lost.
    Drop { session: u64 },
    /// `basic.qos` and `basic.consume`.
    Consume {
        session: u64,
        consumer: u64,
        prefetch: u16,
    },
    /// `basic.cancel`.
    Cancel { session: u64, consumer: u64 },
    /// `basic.ack`.
    Ack {
        session: u64,
        tag: u64,
        multiple: bool,
    },
    /// `basic.nack` or `basic.reject`.
    Return { session: u64, tag: u64, how: Return },
    /// Ask for an answer that comes after the broker has read all that was sent before; answered by
    /// [`Synced`](super::Input::Synced).
    Sync { session: u64, number: u64 },
    /// Publish a copy of this message; answered by [`Copied`](super::Input::Copied).
    Publish { token: Token, copy: Box<Copy> },
    /// Do not send the copy of this message any more, if it is not on its way to the broker yet; it is answered all the same.
    Withdraw { token: Token },
    /// Take back unstarted deliveries; answered by [`Recalled`](super::Input::Recalled).
    Recall,
    /// Let handlers go that wait for messages: none will come.
    EndIntake,
    /// Tell the listener.
    Tell(Event),
}

/// What is to be done, and what is to be handed to handlers.
#[derive(Debug, Default)]
pub(crate) struct Commands {
    pub(crate) list: Vec<Command>,
    pub(crate) deliveries: Vec<Delivery>,
}

impl Commands {
    pub(super) fn add(&mut self, command: Command) {
        self.list.push(command);
    }
}
