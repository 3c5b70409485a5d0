//! Which queues and exchanges a consumer needs. Pure functions make the plan, one file per strategy; it is compared with the broker, and
//! only then applied.
//!
//! ```text
//!              reject / confirmed copy             time to live runs out
//!   orders ───────────────────────────► orders.retry.<ms> ──────────────► orders (tail, this queue only)
//!      └──────────────────────────────► orders.parked ── replay ────────► orders
//! ```

pub(crate) mod age_marker;
mod apply;
mod conflicting_arguments;
mod dead_letter;
mod dead_letter_probe;
mod declare_backoff;
mod declarer;
mod delay_queues;
mod delayed_exchange;
mod fallback_queue;
mod missing;
mod native;
mod parking;
mod plan;
mod queue_age;
mod retry_queues;
mod service;
mod strategy;
mod strategy_plan;
mod unverifiable;
mod work_queue;

pub use crate::queue_names::{
    DEAD_EXCHANGE, HANDOVER_QUEUE, INTAKE_QUEUE, clock_queue, dropped_queue, parking_queue,
    unreadable_queue, waiting_queue, work_queue_of,
};
pub(crate) use crate::queue_names::{UNROUTABLE_KEY, waits_for};
pub use apply::{Finding, Status};
pub(crate) use apply::{Mode, apply, apply_some};
pub(crate) use conflicting_arguments::missing_argument;
pub(crate) use dead_letter::dead_lettered_to;
pub(crate) use dead_letter_probe::DeadLetterProbes;
#[cfg(test)]
pub(crate) use dead_letter_probe::{
    PROBE_QUEUES, Probe, ProbeStep, TRIES, asks_at_least_once, probe_arguments, probe_queue,
};
pub(crate) use delay_queues::DelayQueues;
pub(crate) use delayed_exchange::hardens;
pub(crate) use missing::MissingItems;
pub(crate) use native::ReturnDelays;
pub(crate) use parking::{Inspection, check_parking, inspect_parking, warn_of_parking};
pub use plan::{Argument, Arguments, Item, Missing, Plan, QueueType};
pub(crate) use plan::{
    check_family, dropped, existing, name, parking as parking_item, unreadable, waiting,
};
#[cfg(test)]
pub(crate) use queue_age::QueueAge;
pub use queue_age::SAFE_AGE;
pub use strategy::Strategy;
pub(crate) use strategy_plan::{Detour, Route, Target, Wait, check_waiting, detour};
pub(crate) use unverifiable::warn_of_unseen;
pub use work_queue::WorkQueue;
