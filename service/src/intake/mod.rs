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
mod patience;
mod retriers;
mod returning;
mod topology;
mod verdict;
mod waits;

pub(crate) use clerk::{Clerk, FAREWELL, Fate, ON_ITS_WAY, Tide};
pub(crate) use keeper::{Keeper, Keeping, original};
pub(crate) use obituary::{tell_parked, value};
pub(crate) use patience::{Cause, Patience, Standing};
pub(crate) use retriers::Retriers;
pub(crate) use topology::plan;
pub use topology::{DEAD_EXCHANGE, HANDOVER_QUEUE, INTAKE_PARKED, INTAKE_QUEUE};
pub(crate) use waits::Waits;
