//! What a program reads: what the page shows, and nothing that is masked.

use std::collections::BTreeSet;

use retryrmq_harness::{QueueType, on_brokers};
use serde_json::{Value, json};

use super::Program;
use crate::{
    fixture::{NativeConsumer, Replica, declare, id, policy, text},
    page::{depth, people},
};

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

[[page.masks]]
queue = "hidden"
body = true
"#;

fn list<'v>(value: &'v Value, name: &str) -> &'v Vec<Value> {
    value[name].as_array().unwrap()
}

#[tokio::test]
async fn a_program_reads_what_the_page_shows_and_nothing_that_is_masked() {
    on_brokers(|broker| async move {
        let vhost = broker.vhost().await;
        let amqp = vhost.connect().await;
        let folder = tempfile::tempdir().unwrap();
        let file = policy(&people(folder.path(), POLICY));
        let replica = Replica::start(&vhost, Some(file.path())).await;
        let mut consumers = Vec::new();
        for queue in ["orders", "slow", "hidden"] {
            declare(&amqp, queue, QueueType::Quorum, true).await;
            consumers.push(NativeConsumer::start(&vhost, queue, |_| false).await);
        }
        let publish = async |queue: &str, name: &str| {
            let mut table = retryrmq::types::FieldTable::default();
            for (header, value) in [("x-user", "ann"), ("x-tenant", "gold")] {
                table.insert(header.into(), text(value));
            }
            let body = r#"{"card": {"number": "4711-0815"}, "basket": "tulips\u202e", "password": "pw-1"}"#;
            amqp.publish_with(queue, body, id(name).with_headers(table)).await;
        };
        for number in 0..5 {
            publish("orders", &format!("m{number}\u{85}")).await;
        }
        publish("slow", "s0").await;
        publish("hidden", "h0").await;
        depth(&amqp, "orders.parked", 5).await;

        let mut rea = Program::with_token(&replica, "rea-0123456789abcdef").await;
        let session = rea.reads("/session").await;
        assert_eq!(session, json!({"name": "rea", "role": "reader", "csrf_token": null}));
        let is_known = |read: &Value| {
            let orders = list(read, "queues").iter().find(|queue| queue["name"] == "orders");
            orders.is_some_and(|queue| queue["parked"]["known"] == 5 && queue["parked"]["count"] == 5)
        };
        let queues = rea.sees("/queues", is_known).await;
        assert_eq!(queues["is_complete"], false);
        let orders = rea.reads("/queues/orders").await;
        assert_eq!(orders["parked"], json!({"count": 5, "source": "broker", "known": 5}));
        assert_eq!(orders["failed_24h"], json!({"retried": 0, "parked": 5, "dropped": 0}));
        assert_eq!(orders["groups"], 1);
        let nothing = rea.reads("/queues/no%2Fsuch").await;
        assert_eq!((&nothing["name"], &nothing["parked"]["count"]), (&json!("no/such"), &json!(0)));

        let groups = rea.reads("/queues/orders/groups").await;
        let group = list(&groups, "groups")[0].clone();
        assert_eq!((&group["parked"], &group["failures"]), (&json!(5), &json!(5)));
        let fingerprint = group["fingerprint"].as_str().unwrap().to_owned();
        assert_eq!(rea.reads(&format!("/queues/orders/groups/{fingerprint}")).await, group);

        // In parts, each message once.
        let mut marks = BTreeSet::new();
        let mut path = format!("/queues/orders/messages?limit=2&fingerprint={fingerprint}");
        let mut parts = 0;
        loop {
            let part = rea.reads(&path).await;
            parts += 1;
            for message in list(&part, "messages") {
                assert_eq!(message["fingerprint"], *fingerprint);
                let mark = message["mark"].as_str().unwrap().to_owned();
                assert!(marks.insert(mark), "{message} came twice");
            }
            let Some(next) = part["next"].as_str() else {
                break;
            };
            path = format!("/queues/orders/messages?limit=2&cursor={next}");
        }
        assert_eq!((marks.len(), parts), (5, 3));

        // One message, masked.
        let mark = marks.first().unwrap();
        let message = rea.reads(&format!("/queues/orders/messages/{mark}")).await;
        assert_eq!((&message["home"], &message["mark"]), (&json!("orders"), &json!(mark)));
        let same = rea.reads(&format!("/queues/orders/messages/{}", mark.to_uppercase())).await;
        assert_eq!(same["mark"], json!(mark));
        assert_eq!(message["body"]["format"], "JSON");
        let shown = message.to_string();
        for (words, there) in [("tulips", true), ("gold", true), ("4711", false), ("pw-1", false), ("\"ann\"", false)] {
            assert_eq!(shown.contains(words), there, "{words}: {shown}");
        }
        for strange in ['\u{202e}', '\u{85}'] {
            assert!(!shown.contains(strange), "{shown}");
        }
        let hidden = rea.sees("/queues/hidden/messages", |read| list(read, "messages").len() == 1).await;
        let mark = list(&hidden, "messages")[0]["mark"].as_str().unwrap();
        let message = rea.reads(&format!("/queues/hidden/messages/{mark}")).await;
        assert_eq!((&message["body"]["format"], &message["body"]["text"]), (&Value::Null, &Value::Null));
        assert!(!message["body"]["remark"].is_null(), "{message}");

        let found = rea.reads("/messages?q=M3").await;
        assert_eq!((list(&found, "messages").len(), &found["is_cut"]), (1, &json!(false)));
        let found = rea.reads("/messages?q=orders&limit=2").await;
        assert_eq!((list(&found, "messages").len(), &found["is_cut"]), (2, &json!(true)));

        let waiting = rea.sees("/waiting", |read| read["in_broker"] == 1).await;
        let one = &list(&waiting, "messages")[0];
        assert_eq!((&one["queue"], &one["message_id"], &one["place"]), (&json!("slow"), &json!("s0"), &json!("broker")));
        assert_eq!(waiting["in_store"], Value::Null);

        let incidents = rea.sees("/incidents", |read| !list(read, "incidents").is_empty()).await;
        let incident = list(&incidents, "incidents").iter().find(|one| one["queue"] == "orders");
        assert_eq!(incident.unwrap()["group"], group["incident_group"]);
        let others = rea.reads("/incidents?queue=slow").await;
        assert!(list(&others, "incidents").iter().all(|one| one["queue"] != "orders"), "{others}");

        for (path, parked) in [("/failures", 6), ("/failures?queue=orders", 5)] {
            let failures = rea.reads(path).await;
            let hours = list(&failures, "hours");
            let sum: u64 = hours.iter().map(|hour| hour["failed"]["parked"].as_u64().unwrap()).sum();
            assert_eq!((hours.len(), sum), (24, parked), "{failures}");
        }
        assert_eq!(rea.reads("/actions").await, json!({"actions": []}));
        assert_eq!(rea.reads("/jobs").await, json!({"jobs": []}));

        // Everything that can be read without a job was read.
        rea.reads("/openapi.json").await;
        let described = rea.document()["paths"].as_object().unwrap().values();
        let described = described.filter_map(|path| path.get("get")?["operationId"].as_str());
        let unread: BTreeSet<_> = described.filter(|id| !rea.succeeded().contains(*id)).collect();
        assert_eq!(unread, BTreeSet::from(["getJob", "listJobResults"]));
        drop(consumers);
        assert!(replica.end().await.success());
    })
    .await;
}
