//! Streams: queues that keep messages for later readers.

mod maker;
mod reader;

pub(crate) use maker::make;
pub use reader::{StreamEntry, StreamFrom, StreamReader};
