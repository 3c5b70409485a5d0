//! From the end of a command to the outcome of an attempt. Pure.

use std::time::Duration;

use retryrmq::{Failure, Outcome, format_duration};

use super::{
    outcome_pipe,
    requested_outcome::{self, RequestedOutcome},
};
use retryrmq::terminal_escape;

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CommandEnd {
    Exit(i32),
    Signal(i32),
    /// It took longer than this.
    Timeout(Duration),
}

impl CommandEnd {
    /// A service manager tells all processes to end, us and the commands: that is no failure of theirs. Shells, Java and
    /// Node tell of a signal by a status.
    pub(super) fn is_by_a_signal_to_all(self) -> bool {
        const SIGHUP: i32 = 1;
        const SIGINT: i32 = 2;
        const SIGTERM: i32 = 15;
        let ends = |signal| [SIGHUP, SIGINT, SIGTERM].contains(&signal);
        match self {
            Self::Signal(signal) => ends(signal),
            Self::Exit(status) => ends(status.saturating_sub(128)),
            Self::Timeout(_) => false,
        }
    }
}

/// `EX_DATAERR` of sysexits.h: no retry can help.
const PARK: i32 = 65;
/// `EX_TEMPFAIL`: may come with `defer:`.
const TEMPORARY: i32 = 75;

/// What a command left behind that tells of its message's future.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct OutcomeWords<'a> {
    /// The end of its standard error, which may repeat what a publisher wrote.
    pub(super) tail: &'a [u8],
    /// The last line of what it wrote to the pipe that nothing else reaches.
    pub(super) said: &'a [u8],
    /// The longest delay that it may choose.
    pub(super) longest: Duration,
}

/// What follows from how the command ended and from what it wrote. The text is a remark to make about it.
pub(super) fn outcome(ending: CommandEnd, words: OutcomeWords<'_>) -> (Outcome, Option<String>) {
    let text = String::from_utf8_lossy(words.tail);
    let text = text.trim_end();
    let (requested, text, remark) = if words.said.is_empty() {
        if ending == CommandEnd::Exit(0) {
            return (Outcome::Ack, None);
        }
        of_standard_error(ending, text)
    } else {
        match of_the_pipe(words.said) {
            None if ending == CommandEnd::Exit(0) => return (Outcome::Ack, None),
            None => (None, text, None),
            Some(Ok(requested)) => (Some(requested), text, None),
            Some(Err(why)) => (None, text, Some(why)),
        }
    };
    let (requested, cut) = requested_outcome::bounded(requested, words.longest);
    let is_hopeless = ending == CommandEnd::Exit(PARK);
    let outcome =
        requested_outcome::outcome(requested, is_hopeless, |said| failure(ending, text, said));
    (outcome, remark.or(cut))
}

/// The last line of standard error, and what stands before it.
fn of_standard_error(
    ending: CommandEnd,
    text: &str,
) -> (Option<RequestedOutcome>, &str, Option<String>) {
    let (before, last) = text.rsplit_once('\n').unwrap_or(("", text));
    let before = before.trim_end();
    match RequestedOutcome::read(last) {
        // Parking takes a status or the pipe, as it ends a message.
        None | Some(Ok(RequestedOutcome::Park(_))) => (None, text, None),
        Some(Ok(RequestedOutcome::Defer(_))) if ending != CommandEnd::Exit(TEMPORARY) => {
            let remark = format!(
                "`{}` needs exit status {TEMPORARY}; this attempt counts as failed",
                terminal_escape::line(last.trim())
            );
            (None, before, Some(remark))
        }
        Some(Ok(requested)) => (Some(requested), before, None),
        // Never the error, understood or not: it would hide the one before it.
        Some(Err(why)) => {
            let why = format!("on the last line of standard error: {why}");
            (None, before, Some(terminal_escape::line(&why).into_owned()))
        }
    }
}

/// The last line that is not empty; who wrote one that nobody understands did not mean that all is well.
fn of_the_pipe(said: &[u8]) -> Option<Result<RequestedOutcome, String>> {
    let said = String::from_utf8_lossy(said);
    let last = said.trim_end().lines().next_back()?.trim();
    Some(RequestedOutcome::expect(last).map_err(|why| {
        let why = format!("on the descriptor {}: {why}", outcome_pipe::NAME);
        terminal_escape::line(&why).into_owned()
    }))
}

/// The failure of a command that ended so, `text` being the tail of its standard error and `said` its own words.
fn failure(ending: CommandEnd, text: &str, said: Option<String>) -> Failure {
    let (error_type, plain) = match ending {
        // Success tells nothing about what it asks for.
        CommandEnd::Exit(0) => (String::new(), "exit status 0".to_owned()),
        CommandEnd::Exit(status) => (
            format!("exit status {status}"),
            format!("exit status {status}"),
        ),
        CommandEnd::Signal(signal) => (
            format!("signal {signal}"),
            format!("ended by signal {signal}"),
        ),
        CommandEnd::Timeout(limit) => (
            "HandlerTimeout".to_owned(),
            format!("the command took longer than {}", format_duration(limit)),
        ),
    };
    let last = text
        .lines()
        .rev()
        .map(str::trim)
        .find(|line| !line.is_empty());
    let said = said.filter(|said| !said.is_empty());
    let is_all_there_is = said.is_none() && !matches!(ending, CommandEnd::Timeout(_));
    let error = match (said, ending) {
        (Some(said), _) => said,
        (None, CommandEnd::Timeout(_)) => plain,
        (None, _) => last.map_or(plain, str::to_owned),
    };
    let failure = Failure::new(error).of_type(error_type);
    let lines = text.lines().filter(|line| !line.trim().is_empty()).count();
    if lines > 1 || (lines == 1 && !is_all_there_is) {
        failure.with_stack(text)
    } else {
        failure
    }
}

#[cfg(test)]
mod tests {
    use retryrmq::{DAY, MINUTE, ParkReason, SECOND};
    use retryrmq_harness::fuzz::{fuzz, gist};

    use super::*;

    /// With nothing on the pipe.
    fn outcome(ending: CommandEnd, tail: &[u8]) -> (Outcome, Option<String>) {
        said(ending, tail, b"")
    }

    fn said(ending: CommandEnd, tail: &[u8], said: &[u8]) -> (Outcome, Option<String>) {
        let longest = DAY;
        super::outcome(
            ending,
            OutcomeWords {
                tail,
                said,
                longest,
            },
        )
    }

    fn retried(outcome: Outcome) -> (Failure, Option<Duration>) {
        match outcome {
            Outcome::Retry { failure, delay } => (failure, delay),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_status_decides() {
        assert_eq!(
            outcome(CommandEnd::Exit(0), b"retry-after: 1s").0,
            Outcome::Ack
        );
        let (parked, _) = outcome(CommandEnd::Exit(65), b"no such customer\nretry-after: 1s\n");
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
            (CommandEnd::Exit(1), "exit status 1"),
            (CommandEnd::Exit(75), "exit status 75"),
            (CommandEnd::Exit(255), "exit status 255"),
            (CommandEnd::Signal(9), "signal 9"),
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
        let (failure, _) = retried(
            outcome(
                CommandEnd::Exit(1),
                b"Traceback:\n  line 3\nKeyError: 'id'\n\n",
            )
            .0,
        );
        assert_eq!(failure.error, "KeyError: 'id'");
        assert_eq!(
            failure.stack.as_deref(),
            Some("Traceback:\n  line 3\nKeyError: 'id'")
        );
        let (failure, _) = retried(outcome(CommandEnd::Exit(1), b"bad \xff byte").0);
        assert_eq!(
            (failure.error.as_str(), failure.stack),
            ("bad \u{fffd} byte", None)
        );
        let (failure, _) = retried(outcome(CommandEnd::Timeout(SECOND), b"still at it").0);
        assert_eq!(
            (failure.error.as_str(), failure.error_type.as_str()),
            ("the command took longer than 1s", "HandlerTimeout")
        );
        assert_eq!(failure.stack.as_deref(), Some("still at it"));
    }

    #[test]
    fn the_last_line_may_choose_when() {
        let (failure, delay) = retried(outcome(CommandEnd::Exit(1), b"busy\nRetry-After: 30s\n").0);
        assert_eq!((failure.error.as_str(), delay), ("busy", Some(30 * SECOND)));
        let (failure, delay) = retried(outcome(CommandEnd::Signal(15), b"retry-after: 2s").0);
        assert_eq!(
            (failure.error.as_str(), delay),
            ("ended by signal 15", Some(2 * SECOND))
        );
        assert_eq!(
            outcome(CommandEnd::Exit(75), b"x\ndefer: 5s").0,
            Outcome::Defer { delay: 5 * SECOND }
        );
        let (outcome_, remark) = outcome(CommandEnd::Exit(1), b"x\ndefer: 5s");
        assert_eq!(retried(outcome_).0.error, "x");
        assert!(remark.unwrap().contains("exit status 75"));
        let (outcome_, remark) = outcome(CommandEnd::Exit(1), b"x\nretry-after: soon");
        let (failure, delay) = retried(outcome_);
        assert_eq!((failure.error.as_str(), delay), ("x", None));
        assert!(remark.unwrap().contains("write it like"));
        let (outcome_, remark) = outcome(CommandEnd::Exit(1), b"boom\nretry-after: 30");
        assert_eq!(retried(outcome_).0.error, "boom");
        assert!(
            remark.unwrap().contains("`30`"),
            "the value without its blank"
        );
        let (outcome_, _) = outcome(CommandEnd::Exit(75), b"defer: soon");
        assert_eq!(retried(outcome_).0.error, "exit status 75");
        assert_eq!(
            retried(outcome(CommandEnd::Exit(1), b"retry-after: 1s\nno").0).1,
            None,
            "not the last line"
        );
    }
    #[test]
    fn standard_error_cannot_park_nor_ask_for_more_than_the_longest() {
        let (outcome_, _) = outcome(CommandEnd::Exit(1), b"x\npark: y");
        assert_eq!(retried(outcome_).0.error, "park: y");
        for (text, delay) in [("365d", DAY), ("1d", DAY), ("23h", DAY - 60 * MINUTE)] {
            let tail = format!("x\nretry-after: {text}");
            let (outcome_, remark) = outcome(CommandEnd::Exit(1), tail.as_bytes());
            assert_eq!(retried(outcome_).1, Some(delay));
            assert_eq!(remark.is_some(), text == "365d", "{text}");
        }
        let (outcome_, remark) = outcome(CommandEnd::Exit(75), b"defer: 2d");
        assert_eq!(outcome_, Outcome::Defer { delay: DAY });
        assert!(remark.unwrap().contains("--max-retry-after is 1d"));
    }

    #[test]
    fn remarks_hold_nothing_that_a_terminal_obeys() {
        for (ending, tail, pipe) in [
            (CommandEnd::Exit(1), &b"retry-after: \x1b[2J"[..], &b""[..]),
            (CommandEnd::Exit(1), b"", b"\x1b[2J"),
            (CommandEnd::Exit(1), b"", b"defer: \x1b[2J"),
        ] {
            let remark = said(ending, tail, pipe).1.unwrap();
            assert!(!remark.contains('\x1b'), "{remark}");
        }
    }

    #[test]
    fn the_pipe_decides_whatever_the_end_and_standard_error_say() {
        let echo = b"busy\nretry-after: 3h";
        for ending in [
            CommandEnd::Exit(0),
            CommandEnd::Exit(1),
            CommandEnd::Exit(75),
            CommandEnd::Signal(9),
            CommandEnd::Timeout(SECOND),
        ] {
            let (outcome, remark) = said(ending, echo, b"park: no\nRetry-After: 30s\n\n");
            let (failure, delay) = retried(outcome);
            assert_eq!((delay, remark), (Some(30 * SECOND), None));
            assert!(failure.error == "retry-after: 3h" || ending == CommandEnd::Timeout(SECOND));
            assert_eq!(
                said(ending, echo, b"defer: 5s").0,
                Outcome::Defer { delay: 5 * SECOND }
            );
            let Outcome::Park { failure, .. } = said(ending, echo, b"park: no such: x").0 else {
                panic!("parked")
            };
            assert_eq!(failure.error, "no such: x");
            assert_eq!(failure.error_type.is_empty(), ending == CommandEnd::Exit(0));
            assert_eq!(failure.stack.as_deref(), Some("busy\nretry-after: 3h"));
        }
    }

    #[test]
    fn a_pipe_without_a_wish_leaves_it_to_the_end_and_closes_the_other_way() {
        let echo = b"busy\nretry-after: 3h";
        assert_eq!(said(CommandEnd::Exit(0), echo, b"\n").0, Outcome::Ack);
        let (failure, delay) = retried(said(CommandEnd::Exit(1), echo, b"\n").0);
        assert_eq!((failure.error.as_str(), delay), ("retry-after: 3h", None));
        for words in [&b"ok"[..], b"defer: soon", b"requeue: 1s", b"\xff"] {
            let (outcome, remark) = said(CommandEnd::Exit(0), echo, words);
            assert_eq!(retried(outcome).1, None, "not what all is well looks like");
            assert!(remark.unwrap().contains("RETRYRMQ_OUTCOME_FD"));
        }
        let (parked, _) = said(CommandEnd::Exit(65), echo, b"defer: soon");
        assert!(matches!(parked, Outcome::Park { .. }));
    }

    #[test]
    fn any_last_words_lead_to_an_outcome_within_bounds() {
        let seeds: [&[u8]; 6] = [
            b"boom\nretry-after: 30s",
            b"defer: 5s",
            b"park: no such customer",
            b"a\n\n  retry-after: 1h30m \r\n",
            b"retry-after: 1e3 s",
            b"RETRY-AFTER: 5 minutes",
        ];
        let words = [
            "retry-after:",
            "defer:",
            "park:",
            "\n",
            "\r\n",
            "s",
            "ms",
            "365d",
            " ",
            "\u{9b}",
            "\u{202e}",
        ];
        fuzz(&seeds, &words, |text| {
            let endings = [0, 1, 65, 75].map(CommandEnd::Exit);
            let mut seen = Vec::new();
            for ending in endings
                .into_iter()
                .chain([CommandEnd::Signal(9), CommandEnd::Timeout(SECOND)])
            {
                for (tail, pipe) in [(text, &b""[..]), (&b"boom"[..], text)] {
                    let (outcome, remark) = said(ending, tail, pipe);
                    let delay = match &outcome {
                        Outcome::Retry { delay, .. } => *delay,
                        Outcome::Defer { delay } => Some(*delay),
                        _ => None,
                    };
                    assert!(delay.is_none_or(|delay| delay <= DAY), "{outcome:?}");
                    let is_ack = outcome == Outcome::Ack;
                    assert!(
                        !is_ack || ending == CommandEnd::Exit(0),
                        "{ending:?}: {outcome:?}"
                    );
                    let remark = remark.unwrap_or_default();
                    assert_eq!(
                        terminal_escape::line(&remark),
                        remark,
                        "a remark is safe to print"
                    );
                    seen.push(format!("{} {}", delay.is_some(), gist(&remark)));
                }
            }
            seen
        });
    }
}
