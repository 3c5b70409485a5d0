//! Parked messages: read, replayed, dropped. Reading spends nothing and loses nothing.

mod browse;
mod parked;
mod record;
mod supply;
mod window;

pub use browse::Browse;
pub use parked::Parked;
pub use record::Record;
