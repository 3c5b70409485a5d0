//! The intake: what dies in any queue comes here, and leaves as a copy that waits or is parked.
//!
//! ```text
//! delivery ─► verdict (who died, where, why) ─► policy ─► copy, confirmed ─► ack
//!                                                  │ not taken
//!                                                  └─► held, tried again with growing pauses ─► too many: parked for the intake
//! ```

mod classify;
mod dead_letter_handler;
mod parked_event;
mod per_queue_limit;
mod retry_schedule;
mod store_metrics;
mod store_publisher;
mod store_tasks;
mod topology;

pub(crate) use dead_letter_handler::{
    ChannelState, DeadLetterHandler, Disposition, FAREWELL, ON_ITS_WAY,
};
pub(crate) use parked_event::{ParkedReporter, is_packed, value};
pub(crate) use retry_schedule::{FailureCause, RetryContext, RetrySchedule};
pub(crate) use store_tasks::{StoreHandle, StoreTasks, original};
pub(crate) use topology::plan;
