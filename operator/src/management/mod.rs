//! The management API of RabbitMQ: what AMQP does not show (policies, who consumes, the arguments of a queue).
//!
//! Thin, and tolerant of versions: a field that is missing, null or of another type reads as unknown. Nothing here shows a password.

mod address;
mod client;
mod error;
mod error_mapping;
pub mod settings;
mod types;

pub use address::{Address, vhost_of};
pub use client::Management;
pub use error::{Error, ManagementErrorKind};
pub use types::{
    Binding, Channel, Consumer, Deprecated, Exchange, Overview, Permissions, Policy, Queue,
    QueueKind, Scope, Totals, Version,
};

/// What a call gives.
pub type Result<T> = std::result::Result<T, Error>;
