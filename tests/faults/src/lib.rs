//! What the fault tests share: a load whose handlers fail by rule, the ledger that show whether anything was lost, and a
//! consumer in a process of its own.
//!
//! `RETRYRMQ_FAULT_SECONDS` lets the tests that do harm at random go on for that long; `RETRYRMQ_FAULT_SEED` repeats
//! a run's random choices; `RUST_LOG` shows what the library says meanwhile.

pub mod disruption;
pub mod ledger;
pub mod load;
pub mod publisher;
pub mod recorder;
pub mod worker;

use std::time::Duration;

/// How long anything may take on a busy machine before a test gives up.
pub const DEADLINE: Duration = Duration::from_secs(240);
