//! The code that all bindings of retryrmq share.
//!
//! ```text
//! Python ─┐                                      ┌─► retryrmq
//! Node   ─┼─► native half: its runtime's types ──┤
//! Go     ─┘                                      └─► this crate: options, ends, errors, walks, … ─► retryrmq
//! ```
//!
//! A native half converts the values of its language into the plain values of this crate, calls it, and converts the results. This crate
//! knows no language. Node and Go get messages as bytes ([`message_codec`], [`amqp_table`]); Python has them as they are.

pub mod amqp_table;
mod batch_guard;
mod batch_size;
mod credential_requests;
mod durations;
mod errors;
mod events;
pub mod json_rows;
pub mod message_codec;
mod object_count;
mod operation;
mod options;
mod outcome;
mod policy;
mod properties;
mod publish;
mod simulation_result;
mod walk;

pub use batch_guard::BatchGuard;
pub use batch_size::BatchSize;
pub use credential_requests::{CredentialReply, CredentialRequests};
pub use durations::{duration_text, milliseconds, nanoseconds, seconds, unix_seconds};
pub use errors::BindingError;
pub use events::{EVENTS, Events};
pub use object_count::{LiveObject, ObjectKind, live_objects};
pub use operation::begin;
pub use options::{Options, OptionsError};
pub use outcome::EndKind;
pub use policy::PolicyText;
pub use properties::texts;
pub use publish::Outgoing;
pub use simulation_result::SimulationResult;
pub use walk::Walk;
