//! Streams: queues that keep messages for later readers.

mod declare;
mod reader;

pub(crate) use declare::make;
pub use reader::{StreamEntry, StreamFrom, StreamReader};
