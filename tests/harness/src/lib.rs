//! Support for the tests that need a real RabbitMQ.
//!
//! A test names what it wants to see and gets it on every broker that `tests/broker/with-brokers` started:
//!
//! ```no_run
//! use retryrmq_harness::on_every_queue_type;
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() {
//! on_every_queue_type(|broker, queue_type| async move {
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
pub mod amqp_values;
mod broker;
mod control;
mod cut_proxy;
mod eventually;
mod everywhere;
pub mod fuzz;
pub mod hostile;
mod ledger;
mod management;
mod message;
mod node;
mod queue_type;
mod version;
mod vhost;

pub use amqp::Amqp;
pub use broker::{Broker, Tls, brokers};
pub use cut_proxy::{CutProxy, Direction};
pub use eventually::{Sight, eventually};
pub use everywhere::{on_every_broker, on_every_broker_where, on_every_queue_type, words};
pub use lapin;
pub use ledger::{Ledger, Report};
pub use management::{ConnectionInfo, Management, ManagementError, Permissions, Policy, QueueInfo};
pub use message::Message;
pub use node::Node;
pub use queue_type::QueueType;
pub use version::Version;
pub use vhost::Vhost;
