//! The page for people, by HTTP, on real brokers.

use std::{collections::BTreeSet, path::Path};

use retryrmq::{Client, Failed, Failure, Outcome, ParkReason};
use retryrmq_harness::{
    Amqp, QueueType, Version, eventually, on_every_broker, on_every_broker_where,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use crate::{
    browser::Browser,
    stage::{Native, PATIENCE, Replica, declare, id, policy, text},
};

/// Somebody with a browser, as far as a page without scripts can tell.
pub(crate) struct Visitor {
    address: String,
    cookies: Vec<(String, String)>,
}

pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) location: String,
    pub(crate) body: String,
}

impl Visitor {
    pub(crate) fn new(replica: &Replica) -> Self {
        Self {
            address: replica.address().to_owned(),
            cookies: Vec::new(),
        }
    }

    /// Signs in with a token.
    pub(crate) async fn with_token(replica: &Replica, token: &str) -> Self {
        let mut visitor = Self::new(replica);
        let word = visitor.get("/sign-in").await.word();
        let answer = visitor
            .post("/sign-in", &[("word", &word), ("token", token)])
            .await;
        assert_eq!((answer.status, answer.location.as_str()), (303, "/"));
        visitor
    }

    pub(crate) async fn get(&mut self, path: &str) -> Answer {
        self.ask("GET", path, "", "").await
    }

    pub(crate) async fn post(&mut self, path: &str, form: &[(&str, &str)]) -> Answer {
        let origin = format!("origin: http://{}\r\n", self.address);
        self.send(path, form, &origin).await
    }

    async fn send(&mut self, path: &str, form: &[(&str, &str)], more: &str) -> Answer {
        let escaped = |text: &str| -> String {
            let bytes = text.bytes();
            bytes.map(|byte| format!("%{byte:02x}")).collect()
        };
        let pairs = form.iter();
        let pairs: Vec<_> = pairs
            .map(|(name, value)| format!("{name}={}", escaped(value)))
            .collect();
        let more = format!("{more}content-type: application/x-www-form-urlencoded\r\n");
        self.ask("POST", path, &more, &pairs.join("&")).await
    }

    async fn ask(&mut self, method: &str, path: &str, more: &str, body: &str) -> Answer {
        let mut stream = TcpStream::connect(&self.address).await.unwrap();
        let cookies: Vec<_> = self
            .cookies
            .iter()
            .map(|(n, v)| format!("{n}={v}"))
            .collect();
        let asked = format!(
            "{method} {path} HTTP/1.1\r\nhost: {}\r\nconnection: close\r\ncookie: {}\r\n{more}content-length: {}\r\n\r\n{body}",
            self.address,
            cookies.join("; "),
            body.len()
        );
        stream.write_all(asked.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").expect("an answer");
        let mut location = String::new();
        for line in head.lines() {
            let Some((name, value)) = line.split_once(": ") else {
                continue;
            };
            match name {
                "location" => value.clone_into(&mut location),
                "set-cookie" => {
                    assert!(value.contains("HttpOnly; SameSite=Strict"), "{value}");
                    let (name, rest) = value.split_once('=').unwrap();
                    let value = rest.split(';').next().unwrap_or_default();
                    self.cookies.retain(|(of, _)| of != name);
                    self.cookies.push((name.to_owned(), value.to_owned()));
                }
                _ => {}
            }
        }
        let status = head.split(' ').nth(1).and_then(|text| text.parse().ok());
        Answer {
            status: status.expect("a status"),
            location,
            body: body.to_owned(),
        }
    }

    /// Loads a page until it has these words.
    pub(crate) async fn sees(&mut self, path: &str, words: &[&str]) -> String {
        let visitor = tokio::sync::Mutex::new(self);
        eventually(PATIENCE, &format!("{path} says {words:?}"), || async {
            let answer = visitor.lock().await.get(path).await;
            match words.iter().all(|words| answer.body.contains(words)) {
                true => Ok(answer.body),
                false => Err(format!("{} {}", answer.status, answer.body)),
            }
        })
        .await
    }

    /// Confirms what a form asks for, begins it, and waits for its end. The page of the job.
    pub(crate) async fn does(&mut self, form: &[(&str, &str)]) -> (String, String) {
        let began = self.post("/jobs", form).await;
        assert_eq!(began.status, 303, "{}", began.body);
        let job = began.location;
        let page = self.sees(&job, &["id=\"state\">done"]).await;
        (job, page)
    }
}

impl Answer {
    /// The word of its forms.
    pub(crate) fn word(&self) -> String {
        value_of(&self.body, "word")
    }
}

/// The value of the first field of this name.
pub(crate) fn value_of(page: &str, name: &str) -> String {
    let from = format!("name=\"{name}\" value=\"");
    let (_, rest) = page
        .split_once(&from)
        .unwrap_or_else(|| panic!("{name}: {page}"));
    rest.split('"').next().unwrap().to_owned()
}

/// The end of the first address that begins so.
fn link(page: &str, from: &str) -> String {
    let begin = format!("href=\"{from}");
    let (_, rest) = page
        .split_once(&begin)
        .unwrap_or_else(|| panic!("{from}: {page}"));
    rest.split('"').next().unwrap().to_owned()
}

/// A policy file with three people, whose tokens are their names, twice as long as need be.
pub(crate) fn people(folder: &Path, more: &str) -> String {
    let mut text = more.to_owned();
    for (name, role) in [("rea", "reader"), ("olga", "operator"), ("ada", "admin")] {
        let file = folder.join(name);
        std::fs::write(&file, format!("{name}-0123456789abcdef\n")).unwrap();
        let file = file.display();
        text.push_str(&format!(
            "\n[[page.tokens]]\nname = \"{name}\"\nrole = \"{role}\"\nfile = \"{file}\"\n"
        ));
    }
    text
}

async fn depth(amqp: &Amqp, queue: &str, wanted: u32) {
    eventually(PATIENCE, &format!("{queue} holds {wanted}"), || async {
        match amqp.depth(queue).await {
            Some(depth) if depth == wanted => Ok(()),
            depth => Err(format!("{depth:?}")),
        }
    })
    .await;
}

/// The metrics that a file names.
fn metrics_in(file: &str) -> BTreeSet<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../examples/serve")
        .join(file);
    let text = std::fs::read_to_string(path).unwrap();
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let words = words.filter(|word| word.starts_with("retryrmq_"));
    words.map(str::to_owned).collect()
}

const POLICY: &str = r#"
[defaults]
rejected = "park"

[[rules]]
queue = "slow"
retry = "fixed(1h, retries=3)"

[alerts]
tick = "200ms"

[[page.masks]]
queue = "orders"
fields = ["card.number"]
headers = ["x-user"]
"#;

#[tokio::test]
async fn a_job_takes_as_many_messages_as_the_history_may_know_by_name() {
    on_every_broker(|broker| async move {
        let vhost = broker.vhost().await;
        let amqp = vhost.connect().await;
        let folder = tempfile::tempdir().unwrap();
        let text = "[defaults]\nrejected = \"park\"\n[history]\nrecords = 300000\n";
        let file = policy(&people(folder.path(), text));
        let replica = Replica::start(&vhost, Some(file.path())).await;
        declare(&amqp, "orders", QueueType::Quorum, true).await;
        let native = Native::start(&vhost, "orders", |_| false).await;
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
        let form = [
            ("word", word.as_str()),
            ("queue", "orders"),
            ("work", "drop"),
            ("marks", &marks.join(",")),
        ];
        let (_, page) = ada.does(&form).await;
        assert!(page.contains(">dropped<"), "{page}");
        depth(&amqp, "orders.parked", 0).await;
        // Each has a result, also where a job comes to none of them.
        let form = [
            ("word", word.as_str()),
            ("queue", "never"),
            ("work", "drop"),
            ("marks", "0123456789abcdef"),
        ];
        let failed = ada.post("/jobs", &form).await.location;
        let words = [
            "id=\"state\">failed",
            "nothing was done: the job ended before",
        ];
        ada.sees(&failed, &words).await;
        assert!(replica.end().await.success());
    })
    .await;
}

#[tokio::test]
async fn people_see_what_died_and_only_those_who_may_do_something_about_it() {
    on_every_broker(|broker| async move {
        let vhost = broker.vhost().await;
        let amqp = vhost.connect().await;
        let folder = tempfile::tempdir().unwrap();
        let file = policy(&people(folder.path(), POLICY));
        let replica = Replica::start(&vhost, Some(file.path())).await;
        for queue in ["orders", "slow"] {
            declare(&amqp, queue, QueueType::Quorum, true).await;
        }
        // What was replayed is handled.
        let handled = |seen: &crate::stage::Seen| {
            let headers = seen.properties.headers().as_ref();
            headers.is_some_and(|headers| headers.inner().contains_key("x-retry-replays"))
        };
        let orders = Native::start(&vhost, "orders", handled).await;
        let slow = Native::start(&vhost, "slow", |_| false).await;
        let publish = async |queue: &str, name: &str| {
            let mut table = retryrmq::types::FieldTable::default();
            for (header, value) in [
                ("x-user", "ann"),
                ("x-tenant", "gold"),
                ("traceparent", "00-aa-bb-01"),
            ] {
                table.insert(header.into(), text(value));
            }
            let body =
                r#"{"card": {"number": "4711-0815"}, "basket": "tulips", "password": "pw-1"}"#;
            amqp.publish_with(queue, body, id(name).with_headers(table))
                .await;
        };
        for number in 0..5 {
            publish("orders", &format!("m{number}")).await;
        }
        publish("slow", "s0").await;

        // Who is not signed in sees nothing; a wrong token is nobody's.
        let mut stranger = Visitor::new(&replica);
        for path in ["/", "/queues/orders", "/jobs"] {
            let answer = stranger.get(path).await;
            assert_eq!((answer.status, answer.location.as_str()), (303, "/sign-in"));
        }
        let word = stranger.get("/sign-in").await.word();
        let wrong = [("word", word.as_str()), ("token", "rea-0123456789abcdeX")];
        assert_eq!(stranger.post("/sign-in", &wrong).await.status, 403);

        // A reader sees groups and one message, masked, and may do nothing.
        let mut rea = Visitor::with_token(&replica, "rea-0123456789abcdef").await;
        let page = rea.sees("/queues/orders", &["<b>5</b> parked"]).await;
        let fingerprint = link(&page, "/queues/orders/groups/");
        let group = format!("/queues/orders/groups/{fingerprint}");
        let page = rea.get(&group).await.body;
        assert!(page.contains("a consumer of orders rejected it"), "{page}");
        assert!(!page.contains("value=\"replay\""), "{page}");
        let parked = format!(
            "/queues/orders/parked/{}",
            link(&page, "/queues/orders/parked/")
        );
        let page = rea.get(&parked).await.body;
        for (words, there) in [
            ("tulips", true),
            ("4711", false),
            ("pw-1", false),
            (">ann<", false),
            ("gold", true),
        ] {
            assert_eq!(page.contains(words), there, "{words}: {page}");
        }
        // Another site's page has it asked for, and nothing is looked at.
        let image = "sec-fetch-site: cross-site\r\nsec-fetch-dest: image\r\n";
        let answer = rea.ask("GET", &parked, image, "").await;
        assert_eq!(answer.status, 403);
        assert!(
            answer.body.contains("Another site") && answer.body.contains(&parked),
            "{}",
            answer.body
        );
        let click = "sec-fetch-site: cross-site\r\nsec-fetch-dest: document\r\nsec-fetch-user: ?1\r\n";
        // Somebody follows a link: the browser has kept the cookies back, asks again, and has lost none of them.
        let cookies = std::mem::take(&mut rea.cookies);
        let page = rea.ask("GET", &parked, click, "").await.body;
        let again = "http-equiv=\"refresh\" content=\"0\"";
        assert!(page.contains(again) && rea.cookies.is_empty(), "{page}");
        rea.cookies = cookies;
        let page = rea.get(&parked).await.body;
        assert!(page.contains("tulips"), "{page}");
        rea.sees("/search?q=00-AA-bb", &["m0", "m4"]).await;
        let word = rea.get(&group).await;
        let word = value_of(&word.body, "word");
        let asked = [
            ("word", word.as_str()),
            ("queue", "orders"),
            ("fingerprint", &fingerprint),
            ("work", "replay"),
        ];
        for path in ["/confirm", "/jobs"] {
            let refused = rea
                .post(
                    path,
                    &[&asked[..], &[("marks", "0123456789abcdef")]].concat(),
                )
                .await;
            assert_eq!(refused.status, 403, "{}", refused.body);
            assert!(refused.body.contains("your role"), "{}", refused.body);
        }

        // An operator: only by a form of this page, exactly what was confirmed, and no drop.
        let mut olga = Visitor::with_token(&replica, "olga-0123456789abcdef").await;
        let word = value_of(&olga.get(&group).await.body, "word");
        let asked = [
            ("word", word.as_str()),
            ("queue", "orders"),
            ("fingerprint", &fingerprint),
            ("work", "replay"),
        ];
        let confirmed = olga.post("/confirm", &asked).await.body;
        assert!(confirmed.contains("Replay 5 messages?"), "{confirmed}");
        let marks = value_of(&confirmed, "marks");
        publish("orders", "m5").await;
        olga.sees("/queues/orders", &["<b>6</b> parked"]).await;
        let form = [
            ("word", word.as_str()),
            ("queue", "orders"),
            ("work", "replay"),
            ("marks", &marks),
        ];
        for forged in ["", "origin: http://evil.example\r\n"] {
            let refused = olga.send("/jobs", &form, forged).await;
            assert_eq!(refused.status, 403);
        }
        let other = value_of(&rea.get(&group).await.body, "word");
        let forged = [
            ("word", other.as_str()),
            ("queue", "orders"),
            ("work", "replay"),
            ("marks", &marks),
        ];
        assert_eq!(olga.post("/jobs", &forged).await.status, 403);
        depth(&amqp, "orders.parked", 6).await;
        let (replayed, page) = olga.does(&form).await;
        assert_eq!(page.matches("replayed to orders").count(), 5, "{page}");
        depth(&amqp, "orders.parked", 1).await;
        olga.sees("/queues/orders", &["<b>1</b> parked", "olga replayed"])
            .await;
        let again = olga.does(&form).await.1;
        assert_eq!(again.matches("it is not there").count(), 5, "{again}");
        let rest = olga.get("/queues/orders").await.body;
        assert!(rest.contains("<b>1</b> parked"), "{rest}");

        // A search in bodies, and what was parked without the service.
        let client = Client::connect(vhost.url()).await.unwrap();
        let failed = Failed::new(
            "orders",
            "",
            "orders",
            id("lib"),
            b"{\"basket\": \"roses\"}",
        )
        .unwrap();
        let outcome = Outcome::Park {
            reason: ParkReason::Fatal,
            failure: Failure::new("no such customer").of_type("shop.Unknown"),
        };
        client
            .retrier("orders")
            .unwrap()
            .after(&failed, &outcome)
            .await
            .unwrap();
        let form = [
            ("word", word.as_str()),
            ("queue", "orders"),
            ("work", "search"),
            ("text", "ROSES"),
        ];
        let page = olga.does(&form).await.1;
        assert!(page.contains("1 found") && page.contains(">lib<"), "{page}");
        olga.sees("/queues/orders", &["<b>2</b> parked", "shop.Unknown"])
            .await;
        let form = [
            ("word", word.as_str()),
            ("queue", "orders"),
            ("work", "search"),
            ("text", "4711-0815"),
        ];
        let page = olga.does(&form).await.1;
        assert!(
            page.contains("0 found"),
            "what is masked is not found: {page}"
        );

        // What waits is taken out, and parked.
        let page = olga.sees("/waiting", &["s0", "in 60 min"]).await;
        let mark = value_of(&page, "mark");
        let cancel = [
            ("word", word.as_str()),
            ("queue", "slow"),
            ("work", "cancel"),
            ("mark", &mark),
        ];
        let confirmed = olga.post("/confirm", &cancel).await.body;
        assert!(
            confirmed.contains("Take out and park 1 message?"),
            "{confirmed}"
        );
        let page = olga.does(&cancel).await.1;
        assert!(page.contains("taken out and parked"), "{page}");
        depth(&amqp, "slow.parked", 1).await;
        olga.sees("/queues/slow", &["<b>1</b> parked", "<b>0</b> waiting"])
            .await;

        // What operators noted about the group.
        let note = format!(r#"{{"fingerprint": "{fingerprint}", "hold": true, "owner": "team-shop", "by": "ana@shop", "at": 1}}"#);
        let notes = client.parked("orders.notes");
        notes.make().await.unwrap();
        let message = retryrmq::Publish::to_queue(notes.name(), note);
        client.publish(message).await.unwrap();
        olga.sees(&group, &["on hold, owner team-shop (by ana@shop)"]).await;

        // A silence; and only an admin drops.
        let silence = [
            ("word", word.as_str()),
            ("queue", "orders"),
            ("work", "silence"),
            ("fingerprint", &fingerprint),
            ("length", "1h"),
            ("why", "known"),
        ];
        olga.does(&silence).await;
        olga.sees(&group, &["silenced by olga"]).await;
        let page = olga.get(&group).await.body;
        let mark = value_of(&page, "mark");
        let drop_it = |word: &str| -> [(&'static str, String); 4] {
            [
                ("word", word.to_owned()),
                ("queue", "orders".to_owned()),
                ("work", "drop".to_owned()),
                ("marks", mark.clone()),
            ]
        };
        let asked = drop_it(&word);
        let asked: Vec<_> = asked.iter().map(|(n, v)| (*n, v.as_str())).collect();
        assert_eq!(olga.post("/jobs", &asked).await.status, 403);
        let mut ada = Visitor::with_token(&replica, "ada-0123456789abcdef").await;
        let asked = drop_it(&value_of(&ada.get(&group).await.body, "word"));
        let asked: Vec<_> = asked.iter().map(|(n, v)| (*n, v.as_str())).collect();
        let page = ada.does(&asked).await.1;
        assert!(page.contains(">dropped<"), "{page}");
        depth(&amqp, "orders.parked", 1).await;

        // What the dashboard and the rules name exists.
        let (_, metrics) = replica.page("/metrics").await;
        for file in ["grafana-dashboard.json", "alert-rules.yml"] {
            let names = metrics_in(file);
            assert!(names.len() > 3, "{names:?}");
            // Of these there is no line before something goes wrong; tests of the metrics have them.
            let late = |name: &&String| {
                name.starts_with("retryrmq_serve_store_") || *name == "retryrmq_serve_held"
            };
            for name in names.iter().filter(|name| !late(name)) {
                assert!(metrics.contains(name.as_str()), "{file}: {name}\n{metrics}");
            }
        }

        // Another one knows all of it, from the history.
        replica.kill().await;
        let replica = Replica::start(&vhost, Some(file.path())).await;
        let mut ada = Visitor::with_token(&replica, "ada-0123456789abcdef").await;
        ada.sees(
            "/queues/orders",
            &["<b>1</b> parked", "ada dropped", "olga replayed"],
        )
        .await;
        let page = ada.sees(&replayed, &["done elsewhere"]).await;
        assert_eq!(page.matches("replayed to orders").count(), 5, "{page}");
        drop((orders, slow));
        assert!(replica.end().await.success());

        // Without a word about people: this machine alone, no body, no button. And no page at all, where nobody wants one.
        let file = policy("");
        let replica = Replica::start(&vhost, Some(file.path())).await;
        let mut guest = Visitor::new(&replica);
        let page = guest
            .sees("/queues/orders", &["<b>1</b> parked", "read only"])
            .await;
        assert!(!page.contains("<button"), "{page}");
        let group = format!(
            "/queues/orders/groups/{}",
            link(&page, "/queues/orders/groups/")
        );
        let page = guest.get(&group).await.body;
        assert!(!page.contains("<button"), "{page}");
        assert!(replica.end().await.success());
        let replica = Replica::start_at(vhost.url(), None, &["--no-ui"]).await;
        assert_eq!(replica.page("/").await.0, 404);
        assert!(replica.end().await.success());
    })
    .await;
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

#[tokio::test]
async fn a_job_finds_what_waits_by_an_earlier_policy_and_leaves_what_has_no_queue() {
    on_every_broker(|broker| async move {
        let vhost = broker.vhost().await;
        let amqp = vhost.connect().await;
        let folder = tempfile::tempdir().unwrap();
        let before = "[defaults]\nretry = \"fixed(77m, retries=3)\"\n";
        let file = policy(&people(folder.path(), before));
        let replica = Replica::start(&vhost, Some(file.path())).await;
        declare(&amqp, "orders", QueueType::Quorum, true).await;
        let native = Native::start(&vhost, "orders", |_| false).await;
        amqp.publish_with("orders", "a body", id("one")).await;
        let mut olga = Visitor::with_token(&replica, "olga-0123456789abcdef").await;
        let page = olga.sees("/waiting", &["one"]).await;
        let (word, mark) = (value_of(&page, "word"), value_of(&page, "mark"));
        drop(native);
        let now = people(folder.path(), "[defaults]\nretry = \"fixed(3s)\"\n");
        std::fs::write(file.path(), now).unwrap();
        replica.says("holds from now on").await;
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
    on_every_broker(|broker| async move {
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
        let look = [
            ("word", word.as_str()),
            ("queue", "orders"),
            ("work", "look"),
        ];
        olga.does(&look).await;
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
            eventually(PATIENCE, "the look has begun", || async {
                amqp.consumers("orders.parked")
                    .await
                    .filter(|count| *count > 0)
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
    on_every_broker(|broker| async move {
        let vhost = broker.vhost().await;
        let amqp = vhost.connect().await;
        let folder = tempfile::tempdir().unwrap();
        let file = policy(&people(folder.path(), ""));
        let replica = Replica::start(&vhost, Some(file.path())).await;
        let client = Client::connect(vhost.url()).await.unwrap();
        amqp.declare("orders", QueueType::Quorum).await;
        park(&client, &amqp, 100).await;
        let mut olga = Visitor::with_token(&replica, "olga-0123456789abcdef").await;
        let word = word_of(&mut olga).await;
        let look = [
            ("word", word.as_str()),
            ("queue", "orders"),
            ("work", "look"),
        ];
        olga.does(&look).await;
        olga.sees("/queues/orders", &["<b>100</b> parked"]).await;
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
        eventually(PATIENCE, "copies are there", || async {
            amqp.depth("orders").await.filter(|depth| *depth > 0)
        })
        .await;
        assert!(replica.end().await.success());
        let sent = amqp.depth("orders").await.unwrap();
        assert!(
            sent > 0 && sent < 100,
            "{sent}: it ends before the second wave"
        );
        depth(&amqp, "orders.parked", 100 - sent).await;
        client.close().await;
    })
    .await;
}

#[tokio::test]
async fn who_looks_too_often_through_what_waits_is_told() {
    let counts = |broker: &retryrmq_harness::Broker| {
        broker.version() >= Version::V4_0 && broker.version() < Version::V4_3
    };
    on_every_broker_where(counts, |broker| async move {
        let vhost = broker.vhost().await;
        let amqp = vhost.connect().await;
        let folder = tempfile::tempdir().unwrap();
        let file = policy(&people(
            folder.path(),
            "[defaults]\nrejected = \"retry\"\nretry = \"fixed(1h)\"\n",
        ));
        let replica = Replica::start(&vhost, Some(file.path())).await;
        declare(&amqp, "slow", QueueType::Quorum, true).await;
        let slow = Native::start(&vhost, "slow", |_| false).await;
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
        assert!(last.contains("counts each look as a crash"), "{last}");
        drop(slow);
        assert!(replica.end().await.success());
    })
    .await;
}

/// The page of a job, once it has ended in any way.
async fn eventually_over(visitor: &mut Visitor, job: &str) -> String {
    let visitor = tokio::sync::Mutex::new(visitor);
    eventually(PATIENCE, "the job ends", || async {
        let body = visitor.lock().await.get(job).await.body;
        let is_over = ["done", "failed"]
            .iter()
            .any(|state| body.contains(&format!("id=\"state\">{state}")));
        is_over.then_some(body)
    })
    .await
}

#[tokio::test]
async fn a_stream_that_was_made_anew_is_read_again() {
    on_every_broker(|broker| async move {
        let vhost = broker.vhost().await;
        let amqp = vhost.connect().await;
        let file = policy("[defaults]\nrejected = \"park\"\n");
        let replica = Replica::start(&vhost, Some(file.path())).await;
        declare(&amqp, "orders", QueueType::Quorum, true).await;
        let orders = Native::start(&vhost, "orders", |_| false).await;
        for number in 0..6 {
            amqp.publish_with("orders", "body", id(&format!("m{number}")))
                .await;
        }
        let mut guest = Visitor::new(&replica);
        guest.sees("/queues/orders", &["<b>6</b> parked"]).await;
        // Another replica is faster, or an operator has made it again.
        let client = Client::connect(vhost.url()).await.unwrap();
        amqp.delete("retryrmq.serve.history").await;
        let day = std::time::Duration::from_secs(86_400);
        client
            .stream("retryrmq.serve.history", day, 10_000_000)
            .await
            .unwrap();
        amqp.publish_with("orders", "body", id("late")).await;
        guest.sees("/queues/orders", &["<b>7</b> parked"]).await;
        client.close().await;
        drop(orders);
        assert!(replica.end().await.success());
    })
    .await;
}

#[tokio::test]
async fn without_a_stream_happenings_do_not_heap_up_with_their_bodies() {
    on_every_broker_where(
        |broker| broker.version() >= Version::V4_3,
        |broker| async move {
            let vhost = broker.vhost().await;
            let amqp = vhost.connect().await;
            amqp.declare("taken", QueueType::Classic).await;
            let file = policy("[defaults]\nrejected = \"park\"\n\n[history]\nstream = \"taken\"\n");
            let replica = Replica::start(&vhost, Some(file.path())).await;
            declare(&amqp, "orders", QueueType::Quorum, true).await;
            let orders = Native::start(&vhost, "orders", |_| false).await;
            let all = (0..4_300).map(|number| ("orders", "body", id(&format!("m{number}"))));
            amqp.publish_all("", all).await;
            replica.counts("retryrmq_serve_parked_total", 4_300).await;
            // Those that do not fit are dropped; 4096 have room.
            let (_, metrics) = replica.page("/metrics").await;
            assert!(
                metrics.contains("retryrmq_serve_happenings_dropped_total 0\n"),
                "{metrics}"
            );
            drop(orders);
            assert!(replica.end().await.success());
        },
    )
    .await;
}

#[tokio::test]
async fn in_a_real_browser_somebody_replays_with_clicks_and_nothing_is_wider_than_a_phone() {
    on_every_broker_where(|broker| broker.version() >= Version::V4_3, |broker| async move {
        let Some(mut browser) = Browser::start().await else {
            eprintln!("skipped: there is no Chromium here (apt-get install chromium)");
            return;
        };
        let vhost = broker.vhost().await;
        let amqp = vhost.connect().await;
        let folder = tempfile::tempdir().unwrap();
        let rules = "[defaults]\nrejected = \"park\"\n\n[[rules]]\nqueue = \"mail.*\"\nretry = \"fixed(10m)\"\n";
        let file = policy(&people(folder.path(), rules));
        let replica = Replica::start(&vhost, Some(file.path())).await;
        for queue in ["orders", "mail.out"] {
            declare(&amqp, queue, QueueType::Quorum, true).await;
        }
        let handled = |seen: &crate::stage::Seen| {
            let headers = seen.properties.headers().as_ref();
            headers.is_some_and(|headers| headers.inner().contains_key("x-retry-replays"))
        };
        let orders = Native::start(&vhost, "orders", handled).await;
        let mails = Native::start(&vhost, "mail.out", |_| false).await;
        for number in 0..12 {
            let body = format!(r#"{{"order": {number}, "customer": {{"id": 7, "name": "Ann"}}, "token": "t"}}"#);
            amqp.publish_with("orders", body, id(&format!("order-4711-{number}"))).await;
            amqp.publish_with("mail.out", "Hello", id(&format!("mail-{number}"))).await;
        }
        let mut ada = Visitor::with_token(&replica, "ada-0123456789abcdef").await;
        ada.sees("/queues/orders", &["<b>12</b> parked"]).await;
        ada.sees("/queues/mail.out", &["<b>12</b> waiting"]).await;
        let base = format!("http://{}", replica.address());
        browser.looks(1_200, "light").await;
        browser.goes_to(&base).await;
        browser.sees("Your token").await;
        browser.focuses("token").await;
        browser.picture("sign-in").await;
        browser.clicks("#token").await;
        browser.types("ada-0123456789abcdef").await;
        browser.enters().await;
        browser.sees("orders").await;
        // A link on another site leads to the page, not to signing in once more.
        let link = format!("data:text/html,<a id=there href={base}/queues/mail.out?a=b>there</a>");
        browser.goes_to(&link).await;
        browser.sees("there").await;
        browser.clicks("#there").await;
        browser.sees("12 waiting").await;
        assert_eq!(browser.value("location.search").await, "?a=b");
        browser.goes_to(&base).await;
        browser.sees("orders").await;
        let mut shown = vec![("queues", base.clone())];
        browser.clicks("a[href='/queues/orders']").await;
        browser.sees("12 parked").await;
        browser.clicks("a.card").await;
        browser.sees("order-4711-3").await;
        let url = |value: serde_json::Value| value.as_str().unwrap().to_owned();
        shown.push(("queue", format!("{base}/queues/orders")));
        shown.push(("group", url(browser.value("location.href").await)));
        shown.push(("waiting", format!("{base}/waiting")));
        browser.clicks("td a").await;
        browser.sees("customer").await;
        shown.push(("parked", url(browser.value("location.href").await)));
        for (width, scheme) in [(1_200, "light"), (1_200, "dark"), (390, "light"), (390, "dark")] {
            browser.looks(width, scheme).await;
            for (name, address) in &shown {
                browser.goes_to(address).await;
                browser.sees("Waiting").await;
                browser.picture(&format!("{name}-{width}-{scheme}")).await;
                let wide = browser.value("document.documentElement.scrollWidth").await;
                assert!(wide.as_u64().unwrap() <= u64::from(width), "{name} is {wide} wide on {width}");
                let scripts = browser.value("document.scripts.length").await;
                assert_eq!(scripts, 0);
            }
        }
        browser.looks(390, "light").await;
        browser.goes_to(&shown[2].1).await;
        browser.sees("order-4711-3").await;
        for place in [1, 2] {
            browser.clicks(&format!("tr:nth-child({place}) input[type=checkbox]")).await;
        }
        browser.clicks("button[value=replay]").await;
        browser.sees("Replay 2 messages?").await;
        browser.picture("confirm").await;
        // The button has the focus.
        browser.focuses("do").await;
        browser.enters().await;
        browser.sees("replayed to orders").await;
        browser.sees("done").await;
        browser.picture("job").await;
        depth(&amqp, "orders.parked", 10).await;
        drop((orders, mails));
        assert!(replica.end().await.success());
    })
    .await;
}
