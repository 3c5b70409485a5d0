//! What clients send.

use crate::{Name, QueueType};
use lapin::BasicProperties;
use lapin::types::{AMQPValue, FieldTable};
use std::sync::Arc;

/// A method on a channel, sent with [`Broker::send`](crate::Broker::send). The names are AMQP's.
#[derive(Clone, Debug)]
pub enum Method {
    /// `channel.open`
    OpenChannel,
    /// `channel.close`
    CloseChannel,
    /// `connection.close`, on whatever channel
    CloseConnection,
    /// `basic.qos`; it holds for consumers that come after it
    Qos {
        /// How many deliveries may be unsettled; 0 is no bound.
        prefetch: u16,
    },
    /// `basic.consume`
    Consume(Consume),
    /// `basic.cancel`
    Cancel {
        /// The consumer tag.
        tag: Name,
    },
    /// `basic.get`
    Get {
        /// From this queue.
        queue: Name,
        /// Whether it needs no settlement.
        no_ack: bool,
    },
    /// `basic.ack`
    Ack {
        /// The delivery tag.
        tag: u64,
        /// Whether it means all before it as well.
        multiple: bool,
    },
    /// `basic.nack`
    Nack {
        /// The delivery tag.
        tag: u64,
        /// Whether it means all before it as well.
        multiple: bool,
        /// Back into the queue, or else to the dead-letter exchange.
        requeue: bool,
    },
    /// `basic.reject`
    Reject {
        /// The delivery tag.
        tag: u64,
        /// Back into the queue, or else to the dead-letter exchange.
        requeue: bool,
    },
    /// `basic.recover`, which gives back all that the channel holds
    Recover,
    /// `basic.publish`
    Publish(Box<Publish>),
    /// `confirm.select`
    SelectConfirms,
    /// `queue.declare`
    Declare(Box<Declare>),
    /// `queue.delete`
    Delete {
        /// The queue.
        queue: Name,
    },
    /// `queue.purge`
    Purge {
        /// The queue.
        queue: Name,
    },
    /// `queue.bind`
    Bind {
        /// The queue.
        queue: Name,
        /// The exchange.
        exchange: Name,
        /// The routing key.
        key: Name,
    },
}

/// `basic.consume`
#[derive(Clone, Debug)]
pub struct Consume {
    /// The queue.
    pub queue: Name,
    /// The consumer tag; it must not be empty, because clients choose their own.
    pub tag: Name,
    /// Whether deliveries need no settlement.
    pub no_ack: bool,
    /// Whether nobody else may consume.
    pub exclusive: bool,
}

impl Consume {
    /// Consumes a queue with settlements.
    pub fn new(queue: &str, tag: &str) -> Self {
        Consume {
            queue: queue.into(),
            tag: tag.into(),
            no_ack: false,
            exclusive: false,
        }
    }
}

/// `basic.publish` with its content.
#[derive(Clone, Debug)]
pub struct Publish {
    /// The exchange; "" is the default exchange, where the routing key is the name of a queue.
    pub exchange: Name,
    /// The routing key.
    pub routing_key: Name,
    /// Whether it is to be returned when no queue takes it.
    pub mandatory: bool,
    /// The properties, headers included.
    pub properties: Arc<BasicProperties>,
    /// The payload.
    pub body: Arc<[u8]>,
    /// Whether it comes over AMQP 1.0 and has a type that AMQP 0-9-1 lacks. From 4.0 on it costs whoever should get it the
    /// connection (541), unless that was made with [`Broker::connect_amqp10`](crate::Broker::connect_amqp10).
    pub unreadable: bool,
}

impl Publish {
    /// A mandatory publish of a persistent message to a queue.
    pub fn to_queue(queue: &str, body: impl Into<Arc<[u8]>>) -> Self {
        Publish {
            exchange: "".into(),
            routing_key: queue.into(),
            mandatory: true,
            properties: Arc::new(BasicProperties::default().with_delivery_mode(2)),
            body: body.into(),
            unreadable: false,
        }
    }

    /// The same with a type that AMQP 0-9-1 lacks.
    pub fn unreadable(mut self) -> Self {
        self.unreadable = true;
        self
    }

    /// The same with other properties.
    pub fn with(mut self, properties: BasicProperties) -> Self {
        self.properties = Arc::new(properties);
        self
    }
}

/// `queue.declare`
#[derive(Clone, Debug)]
pub struct Declare {
    /// The name; it must not be empty.
    pub queue: Name,
    /// Only look whether it exists.
    pub passive: bool,
    /// It survives a restart.
    pub durable: bool,
    /// It goes with its last consumer.
    pub auto_delete: bool,
    /// It belongs to this connection and goes with it.
    pub exclusive: bool,
    /// All arguments, `x-queue-type` included.
    pub arguments: FieldTable,
}

impl Declare {
    /// A durable queue of that type without further arguments.
    pub fn durable(queue: &str, queue_type: QueueType) -> Self {
        let mut declare = Declare::passive(queue);
        declare.passive = false;
        declare.durable = true;
        declare.with("x-queue-type", queue_type.as_str())
    }

    /// A look at a queue.
    pub fn passive(queue: &str) -> Self {
        Declare {
            queue: queue.into(),
            passive: true,
            durable: false,
            auto_delete: false,
            exclusive: false,
            arguments: FieldTable::default(),
        }
    }

    /// The same with one more argument that is text.
    pub fn with(self, name: &str, value: &str) -> Self {
        self.with_value(name, AMQPValue::LongString(value.into()))
    }

    /// The same with one more argument that is a number.
    pub fn with_number(self, name: &str, value: i64) -> Self {
        self.with_value(name, AMQPValue::LongLongInt(value))
    }

    /// The same with one more argument.
    pub fn with_value(mut self, name: &str, value: AMQPValue) -> Self {
        self.arguments.insert(name.into(), value);
        self
    }
}
