//! Time as an engine knows it, which has no clock of its own.

use std::time::Duration;

/// A point in time: how long the shell has been running.
pub(crate) type EngineTime = Duration;

/// The time at which something happens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Now {
    /// For timers.
    pub(crate) at: EngineTime,
    /// For headers: seconds since 1970, the resolution of AMQP's timestamps.
    pub(crate) unix: u64,
}
