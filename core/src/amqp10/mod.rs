//! As much of AMQP 1.0 as it takes to move a message that AMQP 0-9-1 cannot carry: RabbitMQ 4.0 and later serve both on one port.

mod message;
mod session;
mod value;

pub(crate) use message::{
    APPLICATION_PROPERTIES, CAUSE, FOUND_AT, FOUND_IN, Found, Message, PROPERTIES,
};
pub(crate) use session::{Failure, Sasl, Session};
pub(crate) use value::Value;
