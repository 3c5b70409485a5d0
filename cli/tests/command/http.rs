//! `consume --http`: each message is a POST, and the answer decides.

use axum::http::Version;
use retryrmq::types::{AMQPValue, FieldTable};
use retryrmq_harness::{Broker, brokers, free_port, lapin::BasicProperties, on_brokers};
use serde_json::{Value, json};

use crate::{
    endpoint::{Authority, Endpoint},
    fixture::{CommandOutput, Fixture, PARKED, QUEUE},
};

/// For what has nothing to do with the version.
pub(crate) fn one_broker() -> Broker {
    brokers().pop().expect("a broker")
}

/// Consumes `count` messages over HTTP, with JSON output.
pub(crate) async fn consume(
    fixture: &Fixture,
    count: usize,
    url: &str,
    options: &[&str],
) -> CommandOutput {
    let count = format!("--count={count}");
    let mut arguments = vec!["--json", "consume", QUEUE, "--dlx", &count, "--http", url];
    arguments.extend(options);
    fixture.run(&arguments).await
}

pub(crate) async fn send(fixture: &Fixture, id: &str, body: &Value) {
    let properties = BasicProperties::default().with_message_id(id.into());
    fixture
        .amqp
        .publish_with(QUEUE, body.to_string(), properties)
        .await;
}

#[track_caller]
pub(crate) fn of(done: &CommandOutput, event: &str, id: &str) -> Value {
    let found = done
        .events(event)
        .into_iter()
        .find(|line| line["message_id"] == id);
    found.unwrap_or_else(|| panic!("no {event} of {id}: {done:#?}"))
}

#[tokio::test]
async fn every_answer_has_its_outcome() {
    on_brokers(|broker| async move {
        let fixture = Fixture::with_queue(&broker).await;
        let endpoint = Endpoint::new().await;
        let date = "Fri, 31 Dec 1999 23:59:59 GMT";
        for (id, answer) in [
            ("ok", json!({"status": 200, "body": "thanks"})),
            ("empty", json!({"status": 204})),
            ("park", json!({"status": 422, "body": "no such\ncustomer"})),
            (
                "error",
                json!({"status": 500, "body": "{\"error\": \"boom\"}"}),
            ),
            ("missing", json!({"status": 404})),
            (
                "later",
                json!({"status": 429, "headers": {"retry-after": "3600"}}),
            ),
            (
                "date",
                json!({"status": 503, "headers": {"retry-after": date}}),
            ),
            (
                "much",
                json!({"status": 503, "headers": {"retry-after": "99999999999999"}}),
            ),
            (
                "soon",
                json!({"status": 503, "headers": {"retry-after": "soon"}}),
            ),
            (
                "elsewhere",
                json!({"status": 500, "headers": {"retry-after": "3600"}}),
            ),
            (
                "moved",
                json!({"status": 302, "headers": {"location": "/moved"}}),
            ),
            (
                "says-after",
                json!({"headers": {"retryrmq-outcome": "retry-after: 1h"}}),
            ),
            (
                "says-defer",
                json!({"status": 500, "headers": {"retryrmq-outcome": "defer: 1h"}}),
            ),
            (
                "says-park",
                json!({"headers": {"retryrmq-outcome": "park: not ours"}}),
            ),
            (
                "says-what",
                json!({"headers": {"retryrmq-outcome": "whatever"}}),
            ),
        ] {
            send(&fixture, id, &answer).await;
        }
        let options = [
            "--retry=fixed(2h)",
            "--concurrency=8",
            "--rule=error=HTTP 404 => fixed(3h)",
        ];
        let done = consume(&fixture, 15, &endpoint.url("/orders"), &options)
            .await
            .exits(0);
        for id in ["ok", "empty"] {
            of(&done, "handled", id);
        }
        for (id, error) in [
            ("park", "HTTP 422: no such customer"),
            ("says-park", "not ours"),
        ] {
            let parked = of(&done, "parked", id);
            assert_eq!(
                (&parked["error"], &parked["reason"]),
                (&json!(error), &json!("requested"))
            );
        }
        for (id, error, delay) in [
            ("error", "HTTP 500: {\"error\": \"boom\"}", 7_200_000),
            ("missing", "HTTP 404 Not Found", 10_800_000),
            ("later", "HTTP 429 Too Many Requests", 3_600_000),
            ("date", "HTTP 503 Service Unavailable", 1),
            ("much", "HTTP 503 Service Unavailable", 86_400_000),
            ("soon", "HTTP 503 Service Unavailable", 7_200_000),
            ("elsewhere", "HTTP 500 Internal Server Error", 7_200_000),
            ("says-after", "HTTP 200 OK", 3_600_000),
            ("says-what", "HTTP 200 OK", 7_200_000),
        ] {
            let retried = of(&done, "retried", id);
            assert_eq!(
                (&retried["error"], &retried["delay_ms"]),
                (&json!(error), &json!(delay)),
                "{id}"
            );
        }
        assert_eq!(of(&done, "deferred", "says-defer")["delay_ms"], 3_600_000);
        let moved = of(&done, "retried", "moved");
        assert!(
            moved["error"].as_str().unwrap().contains("is not followed"),
            "{moved}"
        );
        assert!(
            done.err.contains("--max-retry-after") && done.err.contains("Retry-After: soon"),
            "{done:#?}"
        );
        fixture.holds(PARKED, 2).await;
        let waiting = fixture.amqp.drain("orders.retry.7200000").await;
        let error = waiting
            .iter()
            .find(|message| message.id() == Some("error"))
            .unwrap();
        assert_eq!(error.header_text("x-retry-error-type").unwrap(), "HTTP 500");
        assert!(endpoint.seen().iter().all(|seen| seen.path == "/orders"));
    })
    .await;
}

#[tokio::test]
async fn statuses_that_park_are_the_operators_choice() {
    let fixture = Fixture::with_queue(&one_broker()).await;
    let endpoint = Endpoint::new().await;
    for (id, status) in [("a", 400), ("b", 404), ("c", 422)] {
        send(&fixture, id, &json!({ "status": status })).await;
    }
    let options = ["--park-status=400,404", "--retry=fixed(2h)"];
    let done = consume(&fixture, 3, &endpoint.url("/"), &options)
        .await
        .exits(0);
    of(&done, "parked", "a");
    of(&done, "parked", "b");
    of(&done, "retried", "c");
    send(&fixture, "d", &json!({"status": 422})).await;
    let done = consume(&fixture, 1, &endpoint.url("/"), &["--park-status=none"])
        .await
        .exits(0);
    of(&done, "retried", "d");
}

#[tokio::test]
async fn a_request_shows_the_message() {
    let fixture = Fixture::with_queue(&one_broker()).await;
    let endpoint = Endpoint::new().await;
    let mut headers = FieldTable::default();
    headers.insert(
        "kind".into(),
        AMQPValue::LongString("Grüße \"x\"\r\nX-Evil: 1".into()),
    );
    headers.insert("n".into(), AMQPValue::LongLongInt(i64::MIN));
    headers.insert(
        "large".into(),
        AMQPValue::LongString("x".repeat(60_000).into()),
    );
    let properties = BasicProperties::default()
        .with_message_id("50% ü ".into())
        .with_content_type("application/json; charset=utf-8".into())
        .with_content_encoding("identity".into())
        .with_correlation_id("c-1".into())
        .with_headers(headers);
    let body = json!({"status": 500, "body": "wälder"})
        .to_string()
        .into_bytes();
    fixture.amqp.publish_with(QUEUE, &body, properties).await;
    let options = [
        "--retry=fixed(100ms)",
        "--header=X-Tenant: a",
        "--header",
        "accept: text/plain",
    ];
    consume(&fixture, 2, &endpoint.url("/a?b=c"), &options)
        .await
        .exits(0);
    let seen = endpoint.seen();
    assert_eq!(seen.len(), 2);
    for (first, seen) in seen.iter().enumerate().map(|(at, seen)| (at == 0, seen)) {
        assert_eq!(seen.body, body);
        for (name, value) in [
            ("content-type", Some("application/json; charset=utf-8")),
            ("content-encoding", Some("identity")),
            ("retryrmq-queue", Some(QUEUE)),
            ("retryrmq-attempt", Some(if first { "1" } else { "2" })),
            ("retryrmq-retries", Some(if first { "0" } else { "1" })),
            ("retryrmq-exchange", Some("")),
            ("retryrmq-routing-key", Some(QUEUE)),
            ("retryrmq-message-id", Some("50%25 %C3%BC%20")),
            (
                "retryrmq-last-error",
                (!first).then_some("HTTP 500: w%C3%A4lder"),
            ),
            ("x-tenant", Some("a")),
            ("accept", Some("text/plain")),
            ("x-evil", None),
            ("authorization", None),
            ("webhook-id", None),
        ] {
            assert_eq!(seen.header(name), value, "{name}");
        }
        assert_eq!(seen.header("retryrmq-first-failed-at").is_some(), !first);
        let headers = seen.json("retryrmq-headers");
        assert_eq!(
            (&headers["kind"], &headers["n"], headers.get("large")),
            (&json!("Grüße \"x\"\r\nX-Evil: 1"), &json!(i64::MIN), None)
        );
        assert_eq!(seen.header("retryrmq-headers-cut"), Some("1"));
        assert_eq!(seen.json("retryrmq-properties")["correlation_id"], "c-1");
        let size: usize = seen
            .headers
            .iter()
            .map(|(name, value)| name.as_str().len() + value.len())
            .sum();
        assert!(size < 12 * 1024, "{size}");
        assert!(seen.header("user-agent").unwrap().starts_with("retryrmq/"));
    }
}

#[tokio::test]
async fn any_body_arrives_as_it_is() {
    let fixture = Fixture::with_queue(&one_broker()).await;
    let endpoint = Endpoint::new().await;
    let bodies = [Vec::new(), vec![0, 0xff, b'\r', b'\n'], vec![7; 3_000_000]];
    for body in &bodies {
        fixture.amqp.publish(QUEUE, body).await;
    }
    let done = consume(&fixture, 3, &endpoint.url("/"), &[]).await.exits(0);
    assert_eq!(done.events("handled").len(), 3, "{done:#?}");
    let seen: Vec<Vec<u8>> = endpoint.seen().into_iter().map(|seen| seen.body).collect();
    assert!(seen == bodies, "in order, byte by byte");
    let first = &endpoint.seen()[0];
    assert_eq!(
        first.header("content-type"),
        Some("application/octet-stream")
    );
    assert_eq!(
        first.header("content-length"),
        Some("0"),
        "some servers insist on it"
    );
    fixture.holds(QUEUE, 0).await;
}

#[tokio::test]
async fn a_redirect_keeps_the_body_and_stays_with_its_origin() {
    let fixture = Fixture::with_queue(&one_broker()).await;
    let (endpoint, other) = (Endpoint::new().await, Endpoint::new().await);
    let elsewhere = format!("{}?k=s3cr3t", other.url("/moved"));
    for (id, status, location) in [
        ("same", 308, "/moved"),
        ("temporary", 307, &endpoint.url("/moved")),
        ("other", 307, &elsewhere),
        ("get", 303, "/moved"),
        ("loop", 307, "/orders"),
    ] {
        send(
            &fixture,
            id,
            &json!({"status": status, "headers": {"location": location}}),
        )
        .await;
    }
    let folder = tempfile();
    let token = folder.join("token");
    std::fs::write(&token, "t0k3n-of-ours").unwrap();
    let options = [
        "--retry=fixed(2h)",
        "--bearer-file",
        token.to_str().unwrap(),
    ];
    let done = consume(&fixture, 5, &endpoint.url("/orders"), &options)
        .await
        .exits(0);
    for id in ["same", "temporary"] {
        of(&done, "handled", id);
    }
    for (id, words) in [
        ("other", "HTTP 307: a redirect to http://127.0.0.1"),
        ("get", "HTTP 303: a redirect is not followed"),
        ("loop", "more than 5 redirects"),
    ] {
        let error = of(&done, "retried", id)["error"]
            .as_str()
            .unwrap()
            .to_owned();
        assert!(
            error.contains(words) && !error.contains("s3cr3t"),
            "{error}"
        );
    }
    assert!(other.seen().is_empty(), "nobody else hears of it");
    let moved: Vec<_> = endpoint
        .seen()
        .into_iter()
        .filter(|seen| seen.path == "/moved")
        .collect();
    assert_eq!(moved.len(), 2);
    assert!(moved.iter().all(|seen| !seen.body.is_empty()
        && seen.header("authorization") == Some("Bearer t0k3n-of-ours")));
    std::fs::remove_dir_all(&folder).unwrap();
}

#[tokio::test]
async fn tls_is_checked_and_http_2_is_agreed_on() {
    let fixture = Fixture::with_queue(&one_broker()).await;
    let authority = Authority::new();
    let endpoint = Endpoint::with_tls(&authority).await;
    let folder = tempfile();
    let (good, bad) = (folder.join("ca.pem"), folder.join("other.pem"));
    std::fs::write(&good, authority.pem()).unwrap();
    std::fs::write(&bad, Authority::new().pem()).unwrap();
    for _ in 0..3 {
        fixture.amqp.publish(QUEUE, "").await;
    }
    let (good, bad) = (good.to_str().unwrap(), bad.to_str().unwrap());
    let options = ["--http-ca", good, "--concurrency=2"];
    let done = consume(&fixture, 2, &endpoint.url("/"), &options)
        .await
        .exits(0);
    assert_eq!(done.events("handled").len(), 2, "{done:#?}");
    assert!(
        endpoint
            .seen()
            .iter()
            .all(|seen| seen.version == Version::HTTP_2)
    );
    let options = ["--http-ca", bad, "--retry=fixed(2h)"];
    let done = consume(&fixture, 1, &endpoint.url("/"), &options)
        .await
        .exits(0);
    let error = done.events("retried")[0]["error"]
        .as_str()
        .unwrap()
        .to_owned();
    assert!(error.starts_with("TLS with https://localhost:"), "{error}");
    let waiting = fixture.amqp.take("orders.retry.7200000").await.unwrap();
    assert_eq!(
        waiting.header_text("x-retry-error-type").unwrap(),
        "TlsFailed"
    );
    assert_eq!(endpoint.seen().len(), 2);
    std::fs::remove_dir_all(&folder).unwrap();
}

#[tokio::test]
async fn http_2_without_tls_and_keep_alive_are_there() {
    let fixture = Fixture::with_queue(&one_broker()).await;
    let endpoint = Endpoint::new().await;
    for option in [&["--http2-prior-knowledge"][..], &[]] {
        fixture.amqp.publish(QUEUE, "").await;
        consume(&fixture, 1, &endpoint.url("/"), option)
            .await
            .exits(0);
    }
    let versions: Vec<Version> = endpoint.seen().iter().map(|seen| seen.version).collect();
    assert_eq!(versions, [Version::HTTP_2, Version::HTTP_11]);
}

#[tokio::test]
async fn an_endpoint_that_is_down_is_a_failure_like_any_other() {
    let fixture = Fixture::with_queue(&one_broker()).await;
    let address = format!("127.0.0.1:{}", free_port());
    send(&fixture, "a", &json!({})).await;
    let url = format!("http://{address}/");
    let done = consume(&fixture, 1, &url, &["--retry=fixed(200ms)"])
        .await
        .exits(0);
    let retried = of(&done, "retried", "a");
    assert_eq!(
        retried["error"],
        format!("cannot connect to http://{address}: Connection refused")
    );
    let endpoint = Endpoint::at(&address).await;
    let done = consume(&fixture, 1, &url, &[]).await.exits(0);
    assert_eq!(of(&done, "handled", "a")["attempt"], 2);
    assert_eq!(
        endpoint.seen()[0].header("retryrmq-last-error").unwrap(),
        format!("cannot connect to http://{address}: Connection refused")
    );
}

/// A folder of this test's own.
pub(crate) fn tempfile() -> std::path::PathBuf {
    use std::sync::atomic::{AtomicUsize, Ordering};
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let name = format!(
        "http-{}-{}",
        std::process::id(),
        NEXT.fetch_add(1, Ordering::Relaxed)
    );
    let folder = std::path::PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::create_dir(&folder).unwrap();
    folder
}
