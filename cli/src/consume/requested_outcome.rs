//! What a handler asks for in its own words, and the outcome that follows: the same for a command and for an endpoint. Pure.

use std::time::Duration;

use retryrmq::{Failure, Outcome, format_duration, parse_duration};

/// What a handler asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum RequestedOutcome {
    RetryAfter(Duration),
    Defer(Duration),
    Park(String),
}

impl RequestedOutcome {
    /// Reads `retry-after: 30s`, `defer: 5s` or `park: why`; nothing when the line begins with none of these words.
    pub(super) fn read(line: &str) -> Option<Result<Self, retryrmq::Error>> {
        let (word, rest) = line.split_once(':')?;
        let (rest, delay) = (rest.trim(), || parse_duration(rest.trim()));
        Some(match word.trim().to_ascii_lowercase().as_str() {
            "retry-after" => delay().map(Self::RetryAfter),
            "defer" => delay().map(Self::Defer),
            "park" => Ok(Self::Park(rest.to_owned())),
            _ => return None,
        })
    }

    /// Reads a line that is there for nothing else.
    ///
    /// # Errors
    /// When nobody understands it: whoever wrote it did not mean that all is well.
    pub(super) fn expect(line: &str) -> Result<Self, String> {
        match Self::read(line) {
            Some(requested) => requested.map_err(|why| why.to_string()),
            None => {
                let start: String = line.chars().take(80).collect();
                Err(format!(
                    "`{start}` is not known; write `retry-after: 30s`, `defer: 5s` or `park: why`"
                ))
            }
        }
    }
}

/// `requested` with a delay of at most `longest`, and a remark if it wanted more.
pub(super) fn bounded(
    requested: Option<RequestedOutcome>,
    longest: Duration,
) -> (Option<RequestedOutcome>, Option<String>) {
    let (make, delay): (fn(Duration) -> RequestedOutcome, _) = match requested {
        Some(RequestedOutcome::RetryAfter(delay)) if delay > longest => {
            (RequestedOutcome::RetryAfter, delay)
        }
        Some(RequestedOutcome::Defer(delay)) if delay > longest => (RequestedOutcome::Defer, delay),
        other => return (other, None),
    };
    let remark = format!(
        "the handler asks for a delay of {}, and --max-retry-after is {}: it comes back after that",
        format_duration(delay),
        format_duration(longest)
    );
    (Some(make(longest)), Some(remark))
}

/// The outcome of an attempt that did not succeed, or asks for something. `failure` makes the failure from the handler's own
/// reason, if it gave one.
///
/// `is_hopeless`: parked, unless the handler puts it off.
pub(super) fn outcome(
    requested: Option<RequestedOutcome>,
    is_hopeless: bool,
    failure: impl FnOnce(Option<String>) -> Failure,
) -> Outcome {
    match requested {
        Some(RequestedOutcome::Defer(delay)) => Outcome::defer(delay),
        Some(RequestedOutcome::Park(reason)) => Outcome::park(failure(Some(reason))),
        _ if is_hopeless => Outcome::park(failure(None)),
        Some(RequestedOutcome::RetryAfter(delay)) => Outcome::retry_after(delay, failure(None)),
        None => Outcome::retry(failure(None)),
    }
}
