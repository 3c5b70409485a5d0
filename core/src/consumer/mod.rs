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
mod timers;
mod circuit_breaker;
mod engine;
mod failed_message;
mod handler;
mod delivery_queue;
mod handled_dedup;
mod message;
mod messages;
mod engine_time;
mod options;
mod retrier;
mod shell;
mod simulation;
mod tokens;
mod handler_latency;
mod subscription;
mod validate;

pub use circuit_breaker::Pause;
pub use engine::{Follows, Sentence};
pub use failed_message::Failed;
pub use handler::{IntoOutcome, Judge, Running, Signal, defer, fatal, park, retry_after};
pub use message::Message;
pub use messages::{Attempt, Messages};
pub use options::Consumer;
pub use retrier::{Decision, Retrier};
pub use simulation::{Simulation, Step, Trial};
pub use tokens::Token;
pub use subscription::{Delivery, Subscription};

pub(crate) use engine::{Singly, mutants};
pub(crate) use message::Received;
