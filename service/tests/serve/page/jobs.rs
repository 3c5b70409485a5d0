//! Jobs of the page: what they find, what they touch, and what ends them.

use std::collections::BTreeSet;

use retryrmq::Client;
use retryrmq_harness::{Amqp, QueueType, Version, eventually, on_brokers, on_brokers_where};
use tokio::{io::AsyncWriteExt, net::TcpStream};

use super::{Visitor, depth, link, people, value_of};
use crate::fixture::{DEADLINE, NativeConsumer, Replica, declare, id, policy};

#[tokio::test]
async fn a_job_takes_as_many_messages_as_the_history_may_know_by_name() {
    on_brokers(|broker| async move {
        let vhost = broker.vhost().await;
        let amqp = vhost.connect().await;
        let folder = tempfile::tempdir().unwrap();
        let text = "[defaults]\nrejected = \"park\"\n[history]\nrecords = 300000\n";
        let file = policy(&people(folder.path(), text));
        let replica = Replica::start(&vhost, Some(file.path())).await;
        declare(&amqp, "orders", QueueType::Quorum, true).await;
        let native = NativeConsumer::start(&vhost, "orders", |_| false).await;
        amqp.publish_with("orders", "a body", id("one")).await;
        depth(&amqp, "orders.parked", 1).await;
        drop(native);
        let mut ada = Visitor::with_token(&replica, "ada-0123456789abcdef").await;
        let page = ada.sees("/queues/orders", &["<b>1</b> parked"]).await;
        let group = link(&page, "/queues/orders/groups/");
        let page = ada
            .get(&format!("/queues/orders/groups/{group}"))
            .await
            .body;
        let (word, own) = (value_of(&page, "word"), value_of(&page, "mark"));
        // A browser escapes the commas alone. Here every letter is three, so this is as long as a form that names 300 000 messages.
        let others = (0..110_000).map(|number| format!("{number:016x}"));
        let marks: Vec<_> = others.chain([own]).collect();
        let marks = marks.join(",");
        let form = |count| {
            [
                ("word", word.as_str()),
                ("queue", "orders"),
                ("work", "drop"),
                ("marks", &marks),
                ("count", count),
            ]
        };
        // Whoever drops so many types their number.
        for count in ["", "110000"] {
            let refused = ada.post("/jobs", &form(count)).await;
            assert_eq!(refused.status, 400, "{}", refused.body);
            assert!(refused.body.contains("type 110001"), "{}", refused.body);
        }
        depth(&amqp, "orders.parked", 1).await;
        let (_, page) = ada.does(&form("110001")).await;
        assert!(page.contains(">dropped<"), "{page}");
        depth(&amqp, "orders.parked", 0).await;
        depth(&amqp, "orders.parked.dropped", 1).await;
        // It can be undone, once.
        let undo = [
            ("word", word.as_str()),
            ("queue", "orders"),
            ("work", "restore"),
            ("marks", &value_of(&page, "marks")),
        ];
        let (_, page) = ada.does(&undo).await;
        assert!(page.contains(">parked again<"), "{page}");
        depth(&amqp, "orders.parked", 1).await;
        depth(&amqp, "orders.parked.dropped", 0).await;
        ada.sees("/queues/orders", &["<b>1</b> parked"]).await;
        let (_, page) = ada.does(&undo).await;
        assert!(
            page.contains("not found among the dropped messages"),
            "{page}"
        );
        depth(&amqp, "orders.parked", 1).await;
        // Each has a result, also where a job comes to none of them.
        let form = [
            ("word", word.as_str()),
            ("queue", "never"),
            ("work", "drop"),
            ("marks", "0123456789abcdef"),
        ];
        let failed = ada.post("/jobs", &form).await.location;
        let words = ["id=\"state\">failed", "not attempted: the job ended first"];
        ada.sees(&failed, &words).await;
        assert!(replica.end().await.success());
    })
    .await;
}

#[tokio::test]
async fn the_page_counts_what_is_parked_in_the_broker_and_lists_queues_that_the_history_does_not_know()
 {
    on_brokers(|broker| async move {
        let vhost = broker.vhost().await;
        let amqp = vhost.connect().await;
        for (queue, count) in [("orders.parked", 3), ("bills.parked", 2)] {
            amqp.declare(queue, QueueType::Quorum).await;
            for _ in 0..count {
                amqp.publish_with(queue, "a body", id("strange")).await;
            }
        }
        let folder = tempfile::tempdir().unwrap();
        let text = "[defaults]\nrejected = \"park\"\n[orphans]\nevery = \"1s\"\n";
        let file = policy(&people(folder.path(), text));
        let management = ["--management", broker.management().url()];
        let replica = Replica::start_at(vhost.url(), Some(file.path()), &management).await;
        declare(&amqp, "orders", QueueType::Quorum, true).await;
        let native = NativeConsumer::start(&vhost, "orders", |_| false).await;
        amqp.publish_with("orders", "a body", id("one")).await;
        depth(&amqp, "orders.parked", 4).await;
        drop(native);
        let mut rea = Visitor::with_token(&replica, "rea-0123456789abcdef").await;
        let words = ["<b>4</b> parked in the broker, the history knows <b>1</b>"];
        rea.sees("/queues/orders", &words).await;
        rea.sees(
            "/queues/bills",
            &[
                "<b>2</b> parked in the broker",
                "The broker and the history differ",
            ],
        )
        .await;
        rea.sees("/", &[">bills</a>", ">1 known</small>", ">0 known</small>"])
            .await;
        assert!(replica.end().await.success());
    })
    .await;
}

#[tokio::test]
async fn a_job_finds_what_waits_by_an_earlier_policy_and_leaves_what_has_no_queue() {
    on_brokers(|broker| async move {
        let vhost = broker.vhost().await;
        let amqp = vhost.connect().await;
        let folder = tempfile::tempdir().unwrap();
        let before = "[defaults]\nretry = \"fixed(77m, retries=3)\"\n";
        let file = policy(&people(folder.path(), before));
        let replica = Replica::start(&vhost, Some(file.path())).await;
        declare(&amqp, "orders", QueueType::Quorum, true).await;
        let native = NativeConsumer::start(&vhost, "orders", |_| false).await;
        amqp.publish_with("orders", "a body", id("one")).await;
        let mut olga = Visitor::with_token(&replica, "olga-0123456789abcdef").await;
        let page = olga.sees("/waiting", &["one"]).await;
        let (word, mark) = (value_of(&page, "word"), value_of(&page, "mark"));
        drop(native);
        let now = people(folder.path(), "[defaults]\nretry = \"fixed(3s)\"\n");
        std::fs::write(file.path(), now).unwrap();
        replica.says("is loaded and in force").await;
        let cancel = [
            ("word", word.as_str()),
            ("queue", "orders"),
            ("work", "cancel"),
            ("mark", &mark),
        ];
        let page = olga.does(&cancel).await.1;
        assert!(page.contains("taken out and parked"), "{page}");
        depth(&amqp, "orders.parked", 1).await;

        // Sent to the intake it would be parked again, and say less than before.
        amqp.publish_with("retryrmq.handover", "a body", id("stray"))
            .await;
        let page = olga.sees("/queues/retryrmq.intake", &["no failure"]).await;
        let group = link(&page, "/queues/retryrmq.intake/groups/");
        let group = format!("/queues/retryrmq.intake/groups/{group}");
        let page = olga.get(&group).await.body;
        let replay = [
            ("word", word.as_str()),
            ("queue", "retryrmq.intake"),
            ("work", "replay"),
            ("marks", &value_of(&page, "mark")),
        ];
        let page = olga.does(&replay).await.1;
        assert!(page.contains("still parked: "), "{page}");
        assert!(page.contains("which its record names"), "{page}");
        olga.sees(&group, &["<b>1</b> parked", "no failure"]).await;
        assert!(replica.end().await.success());
    })
    .await;
}

#[tokio::test]
async fn a_browser_that_goes_away_doubles_nothing() {
    on_brokers(|broker| async move {
        const MANY: usize = 1_000;
        let vhost = broker.vhost().await;
        let amqp = vhost.connect().await;
        let folder = tempfile::tempdir().unwrap();
        let file = policy(&people(folder.path(), ""));
        let replica = Replica::start(&vhost, Some(file.path())).await;
        let client = Client::connect(vhost.url()).await.unwrap();
        park(&client, &amqp, MANY).await;
        let mut olga = Visitor::with_token(&replica, "olga-0123456789abcdef").await;
        let word = word_of(&mut olga).await;
        let scan = [
            ("word", word.as_str()),
            ("queue", "orders"),
            ("work", "scan"),
        ];
        olga.does(&scan).await;
        let page = olga.sees("/search?q=m0", &["/queues/orders/parked/"]).await;
        let path = format!(
            "/queues/orders/parked/{}",
            link(&page, "/queues/orders/parked/")
        );
        let cookies: Vec<_> = olga
            .cookies
            .iter()
            .map(|(n, v)| format!("{n}={v}"))
            .collect();
        // What was looked at once is put back as fresh copies at the next look: in the middle of that somebody closes the window.
        for _ in 0..10 {
            let mut stream = TcpStream::connect(replica.address()).await.unwrap();
            let asked = format!(
                "GET {path} HTTP/1.1\r\nhost: {}\r\ncookie: {}\r\n\r\n",
                replica.address(),
                cookies.join("; ")
            );
            stream.write_all(asked.as_bytes()).await.unwrap();
            eventually(DEADLINE, "the look has begun, or is over", || async {
                let consumers = amqp.consumers("orders.parked").await;
                consumers > Some(0) || stream.try_read(&mut [0]).is_ok()
            })
            .await;
        }
        olga.sees(&path, &["body 0"]).await;
        depth(&amqp, "orders.parked", u32::try_from(MANY).unwrap()).await;
        let mut browse = client.parked("orders").browse().await.unwrap();
        let mut names = BTreeSet::new();
        while let Some(record) = browse.next().await.unwrap() {
            let is_new = names.insert(record.message().message_id().unwrap().to_owned());
            assert!(is_new, "{names:?}");
        }
        browse.close().await.unwrap();
        assert_eq!(names.len(), MANY);
        client.close().await;
        assert!(replica.end().await.success());
    })
    .await;
}

#[tokio::test]
async fn the_end_of_the_service_leaves_nothing_in_two_places() {
    // So many waves that a slow machine does not come to the last one, before the service is asked to end.
    const MANY: u32 = 3_000;
    on_brokers(|broker| async move {
        let vhost = broker.vhost().await;
        let amqp = vhost.connect().await;
        let folder = tempfile::tempdir().unwrap();
        let file = policy(&people(folder.path(), ""));
        let replica = Replica::start(&vhost, Some(file.path())).await;
        let client = Client::connect(vhost.url()).await.unwrap();
        amqp.declare("orders", QueueType::Quorum).await;
        park(&client, &amqp, MANY as usize).await;
        let mut olga = Visitor::with_token(&replica, "olga-0123456789abcdef").await;
        let word = word_of(&mut olga).await;
        let scan = [
            ("word", word.as_str()),
            ("queue", "orders"),
            ("work", "scan"),
        ];
        olga.does(&scan).await;
        olga.sees("/queues/orders", &[&format!("<b>{MANY}</b> parked")])
            .await;
        let mut browse = client.parked("orders").browse().await.unwrap();
        let mut marks = Vec::new();
        while let Some(record) = browse.next().await.unwrap() {
            marks.push(record.mark);
        }
        browse.close().await.unwrap();
        let marks = marks.join(",");
        let replay = [
            ("word", word.as_str()),
            ("queue", "orders"),
            ("work", "replay"),
            ("marks", &marks),
        ];
        assert_eq!(olga.post("/jobs", &replay).await.status, 303);
        // A wave of copies is there, and its originals stay for two seconds.
        eventually(DEADLINE, "copies are there", || async {
            amqp.depth("orders").await.filter(|depth| *depth > 0)
        })
        .await;
        assert!(replica.end().await.success());
        let sent = amqp.depth("orders").await.unwrap();
        assert!(sent > 0 && sent < MANY, "{sent}: it ends between two waves");
        depth(&amqp, "orders.parked", MANY - sent).await;
        client.close().await;
    })
    .await;
}

#[tokio::test]
async fn who_looks_too_often_through_what_waits_is_told() {
    let counts = |broker: &retryrmq_harness::Broker| {
        broker.version() >= Version::V4_0 && broker.version() < Version::V4_3
    };
    on_brokers_where(counts, |broker| async move {
        let vhost = broker.vhost().await;
        let amqp = vhost.connect().await;
        let folder = tempfile::tempdir().unwrap();
        let file = policy(&people(
            folder.path(),
            "[defaults]\nrejected = \"retry\"\nretry = \"fixed(1h)\"\n",
        ));
        let replica = Replica::start(&vhost, Some(file.path())).await;
        declare(&amqp, "slow", QueueType::Quorum, true).await;
        let slow = NativeConsumer::start(&vhost, "slow", |_| false).await;
        amqp.publish_with("slow", "body", id("s0")).await;
        let mut olga = Visitor::with_token(&replica, "olga-0123456789abcdef").await;
        olga.sees("/waiting", &["s0"]).await;
        let word = word_of(&mut olga).await;
        let cancel = [
            ("word", word.as_str()),
            ("queue", "slow"),
            ("work", "cancel"),
            ("marks", "0123456789abcdef"),
        ];
        let mut last = String::new();
        for _ in 0..12 {
            let job = olga.post("/jobs", &cancel).await.location;
            last = eventually_over(&mut olga, &job).await;
        }
        assert!(last.contains("counts each time as a crash"), "{last}");
        drop(slow);
        assert!(replica.end().await.success());
    })
    .await;
}

/// The page of a job, once it has ended in any way.
async fn eventually_over(visitor: &mut Visitor, job: &str) -> String {
    let visitor = tokio::sync::Mutex::new(visitor);
    eventually(DEADLINE, "the job ends", || async {
        let body = visitor.lock().await.get(job).await.body;
        let is_over = ["done", "failed"]
            .iter()
            .any(|state| body.contains(&format!("id=\"state\">{state}")));
        is_over.then_some(body)
    })
    .await
}

/// Messages that somebody parked for `orders`, in its parking queue.
async fn park(client: &Client, amqp: &Amqp, count: usize) {
    client.parked("orders").make().await.unwrap();
    let all = (0..count).map(|number| {
        let properties = id(&format!("m{number}"));
        ("orders.parked", format!("body {number}"), properties)
    });
    amqp.publish_all("", all).await;
}

/// The word of a form of somebody's.
async fn word_of(visitor: &mut Visitor) -> String {
    value_of(&visitor.get("/").await.body, "word")
}
