//! The log line of an attempt that was not a success: one line, the same in every language.
//!
//! ```text
//! attempt 2 of 6 of message 4711 in orders failed: TimeoutError: no answer; retry in 4s
//! ```
//!
//! Bindings add only the stack, at DEBUG.

use std::borrow::Cow;

use tracing::{Level, debug, enabled, info, warn};

use super::{consequence::Case, entry::Consequence};
use crate::{
    retry::{Failure, format_duration},
    telemetry::Event,
    visible,
};

/// The target of these log lines. A program that reports attempts itself can leave it out.
const TARGET: &str = "retryrmq::attempt";

/// The most characters of an error in the log. The record of a parked message has more.
const MOST: usize = 512;

impl Case<'_> {
    /// Logs what failed and what follows: INFO for what is retried, WARN for what is parked, DEBUG for what its handler deferred.
    pub(super) fn say(&self, failure: &Failure, consequence: &Consequence) {
        match consequence.event() {
            Some(Event::Retried { delay, error, .. }) if enabled!(target: TARGET, Level::INFO) => {
                let delay = format_duration(*delay);
                info!(target: TARGET, "{}; retry in {delay}", self.failed(failure, error));
            }
            Some(Event::HandedOver { error, .. }) if enabled!(target: TARGET, Level::INFO) => {
                info!(target: TARGET, "{}; handed over to the service", self.failed(failure, error));
            }
            // A program that reports attempts itself has no other line for this loss, so it is always logged.
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

    /// Logs that an attempt failed whose connection was lost meanwhile: the message is back in its queue.
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
        // The service or the queue decides how often it may be retried.
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

/// One line without characters that a terminal obeys: publishers and errors choose the text.
fn shown(text: &str) -> Cow<'_, str> {
    match text.char_indices().nth(MOST) {
        Some((end, _)) => Cow::Owned(format!("{}…", visible::line(&text[..end]))),
        None => visible::line(text),
    }
}
