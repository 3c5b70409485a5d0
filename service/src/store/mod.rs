//! Where messages wait outside the broker, and what brings them back on time.
//!
//! ```text
//! intake ── keep ──▶ Store ── claim ──▶ Ticker ── publish ──▶ Outlet ──▶ the queue that failed
//!                      ▲                  │
//!                      └──── delete ──────┘ once the broker has confirmed
//! ```
//!
//! A claim is a lease: whoever claims a message has it for some seconds, and if nothing more is heard of him the message is due
//! again. So any number of replicas work on one store, none of them leads, and what one that died had in hand is lost to nobody.

mod contract;
mod error;
mod id;
mod kept;
mod line;
mod outlet;
pub mod redis;
mod ticker;
mod wire;

pub use contract::{
    Arrival, Cancelled, Claim, Due, Hold, Lease, Listed, Listing, Page, Place, Store, Wish,
};
pub use error::{Error, Result};
pub use id::Id;
pub use kept::{Draft, Kept};
pub use line::Line;
pub use outlet::{Outlet, Refusal, ToBroker};
pub use ticker::{Figures, Ticker};
