//! The intake: what dies in any queue comes here, and leaves as a copy that waits or is parked.
//!
//! ```text
//! delivery ─► verdict (who died, where, why) ─► policy ─► copy, confirmed ─► ack
//!                                                  │ not taken
//!                                                  └─► held, tried again with growing pauses ─► too many: parked for the intake
//! ```

mod clerk;
mod figures;
mod hold;
mod keeper;
mod obituary;
mod retriers;
mod returning;
mod topology;
mod verdict;

pub(crate) use clerk::{Clerk, Fate, Tide};
pub(crate) use keeper::Keeper;
pub(crate) use topology::plan;
pub use topology::{DEAD_EXCHANGE, INTAKE_PARKED, INTAKE_QUEUE};
