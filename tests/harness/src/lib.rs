//! Support for the tests that need a real RabbitMQ.
//!
//! A test names what it wants to see and gets it on the brokers that `tests/broker/with-brokers` started:
//!
//! ```no_run
//! use retryrmq_harness::on_queue_types;
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() {
//! on_queue_types(|broker, queue_type| async move {
//!     let vhost = broker.vhost().await; // its own, so that no other test is met
//!     let amqp = vhost.connect().await;
//!     amqp.declare("orders", queue_type).await;
//!     amqp.publish("orders", "1").await;
//!     assert_eq!(amqp.depth("orders").await, Some(1));
//! })
//! .await;
//! # }
//! ```
//!
//! Everything here panics with a sentence rather than return an error, unless the error is what a test may want to see.

mod amqp;
pub mod amqp10;
pub mod amqp_values;
mod broker;
mod control;
mod cut_proxy;
mod eventually;
mod free_port;
pub mod fuzz;
pub mod hostile;
mod ledger;
mod management;
mod matrix;
mod message;
pub mod mqtt;
mod node;
mod queue_type;
pub mod random_messages;
pub mod stomp;
mod version;
mod vhost;

pub use amqp::Amqp;
pub use amqp10::{Amqp10, Body10, Message10, Property10, Refused, Value10};
pub use broker::{Broker, Tls, brokers};
pub use cut_proxy::{CutProxy, Direction};
pub use eventually::{ProbeResult, eventually, eventually_with_progress};
pub use free_port::free_port;
pub use lapin;
pub use ledger::{Ledger, Report};
pub use management::{ConnectionInfo, Management, ManagementError, Permissions, Policy, QueueInfo};
pub use matrix::{
    Matrix, name_hash, on_brokers, on_brokers_where, on_every_broker, on_every_broker_where,
    on_every_queue_type, on_every_queue_type_where, on_queue_types, on_queue_types_where,
    record_cell, test_name, words,
};
pub use message::Message;
pub use mqtt::{Mqtt, MqttMessage};
pub use node::Node;
pub use queue_type::QueueType;
pub use random_messages::{Class, RandomMessages};
pub use stomp::{Stomp, StompMessage};
pub use version::Version;
pub use vhost::Vhost;
