//! What people see, and who may do what.

use std::{collections::BTreeSet, path::Path};

use retryrmq::{Client, FailedMessage, Failure, Outcome, ParkReason};
use retryrmq_harness::{QueueType, eventually, on_brokers};

use super::{Visitor, depth, link, people, value_of};
use crate::fixture::{DEADLINE, NativeConsumer, Replica, declare, id, policy, text};

const POLICY: &str = r#"
[defaults]
rejected = "park"

[[rules]]
queue = "slow"
retry = "fixed(10h, retries=3)"

[alerts]
tick = "200ms"

[[page.masks]]
queue = "orders"
fields = ["card.number"]
headers = ["x-user"]
"#;

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

#[tokio::test]
async fn people_see_what_died_and_only_those_who_may_do_something_about_it() {
    on_brokers(|broker| async move {
        let vhost = broker.vhost().await;
        let amqp = vhost.connect().await;
        let folder = tempfile::tempdir().unwrap();
        let file = policy(&people(folder.path(), POLICY));
        let replica = Replica::start(&vhost, Some(file.path())).await;
        for queue in ["orders", "slow"] {
            declare(&amqp, queue, QueueType::Quorum, true).await;
        }
        // What was replayed is handled.
        let handled = |seen: &crate::fixture::Seen| {
            let headers = seen.properties.headers().as_ref();
            headers.is_some_and(|headers| headers.inner().contains_key("x-retry-replays"))
        };
        let orders = NativeConsumer::start(&vhost, "orders", handled).await;
        let slow = NativeConsumer::start(&vhost, "slow", |_| false).await;
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
        // Whoever tries many waits, and the token is not looked at.
        let tries = async {
            let mut tries = 1;
            loop {
                let other = format!("rea-0123456789abcde{tries}");
                let other = [("word", word.as_str()), ("token", other.as_str())];
                if stranger.post("/sign-in", &other).await.status != 403 {
                    return tries;
                }
                tries += 1;
            }
        };
        let tries = tokio::time::timeout(DEADLINE, tries).await.unwrap();
        assert!(tries >= 5, "{tries}");
        eventually(DEADLINE, "who waits signs in", || async {
            let mut rea = Visitor::new(&replica);
            let word = rea.get("/sign-in").await.word();
            let right = [("word", word.as_str()), ("token", "rea-0123456789abcdef")];
            match rea.post("/sign-in", &right).await.status {
                303 => Ok(()),
                other => Err(other.to_string()),
            }
        })
        .await;
        let large = "x".repeat(6 << 10);
        let form = [("word", word.as_str()), ("token", large.as_str())];
        assert_eq!(stranger.post("/sign-in", &form).await.status, 413);

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
        assert_eq!(again.matches("not found: it is gone").count(), 5, "{again}");
        let rest = olga.get("/queues/orders").await.body;
        assert!(rest.contains("<b>1</b> parked"), "{rest}");

        // A search in bodies, and what was parked without the service.
        let client = Client::connect(vhost.url()).await.unwrap();
        let failed = FailedMessage::new(
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
        let page = olga.sees("/waiting", &["s0", "in 10 h"]).await;
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

        // Without a word about people there is no page, wherever somebody asks from. And none at all, where nobody wants one.
        let file = policy("");
        let replica = Replica::start(&vhost, Some(file.path())).await;
        let mut anybody = Visitor::new(&replica);
        for path in ["/", "/queues/orders", "/waiting", "/jobs"] {
            let answer = anybody.get(path).await;
            assert_eq!(answer.status, 403, "{path}");
            assert!(answer.body.contains("[[page.tokens]]"), "{}", answer.body);
        }
        assert!(replica.end().await.success());
        let replica = Replica::start_at(vhost.url(), None, &["--no-ui"]).await;
        assert_eq!(replica.page("/").await.0, 404);
        assert!(replica.end().await.success());
    })
    .await;
}
