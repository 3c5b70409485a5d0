//! From the end of a command to the outcome of an attempt. Pure.

use std::time::Duration;

use retryrmq::{Failure, Outcome, ParkReason, format_duration, parse_duration};

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    Exit(i32),
    Signal(i32),
    /// It took longer than this.
    Timeout(Duration),
}

/// `EX_DATAERR` of sysexits.h: no retry can help.
const PARK: i32 = 65;
/// `EX_TEMPFAIL`: may come with `defer:`.
const TEMPORARY: i32 = 75;

/// A wish on the last line of standard error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wish {
    RetryAfter(Duration),
    Defer(Duration),
}

/// What follows from how the command ended and from the last it wrote to standard error. The text is a remark to make
/// about it.
pub(super) fn outcome(ending: Ending, tail: &[u8]) -> (Outcome, Option<String>) {
    if ending == Ending::Exit(0) {
        return (Outcome::Ack, None);
    }
    let text = String::from_utf8_lossy(tail);
    let text = text.trim_end();
    let (before, last) = text.rsplit_once('\n').unwrap_or(("", text));
    let (wish, text, remark) = match wish(last) {
        None => (None, text, None),
        Some(Ok(Wish::Defer(_))) if ending != Ending::Exit(TEMPORARY) => {
            let remark = format!(
                "`{}` needs exit status {TEMPORARY}; this attempt counts as failed",
                last.trim()
            );
            (None, before.trim_end(), Some(remark))
        }
        Some(Ok(wish)) => (Some(wish), before.trim_end(), None),
        // Never the error, understood or not: it would hide the one before it.
        Some(Err(why)) => (
            None,
            before.trim_end(),
            Some(format!("on the last line of standard error: {why}")),
        ),
    };
    if let Some(Wish::Defer(delay)) = wish {
        return (Outcome::Defer { delay }, None);
    }
    let failure = failure(ending, text);
    let outcome = match (ending, wish) {
        (Ending::Exit(PARK), _) => Outcome::Park {
            reason: ParkReason::Requested,
            failure,
        },
        (_, Some(Wish::RetryAfter(delay))) => Outcome::Retry {
            failure,
            delay: Some(delay),
        },
        _ => Outcome::retry(failure),
    };
    (outcome, remark)
}

/// The failure of a command that ended so, `text` being the tail of its standard error.
fn failure(ending: Ending, text: &str) -> Failure {
    let (error_type, plain) = match ending {
        Ending::Exit(status) => (
            format!("exit status {status}"),
            format!("exit status {status}"),
        ),
        Ending::Signal(signal) => (
            format!("signal {signal}"),
            format!("ended by signal {signal}"),
        ),
        Ending::Timeout(limit) => (
            "HandlerTimeout".to_owned(),
            format!("the command took longer than {}", format_duration(limit)),
        ),
    };
    let last = text
        .lines()
        .rev()
        .map(str::trim)
        .find(|line| !line.is_empty());
    let error = match ending {
        Ending::Timeout(_) => plain,
        _ => last.map_or(plain, str::to_owned),
    };
    let failure = Failure::new(error).of_type(error_type);
    let lines = text.lines().filter(|line| !line.trim().is_empty()).count();
    if lines > 1 || (lines == 1 && matches!(ending, Ending::Timeout(_))) {
        failure.with_stack(text)
    } else {
        failure
    }
}

fn wish(line: &str) -> Option<Result<Wish, retryrmq::Error>> {
    let (word, delay) = line.split_once(':')?;
    let make = match word.trim().to_ascii_lowercase().as_str() {
        "retry-after" => Wish::RetryAfter,
        "defer" => Wish::Defer,
        _ => return None,
    };
    Some(parse_duration(delay.trim()).map(make))
}

#[cfg(test)]
mod tests {
    use retryrmq::SECOND;

    use super::*;

    fn retried(outcome: Outcome) -> (Failure, Option<Duration>) {
        match outcome {
            Outcome::Retry { failure, delay } => (failure, delay),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_status_decides() {
        assert_eq!(outcome(Ending::Exit(0), b"retry-after: 1s").0, Outcome::Ack);
        let (parked, _) = outcome(Ending::Exit(65), b"no such customer\nretry-after: 1s\n");
        let Outcome::Park {
            reason: ParkReason::Requested,
            failure,
        } = parked
        else {
            panic!("{parked:?}")
        };
        assert_eq!(
            (failure.error.as_str(), failure.error_type.as_str()),
            ("no such customer", "exit status 65")
        );
        for (ending, kind) in [
            (Ending::Exit(1), "exit status 1"),
            (Ending::Exit(75), "exit status 75"),
            (Ending::Exit(255), "exit status 255"),
            (Ending::Signal(9), "signal 9"),
        ] {
            let (failure, delay) = retried(outcome(ending, b"").0);
            assert_eq!(
                (failure.error_type.as_str(), delay, failure.stack),
                (kind, None, None)
            );
            assert!(failure.error.contains(kind));
        }
    }

    #[test]
    fn the_last_line_is_the_error_and_all_of_it_the_stack() {
        let (failure, _) =
            retried(outcome(Ending::Exit(1), b"Traceback:\n  line 3\nKeyError: 'id'\n\n").0);
        assert_eq!(failure.error, "KeyError: 'id'");
        assert_eq!(
            failure.stack.as_deref(),
            Some("Traceback:\n  line 3\nKeyError: 'id'")
        );
        let (failure, _) = retried(outcome(Ending::Exit(1), b"bad \xff byte").0);
        assert_eq!(
            (failure.error.as_str(), failure.stack),
            ("bad \u{fffd} byte", None)
        );
        let (failure, _) = retried(outcome(Ending::Timeout(SECOND), b"still at it").0);
        assert_eq!(
            (failure.error.as_str(), failure.error_type.as_str()),
            ("the command took longer than 1s", "HandlerTimeout")
        );
        assert_eq!(failure.stack.as_deref(), Some("still at it"));
    }

    #[test]
    fn the_last_line_may_choose_when() {
        let (failure, delay) = retried(outcome(Ending::Exit(1), b"busy\nRetry-After: 30s\n").0);
        assert_eq!((failure.error.as_str(), delay), ("busy", Some(30 * SECOND)));
        let (failure, delay) = retried(outcome(Ending::Signal(15), b"retry-after: 2s").0);
        assert_eq!(
            (failure.error.as_str(), delay),
            ("ended by signal 15", Some(2 * SECOND))
        );
        assert_eq!(
            outcome(Ending::Exit(75), b"x\ndefer: 5s").0,
            Outcome::Defer { delay: 5 * SECOND }
        );
        let (outcome_, remark) = outcome(Ending::Exit(1), b"x\ndefer: 5s");
        assert_eq!(retried(outcome_).0.error, "x");
        assert!(remark.unwrap().contains("exit status 75"));
        let (outcome_, remark) = outcome(Ending::Exit(1), b"x\nretry-after: soon");
        let (failure, delay) = retried(outcome_);
        assert_eq!((failure.error.as_str(), delay), ("x", None));
        assert!(remark.unwrap().contains("write it like"));
        let (outcome_, remark) = outcome(Ending::Exit(1), b"boom\nretry-after: 30");
        assert_eq!(retried(outcome_).0.error, "boom");
        assert!(
            remark.unwrap().contains("`30`"),
            "the value without its blank"
        );
        let (outcome_, _) = outcome(Ending::Exit(75), b"defer: soon");
        assert_eq!(retried(outcome_).0.error, "exit status 75");
        assert_eq!(
            retried(outcome(Ending::Exit(1), b"retry-after: 1s\nno").0).1,
            None,
            "not the last line"
        );
    }
}
