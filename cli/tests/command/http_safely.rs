//! `consume --http`: what is signed, what is hidden, what is refused, and how it ends.

use base64::{Engine, prelude::BASE64_STANDARD};
use ring::hmac;
use rustix::process::Signal;
use serde_json::json;

use crate::{
    endpoint::{Endpoint, Seen},
    fixture::{Fixture, PARKED, QUEUE, finish, retryrmq},
    http::{consume, of, one_broker, send, tempfile},
};

const KEY: &[u8] = b"0123456789abcdefghijklmn";

/// As a receiver checks it.
#[track_caller]
fn verify(seen: &Seen, key: &[u8]) -> bool {
    let [id, time, signatures] = ["webhook-id", "webhook-timestamp", "webhook-signature"]
        .map(|name| seen.header(name).unwrap());
    assert!(
        !id.contains('.') && time.parse::<u64>().is_ok(),
        "{id} {time}"
    );
    let signed = [format!("{id}.{time}.").as_bytes(), &seen.body].concat();
    let key = hmac::Key::new(hmac::HMAC_SHA256, key);
    signatures.split(' ').any(|signature| {
        let given = BASE64_STANDARD
            .decode(signature.strip_prefix("v1,").unwrap())
            .unwrap();
        hmac::verify(&key, &signed, &given).is_ok()
    })
}

#[tokio::test]
async fn a_signature_is_what_a_receiver_expects() {
    let fixture = Fixture::with_queue(&one_broker()).await;
    let endpoint = Endpoint::new().await;
    let folder = tempfile();
    let file = folder.join("secret");
    let encoded = BASE64_STANDARD.encode(KEY);
    std::fs::write(&file, format!("whsec_{encoded}\n")).unwrap();
    send(
        &fixture,
        "order.7",
        &json!({"status": 500, "body": "naïve"}),
    )
    .await;
    let options = [
        "--retry=fixed(10ms)",
        "--sign-secret-file",
        file.to_str().unwrap(),
    ];
    consume(&fixture, 2, &endpoint.url("/"), &options)
        .await
        .exits(0);
    let another = b"another-key-of-24-bytes!";
    let second = BASE64_STANDARD.encode(another);
    std::fs::write(&file, format!("whsec_{second}\nwhsec_{encoded}\n")).unwrap();
    fixture.amqp.publish(QUEUE, "").await;
    consume(&fixture, 1, &endpoint.url("/"), &options)
        .await
        .exits(0);
    let seen = endpoint.seen();
    assert!(seen.len() >= 3 && seen.iter().all(|seen| verify(seen, KEY)));
    assert!(!verify(&seen[0], another) && seen.iter().any(|seen| verify(seen, another)));
    for seen in &seen[..2] {
        assert_eq!(
            seen.header("webhook-id"),
            Some("order%2E7"),
            "the same at each attempt"
        );
    }
    std::fs::remove_dir_all(&folder).unwrap();
}

#[tokio::test]
async fn a_token_is_read_again_when_its_file_changes() {
    let fixture = Fixture::with_queue(&one_broker()).await;
    let endpoint = Endpoint::new().await;
    let folder = tempfile();
    let file = folder.join("token");
    std::fs::write(&file, "first-token\n").unwrap();
    let (url, path) = (endpoint.url("/"), file.to_str().unwrap());
    let running = fixture.start_with(&[
        "consume",
        QUEUE,
        "--dlx",
        "--http",
        &url,
        "--bearer-file",
        path,
    ]);
    fixture.amqp.publish(QUEUE, "").await;
    endpoint.has_seen(1).await;
    let next = folder.join("next");
    std::fs::write(&next, "second-token").unwrap();
    std::fs::rename(&next, &file).unwrap();
    fixture.amqp.publish(QUEUE, "").await;
    endpoint.has_seen(2).await;
    let tokens: Vec<_> = endpoint
        .seen()
        .iter()
        .map(|seen| seen.header("authorization").unwrap().to_owned())
        .collect();
    assert_eq!(tokens, ["Bearer first-token", "Bearer second-token"]);
    running.signal(Signal::TERM);
    assert_eq!(running.end().await.code(), Some(0));
    std::fs::remove_dir_all(&folder).unwrap();
}

#[tokio::test]
async fn no_secret_is_shown_even_where_the_endpoint_repeats_it() {
    let fixture = Fixture::with_queue(&one_broker()).await;
    let endpoint = Endpoint::new().await;
    let folder = tempfile();
    let file = folder.join("token");
    std::fs::write(&file, "t0k3n-of-ours").unwrap();
    let plain = endpoint.url("/p4th?api_key=k3y-of-ours");
    let login = plain.replace("http://", "http://us3r:p4ssw0rd-of-ours@");
    let bearer = ["--bearer-file", file.to_str().unwrap()];
    let header = ["--header", "X-Api-Key: k3y-of-ours"];
    for (url, options) in [(&plain, &bearer[..]), (&login, &[]), (&plain, &header)] {
        for verbose in ["-vv", "--json"] {
            let echo = "you sent $authorization, k3y-of-ours and p4ssw0rd-of-ours".replace(
                "p4ssw0rd-of-ours",
                if url.contains('@') {
                    "p4ssw0rd-of-ours"
                } else {
                    "nothing"
                },
            );
            send(&fixture, "a", &json!({"status": 422, "body": echo})).await;
            let arguments = [
                &[
                    verbose,
                    "consume",
                    QUEUE,
                    "--dlx",
                    "--count=1",
                    "--http",
                    url,
                ],
                options,
            ]
            .concat();
            let done = fixture.run(&arguments).await.exits(0);
            fixture.holds(PARKED, 1).await;
            let parked = fixture.amqp.take(PARKED).await.unwrap();
            let error = parked.header_text("x-retry-error").unwrap();
            let stack = parked
                .header_text("x-retry-error-stack")
                .unwrap_or_default();
            assert!(
                error.contains("you sent") && error.contains("***"),
                "{error}"
            );
            for secret in ["t0k3n", "k3y-of", "p4ssw0rd", "p4th", "dXMzcjp"] {
                for text in [&done.out, &done.err, &error, &stack] {
                    assert!(!text.contains(secret), "{secret}: {text}");
                }
            }
        }
    }
    std::fs::remove_dir_all(&folder).unwrap();
}

#[tokio::test]
async fn asked_to_end_it_waits_for_answers() {
    let fixture = Fixture::with_queue(&one_broker()).await;
    let endpoint = Endpoint::new().await;
    for _ in 0..3 {
        fixture
            .amqp
            .publish(QUEUE, json!({"hold": true}).to_string())
            .await;
    }
    let mut running =
        fixture.start_with(&["consume", QUEUE, "--dlx", "--http", &endpoint.url("/")]);
    endpoint.has_seen(1).await;
    running.drain(Signal::TERM).await;
    endpoint.go_on();
    assert_eq!(running.end().await.code(), Some(0));
    assert_eq!(endpoint.seen().len(), 1);
    fixture.holds(QUEUE, 2).await;
}

#[tokio::test]
async fn the_end_of_the_drain_and_a_second_signal_abort_requests() {
    for (option, second, code) in [("--drain=100ms", false, 0), ("--drain=10m", true, 130)] {
        let fixture = Fixture::with_queue(&one_broker()).await;
        let endpoint = Endpoint::new().await;
        fixture
            .amqp
            .publish(QUEUE, json!({"hold": true}).to_string())
            .await;
        let url = endpoint.url("/");
        let mut running = fixture.start_with(&[
            "consume",
            QUEUE,
            "--dlx",
            option,
            "--timeout=10m",
            "--http",
            &url,
        ]);
        endpoint.has_seen(1).await;
        running.drain(Signal::TERM).await;
        if second {
            running.signal(Signal::TERM);
        }
        assert_eq!(running.end().await.code(), Some(code));
        fixture.holds(QUEUE, 1).await;
        assert_eq!(fixture.amqp.depth(PARKED).await, Some(0));
    }
}

#[tokio::test]
async fn with_a_pause_an_endpoint_that_is_down_costs_few_attempts() {
    let fixture = Fixture::with_queue(&one_broker()).await;
    for n in 0..30 {
        send(&fixture, &n.to_string(), &json!({})).await;
    }
    let pause = "--pause=share=0.5, window=4, for=1h";
    let mut running = fixture.start_with(&[
        "--json",
        "consume",
        QUEUE,
        "--dlx",
        "--retry=fixed(1h)",
        "--prefetch=1",
        pause,
        "--http",
        "http://127.0.0.1:1/",
    ]);
    while !running.line().await.contains("\"paused\"") {}
    running.signal(Signal::TERM);
    assert_eq!(running.end().await.code(), Some(0));
    let waiting = fixture.amqp.depth("orders.retry.3600000").await.unwrap();
    assert!((4..10).contains(&waiting), "{waiting} of 30");
}

#[tokio::test]
async fn options_that_make_no_sense_are_refused_with_a_sentence() {
    let folder = tempfile();
    let path = |name: &str, text: &str| {
        let path = folder.join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let (short, empty, good) = (
        path("short", "whsec_c2hvcnQ="),
        path("empty", ""),
        path("good", "t0k3n"),
    );
    let missing = folder.join("missing").to_str().unwrap().to_owned();
    let http = ["--http", "http://127.0.0.1:1/"];
    let https = ["--http", "https://127.0.0.1:1/"];
    let cases: [(&[&str], &[&str], &str); 22] = [
        (
            &http,
            &["--", "true"],
            "--http and a command after `--` cannot be combined",
        ),
        (&http, &["--grace=5s"], "--grace is for commands"),
        (
            &["--bearer-file", &good],
            &["--", "true"],
            "--bearer-file needs --http",
        ),
        (
            &["--park-status=400"],
            &["--", "true"],
            "--park-status needs --http",
        ),
        (&["--http", "orders"], &[], "it is not a URL"),
        (&["--http", "ftp://u:s3cr3t@h/"], &[], "its scheme is `ftp`"),
        (&["--http", "http://u:s3cr3t@:80"], &[], "it is not a URL"),
        (
            &http,
            &["--park-status=200"],
            "`200` is not a status that can park",
        ),
        (&http, &["--park-status=soon"], "`soon` is not a status"),
        (&http, &["--header=s3cr3t"], "it has no colon"),
        (&http, &["--header=a b: s3cr3t"], "not a valid header name"),
        (&http, &["--header=a: s3cr3t\n"], ""),
        (
            &http,
            &["--header=a: s3cr3t\u{1}"],
            "must be printable ASCII",
        ),
        (
            &http,
            &["--header=Retryrmq-Attempt: 7"],
            "is set by retryrmq",
        ),
        (&http, &["--header=a: 1", "--header=A: 2"], "is given twice"),
        (&http, &["--bearer-file", &missing], "cannot be read"),
        (&http, &["--bearer-file", &empty], "it is empty"),
        (
            &http,
            &["--bearer-file", &good, "--header=authorization: s3cr3t"],
            "cannot be combined",
        ),
        (&http, &["--sign-secret-file", &short], "it has 5 bytes"),
        (&http, &["--http-ca", &good], "--http-ca is for https://"),
        (&https, &["--http-ca", &good], "it holds no certificate"),
        (&https, &["--http2-prior-knowledge"], "is for http://"),
    ];
    for (first, rest, words) in cases {
        let mut command = retryrmq();
        command.args(["--url", "amqp://127.0.0.1:1", "consume", QUEUE, "--dlx"]);
        command.args(first).args(rest);
        let done = finish(command, None).await;
        if words.is_empty() {
            // Trimmed, and so well; then there is no broker.
            done.exits(4);
            continue;
        }
        let done = done.exits(2);
        assert!(
            done.err.contains(words) && !done.err.contains("s3cr3t"),
            "{rest:?}: {done:#?}"
        );
    }
    std::fs::remove_dir_all(&folder).unwrap();
}

#[tokio::test]
async fn without_dlx_a_failure_is_left_to_the_queue() {
    let fixture = Fixture::with_queue(&one_broker()).await;
    let endpoint = Endpoint::new().await;
    send(
        &fixture,
        "a",
        &json!({"status": 503, "headers": {"retry-after": "60"}}),
    )
    .await;
    let url = endpoint.url("/");
    let done = fixture
        .run(&["--json", "consume", QUEUE, "--count=1", "--http", &url])
        .await
        .exits(0);
    of(&done, "rejected", "a");
}
