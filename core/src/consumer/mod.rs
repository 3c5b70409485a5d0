//! Retrying consume.
//!
//! ```text
//! delivery ─► state from headers ─► handler ─► outcome ─► decision ─► action ─► settle
//!             (intake)              (inbox)               (retry)     (engine)
//! ```
//!
//! One engine task owns the channel, the tokens and every acknowledgement. Handlers never run on it. They take messages from the
//! [`Subscription`] in batches and return outcomes. Other languages use the same boundary.

mod acks;
mod agenda;
mod budget;
mod engine;
mod failed;
mod handler;
mod inbox;
mod memory;
mod message;
mod messages;
mod moment;
mod options;
mod retrier;
mod shell;
mod simulation;
mod slab;
mod stopwatch;
mod subscription;
mod validity;

pub use budget::Pause;
pub use engine::{Follows, Sentence};
pub use failed::Failed;
pub use handler::{IntoOutcome, Judge, Running, Signal, defer, fatal, park, retry_after};
pub use message::Message;
pub use messages::{Attempt, Messages};
pub use options::Consumer;
pub use retrier::{Decision, Retrier};
pub use simulation::{Simulation, Step, Trial};
pub use slab::Token;
pub use subscription::{Delivery, Subscription};

pub(crate) use engine::{Singly, flaws};
pub(crate) use message::Received;
