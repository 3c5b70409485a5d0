//! As much of AMQP 1.0 as it takes to move a message that AMQP 0-9-1 cannot carry: RabbitMQ 4.0 and later serve both on one port.

mod message;
mod session;
mod value;

pub(crate) use message::{
    APPLICATION_PROPERTIES, CAUSE, EXCHANGE, FOUND_AT, FOUND_IN, Found, Message, PROPERTIES,
    ROUTING_KEY,
};
pub(crate) use session::{CHECK_INTERVAL, Delivery, Failure, Link, Sasl, Session};
pub(crate) use value::Value;
