//! From an answer to the outcome of an attempt. Pure.

use std::time::{Duration, SystemTime};

use reqwest::{
    StatusCode, Url,
    header::{HeaderMap, LOCATION, RETRY_AFTER},
};
use retryrmq::{Failure, Outcome, terminal_escape};

use super::{
    super::{
        requested_outcome::{self, RequestedOutcome},
        run::RunVerdict,
    },
    redirect, retry_after,
};

/// The header by which an endpoint says itself what is to become of the message.
pub(super) const OUTCOME: &str = "retryrmq-outcome";
/// How much of the body the error's line shows,
const SHOWN: usize = 300;
/// and the stack.
const KEPT: usize = 8 * 1024;

/// What came back.
pub(super) struct HttpResponse<'a> {
    pub(super) status: StatusCode,
    pub(super) headers: &'a HeaderMap,
    /// Its beginning.
    pub(super) body: &'a [u8],
}

/// What the operator allows.
pub(super) struct ResponseLimits<'a> {
    pub(super) park: &'a [StatusCode],
    /// The longest delay that an answer may choose.
    pub(super) longest: Duration,
    pub(super) now: SystemTime,
}

/// What follows from an answer. `hide` takes secrets out of a text.
pub(super) fn verdict(
    answer: &HttpResponse<'_>,
    limits: &ResponseLimits<'_>,
    hide: impl Fn(&str) -> String,
) -> RunVerdict {
    let (requested, remark) = match answer.headers.get(OUTCOME) {
        None if answer.status.is_success() => return RunVerdict::new(Outcome::Ack, None),
        None => of_the_status(answer, limits.now),
        Some(words) => {
            match RequestedOutcome::expect(String::from_utf8_lossy(words.as_bytes()).trim()) {
                Ok(requested) => (Some(requested), None),
                Err(why) => (None, Some(format!("in the header Retryrmq-Outcome: {why}"))),
            }
        }
    };
    let (requested, cut) = requested_outcome::bounded(requested, limits.longest);
    let is_hopeless = requested.is_none() && limits.park.contains(&answer.status);
    let outcome =
        requested_outcome::outcome(requested, is_hopeless, |said| failure(answer, said, &hide));
    let remark = remark.or(cut);
    RunVerdict::new(
        outcome,
        remark.map(|remark| terminal_escape::line(&hide(&remark)).into_owned()),
    )
}

/// Only these two say "not now", so only they say when.
fn of_the_status(
    answer: &HttpResponse<'_>,
    now: SystemTime,
) -> (Option<RequestedOutcome>, Option<String>) {
    let says_when = [
        StatusCode::TOO_MANY_REQUESTS,
        StatusCode::SERVICE_UNAVAILABLE,
    ];
    let value = answer.headers.get(RETRY_AFTER);
    match value.filter(|_| says_when.contains(&answer.status)) {
        None => (None, None),
        Some(value) => match retry_after::read(value.as_bytes(), now) {
            Ok(delay) => (Some(RequestedOutcome::RetryAfter(delay)), None),
            Err(why) => (None, Some(why)),
        },
    }
}

fn failure(
    answer: &HttpResponse<'_>,
    said: Option<String>,
    hide: impl Fn(&str) -> String,
) -> Failure {
    let status = answer.status;
    let title = format!("HTTP {}", status.as_u16());
    let body = hide(&String::from_utf8_lossy(answer.body));
    // Whether a type is text or not, its beginning says more than nothing; what a terminal obeys is escaped.
    let words = body.split_whitespace().collect::<Vec<_>>().join(" ");
    let beginning = beginning(&words, SHOWN);
    let said = said.filter(|said| !said.is_empty());
    // Success tells nothing about the reason that came with it.
    let is_reason_enough = said.is_some() && status.is_success();
    let error_type = if is_reason_enough { "" } else { &title };
    let error = match said {
        Some(said) => hide(&said),
        None if status.is_redirection() => format!("{title}: {}", not_followed(answer)),
        None if beginning.is_empty() => match status.canonical_reason() {
            Some(name) => format!("{title} {name}"),
            None => title.clone(),
        },
        // The body says more than the name of the status, and lists have little room.
        None => format!("{title}: {beginning}"),
    };
    let failure = Failure::new(terminal_escape::line(&error)).of_type(error_type);
    let is_told = error.ends_with(&beginning) && !beginning.ends_with('…');
    if is_told {
        failure
    } else {
        let kept = self::beginning(body.trim(), KEPT);
        failure.with_stack(terminal_escape::block(&kept))
    }
}

/// Which redirects are followed is in `redirect`; these are the others.
fn not_followed(answer: &HttpResponse<'_>) -> String {
    let location = answer.headers.get(LOCATION);
    let to = location
        .and_then(|location| location.to_str().ok())
        .and_then(|location| Url::parse(location).ok())
        .map_or_else(String::new, |url| format!(" to {}", redirect::shown(&url)));
    format!(
        "a redirect{to} is not followed, as it may turn the POST into a GET; name the final URL with --http"
    )
}

/// At most so many bytes of it, marked where something is missing.
fn beginning(text: &str, most: usize) -> String {
    if text.len() <= most {
        return text.to_owned();
    }
    let mut end = most;
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    format!("{}…", &text[..end])
}

#[cfg(test)]
mod tests {
    use reqwest::header::{HeaderName, HeaderValue};
    use retryrmq::{DAY, SECOND};
    use retryrmq_harness::fuzz::{fuzz, gist};

    use super::*;

    fn verdict(status: u16, headers: &[(&'static str, &[u8])], body: &[u8]) -> RunVerdict {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            if let Ok(value) = HeaderValue::from_bytes(value) {
                map.insert(HeaderName::from_static(name), value);
            }
        }
        let answer = HttpResponse {
            status: StatusCode::from_u16(status).unwrap(),
            headers: &map,
            body,
        };
        let limits = ResponseLimits {
            park: &[StatusCode::UNPROCESSABLE_ENTITY],
            longest: DAY,
            now: SystemTime::UNIX_EPOCH,
        };
        super::verdict(&answer, &limits, |text| text.replace("s3cr3t", "***"))
    }

    fn retried(verdict: RunVerdict) -> (Failure, Option<Duration>) {
        match verdict.outcome {
            Outcome::Retry { failure, delay } => (failure, delay),
            other => panic!("{other:?}"),
        }
    }

    fn parked(verdict: RunVerdict) -> Failure {
        match verdict.outcome {
            Outcome::Park { failure, .. } => failure,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_status_decides() {
        for status in [200, 201, 202, 204, 299] {
            assert_eq!(verdict(status, &[], b"whatever").outcome, Outcome::Ack);
        }
        assert_eq!(parked(verdict(422, &[], b"no")).error_type, "HTTP 422");
        for status in [
            100, 300, 302, 304, 400, 401, 404, 410, 429, 500, 503, 599, 999,
        ] {
            let (failure, delay) = retried(verdict(status, &[], b""));
            assert_eq!(failure.error_type, format!("HTTP {status}"));
            assert!(failure.error.starts_with(&format!("HTTP {status}")) && delay.is_none());
        }
    }

    #[test]
    fn retry_after_chooses_the_delay_where_it_has_a_meaning() {
        let after = |status, value: &[u8]| verdict(status, &[("retry-after", value)], b"");
        assert_eq!(retried(after(429, b"30")).1, Some(30 * SECOND));
        assert_eq!(
            retried(after(503, b"Thu, 01 Jan 1970 00:01:00 GMT")).1,
            Some(60 * SECOND)
        );
        assert_eq!(retried(after(500, b"30")).1, None);
        let much = after(503, b"99999999999999");
        assert!(
            much.remark
                .as_deref()
                .unwrap()
                .contains("--max-retry-after is 1d")
        );
        assert_eq!(retried(much).1, Some(DAY));
        let wrong = after(503, b"soon \xff");
        assert!(wrong.remark.as_deref().unwrap().contains("Retry-After"));
        assert_eq!(retried(wrong).1, None);
    }

    #[test]
    fn the_endpoint_may_say_so_itself_whatever_the_status() {
        let said = |status, words: &'static [u8]| verdict(status, &[(OUTCOME, words)], b"body");
        for status in [200, 422, 500] {
            assert_eq!(
                retried(said(status, b"retry-after: 5s")).1,
                Some(5 * SECOND)
            );
            assert_eq!(
                said(status, b"Defer: 5s").outcome,
                Outcome::defer(5 * SECOND)
            );
            let failure = parked(said(status, b"park: no such customer"));
            assert_eq!(failure.error, "no such customer");
            let of_the_status = if status == 200 {
                String::new()
            } else {
                format!("HTTP {status}")
            };
            assert_eq!(failure.error_type, of_the_status);
            assert_eq!(failure.stack.as_deref(), Some("body"));
        }
        for words in [&b"ok"[..], b"defer: soon", b"", b"\xff"] {
            let verdict = said(200, words);
            assert!(
                verdict
                    .remark
                    .as_deref()
                    .unwrap()
                    .contains("Retryrmq-Outcome")
            );
            retried(verdict); // not what all is well looks like
        }
        assert_eq!(parked(said(422, b"ok")).error_type, "HTTP 422");
    }

    #[test]
    fn the_error_is_the_status_and_the_beginning_of_the_body() {
        let (failure, _) = retried(verdict(500, &[], b"{\"error\":\n  \"boom\"}\n"));
        assert_eq!(failure.error, "HTTP 500: {\"error\": \"boom\"}");
        assert_eq!(failure.stack, None);
        let long = format!("<html>\n{}", "ä".repeat(10_000));
        let (failure, _) = retried(verdict(502, &[], long.as_bytes()));
        assert!(
            failure.error.len() < 400 && failure.error.ends_with('…'),
            "{}",
            failure.error
        );
        let stack = failure.stack.unwrap();
        assert!(
            stack.starts_with("<html>\nä") && stack.len() < KEPT + 8,
            "{}",
            stack.len()
        );
        let (failure, _) = retried(verdict(500, &[], b"\x1b[2J s3cr3t \xff"));
        assert_eq!(failure.error, "HTTP 500: \\x1b[2J *** \u{fffd}");
        let moved = verdict(
            302,
            &[("location", b"https://u:s3cr3t@h/login?x")],
            b"moved",
        );
        let (failure, _) = retried(moved);
        assert!(
            failure.error.contains("to https://h is not followed")
                && failure.stack.as_deref() == Some("moved"),
            "{failure:?}"
        );
    }

    #[test]
    fn any_answer_leads_to_an_outcome_within_bounds() {
        let seeds: [&[u8]; 5] = [
            b"retry-after: 30s",
            b"park: no such customer",
            b"defer: 1h",
            b"99999999999999999999",
            b"Sun, 06 Nov 1994 08:49:37 GMT",
        ];
        let words = [
            "retry-after:",
            "defer:",
            "park:",
            "365d",
            "GMT",
            "-1",
            "\u{9b}",
            "\u{202e}",
        ];
        fuzz(&seeds, &words, |text| {
            let mut seen = Vec::new();
            for status in [200, 302, 422, 429, 500] {
                for header in [OUTCOME, "retry-after", "location"] {
                    let verdict = verdict(status, &[(header, text)], text);
                    let delay = match &verdict.outcome {
                        Outcome::Retry { delay, .. } => *delay,
                        Outcome::Defer { delay } => Some(*delay),
                        _ => None,
                    };
                    assert!(
                        delay.is_none_or(|delay| delay <= DAY),
                        "{:?}",
                        verdict.outcome
                    );
                    let is_ack = verdict.outcome == Outcome::Ack;
                    assert!(!is_ack || status == 200, "{status}");
                    if let Some(failure) = verdict.outcome.failure() {
                        assert_eq!(terminal_escape::line(&failure.error), failure.error);
                    }
                    let remark = verdict.remark.unwrap_or_default();
                    assert_eq!(
                        terminal_escape::line(&remark),
                        remark,
                        "a remark is safe to print"
                    );
                    seen.push(format!("{} {is_ack} {}", delay.is_some(), gist(&remark)));
                }
            }
            seen
        });
    }
}
