//! From an answer for each message of a batch to the outcomes. Pure.

use std::time::Duration;

use reqwest::{
    StatusCode,
    header::{CONTENT_TYPE, HeaderMap},
};
use retryrmq::{Outcome, terminal_escape};
use serde_json::Value;

use super::super::{batch, run::RunVerdict};

/// Whether the body of an answer has an answer for each message: it is JSON, and nothing else decides.
pub(super) fn is_for_each(status: StatusCode, headers: &HeaderMap) -> bool {
    let kind = headers
        .get(CONTENT_TYPE)
        .and_then(|kind| kind.to_str().ok());
    let kind = kind.and_then(|kind| kind.split(';').next());
    let is_json = kind.is_some_and(|kind| kind.trim().eq_ignore_ascii_case("application/json"));
    status.is_success() && is_json && !headers.contains_key(super::response::OUTCOME)
}

/// The most bytes of a body with so many answers.
pub(super) fn longest(count: usize) -> usize {
    64 * 1024 + count * 8 * 1024
}

/// The verdict for each of `count` messages. `hide` takes secrets out of a text.
pub(super) fn verdicts(
    body: &Option<Vec<u8>>,
    count: usize,
    longest: Duration,
    hide: impl Fn(&str) -> String,
) -> Vec<RunVerdict> {
    let read = body.as_deref().map(serde_json::from_slice::<Value>);
    let one = |answer: &String| {
        let text = hide(answer.trim());
        let (outcome, remark) = batch::answer(&terminal_escape::line(&text), longest);
        RunVerdict::new(outcome, remark)
    };
    // What frameworks send of a handler that returns nothing, or one thing: it is for all.
    let for_all = match &read {
        Some(Ok(Value::Array(_))) | None => None,
        Some(Ok(Value::String(word))) => Some(one(word)),
        Some(Ok(_)) => Some(RunVerdict::new(Outcome::Ack, None)),
        Some(Err(_)) => {
            let is_empty = body.as_deref().is_some_and(<[u8]>::is_empty);
            is_empty.then(|| RunVerdict::new(Outcome::Ack, None))
        }
    };
    if let Some(RunVerdict {
        outcome,
        mut remark,
        ..
    }) = for_all
    {
        return std::iter::repeat_with(|| RunVerdict::new(outcome.clone(), remark.take()))
            .take(count)
            .collect();
    }
    let answers = read.and_then(Result::ok);
    let answers = answers.and_then(|value| serde_json::from_value::<Vec<String>>(value).ok());
    let wrong = match answers {
        Some(answers) if answers.len() == count => return answers.iter().map(one).collect(),
        Some(answers) => format!(
            "the endpoint answered {} of {count} messages",
            answers.len()
        ),
        None => "the answer is JSON, and no array of strings, or it is too long or breaks off"
            .to_owned(),
    };
    let error = format!("{wrong}; return one string for each message, in their order");
    std::iter::repeat_with(|| batch::unanswered(error.clone()))
        .take(count)
        .collect()
}

#[cfg(test)]
mod tests {
    use reqwest::header::HeaderValue;
    use retryrmq::DAY;

    use super::*;

    fn of(body: &str) -> Vec<Outcome> {
        let all = verdicts(&Some(body.into()), 2, DAY, |text| {
            text.replace("s3cr3t", "***")
        });
        all.into_iter().map(|verdict| verdict.outcome).collect()
    }

    #[test]
    fn each_string_is_the_answer_for_its_message() {
        let all = of(r#"["ok", "park: s3cr3t\u001b[2J"]"#);
        assert_eq!(all[0], Outcome::Ack);
        let Outcome::Park { failure, .. } = &all[1] else {
            panic!("{all:?}")
        };
        assert!(failure.error.starts_with("***") && !failure.error.contains('\u{1b}'));
    }

    #[test]
    fn what_is_not_an_answer_for_each_is_a_failure_of_all() {
        for (body, said) in [
            ("[1, 2]", "no array"),
            (r#"["ok", "o"#, "breaks off"),
            (r#"["ok"]"#, "answered 1 of 2"),
            (r#"["ok", "ok", "ok"]"#, "answered 3 of 2"),
        ] {
            let all = of(body);
            assert_eq!(all.len(), 2);
            let Outcome::Retry { failure, .. } = &all[1] else {
                panic!("{all:?}")
            };
            assert!(failure.error.contains(said), "{failure:?}");
        }
    }

    #[test]
    fn what_frameworks_send_for_a_handler_without_answers_is_for_all() {
        for body in ["", "null", "{}", r#"{"stored": 2}"#, "true"] {
            assert_eq!(of(body), [Outcome::Ack, Outcome::Ack], "{body}");
        }
        let [Outcome::Park { .. }, Outcome::Park { .. }] = &of(r#""park: junk""#)[..] else {
            panic!("a word is for all")
        };
    }

    #[test]
    fn only_json_that_comes_with_success_has_answers() {
        let is = |status, kind: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
            is_for_each(status, &headers)
        };
        assert!(is(StatusCode::OK, "application/json"));
        assert!(is(StatusCode::OK, "Application/JSON; charset=utf-8"));
        assert!(!is(StatusCode::OK, "text/plain"));
        assert!(!is(StatusCode::BAD_REQUEST, "application/json"));
        assert!(!is_for_each(StatusCode::OK, &HeaderMap::new()));
    }
}
