//! What the bindings of retryrmq say the same way, so that it is said once.
//!
//! ```text
//! Python ─┐                                      ┌─► retryrmq
//! Node   ─┼─► native half: its runtime's types ──┤
//! Go     ─┘                                      └─► this crate: options, ends, errors, walks, … ─► retryrmq
//! ```
//!
//! A native half converts what its language gave into the plain values of this crate, calls, and converts back. Nothing in here
//! knows a language, and nothing is on the way of a message that is handled.

mod became;
mod end;
mod errors;
mod events;
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
mod span;
pub mod table;
mod walk;

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
pub use span::{milliseconds, nanoseconds, seconds, unix_seconds};
pub use walk::Walk;
