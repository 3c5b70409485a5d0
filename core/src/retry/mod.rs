//! The decisions, without any I/O: which policy, which delay, wait or park.
//!
//! ```text
//! headers ──► RetryState ─┐
//! handler ──► Outcome ────┼─► decide ──► Action ──► (settlement, elsewhere)
//! options ──► Policy ─────┘
//! ```

mod backoff;
mod copy_headers;
mod counters_of_others;
mod decision;
mod delay_steps;
mod duration;
mod fingerprint;
mod forecast;
mod handover;
mod header_budget;
mod header_state;
#[doc(hidden)]
pub mod headers;
mod history;
mod outcome;
mod policy;
mod policy_text;
mod rules;
mod x_death;

pub use backoff::Backoff;
pub(crate) use copy_headers::{CopyHeaders, Origin, is_renewable, waited, waiting_headers_cut};
pub use decision::Limits;
pub(crate) use decision::{
    Action, Admission, admit, decide, is_near_its_limit, must_be_copied_now, returns_as_copy,
};
pub use delay_steps::delay_step;
pub use duration::{
    DAY, HOUR, MAX_DELAY, MILLISECOND, MINUTE, SECOND, format_duration, parse_duration,
};
pub(crate) use fingerprint::fingerprint;
pub use forecast::{AttemptRound, Forecast, ForecastInterval, Load, QueueDepth};
pub use handover::Handover;
pub(crate) use handover::hand_over;
pub(crate) use header_budget::encoded_size;
pub use header_state::RetryState;
pub(crate) use header_state::{Counting, DeliveryPast};
pub use headers::DIRECT_REPLY_TO;
pub(crate) use headers::{asks_for_direct_replies, with_reply_to};
pub use history::HistoryEntry;
pub use outcome::{Failure, Outcome, ParkReason};
pub use policy::{AgeFrom, Policy};
pub use rules::{Rule, Rules};
pub use x_death::XDeath;
