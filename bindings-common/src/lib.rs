//! The code that all bindings of retryrmq share.
//!
//! ```text
//! Python ─┐                                      ┌─► retryrmq
//! Node   ─┼─► native half: its runtime's types ──┤
//! Go     ─┘                                      └─► this crate: options, ends, errors, walks, … ─► retryrmq
//! ```
//!
//! A native half converts the values of its language into the plain values of this crate, calls it, and converts the results. This crate
//! knows no language. Node and Go get messages as bytes ([`layout`], [`amqp_table`]); Python has them as they are.

pub mod amqp_table;
mod batches;
mod became;
mod end;
mod errors;
mod events;
pub mod layout;
mod live;
mod operation;
mod options;
mod outgoing;
#[cfg(test)]
mod pages;
mod policy;
mod properties;
mod questions;
#[cfg(test)]
mod reference;
pub mod rows;
mod span;
pub mod table;
mod taken;
mod walk;

pub use batches::BatchSize;
pub use became::Became;
pub use end::Ended;
pub use errors::Refusal;
pub use events::{EVENTS, Events};
pub use live::{Alive, Kind, living};
pub use operation::begin;
pub use options::{Options, Refused};
pub use outgoing::Outgoing;
pub use policy::PolicyText;
pub use properties::texts;
pub use questions::{Questions, Said};
pub use span::{duration_text, milliseconds, nanoseconds, seconds, unix_seconds};
pub use taken::Taken;
pub use walk::Walk;
