//! What the broker sends.

use crate::{MessageId, Name};
use lapin::BasicProperties;
use std::sync::Arc;

/// A method from the broker, received with [`Broker::receive`](crate::Broker::receive).
#[derive(Clone, Debug)]
pub enum Frame {
    /// `channel.open-ok`
    ChannelOpened,
    /// `channel.close-ok`, the answer to ours
    ChannelClosed,
    /// `channel.close`: the broker has closed the channel, and what it held is back in its queues
    CloseChannel(Refusal),
    /// `connection.close-ok`, the answer to ours
    ConnectionClosed,
    /// `connection.close`: the broker has closed the connection
    CloseConnection(Refusal),
    /// `connection.blocked`: nothing that this connection sends is read
    Blocked,
    /// `connection.unblocked`
    Unblocked,
    /// `basic.qos-ok`
    QosOk,
    /// `basic.consume-ok`
    ConsumeOk {
        /// The consumer tag.
        tag: Name,
    },
    /// `basic.cancel-ok`
    CancelOk {
        /// The consumer tag.
        tag: Name,
    },
    /// `basic.cancel`: the broker has ended the consumer
    Cancel {
        /// The consumer tag.
        tag: Name,
    },
    /// `basic.deliver`
    Deliver(Box<Delivery>),
    /// `basic.get-ok`; the consumer tag is empty
    Got(Box<Delivery>),
    /// `basic.get-empty`
    GetEmpty,
    /// `basic.recover-ok`
    Recovered,
    /// `basic.return` of what no queue took (312)
    Return(Box<Returned>),
    /// `basic.ack` of a publish
    Confirm {
        /// Which publish of the channel since `confirm.select`, from 1.
        publish: u64,
        /// `basic.ack`, or else `basic.nack`.
        stored: bool,
    },
    /// `confirm.select-ok`
    ConfirmsSelected,
    /// `queue.declare-ok`
    Declared {
        /// The queue.
        queue: Name,
        /// How many messages are ready.
        messages: u32,
        /// How many consumers there are.
        consumers: u32,
    },
    /// `queue.delete-ok`
    Deleted {
        /// How many messages were ready.
        messages: u32,
    },
    /// `queue.purge-ok`
    Purged {
        /// How many messages were ready.
        messages: u32,
    },
    /// `queue.bind-ok`
    Bound,
}

/// Why the broker has closed a channel or a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// AMQP's reply code, such as 404.
    pub code: u16,
    /// The text, as brokers of that version word it.
    pub text: String,
}

/// A delivered message.
#[derive(Clone, Debug)]
pub struct Delivery {
    /// The delivery tag.
    pub tag: u64,
    /// The consumer tag; empty for `basic.get`.
    pub consumer: Name,
    /// The broker's redelivered flag.
    pub redelivered: bool,
    /// The exchange it came from.
    pub exchange: Name,
    /// The routing key it came with.
    pub routing_key: Name,
    /// The properties with the headers that the broker has added.
    pub properties: Arc<BasicProperties>,
    /// The payload.
    pub body: Arc<[u8]>,
    /// Whether only a client of AMQP 1.0 can get it.
    pub unreadable: bool,
    /// Which publish it comes from. No client sees it; the ledger of a simulation does.
    pub message: MessageId,
}

/// A message that no queue took.
#[derive(Clone, Debug)]
pub struct Returned {
    /// The exchange it was published to.
    pub exchange: Name,
    /// The routing key it was published with.
    pub routing_key: Name,
    /// The properties, as they came.
    pub properties: Arc<BasicProperties>,
    /// The payload.
    pub body: Arc<[u8]>,
    /// Which publish it was. No client sees it.
    pub message: MessageId,
}
