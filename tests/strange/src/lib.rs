//! Settings of the broker as a dimension of the tests: the scenarios that could lose messages, with one strange setting at a time.
//!
//! ```text
//!  Setting ──► Environment ────► scenarios ──────► Ledger
//!  what it     a node or a       fail, restart,    what was published, against
//!  changes     virtual host      delete, replay    what is left of it
//! ```
//!
//! `README.md` says how to add a setting.

mod check;
mod environment;
mod handler_script;
mod inspection;
mod ledger;
mod observations;
mod refused;
mod scenarios;
mod setting;

pub use check::check;
pub use retryrmq_harness::{QueueType, Version};
pub use setting::{Loss, MatrixCell, Setting};

use std::time::Duration;

/// How long anything may take on a busy machine before a test gives up.
const DEADLINE: Duration = Duration::from_secs(120);

/// The work queue of every scenario.
pub const QUEUE: &str = "orders";
/// Where its messages are parked.
pub const PARKED: &str = "orders.parked";
/// Where failed messages wait.
pub const WAITING: [&str; 2] = ["orders.retry.200", "orders.retry.500"];
/// The policy that makes these waiting queues.
const POLICY: &str = "list(200ms, 500ms)";
