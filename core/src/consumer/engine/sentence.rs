//! What the log says of an attempt that was no success: one line, the same in every language.
//!
//! ```text
//! attempt 2 of 6 of message 4711 in orders failed: TimeoutError: no answer; retry in 4s
//! ```
//!
//! Bindings add nothing to it but the stack, which they have at DEBUG.

use std::borrow::Cow;

use tracing::{Level, debug, enabled, info, warn};

use super::{consequence::Case, entry::Consequence};
use crate::{
    retry::{Failure, format_duration},
    telemetry::Event,
    visible,
};

/// The target of these log lines: a program that reports attempts itself leaves it out.
const TARGET: &str = "retryrmq::attempt";

/// Characters of an error that the log shows at most; the record of a parked message has more.
const MOST: usize = 512;

impl Case<'_> {
    /// Says in the log what failed and what follows: INFO for what comes again, WARN for what is parked, DEBUG for what its
    /// handler put off.
    pub(super) fn say(&self, failure: &Failure, consequence: &Consequence) {
        match consequence.event() {
            Some(Event::Retried { delay, error, .. }) if enabled!(target: TARGET, Level::INFO) => {
                let delay = format_duration(*delay);
                info!(target: TARGET, "{}; retry in {delay}", self.failed(failure, error));
            }
            Some(Event::HandedOver { error, .. }) if enabled!(target: TARGET, Level::INFO) => {
                info!(target: TARGET, "{}; handed over to the service", self.failed(failure, error));
            }
            // A program that reports attempts itself has no other line for it, so everybody is told.
            Some(Event::Parked { reason, error, .. }) if !self.options.park => {
                let failed = self.failed(failure, error);
                warn!("{failed}; given up as {reason} and dropped, because `park` is off");
            }
            Some(Event::Parked { reason, error, .. }) if enabled!(target: TARGET, Level::WARN) => {
                warn!(target: TARGET, "{}; parked as {reason}", self.failed(failure, error));
            }
            Some(Event::Rejected { error, .. }) if enabled!(target: TARGET, Level::INFO) => {
                info!(target: TARGET, "{}; rejected", self.failed(failure, error));
            }
            Some(Event::Deferred { delay, .. }) if enabled!(target: TARGET, Level::DEBUG) => {
                let delay = format_duration(*delay);
                debug!(target: TARGET, "{} is deferred; again in {delay}", self.attempt(failure));
            }
            _ => {}
        }
    }

    /// Says of an attempt whose connection was lost meanwhile that it failed: the broker has the message again.
    pub(super) fn say_lost(&self, failure: &Failure) {
        if enabled!(target: TARGET, Level::INFO) {
            let failed = self.failed(failure, &failure.error);
            info!(target: TARGET, "{failed}; it comes again, because the connection was lost");
        }
    }

    fn failed(&self, failure: &Failure, error: &str) -> String {
        let attempt = self.attempt(failure);
        let (of_type, error) = (shown(&failure.error_type), shown(error));
        let colon = if of_type.is_empty() { "" } else { ": " };
        format!("{attempt} failed: {of_type}{colon}{error}")
    }

    fn attempt(&self, failure: &Failure) -> String {
        let received = self.received;
        let message = received.message_id().map_or_else(
            || "a message without id".to_owned(),
            |id| format!("message {}", shown(&id)),
        );
        let queue = shown(&received.queue);
        let attempt = received.state.attempt();
        // How often it may be retried is for somebody else to say.
        if !self.options.dlx || self.options.strategy.hands_over() {
            return format!("attempt {attempt} of {message} in {queue}");
        }
        let policy = self.options.rules.policy(
            received.routing_key(),
            received.properties.headers().as_ref(),
            failure,
        );
        let most = policy.max_retries().saturating_add(1);
        format!("attempt {attempt} of {most} of {message} in {queue}")
    }
}

/// In one line that steers no terminal: publishers and errors choose it.
fn shown(text: &str) -> Cow<'_, str> {
    match text.char_indices().nth(MOST) {
        Some((end, _)) => Cow::Owned(format!("{}…", visible::line(&text[..end]))),
        None => visible::line(text),
    }
}
