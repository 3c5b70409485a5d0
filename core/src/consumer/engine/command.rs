//! The commands of an engine.

use std::{sync::Arc, time::Duration};

use super::super::{Delivery, Token};
use crate::{BasicProperties, telemetry::Event};

/// How a message is requeued or rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Return {
    /// To the queue, counted: `basic.reject` with requeue, because RabbitMQ 4.3 does not count a `basic.nack`.
    Requeue,
    /// To the queue, unstarted: `basic.nack` with requeue, which RabbitMQ 4.3 does not count. Other queues mark the message; if that
    /// matters, a copy goes to the queue instead.
    Unstarted,
    /// To the queue's dead-letter route, or dropped if there is none: `basic.reject`.
    Reject,
    /// To the queue's dead-letter route, uncounted: `basic.nack`.
    DeadLetter,
}

/// A copy of a message to be published, persistent and confirmed.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Copy {
    pub(crate) exchange: String,
    pub(crate) routing_key: String,
    pub(crate) properties: Arc<BasicProperties>,
    /// Whether the broker must return the copy if no queue takes it.
    pub(crate) mandatory: bool,
}

/// A command. Those of one session are carried out in this order.
#[derive(Debug)]
pub(crate) enum Command {
    /// Open the next channel after a pause, and check that what the consumer needs exists.
    Open { session: u64, pause: Duration },
    /// Drop a lost channel.
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
    /// Ask something that the broker answers after it has read everything sent before; answered by [`Synced`](super::Input::Synced).
    Sync { session: u64, number: u64 },
    /// Publish a copy of this message; answered by [`Copied`](super::Input::Copied). `at_once`: also to a queue that is no safe place yet.
    Publish {
        token: Token,
        copy: Box<Copy>,
        at_once: bool,
    },
    /// Do not send the copy of this message if it is not on its way yet. It is answered all the same.
    Withdraw { token: Token },
    /// Take back unstarted deliveries from the handlers; answered by [`Recalled`](super::Input::Recalled).
    Recall,
    /// The same for these deliveries only.
    RecallThese { tokens: Vec<Token> },
    /// Do not hand this delivery to a handler any more: it is settled. Nothing is answered.
    Skip { token: Token },
    /// Wake handlers that wait for messages: no more will come.
    EndIntake,
    /// Call the listener.
    Tell(Event),
}

/// Commands, and messages for the handlers.
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
