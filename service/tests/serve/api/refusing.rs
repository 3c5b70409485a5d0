//! What a program is refused: nothing is done then, and it is told why.

use retryrmq_harness::{QueueType, eventually, on_brokers};
use serde_json::json;

use super::Program;
use crate::{
    fixture::{DEADLINE, NativeConsumer, Replica, declare, id, policy},
    page::{Visitor, depth, people},
};

const POLICY: &str = "[defaults]\nrejected = \"park\"\n";

#[tokio::test]
async fn the_api_refuses_what_the_page_refuses() {
    on_brokers(|broker| async move {
        let vhost = broker.vhost().await;
        let amqp = vhost.connect().await;
        let folder = tempfile::tempdir().unwrap();
        let file = policy(&people(folder.path(), POLICY));
        let replica = Replica::start(&vhost, Some(file.path())).await;
        declare(&amqp, "orders", QueueType::Quorum, true).await;
        let orders = NativeConsumer::start(&vhost, "orders", |_| false).await;
        amqp.publish_with("orders", "a body", id("one")).await;
        depth(&amqp, "orders.parked", 1).await;
        let mut olga = Program::with_token(&replica, "olga-0123456789abcdef").await;
        let known = |read: &serde_json::Value| read["messages"].as_array().is_some_and(|all| all.len() == 1);
        let messages = olga.sees("/queues/orders/messages", known).await;
        let mark = messages["messages"][0]["mark"].clone();
        let fingerprint = messages["messages"][0]["fingerprint"].clone();

        // Addresses and queries.
        for (method, path, status, words) in [
            ("GET", "/nothing", 404, "no such address"),
            ("DELETE", "/jobs", 405, "no such method"),
            ("GET", "/queues?sort=name", 400, "no query"),
            ("GET", "/waiting?queue=orders", 400, "no query"),
            ("GET", "/queues/orders/messages?limit=0", 400, "1 to 1000"),
            ("GET", "/queues/orders/messages?limit=many", 400, "limit"),
            ("GET", "/queues/orders/messages?sort=name", 400, "unknown field `sort`"),
            ("GET", "/queues/orders/messages?cursor=7", 400, "`next`"),
            (
                "GET",
                "/jobs/0123456789abcdef/results?offset=1000001",
                400,
                "0 to 1000000",
            ),
            ("GET", "/messages", 400, "missing field `q`"),
            ("GET", "/messages?q=%20", 400, "1 to 200"),
            ("GET", "/incidents?queue=", 400, "1 to 255"),
            ("GET", "/queues/orders/groups/none", 404, "no such group"),
            ("GET", "/queues/orders/messages/7", 404, "16 hexadecimal digits"),
            ("GET", "/queues/orders/messages/0123456789abcdef", 404, "No longer parked"),
            ("GET", "/queues/nothing/messages/0123456789abcdef", 404, "nothing"),
            ("GET", "/jobs/0123456789abcdef", 404, "history has nothing"),
            ("GET", "/jobs/0123456789abcdef/results", 404, "history has nothing"),
        ] {
            let refused = olga.ask(method, path, None).await;
            assert_eq!(refused.status, status, "{path}: {}", refused.json);
            assert!(refused.detail().contains(words), "{path}: {}", refused.json);
        }
        let long = format!("/queues/{}", "q".repeat(256));
        assert_eq!(olga.get(&long).await.status, 400);
        let not_allowed = olga.ask("DELETE", "/jobs", None).await;
        assert!(not_allowed.head.contains("allow: "), "{}", not_allowed.head);

        // Nobody knows whether a message is gone that somebody else may hold.
        let other = vhost.connect().await;
        let holder = other.consume("orders.parked", 20).await;
        depth(&amqp, "orders.parked", 0).await;
        let path = format!("/queues/orders/messages/{}", mark.as_str().unwrap());
        let held = olga.get(&path).await;
        assert_eq!((held.status, held.code()), (503, "unavailable"), "{}", held.json);
        assert!(held.head.contains("retry-after: 1"), "{}", held.head);
        drop((holder, other));
        depth(&amqp, "orders.parked", 1).await;
        olga.sees(&path, |message| message["mark"] == mark).await;

        // Jobs.
        for (body, status, words) in [
            ("", 400, "not a JSON object"),
            ("[]", 400, "not a JSON object"),
            ("{", 400, "cannot be read"),
            (r#"{"action": "scan"}"#, 400, "missing field `queue`"),
            (r#"{"action": "scan", "queue": ""}"#, 400, "1 to 255"),
            (r#"{"action": "scan", "queue": "orders", "force": true}"#, 400, "unknown field `force`"),
            (r#"{"action": "erase", "queue": "orders"}"#, 400, "unknown variant `erase`"),
            (r#"{"action": "search", "queue": "orders", "text": "ab"}"#, 400, "3 to 200"),
            (r#"{"action": "close", "queue": "orders", "group": "7"}"#, 400, "16 hexadecimal"),
            (r#"{"action": "close", "queue": "orders", "group": "0123456789abcdeg"}"#, 400, "16 hexadecimal"),
            (r#"{"action": "silence", "queue": "orders", "fingerprint": "f", "duration": "long", "why": "w"}"#, 400, "1h, 8h"),
            (r#"{"action": "silence", "queue": "orders", "fingerprint": "f", "duration": "91d", "why": "w"}"#, 400, "90d"),
            (r#"{"action": "silence", "queue": "orders", "fingerprint": "f", "duration": "1h", "why": " "}"#, 400, "reason"),
            (r#"{"action": "replay", "queue": "orders", "marks": ["x"]}"#, 400, "is no mark"),
            (r#"{"action": "replay", "queue": "orders", "fingerprint": "f"}"#, 404, "No message is selected"),
            (r#"{"action": "drop", "queue": "orders", "marks": ["0123456789abcdef"]}"#, 403, "your role"),
            (r#"{"action": "drop", "queue": "orders", "marks": ["0123456789abcdef"], "dry_run": true}"#, 403, "your role"),
        ] {
            let refused = olga.ask("POST", "/jobs", Some(body)).await;
            assert_eq!(refused.status, status, "{body}: {}", refused.json);
            assert!(refused.detail().contains(words), "{body}: {}", refused.json);
        }
        let replay = json!({"action": "replay", "queue": "orders", "fingerprint": fingerprint});
        let refused = olga.post(&replay).await;
        assert_eq!((refused.status, refused.code()), (409, "count_mismatch"));
        assert!(refused.detail().contains("\"expected_count\": 1"), "{}", refused.json);
        for named in [json!({"fingerprint": fingerprint}), json!({"marks": [mark]})] {
            let mut job = json!({"action": "replay", "queue": "orders", "expected_count": 2});
            job.as_object_mut().unwrap().extend(named.as_object().unwrap().clone());
            let refused = olga.post(&job).await;
            assert_eq!((refused.status, refused.code()), (409, "count_mismatch"));
            assert_eq!(refused.json["count"], 1);
        }
        let text = olga.send("POST", "/jobs", "content-type: text/plain\r\n", &replay.to_string()).await;
        assert_eq!(text.code(), "unsupported_media_type");
        // Little more than the longest one: what is not read any more ends the connection.
        let long = format!("{{\"queue\": \"{}\"}}", "q".repeat((2 << 20) + 10_000 * 22));
        assert_eq!(olga.ask("POST", "/jobs", Some(&long)).await.code(), "too_large");

        // Whoever may only look.
        let mut rea = Program::with_token(&replica, "rea-0123456789abcdef").await;
        for job in [
            json!({"action": "scan", "queue": "orders"}),
            json!({"action": "replay", "queue": "orders", "marks": [mark], "dry_run": true}),
            json!({}),
        ] {
            let refused = rea.post(&job).await;
            assert_eq!((refused.status, refused.code()), (403, "forbidden"), "{job}");
        }
        assert_eq!(rea.reads("/jobs").await, json!({"jobs": []}), "nothing was begun");
        depth(&amqp, "orders.parked", 1).await;
        drop(orders);
        assert!(replica.end().await.success());
    })
    .await;
}

#[tokio::test]
async fn nobody_uses_the_api_without_a_token_or_from_another_site() {
    on_brokers(|broker| async move {
        let vhost = broker.vhost().await;
        let folder = tempfile::tempdir().unwrap();
        let file = policy(&people(folder.path(), POLICY));
        let replica = Replica::start(&vhost, Some(file.path())).await;
        let mut anybody = Visitor::new(&replica);
        for path in ["/api/v1/queues", "/api/v1/openapi.json", "/api/v1/session"] {
            let refused = anybody.get(path).await;
            assert_eq!(refused.status, 401, "{}", refused.body);
            assert!(
                refused.head.contains("www-authenticate: Bearer"),
                "{}",
                refused.head
            );
            assert!(
                refused.head.contains("application/problem+json"),
                "{}",
                refused.head
            );
        }
        let scan = r#"{"action": "scan", "queue": "orders"}"#;
        let json = "content-type: application/json\r\n";
        let refused = anybody.ask("POST", "/api/v1/jobs", json, scan).await;
        assert_eq!(refused.status, 401, "{}", refused.body);

        // A session of a browser: to read, and with the word of this page to do something.
        let mut olga = Visitor::with_token(&replica, "olga-0123456789abcdef").await;
        let session = olga.get("/api/v1/session").await;
        let session: serde_json::Value = serde_json::from_str(&session.body).unwrap();
        assert_eq!(
            (&session["name"], &session["role"]),
            (&json!("olga"), &json!("operator"))
        );
        let word = session["csrf_token"].as_str().unwrap().to_owned();
        let origin = format!("origin: http://{}\r\n", replica.address());
        let csrf = format!("x-csrf-token: {word}\r\n");
        for more in [
            json.to_owned(),
            format!("{json}{origin}"),
            format!("{json}{csrf}"),
            format!("{json}{origin}x-csrf-token: other\r\n"),
            format!("{json}origin: http://evil.example\r\n{csrf}"),
            format!("{json}{origin}{csrf}sec-fetch-site: cross-site\r\n"),
        ] {
            let refused = olga.ask("POST", "/api/v1/jobs", &more, scan).await;
            assert_eq!(refused.status, 403, "{more}: {}", refused.body);
        }
        let begun = olga
            .ask(
                "POST",
                "/api/v1/jobs",
                &format!("{json}{origin}{csrf}"),
                scan,
            )
            .await;
        assert_eq!(begun.status, 202, "{}", begun.body);
        let image = "sec-fetch-site: cross-site\r\nsec-fetch-dest: image\r\n";
        let refused = olga.ask("GET", "/api/v1/queues", image, "").await;
        assert_eq!(refused.status, 403, "{}", refused.body);
        // A token decides alone: a wrong one is nobody's, whatever cookie comes with it.
        let wrong = "authorization: Bearer rea-0123456789abcdeX\r\n";
        assert_eq!(
            olga.ask("GET", "/api/v1/queues", wrong, "").await.status,
            401
        );

        // The same one again is not looked at, and keeps nobody else out.
        for _ in 0..20 {
            let again = anybody.ask("GET", "/api/v1/queues", wrong, "").await;
            assert_eq!(again.status, 401, "{}", again.body);
        }
        let right = "authorization: Bearer rea-0123456789abcdef\r\n";
        let answer = anybody.ask("GET", "/api/v1/queues", right, "").await;
        assert_eq!(answer.status, 200, "{}", answer.body);
        // Whoever tries many waits, and the token is not looked at.
        let tries = async {
            let mut tries = 1;
            loop {
                let other = format!("authorization: Bearer rea-0123456789abcde{tries}\r\n");
                let answer = anybody.ask("GET", "/api/v1/queues", &other, "").await;
                if answer.status != 401 {
                    return (tries, answer);
                }
                tries += 1;
            }
        };
        let (tries, refused) = tokio::time::timeout(DEADLINE, tries).await.unwrap();
        assert!(tries >= 4, "{tries}");
        assert_eq!(refused.status, 429, "{}", refused.body);
        assert!(refused.head.contains("retry-after: 1"), "{}", refused.head);
        eventually(DEADLINE, "who waits is let in", || async {
            let mut rea = Visitor::new(&replica);
            match rea.ask("GET", "/api/v1/queues", right, "").await.status {
                200 => Ok(()),
                other => Err(other.to_string()),
            }
        })
        .await;
        assert!(replica.end().await.success());

        // Without a word about people there is nothing, with whatever token, and where nobody wants a page there is no API.
        let file = policy("");
        let replica = Replica::start(&vhost, Some(file.path())).await;
        let mut anybody = Visitor::new(&replica);
        for path in ["/api/v1/queues", "/api/v1/openapi.json", "/api/v1/jobs"] {
            let refused = anybody.ask("GET", path, right, "").await;
            assert_eq!(refused.status, 403, "{path}");
            assert!(refused.body.contains("[[page.tokens]]"), "{}", refused.body);
        }
        assert!(replica.end().await.success());
        let replica = Replica::start_at(vhost.url(), None, &["--no-ui"]).await;
        assert_eq!(replica.page("/api/v1/queues").await.0, 404);
        assert!(replica.end().await.success());
    })
    .await;
}
