//! What happened to a simulated message.

use std::time::Duration;

use retryrmq::{Message, ParkReason, Step};

/// A step of a simulation, in one shape for every step.
#[derive(Clone, Debug)]
pub struct SimulationResult {
    /// `acked`, `retried`, `deferred`, `parked`, `dropped`, `rejected`, or `stale` for a message that was settled before.
    pub what: &'static str,
    /// How long it waits.
    pub delay: Option<Duration>,
    /// Why it was parked or dropped.
    pub reason: Option<&'static str>,
    /// The parked message.
    pub parked: Option<Message>,
}

impl From<Option<Step>> for SimulationResult {
    fn from(step: Option<Step>) -> Self {
        let (what, delay, reason, parked) = match step {
            Some(Step::Acked) => ("acked", None, None, None),
            Some(Step::Retried { delay, .. }) => ("retried", Some(delay), None, None),
            Some(Step::Deferred { delay, .. }) => ("deferred", Some(delay), None, None),
            Some(Step::Rejected) => ("rejected", None, None, None),
            Some(Step::Dropped { reason, .. }) => ("dropped", None, Some(reason), None),
            Some(Step::Parked {
                reason, message, ..
            }) => ("parked", None, Some(reason), Some(message)),
            Some(_) | None => ("stale", None, None, None),
        };
        Self {
            what,
            delay,
            reason: reason.map(ParkReason::as_str),
            parked,
        }
    }
}
