//! What a program has done: shown beforehand, confirmed by its number, and with a result for each message.

use retryrmq::Client;
use retryrmq_harness::{QueueType, on_brokers};
use serde_json::{Value, json};

use super::Program;
use crate::{
    fixture::{NativeConsumer, Replica, declare, id, policy},
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
"#;

fn texts(results: &Value) -> Vec<&str> {
    let results = results["results"].as_array().unwrap().iter();
    results
        .map(|result| result["text"].as_str().unwrap())
        .collect()
}

fn marks(read: &Value) -> Vec<Value> {
    let messages = read["messages"].as_array().unwrap().iter();
    messages.map(|message| message["mark"].clone()).collect()
}

#[tokio::test]
async fn a_job_of_a_program_touches_what_it_was_shown_and_nothing_else() {
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
        for number in 0..15 {
            let body = format!(r#"{{"basket": "tulips {number}", "password": "pw-1"}}"#);
            amqp.publish_with("orders", body, id(&format!("m{number}"))).await;
        }
        for number in 0..2 {
            amqp.publish_with("slow", "a body", id(&format!("s{number}"))).await;
        }
        let mut olga = Program::with_token(&replica, "olga-0123456789abcdef").await;
        let knows = |count: usize| move |read: &Value| {
            read["messages"].as_array().is_some_and(|all| all.len() == count)
        };
        let messages = olga.sees("/queues/orders/messages", knows(15)).await;
        let fingerprint = messages["messages"][0]["fingerprint"].clone();
        let all = marks(&messages);

        // Shown beforehand: nothing is changed, and nothing is begun.
        let group = json!({"action": "replay", "queue": "orders", "fingerprint": fingerprint, "dry_run": true});
        let shown = olga.post(&group).await;
        assert_eq!((shown.status, &shown.json["count"]), (200, &json!(15)), "{}", shown.json);
        assert_eq!(shown.json["marks"].as_array().unwrap().len(), 15);
        assert_eq!(shown.json["messages"].as_array().unwrap().len(), 15);
        for job in [
            json!({"action": "replay", "queue": "orders", "marks": all[..2], "expected_count": 2}),
            json!({"action": "scan", "queue": "orders"}),
            json!({"action": "search", "queue": "orders", "text": "tulips"}),
            json!({"action": "restore", "queue": "orders", "marks": all[..1]}),
            json!({"action": "silence", "queue": "orders", "fingerprint": fingerprint, "duration": "1h", "why": "known"}),
            json!({"action": "close", "queue": "orders", "group": "0123456789abcdef"}),
        ] {
            let mut asked = job.clone();
            asked["dry_run"] = true.into();
            let shown = olga.post(&asked).await;
            assert_eq!(shown.status, 200, "{job}: {}", shown.json);
            assert_eq!((&shown.json["dry_run"], &shown.json["action"]), (&json!(true), &job["action"]));
        }
        assert_eq!(olga.reads("/jobs").await, json!({"jobs": []}));
        assert_eq!(olga.reads("/actions").await, json!({"actions": []}));
        depth(&amqp, "orders.parked", 15).await;

        // Two by name; then what was not there any more.
        let two = json!({"action": "replay", "queue": "orders", "marks": all[..2]});
        let (job, results) = olga.does(&two).await;
        assert_eq!((&job["state"], &job["total"], &job["succeeded"]), (&json!("done"), &json!(2), &json!(2)));
        assert_eq!((&job["by"], &job["action"]), (&json!("olga"), &json!("replay")));
        assert_eq!(texts(&results), ["replayed to orders"; 2]);
        depth(&amqp, "orders.parked", 13).await;
        let (job, results) = olga.does(&two).await;
        assert_eq!((&job["succeeded"], &results["results"][0]["is_success"]), (&json!(0), &json!(false)));
        assert!(texts(&results)[0].contains("not found: it is gone"), "{results}");

        // A scan, a search, a silence, and the end of an incident.
        let third = messages["messages"][2]["message_id"].as_str().unwrap();
        let kept = format!("TULIPS {}\"", &third[1..]);
        let (job, _) = olga.does(&json!({"action": "scan", "queue": "orders"})).await;
        assert_eq!(job["done"], 13, "{job}");
        let (_, results) = olga.does(&json!({"action": "search", "queue": "orders", "text": kept})).await;
        assert_eq!(results["results"].as_array().unwrap().len(), 1, "{results}");
        let (_, results) = olga.does(&json!({"action": "search", "queue": "orders", "text": "pw-1"})).await;
        assert_eq!(results["results"], json!([]), "what is masked is not found");
        let incidents = |read: &Value| read["incidents"].as_array().is_some_and(|all| !all.is_empty());
        let open = olga.sees("/incidents?queue=orders", incidents).await;
        let close = json!({"action": "close", "queue": "orders", "group": open["incidents"][0]["group"]});
        for dry_run in [true, false] {
            let mut other = close.clone();
            other["queue"] = "slow".into();
            other["dry_run"] = dry_run.into();
            let refused = olga.post(&other).await;
            assert_eq!(refused.status, 400, "{}", refused.json);
            assert!(refused.detail().contains("another queue"), "{}", refused.json);
        }
        let (job, _) = olga.does(&close).await;
        assert_eq!(job["state"], "done", "{job}");
        olga.sees("/incidents?queue=orders", |read| read["incidents"] == json!([])).await;
        let silence = json!({
            "action": "silence", "queue": "orders", "fingerprint": fingerprint, "duration": "1h", "why": "known",
        });
        olga.does(&silence).await;
        let path = format!("/queues/orders/groups/{}", fingerprint.as_str().unwrap());
        let silenced = olga.sees(&path, |group| !group["silence"].is_null()).await;
        assert_eq!((&silenced["silence"]["by"], &silenced["silence"]["why"]), (&json!("olga"), &json!("known")));

        // What operators noted.
        let client = Client::connect(vhost.url()).await.unwrap();
        let note = json!({"fingerprint": fingerprint, "hold": true, "owner": "team-shop", "by": "ana@shop", "at": 1});
        let notes = client.parked("orders.notes");
        notes.make().await.unwrap();
        let message = retryrmq::Publish::to_queue(notes.name(), note.to_string());
        client.publish(message).await.unwrap();
        let noted = olga.sees(&path, |group| !group["note"].is_null()).await;
        let expected = json!({"hold": true, "owner": "team-shop", "text": null, "by": "ana@shop"});
        assert_eq!(noted["note"], expected);
        assert_eq!(olga.post(&group).await.json["note"], expected);

        // What waits comes back, or is parked.
        let waiting = olga.sees("/waiting", |read| read["in_broker"] == 2).await;
        let waiting = marks(&waiting);
        let cancel = json!({"action": "cancel", "queue": "slow", "marks": waiting[..1]});
        let mut shown = cancel.clone();
        shown["dry_run"] = true.into();
        let shown = olga.post(&shown).await.json;
        assert_eq!(shown["messages"].as_array().unwrap().len(), 1, "{shown}");
        let (_, results) = olga.does(&cancel).await;
        assert_eq!(texts(&results), ["taken out and parked"], "{results}");
        depth(&amqp, "slow.parked", 1).await;
        drop(slow);
        let (_, results) = olga.does(&json!({"action": "flush", "queue": "slow", "marks": waiting[1..]})).await;
        assert_eq!(texts(&results), ["comes back now"], "{results}");
        depth(&amqp, "slow", 1).await;

        // An admin drops, says how many where they are many, and takes it back.
        let mut ada = Program::with_token(&replica, "ada-0123456789abcdef").await;
        let drop_all = json!({"action": "drop", "queue": "orders", "marks": all[2..]});
        let mut shown = drop_all.clone();
        shown["dry_run"] = true.into();
        let shown = ada.post(&shown).await.json;
        assert_eq!((&shown["is_count_required"], &shown["count"]), (&json!(true), &json!(13)));
        let refused = ada.post(&drop_all).await;
        assert_eq!((refused.status, refused.code()), (409, "count_mismatch"));
        assert!(refused.detail().contains("\"expected_count\": 13"), "{}", refused.json);
        depth(&amqp, "orders.parked", 13).await;
        let mut counted = drop_all.clone();
        counted["expected_count"] = 13.into();
        let (job, results) = ada.does(&counted).await;
        assert_eq!(texts(&results), ["dropped"; 13]);
        depth(&amqp, "orders.parked", 0).await;
        depth(&amqp, "orders.parked.dropped", 13).await;
        // The results in parts.
        let path = format!("/jobs/{}/results", job["id"].as_str().unwrap());
        let part = ada.reads(&format!("{path}?limit=6&offset=6")).await;
        assert_eq!((texts(&part).len(), &part["next"]), (6, &json!(12)));
        let part = ada.reads(&format!("{path}?limit=6&offset=12")).await;
        assert_eq!((texts(&part).len(), &part["next"]), (1, &Value::Null));
        let restore = json!({"action": "restore", "queue": "orders", "marks": all[2..]});
        let (_, results) = ada.does(&restore).await;
        assert_eq!(texts(&results), ["parked again"; 13]);
        depth(&amqp, "orders.parked", 13).await;

        // A whole group, of which the number is known.
        ada.sees("/queues/orders/messages", knows(13)).await;
        let whole = json!({"action": "replay", "queue": "orders", "fingerprint": fingerprint, "expected_count": 13});
        let (replayed, _) = ada.does(&whole).await;
        assert_eq!(replayed["succeeded"], 13, "{replayed}");
        depth(&amqp, "orders.parked", 0).await;
        let done = |read: &Value| {
            let actions = read["actions"].as_array().unwrap().iter();
            actions.filter(|action| action["event"] == "replayed" && action["by"] == "ada").count() == 13
        };
        ada.sees("/actions?queue=orders&limit=1000", done).await;
        let jobs = ada.reads("/jobs").await;
        assert_eq!(jobs["jobs"][0]["id"], replayed["id"]);
        let described = ada.succeeded().union(&olga.succeeded()).cloned().collect::<Vec<_>>();
        for id in ["createJob", "getJob", "listJobResults", "listJobs"] {
            assert!(described.iter().any(|seen| seen == id), "{id}: {described:?}");
        }

        // Another one knows it from the history.
        replica.kill().await;
        let replica = Replica::start(&vhost, Some(file.path())).await;
        let mut rea = Program::with_token(&replica, "rea-0123456789abcdef").await;
        let path = format!("/jobs/{}", replayed["id"].as_str().unwrap());
        let past = rea.sees(&path, |job| job["state"] == "past").await;
        assert_eq!((&past["by"], &past["total"]), (&json!("ada"), &json!(0)));
        let results = rea.reads(&format!("{path}/results?limit=1000")).await;
        assert_eq!(results["is_cut"], false);
        let replays = texts(&results).iter().filter(|text| **text == "replayed to orders").count();
        assert_eq!(replays, 13, "{results}");
        drop(orders);
        assert!(replica.end().await.success());
    })
    .await;
}
