//! Messages that are published with a delay, as with the delayed-message plugin: kept until they are due, then published to the real
//! exchange.
//!
//! ```text
//! publisher ─► exchange of [delayed] ─► retryrmq.delayed ─► order: now, later or never
//!                                          ▲                  │ later                        │ now
//!                                          │                  ▼                              ▼
//!                                          └── waits in the longest delay step that      the real exchange, mandatory
//!                                              is not too long, or in Redis        and confirmed, then the ack
//! ```
//!
//! All that waits in one queue waits for the same time, so that nothing waits behind another. What is left then waits in a shorter step: with
//! each hop four fifths or more of the time are over.

mod configuration;
mod delay_headers;
mod delayed_dispatcher;
mod exchange_limiter;
mod next_action;
mod topology;

pub(crate) use configuration::{DelayedSections, check};
pub(crate) use delayed_dispatcher::DelayedDispatcher;
