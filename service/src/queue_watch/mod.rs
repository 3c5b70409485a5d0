//! Orphans: queues that nobody looks after.
//!
//! ```text
//!   management API ┐
//!   /metrics       ├─► Snapshot ─► Engine ─► Trouble ─► tell
//!   passive AMQP   ┘   (every 30 s)
//! ```

mod configuration;
mod engine;
mod snapshot;
mod source;
mod watch;

pub use configuration::Configuration;
pub use engine::{Engine, GONE, NO_CONSUMER, PARKING_GROWS, UNACKNOWLEDGED};
pub use snapshot::{QueueView, Snapshot};
pub use watch::{ManagementFactory, Watch, WatchCounts};
