//! The log line of an attempt that was not a success: one line, the same in every language.
//!
//! ```text
//! attempt 2 of 6 of message 4711 in orders failed: TimeoutError: no answer; retry in 4s
//! ```
//!
//! Bindings add only the stack, at DEBUG.

use std::{borrow::Cow, fmt, time::Duration};

use tracing::{debug, info, warn};

use super::{action::AttemptContext, delivery_state::NextAction};
use crate::{
    retry::{Failure, ParkReason, format_duration},
    telemetry::{ATTEMPT, Event},
    terminal_escape,
};

/// The most characters of an error in the log. The record of a parked message has more.
const MOST: usize = 512;

/// What follows from an attempt that was not a success.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NextStep {
    /// The message waits for its next attempt.
    Retried(Duration),
    /// A service decides.
    HandedOver,
    /// It is parked.
    Parked(ParkReason),
    /// It would be parked, but parking is off.
    Dropped(ParkReason),
    /// It has no retries, and the queue's own dead-lettering decides.
    Rejected,
    /// Its handler deferred it.
    Deferred(Duration),
    /// The connection was lost meanwhile: it is back in its queue.
    Lost,
}

impl NextStep {
    /// One of each kind.
    #[must_use]
    pub fn one_of_each() -> [Self; 7] {
        let reason = ParkReason::Exhausted;
        [
            Self::Retried(Duration::from_millis(200)),
            Self::HandedOver,
            Self::Parked(reason),
            Self::Dropped(reason),
            Self::Rejected,
            Self::Deferred(Duration::from_millis(100)),
            Self::Lost,
        ]
    }

    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Retried(_) => "retried",
            Self::HandedOver => "handed_over",
            Self::Parked(_) => "parked",
            Self::Dropped(_) => "dropped",
            Self::Rejected => "rejected",
            Self::Deferred(_) => "deferred",
            Self::Lost => "lost",
        }
    }

    /// The level of its line.
    #[must_use]
    pub const fn level(self) -> &'static str {
        match self {
            Self::Parked(_) | Self::Dropped(_) => "warn",
            Self::Deferred(_) => "debug",
            Self::Retried(_) | Self::HandedOver | Self::Rejected | Self::Lost => "info",
        }
    }
}

/// The line of one attempt.
#[derive(Debug)]
pub struct AttemptLogLine<'a> {
    attempt: u32,
    /// `None` if the service or the queue decides how often the message may be retried.
    most: Option<u32>,
    message_id: Option<String>,
    queue: &'a str,
    error_type: &'a str,
    error: &'a str,
    follows: NextStep,
}

impl AttemptLogLine<'_> {
    /// The line of an attempt for documentation: message 4711 may be tried twice, with 200 ms in between.
    #[must_use]
    pub fn example(follows: NextStep) -> Self {
        let given_up = matches!(follows, NextStep::Parked(_) | NextStep::Dropped(_));
        let others_decide = matches!(follows, NextStep::HandedOver | NextStep::Rejected);
        Self {
            attempt: if given_up { 2 } else { 1 },
            most: (!others_decide).then_some(2),
            message_id: Some("4711".to_owned()),
            queue: "orders",
            error_type: "Error",
            error: "no answer",
            follows,
        }
    }
}

impl fmt::Display for AttemptLogLine<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "attempt {} of ", self.attempt)?;
        if let Some(most) = self.most {
            write!(f, "{most} of ")?;
        }
        match &self.message_id {
            Some(id) => write!(f, "message {}", shown(id))?,
            None => f.write_str("a message without id")?,
        }
        write!(f, " in {}", shown(self.queue))?;
        if let NextStep::Deferred(delay) = self.follows {
            return write!(f, " is deferred; again in {}", format_duration(delay));
        }
        f.write_str(" failed: ")?;
        let rest = self.error.strip_prefix(self.error_type);
        // Some errors begin with their type, such as a panic in Go.
        if !self.error_type.is_empty() && !rest.is_some_and(|rest| rest.starts_with(':')) {
            write!(f, "{}: ", shown(self.error_type))?;
        }
        write!(f, "{}; ", shown(self.error))?;
        match self.follows {
            NextStep::Retried(delay) => write!(f, "retry in {}", format_duration(delay)),
            NextStep::HandedOver => f.write_str("handed over to the service"),
            NextStep::Parked(reason) => write!(f, "parked as {reason}"),
            NextStep::Dropped(reason) => {
                write!(f, "given up as {reason} and dropped, because `park` is off")
            }
            NextStep::Rejected => f.write_str("rejected"),
            NextStep::Lost => f.write_str("it is redelivered, because the connection was lost"),
            NextStep::Deferred(_) => Ok(()),
        }
    }
}

impl AttemptContext<'_> {
    /// Logs what failed and what follows.
    pub(super) fn log_failure(&self, failure: &Failure, next_action: &NextAction) {
        let (follows, error) = match next_action.event() {
            Some(Event::Retried { delay, error, .. }) => (NextStep::Retried(*delay), error),
            Some(Event::HandedOver { error, .. }) => (NextStep::HandedOver, error),
            Some(Event::Parked { reason, error, .. }) if self.options.park => {
                (NextStep::Parked(*reason), error)
            }
            Some(Event::Parked { reason, error, .. }) => (NextStep::Dropped(*reason), error),
            Some(Event::Rejected { error, .. }) => (NextStep::Rejected, error),
            Some(Event::Deferred { delay, .. }) => (NextStep::Deferred(*delay), &failure.error),
            _ => return,
        };
        self.log(failure, error, follows);
    }

    /// Logs that an attempt failed whose connection was lost meanwhile: the message is back in its queue.
    pub(super) fn log_lost(&self, failure: &Failure) {
        self.log(failure, &failure.error, NextStep::Lost);
    }

    fn log(&self, failure: &Failure, error: &str, follows: NextStep) {
        // For loggers that search by field. Its arguments are evaluated only for a line that somebody wants.
        macro_rules! line {
            ($log:ident, $($target:tt)*) => {{
                let sentence = || self.sentence(failure, error, follows);
                let given = |text| Some(shown(text)).filter(|text| !text.is_empty());
                $log!(
                    $($target)*
                    queue = &*shown(&self.received.queue),
                    message_id = self.received.message_id().as_deref().map(shown).as_deref(),
                    attempt = self.received.state.attempt(),
                    error_type = given(&failure.error_type).as_deref(),
                    error = given(error).as_deref(),
                    next_step = follows.name(),
                    "{}",
                    sentence()
                )
            }};
        }
        match (follows, follows.level()) {
            // A program that reports attempts itself has no other line for this loss, so it is always logged.
            (NextStep::Dropped(_), _) => line!(warn,),
            (_, "warn") => line!(warn, target: ATTEMPT,),
            (_, "debug") => line!(debug, target: ATTEMPT,),
            _ => line!(info, target: ATTEMPT,),
        }
    }

    fn sentence<'a>(
        &'a self,
        failure: &'a Failure,
        error: &'a str,
        follows: NextStep,
    ) -> AttemptLogLine<'a> {
        let received = self.received;
        // The service or the queue decides how often it may be retried.
        let decides = self.options.has_dlx() && !self.options.strategy.hands_over();
        let most = decides.then(|| {
            let table = received.properties.headers().as_ref();
            let policy = self
                .options
                .rules
                .policy(received.routing_key(), table, failure);
            policy.max_retries().saturating_add(1)
        });
        AttemptLogLine {
            attempt: received.state.attempt(),
            most,
            message_id: received.message_id(),
            queue: &received.queue,
            error_type: &failure.error_type,
            error,
            follows,
        }
    }
}

/// One line without characters that a terminal obeys: publishers and errors choose the text.
fn shown(text: &str) -> Cow<'_, str> {
    match text.char_indices().nth(MOST) {
        Some((end, _)) => Cow::Owned(format!("{}…", terminal_escape::line(&text[..end]))),
        None => terminal_escape::line(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_type_is_said_once() {
        for (error_type, error, said) in [
            ("panic", "panic: no such id", "panic: no such id"),
            ("panic", "panicked", "panic: panicked"),
            ("", "no answer", "no answer"),
            ("", ": no answer", ": no answer"),
        ] {
            let sentence = AttemptLogLine {
                error_type,
                error,
                ..AttemptLogLine::example(NextStep::Rejected)
            };
            let said = format!("attempt 1 of message 4711 in orders failed: {said}; rejected");
            assert_eq!(sentence.to_string(), said);
        }
    }
}
