//! Publishing that is confirmed: one task owns each publishing channel and works in waves.

mod lane;
mod message;
mod publisher;
mod returned;

pub(crate) use lane::{Body, Job};
pub use message::Publish;
pub(crate) use publisher::Publisher;
