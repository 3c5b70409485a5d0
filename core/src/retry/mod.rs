//! The decisions, without any I/O: which policy, which delay, wait or park.
//!
//! ```text
//! headers ──► RetryState ─┐
//! handler ──► Outcome ────┼─► decide ──► Action ──► (settlement, elsewhere)
//! options ──► Policy ─────┘
//! ```

mod backoff;
mod death;
mod decision;
mod duration;
mod fingerprint;
mod forecast;
mod handover;
pub(crate) mod headers;
mod history;
mod ladder;
mod outcome;
mod policy;
mod policy_text;
mod rules;
mod size;
mod stamp;
mod state;

pub use backoff::Backoff;
pub use death::Death;
pub use decision::Limits;
pub(crate) use decision::{
    Action, Admission, admit, decide, is_near_its_limit, must_be_copied_now, returns_as_copy,
};
pub use duration::{
    DAY, HOUR, MAX_DELAY, MILLISECOND, MINUTE, SECOND, format_duration, parse_duration,
};
pub(crate) use fingerprint::fingerprint;
pub use forecast::{Depth, Forecast, Load, Moment, Round};
pub use handover::Handover;
pub(crate) use handover::hand_over;
pub use headers::DIRECT_REPLY_TO;
pub(crate) use headers::{asks_for_direct_replies, with_reply_to};
pub use history::HistoryEntry;
pub use ladder::rung;
pub use outcome::{Failure, Outcome, ParkReason};
pub use policy::{AgeFrom, Policy};
pub use rules::{Rule, Rules};
pub(crate) use size::encoded_size;
pub(crate) use stamp::{Origin, Stamp, is_renewable, waited};
pub use state::RetryState;
pub(crate) use state::{Counting, Past};
