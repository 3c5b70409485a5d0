//! Each channel against a real server.

use std::{
    sync::{Arc, Mutex, Once, atomic::Ordering},
    time::Duration,
};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use retryrmq_harness::eventually;
use retryrmq_serve::alerts::{Alerting, FileStateStore, NotifierMode, Silence, StateStore};
use ring::hmac;

use crate::{
    DEADLINE, FailingStateStore, WAKE, alone, configuration,
    mail::MailServer,
    parked,
    server::{Answer, Server},
};

#[tokio::test]
async fn first_burst_silence_and_resolve_are_told_to_every_kind_of_channel() {
    let (hook, slack, pager, manager) = (
        Server::start([]).await,
        Server::start([]).await,
        Server::start([]).await,
        Server::start([]).await,
    );
    let mails = MailServer::start(1).await;
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let secret = file("secret", "whsec_MDEyMzQ1Njc4OWFiY2RlZmdoaWprbG1u\n");
    let token = file("token", "t0ken-of-hook");
    let key = file("key", "routing-key-1");
    let slack_url = file("slack", &format!("{}/services/T0/B0/s3cret", slack.url));
    let password = file("password", "pa55word");
    let text = format!(
        r#"
quiet = "6s"
{WAKE}more_than = 5
[channels.hook.webhook]
url = "{}/in?x=1"
secret_file = "{secret}"
token_file = "{token}"
[channels.chat.slack]
url_file = "{slack_url}"
[channels.pager.pagerduty]
routing_key_file = "{key}"
url = "{}"
[channels.prom.alertmanager]
url = "{}/prefix/"
[channels.mail.smtp]
host = "127.0.0.1"
port = {}
security = "none"
user = "me"
password_file = "{password}"
from = "Retries <retries@example.com>"
to = ["a@example.com", "b@example.com"]
"#,
        hook.url, pager.url, manager.url, mails.port
    );
    let alerting = alone(&text, folder.path()).await;
    alerting.send(parked("f1"));
    let opened = hook.after(1).await.remove(0);
    for _ in 0..20 {
        alerting.send(parked("f1"));
    }
    hook.after(3).await; // quiet
    assert_eq!(hook.kinds()[..3], ["opened", "updated", "resolved"]);

    // The webhook: its token and its signature.
    assert_eq!(opened.path, "/in?x=1");
    assert_eq!(opened.headers["authorization"], "Bearer t0ken-of-hook");
    let signed = [
        opened.headers["webhook-id"].as_bytes(),
        b".",
        opened.headers["webhook-timestamp"].as_bytes(),
        b".",
        &opened.body,
    ]
    .concat();
    let key = hmac::Key::new(hmac::HMAC_SHA256, b"0123456789abcdefghijklmn");
    let expected = format!("v1,{}", BASE64_STANDARD.encode(hmac::sign(&key, &signed)));
    assert_eq!(opened.headers["webhook-signature"], expected.as_str());
    assert_eq!(opened.json()["error"], "no answer of f1");

    let chat = slack.after(3).await;
    assert_eq!(chat[0].path, "/services/T0/B0/s3cret");
    assert!(
        chat[0].json()["text"]
            .as_str()
            .unwrap()
            .starts_with("new: orders")
    );
    let incident = pager.after(3).await;
    assert_eq!(incident[0].path, "/v2/enqueue");
    let said = |index: usize, name: &str| incident[index].json()[name].clone();
    assert_eq!(said(0, "routing_key"), "routing-key-1");
    assert_eq!(
        [said(0, "event_action"), said(2, "event_action")],
        ["trigger", "resolve"]
    );
    assert_eq!(said(0, "dedup_key"), said(2, "dedup_key"));
    let alerts = manager.after(3).await;
    assert_eq!(alerts[0].path, "/prefix/api/v2/alerts");
    assert_eq!(alerts[0].json()[0]["labels"], alerts[2].json()[0]["labels"]);
    let mail = mails.after(3).await;
    assert_eq!(mail[0].to.len(), 2);
    let login = BASE64_STANDARD
        .decode(mail[0].login.as_ref().unwrap())
        .unwrap();
    assert_eq!(login, b"\0me\0pa55word");
    assert!(mail[0].text.contains("fingerprint: f1") && mail[2].text.contains("over: "));

    // Silenced, nothing; when it is lifted, a failure is one that comes again.
    let silence = Silence {
        id: "s".to_owned(),
        queue: Some("ord*".to_owned()),
        until: "2100-01-01T00:00:00Z".parse().unwrap(),
        author: "ann".to_owned(),
        why: "works on it".to_owned(),
        ..Silence::default()
    };
    alerting.silence(silence).unwrap();
    alerting.send(parked("f1"));
    eventually(DEADLINE, "it is silenced", || async {
        alerting.counts().silenced == 1
    })
    .await;
    assert_eq!(alerting.silences().len(), 1);
    alerting.end_silence("s").unwrap();
    alerting.send(parked("f1"));
    hook.after(4).await;
    assert_eq!(hook.requests()[3].json()["trigger"], "again");
    eventually(DEADLINE, "all channels have everything", || async {
        alerting
            .counts()
            .channels
            .values()
            .all(|channel| channel.sent >= 4)
    })
    .await;
    let counts = alerting.counts();
    assert_eq!(counts.failures["wake"], 23);
    assert!(counts.channels["mail"].retried >= 1);
    alerting.stop().await;
}

#[tokio::test]
async fn a_channel_that_hangs_or_fails_holds_up_no_other_and_is_tried_again() {
    let good = Server::start([]).await;
    let hangs = Server::start([Answer::Silence]).await;
    let fails = Server::start([
        Answer::Status(500),
        Answer::RetryAfter(429, 2),
        Answer::Status(503),
    ])
    .await;
    let folder = tempfile::tempdir().unwrap();
    let text = format!(
        r#"
{WAKE}
[channels.good.webhook]
url = "{}"
[channels.hangs.webhook]
url = "{}"
timeout = "5s"
[channels.fails.webhook]
url = "{}"
"#,
        good.url, hangs.url, fails.url
    );
    let alerting = alone(&text, folder.path()).await;
    alerting.send(parked("f1"));
    good.after(1).await;
    assert!(hangs.requests().len() <= 1);
    hangs.after(2).await;
    let tries = fails.after(4).await;
    assert!(
        tries[2].at - tries[1].at >= Duration::from_secs(2),
        "`Retry-After` is heeded"
    );
    // The same notice each time.
    assert!(tries.iter().all(|request| request.body == tries[0].body));
    eventually(DEADLINE, "all have it", || async {
        let channels = alerting.counts().channels;
        channels.values().all(|channel| channel.sent == 1) && channels["fails"].retried == 3
    })
    .await;
    eventually(DEADLINE, "nothing waits", || async {
        alerting.counts().outbox == 0
    })
    .await;
}

#[tokio::test]
async fn a_notice_that_its_receiver_cannot_take_holds_up_no_other() {
    let server = Server::chokes_on("poison").await;
    let folder = tempfile::tempdir().unwrap();
    let text = format!("{WAKE}[channels.a.webhook]\nurl = \"{}\"\n", server.url);
    let alerting = alone(&text, folder.path()).await;
    alerting.send(parked("poison"));
    server.after(2).await;
    for fine in ["f1", "f2"] {
        alerting.send(parked(fine));
    }
    eventually(DEADLINE, "all others arrive", || async {
        let counts = alerting.counts();
        match (counts.channels["a"].sent, counts.outbox) {
            (2, 1) => Ok(()),
            _ => Err(format!("{counts:?}")),
        }
    })
    .await;
    // Nor in what the next one begins with.
    alerting.stop().await;
    let alerting = alone(&text, folder.path()).await;
    alerting.send(parked("f3"));
    eventually(DEADLINE, "another one arrives", || async {
        alerting.counts().channels["a"].sent == 1
    })
    .await;
}

#[tokio::test]
async fn what_cannot_succeed_is_given_up_and_no_other_host_is_told() {
    let elsewhere = Server::start([]).await;
    let gone = Server::start([Answer::Status(404)]).await;
    let lures = Server::start([Answer::Redirect(307, format!("{}/steal", elsewhere.url))]).await;
    let moves = Server::start([Answer::Redirect(308, "/there".to_owned())]).await;
    let folder = tempfile::tempdir().unwrap();
    let text = format!(
        "{WAKE}[channels.gone.webhook]\nurl = \"{}\"\n[channels.lures.webhook]\nurl = \"{}\"\n[channels.moves.webhook]\nurl = \"{}\"\n",
        gone.url, lures.url, moves.url
    );
    let alerting = alone(&text, folder.path()).await;
    alerting.send(parked("f1"));
    alerting.send(parked("f2"));
    eventually(DEADLINE, "all of them had both", || async {
        let channels = alerting.counts().channels;
        channels
            .values()
            .all(|channel| channel.sent + channel.failed == 2)
    })
    .await;
    let channels = alerting.counts().channels;
    for (name, sent, failed) in [("gone", 1, 1), ("lures", 1, 1), ("moves", 2, 0)] {
        assert_eq!(
            (
                channels[name].sent,
                channels[name].failed,
                channels[name].retried
            ),
            (sent, failed, 0),
            "{name}"
        );
    }
    assert!(elsewhere.requests().is_empty());
    assert_eq!(moves.requests()[1].path, "/there");
}

#[tokio::test]
async fn no_secret_is_shown() {
    // A channel that cannot be reached, and one that repeats the URL in its answer.
    let echoes = Server::start([Answer::Status(500)]).await;
    let folder = tempfile::tempdir().unwrap();
    let text = format!(
        "{WAKE}[channels.echoes.webhook]\nurl = \"{}/s3cret-path?token=s3cret\"\n",
        echoes.url
    );
    let alerting = alone(&text, folder.path()).await;
    assert!(!format!("{alerting:?}").contains("s3cret"));
    alerting.send(parked("f1"));
    echoes.after(2).await;
    let lines = lines().lock().unwrap();
    let of_it = |line: &&String| line.contains("echoes") && line.contains("tried again");
    assert!(
        lines
            .iter()
            .find(of_it)
            .is_some_and(|line| line.contains("answers 500")),
        "{lines:?}"
    );
    let said = lines.join("\n");
    assert!(
        !said.contains("s3cret") && !said.contains('\u{1b}'),
        "{said}"
    );
}

/// Every line of the log of this process. Whoever listens to one thread alone may miss what another thread's call has switched off.
pub(crate) fn lines() -> &'static Mutex<Vec<String>> {
    static LINES: Mutex<Vec<String>> = Mutex::new(Vec::new());
    static LISTENS: Once = Once::new();
    LISTENS.call_once(|| tracing::subscriber::set_global_default(Lines(&LINES)).unwrap());
    &LINES
}

struct Lines(&'static Mutex<Vec<String>>);

impl tracing::Subscriber for Lines {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        metadata.target().starts_with("retryrmq")
    }
    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }
    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
    fn event(&self, event: &tracing::Event<'_>) {
        struct Text(String);
        impl tracing::field::Visit for Text {
            fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
                use std::fmt::Write;
                let _ = write!(self.0, " {}={value:?}", field.name());
            }
        }
        let mut text = Text(String::new());
        event.record(&mut text);
        self.0.lock().unwrap().push(text.0);
    }
    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}
}

#[tokio::test]
async fn what_was_not_delivered_is_delivered_by_the_next_one() {
    let server = Server::start([Answer::RetryAfter(503, 3_000)]).await;
    let folder = tempfile::tempdir().unwrap();
    let text = format!("{WAKE}[channels.a.webhook]\nurl = \"{}\"\n", server.url);
    let alerting = alone(&text, folder.path()).await;
    alerting.send(parked("f1"));
    server.after(1).await;
    alerting.stop().await;
    assert_eq!(server.requests().len(), 1);
    let alerting = alone(&text, folder.path()).await;
    let requests = server.after(2).await;
    assert_eq!(requests[0].body, requests[1].body);
    // The page is open, so the same failure is no news.
    alerting.send(parked("f1"));
    alerting.send(parked("f2"));
    server.after(3).await;
    assert_eq!(server.requests()[2].json()["fingerprint"], "f2");
}

#[tokio::test]
async fn nobody_is_told_anything_before_the_state_can_be_kept() {
    let server = Server::start([Answer::RetryAfter(503, 3_000)]).await;
    let folder = tempfile::tempdir().unwrap();
    let text = format!("{WAKE}[channels.a.webhook]\nurl = \"{}\"\n", server.url);
    let alerting = alone(&text, folder.path()).await;
    alerting.send(parked("f1"));
    server.after(1).await;
    alerting.stop().await;
    let memory = FailingStateStore::new(FileStateStore::new(folder.path().join("state")), false);
    memory.loads.store(true, Ordering::Relaxed);
    let kept = Arc::clone(&memory) as Arc<dyn StateStore>;
    let alerting = Alerting::start(&configuration(&text), kept, NotifierMode::Alone)
        .await
        .unwrap();
    alerting.send(parked("f2"));
    memory.has_failed(3).await;
    // What the last one could not deliver may be told again, because that is kept.
    let told = server.requests().into_iter();
    assert!(
        told.map(|one| one.json())
            .all(|told| told["fingerprint"] == "f1")
    );
    memory.saves.store(true, Ordering::Relaxed);
    let told = server.notices(2).await;
    assert_eq!(
        [&told[0]["fingerprint"], &told[1]["fingerprint"]],
        ["f1", "f2"]
    );
    alerting.stop().await;
}

#[tokio::test]
async fn a_storm_never_blocks_and_what_is_lost_is_counted() {
    let server = Server::start([]).await;
    let folder = tempfile::tempdir().unwrap();
    let text = format!(
        "most_groups = 50\n{WAKE}[channels.a.webhook]\nurl = \"{}\"\n",
        server.url
    );
    let alerting = alone(&text, folder.path()).await;
    let many = 60_000;
    for n in 0..many {
        alerting.send(parked(&format!("f{}", n % 200)));
    }
    eventually(DEADLINE, "all are counted", || async {
        let counts = alerting.counts();
        let failures = counts.failures.values().sum::<u64>();
        match failures + counts.dropped {
            sum if sum == many => Ok(()),
            _ => Err(format!("{counts:?}")),
        }
    })
    .await;
    let counts = alerting.counts();
    assert!(counts.groups <= 51 && counts.ungrouped > 0 && counts.lost <= counts.dropped);
    assert_eq!(counts.received, many);
}

#[tokio::test]
async fn what_cannot_start_says_why() {
    let bad = configuration("[channels.a.slack]\nurl_file = \"/no/such/file\"");
    let why = bad.check().unwrap_err();
    assert!(
        why.contains("[alerts.channels.a]") && why.contains("/no/such/file"),
        "{why}"
    );
}
