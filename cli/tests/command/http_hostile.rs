//! `consume --http` and endpoints that misbehave: each costs an attempt at most, in bounded time.

use retryrmq_harness::eventually;
use serde_json::json;

use crate::{
    endpoint::{Misbehaviour, rude},
    fixture::{Fixture, QUEUE},
    http::{consume, of, one_broker},
};

const OPTIONS: [&str; 2] = ["--retry=fixed(2h)", "--timeout=10s"];

#[tokio::test]
async fn an_answer_that_is_none_is_a_failure_with_a_type_of_its_own() {
    let fixture = Fixture::with_queue(&one_broker()).await;
    let url = rude(Misbehaviour::Echo).await;
    let long = format!("HTTP/1.1 200 OK\r\nx: {}\r\n\r\n", "y".repeat(2_000_000));
    let answers: [&[u8]; 6] = [
        b"",
        b"SSH-2.0-OpenSSH\r\n",
        b"HTTP/1.1 999999 ?\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nx: \x00\r\n\r\n",
        long.as_bytes(),
        b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n",
    ];
    for answer in answers {
        fixture.amqp.publish(QUEUE, answer).await;
    }
    let done = consume(&fixture, answers.len(), &url, &OPTIONS)
        .await
        .exits(0);
    let retried = done.events("retried");
    assert_eq!(retried.len(), answers.len(), "{done:#?}");
    for event in retried {
        let error = event["error"].as_str().unwrap();
        assert!(error.contains("gave no answer that is HTTP"), "{error}");
    }
    for message in fixture.amqp.drain("orders.retry.7200000").await {
        assert_eq!(
            message.header_text("x-retry-error-type").unwrap(),
            "NoAnswer"
        );
    }
}

#[tokio::test]
async fn odd_bytes_in_headers_and_a_body_that_breaks_off_do_not_matter() {
    let fixture = Fixture::with_queue(&one_broker()).await;
    let url = rude(Misbehaviour::Echo).await;
    for (answer, event) in [
        (
            &b"HTTP/1.1 200 \xff\xfe\r\nx: \xff\x9b\r\n\r\n"[..],
            "handled",
        ),
        (
            b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\ncut",
            "handled",
        ),
        (
            b"HTTP/1.1 503 X\r\nretry-after: \xff\r\ncontent-length: 100\r\n\r\n\x1b[2Jcut",
            "retried",
        ),
        (b"HTTP/1.1 307 X\r\nlocation: \xff\r\n\r\n", "retried"),
        (b"HTTP/1.1 307 X\r\n\r\n", "retried"),
    ] {
        fixture.amqp.publish(QUEUE, answer).await;
        let done = consume(&fixture, 1, &url, &OPTIONS).await.exits(0);
        assert_eq!(done.events(event).len(), 1, "{done:#?}");
        assert!(!done.err.contains('\u{1b}') && !done.out.contains('\u{1b}'));
    }
}

#[tokio::test]
async fn a_body_without_an_end_and_an_answer_before_its_time_are_bounded() {
    let fixture = Fixture::with_queue(&one_broker()).await;
    for (how, event, error) in [
        (Misbehaviour::Endless(200), "handled", ""),
        (Misbehaviour::Endless(500), "retried", "HTTP 500: xxx"),
        (Misbehaviour::Stuck(200), "handled", ""),
        (Misbehaviour::Stuck(500), "retried", "HTTP 500: abc"),
    ] {
        fixture.amqp.publish(QUEUE, "").await;
        let done = consume(&fixture, 1, &rude(how).await, &OPTIONS)
            .await
            .exits(0);
        let [event] = &done.events(event)[..] else {
            panic!("{how:?}: {done:#?}")
        };
        let said = event["error"].as_str().unwrap_or_default();
        assert!(said.starts_with(error) && said.len() < 500, "{said}");
    }
    fixture.amqp.publish(QUEUE, vec![7; 4_000_000]).await;
    let done = consume(&fixture, 1, &rude(Misbehaviour::Hasty).await, &OPTIONS)
        .await
        .exits(0);
    let error = done.events("retried")[0]["error"]
        .as_str()
        .unwrap()
        .to_owned();
    assert!(
        error.starts_with("HTTP 413") || error.contains("no answer that is HTTP"),
        "{error}"
    );
}

#[tokio::test]
async fn who_answers_too_slowly_has_failed() {
    let fixture = Fixture::with_queue(&one_broker()).await;
    crate::http::send(&fixture, "a", &json!({})).await;
    let url = rude(Misbehaviour::Slow).await;
    let options = ["--retry=fixed(2h)", "--timeout=500ms"];
    let done = consume(&fixture, 1, &url, &options).await.exits(0);
    let error = of(&done, "retried", "a")["error"]
        .as_str()
        .unwrap()
        .to_owned();
    assert_eq!(
        error,
        format!(
            "the request took longer than 500ms: {} has not answered",
            url.trim_end_matches('/')
        )
    );
    eventually(crate::fixture::DEADLINE, "the copy", || async {
        let waiting = fixture.amqp.take("orders.retry.7200000").await;
        waiting
            .map(|message| {
                assert_eq!(
                    message.header_text("x-retry-error-type").unwrap(),
                    "HandlerTimeout"
                )
            })
            .ok_or("not yet")
    })
    .await;
}
