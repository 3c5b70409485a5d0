//! Retrying consume.
//!
//! ```text
//! delivery ─► state from headers ─► handler ─► outcome ─► decision ─► action ─► settle
//!             (retry)               (handler)             (retry)     (engine)
//! ```
//!
//! One engine task owns the channel, the tokens and every acknowledgement. Handlers never run on it. They take messages from the
//! [`Subscription`] in batches and return outcomes. Other languages use the same boundary.

mod acks;
mod circuit_breaker;
pub mod contract;
mod delivery_queue;
mod engine;
mod engine_time;
mod failed_message;
mod fake_client;
mod fake_consumer;
mod handled_dedup;
mod handler;
mod handler_latency;
mod message;
mod messages;
mod options;
mod retrier;
mod shell;
mod simulation;
mod subscription;
mod timers;
mod tokens;
mod validate;

pub use circuit_breaker::Pause;
pub use engine::{AttemptLogLine, NextStep};
pub use failed_message::FailedMessage;
pub use fake_client::{FakeClient, Published};
#[cfg(feature = "tower")]
pub use handler::service;
pub use handler::{
    ErrorClassifier, FromMessage, IntoOutcome, IntoOutcomes, InvalidBody, Json, RunningConsumer,
    Signal, defer, extract, fatal, park, retry_after, undecodable,
};
pub use message::Message;
pub use messages::{Attempt, Messages};
pub use options::Consumer;
pub use retrier::{Decision, Retrier};
pub use simulation::{Simulation, Step, Trial};
pub use subscription::{Delivery, Subscription};
pub use tokens::Token;

pub(crate) use message::Received;
