//! What waits in Redis: real Valkey and Redis servers, beside each broker.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use retryrmq_harness::{
    Broker, Policy, QueueType, Vhost, eventually,
    lapin::{
        BasicProperties,
        types::{AMQPValue, FieldTable, ShortString},
    },
    on_brokers, on_brokers_where,
};
use retryrmq_serve::{
    Moved, ServiceConfig, StoreInspector,
    store::{MessageDraft, Page, Store, StoredMessage, redis::RedisStore},
};
use rustix::process::Signal;

use crate::{
    delayed::delayed,
    fixture::{
        DEADLINE, INTAKE, NativeConsumer, Replica, declare, id, policy, program, take, text,
    },
    page::{Visitor, depth, people, value_of},
    server::{KINDS, Servers, available, on_kinds},
};

const HOUR: Duration = Duration::from_secs(3_600);

/// A policy, and the store of `servers` with leases that end soon.
fn file(retry: &str, servers: &Servers) -> tempfile::NamedTempFile {
    policy(&format!(
        "[defaults]\nretry = \"{retry}\"\n[store.redis]\naddresses = [\"{}\"]\nlease = \"2s\"\ntimeout = \"3s\"\n",
        servers.address(0)
    ))
}

fn store(servers: &Servers, vhost: &Vhost) -> RedisStore {
    RedisStore::new(&servers.configuration(), vhost.name()).unwrap()
}

async fn waiting(store: &RedisStore) -> Result<u64, String> {
    let lines = store.count().await.map_err(|why| why.to_string())?;
    Ok(lines.iter().map(|(_, count)| count).sum())
}

async fn is_empty(store: &RedisStore) {
    eventually(DEADLINE, "the store is empty", || async {
        match waiting(store).await {
            Ok(0) => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
}

/// No queue of this virtual host is one in which messages wait.
async fn no_waiting_queue(vhost: &Vhost) {
    let queues = vhost.queues().await;
    let names: Vec<_> = queues.iter().map(|queue| queue.name()).collect();
    assert!(
        !names.is_empty() && names.iter().all(|name| !name.contains(".retry.")),
        "{names:?}"
    );
}

/// A server of its own of one kind, where there are any.
fn one_server(kind: &'static str, lines: &[&str]) -> Option<Servers> {
    available().then(|| {
        let servers = Servers::new(kind);
        servers.start(0, lines);
        servers
    })
}

#[tokio::test]
async fn what_fails_waits_in_redis_comes_back_to_its_own_queue_and_is_parked_when_spent() {
    on_kinds(&[], |servers| async move {
        let servers = Arc::new(servers);
        on_brokers(|broker| {
            let servers = Arc::clone(&servers);
            async move {
                let vhost = broker.vhost().await;
                let amqp = vhost.connect().await;
                // The jitter puts an expiration on each waiting copy, which must not come back with it.
                let file = file("fixed(1s, retries=2, jitter=0.5)", &servers);
                let replica = Replica::start(&vhost, Some(file.path())).await;
                declare(&amqp, "orders", QueueType::Quorum, true).await;
                declare(&amqp, "billing", QueueType::Classic, false).await;
                let seen = Arc::<Mutex<BTreeMap<String, Vec<usize>>>>::default();
                let noted = Arc::clone(&seen);
                let _orders = NativeConsumer::start(&vhost, "orders", move |seen| {
                    assert_eq!(seen.body, b"x");
                    assert_eq!(*seen.properties.delivery_mode(), Some(2));
                    if seen.attempt() > 1 {
                        assert_eq!(seen.properties.expiration(), &None);
                        assert_eq!(seen.properties.user_id(), &None);
                    }
                    let mut noted = noted.lock().unwrap();
                    noted
                        .entry(seen.id.clone())
                        .or_default()
                        .push(seen.attempt());
                    false
                })
                .await;
                let billed = Arc::<Mutex<Vec<usize>>>::default();
                let noted = Arc::clone(&billed);
                let _billing = NativeConsumer::start(&vhost, "billing", move |seen| {
                    assert_eq!(seen.id, "bill", "another queue's message came");
                    noted.lock().unwrap().push(seen.attempt());
                    seen.attempt() > 1
                })
                .await;
                for number in 0..20 {
                    let properties: BasicProperties = id(&number.to_string());
                    let properties = properties
                        .with_delivery_mode(2)
                        .with_user_id(ShortString::from("guest"))
                        .with_expiration(ShortString::from("600000"));
                    amqp.publish_with("orders", "x", properties).await;
                }
                amqp.publish_with("billing", "x", id("bill")).await;
                let parked = take(&amqp, "orders.parked", 20).await;
                for message in &parked {
                    let headers = message.properties.headers().clone().unwrap();
                    let headers = headers.inner();
                    assert_eq!(headers["x-retry-parked-reason"], text("exhausted"));
                    assert_eq!(headers["x-retry-user-id"], text("guest"));
                    assert_eq!(headers["x-retry-expiration"], text("600000"));
                }
                let seen = seen.lock().unwrap().clone();
                assert_eq!(seen.len(), 20, "{seen:?}");
                assert!(
                    seen.values().all(|attempts| *attempts == [1, 2, 3]),
                    "{seen:?}"
                );
                eventually(DEADLINE, "the bill came back", || async {
                    billed.lock().unwrap().as_slice() == [1, 2]
                })
                .await;
                is_empty(&store(&servers, &vhost)).await;
                no_waiting_queue(&vhost).await;
                replica
                    .counts("retryrmq_serve_store_published_total", 41)
                    .await;
                replica
                    .counts("retryrmq_serve_store_late_seconds_count", 41)
                    .await;
                let (_, metrics) = replica.page("/metrics").await;
                assert_eq!(metrics.matches("# EOF").count(), 1, "{metrics}");
                assert_eq!(replica.page("/readyz").await.0, 200);
                assert!(replica.end().await.success());
            }
        })
        .await;
    })
    .await;
}

#[tokio::test]
async fn redis_and_a_replica_that_are_killed_lose_nothing() {
    on_brokers(|broker| async move {
        let Some(servers) = one_server(KINDS[0], &[]) else {
            return;
        };
        let vhost = broker.vhost().await;
        let amqp = vhost.connect().await;
        let file = file("fixed(5s, retries=5)", &servers);
        let one = Replica::start(&vhost, Some(file.path())).await;
        let other = Replica::start(&vhost, Some(file.path())).await;
        declare(&amqp, "orders", QueueType::Quorum, true).await;
        let done = Arc::<Mutex<BTreeSet<String>>>::default();
        let noted = Arc::clone(&done);
        let _native = NativeConsumer::start(&vhost, "orders", move |seen| {
            let again = seen.attempt() > 1;
            if again {
                noted.lock().unwrap().insert(seen.id.clone());
            }
            again
        })
        .await;
        for number in 0..40 {
            amqp.publish_with("orders", "x", id(&number.to_string()))
                .await;
        }
        let store = store(&servers, &vhost);
        eventually(DEADLINE, "some wait in Redis", || async {
            waiting(&store).await.is_ok_and(|count| count > 0)
        })
        .await;
        servers.tell("kill", 0, &[]);
        for number in 40..80 {
            amqp.publish_with("orders", "x", id(&number.to_string()))
                .await;
        }
        eventually(DEADLINE, "the probe names the store", || async {
            let (status, why) = other.page("/readyz").await;
            if status == 503 && why.contains("stay in the intake") && why.contains("Redis at") {
                Ok(())
            } else {
                Err(format!("{status} {why}"))
            }
        })
        .await;
        one.kill().await;
        servers.start(0, &[]);
        eventually(DEADLINE, "all of them came back", || async {
            let count = done.lock().unwrap().len();
            if count == 80 {
                Ok(())
            } else {
                Err(count.to_string())
            }
        })
        .await;
        is_empty(&store).await;
        eventually(DEADLINE, "nothing is left, and it is ready", || async {
            let left = [amqp.depth("orders").await, amqp.depth(INTAKE).await];
            let (status, why) = other.page("/readyz").await;
            if left == [Some(0), Some(0)] && status == 200 {
                Ok(())
            } else {
                Err(format!("{left:?}, {status} {why}"))
            }
        })
        .await;
        assert_eq!(amqp.depth("orders.parked").await, None, "none was parked");
        no_waiting_queue(&vhost).await;
        assert!(other.end().await.success());
    })
    .await;
}

/// RabbitMQ 4 marks what was rejected in a quorum queue as redelivered, when the intake hands it out for the first time.
#[tokio::test]
async fn of_messages_that_are_alike_every_one_comes_back() {
    const TICKS: usize = 40;
    on_brokers(|broker| async move {
        let Some(servers) = one_server(KINDS[0], &[]) else {
            return;
        };
        let vhost = broker.vhost().await;
        let amqp = vhost.connect().await;
        let file = file("fixed(2s, retries=5)", &servers);
        let replica = Replica::start(&vhost, Some(file.path())).await;
        declare(&amqp, "ticks", QueueType::Quorum, true).await;
        for _ in 0..TICKS {
            amqp.publish_with("ticks", "tick", BasicProperties::default())
                .await;
        }
        let came_back = Arc::<Mutex<usize>>::default();
        let noted = Arc::clone(&came_back);
        let _native = NativeConsumer::start(&vhost, "ticks", move |seen| {
            let again = seen.attempt() > 1;
            *noted.lock().unwrap() += usize::from(again);
            again
        })
        .await;
        eventually(DEADLINE, "each of them came back", || async {
            let count = *came_back.lock().unwrap();
            if count >= TICKS {
                Ok(())
            } else {
                Err(count.to_string())
            }
        })
        .await;
        is_empty(&store(&servers, &vhost)).await;
        assert!(replica.end().await.success());
    })
    .await;
}

#[tokio::test]
async fn what_has_no_queue_any_more_is_parked_with_a_sentence() {
    on_brokers(|broker| async move {
        let Some(servers) = one_server(KINDS[0], &[]) else {
            return;
        };
        let vhost = broker.vhost().await;
        let amqp = vhost.connect().await;
        let file = file("fixed(15s, retries=5)", &servers);
        let replica = Replica::start(&vhost, Some(file.path())).await;
        declare(&amqp, "orders", QueueType::Quorum, true).await;
        amqp.publish_with("orders", "x", id("lonely")).await;
        // A client defers its third attempt.
        let mut headers = FieldTable::default();
        headers.insert("x-retry-handover".into(), text("defer"));
        headers.insert("x-retry-queue".into(), text("orders"));
        headers.insert("x-retry-after".into(), AMQPValue::LongLongInt(15_000));
        headers.insert("x-retry-count".into(), AMQPValue::LongLongInt(2));
        let deferred = id("deferred").with_headers(headers);
        amqp.publish_with("retryrmq.handover", "x", deferred).await;
        let native = NativeConsumer::start(&vhost, "orders", |_| false).await;
        let store = store(&servers, &vhost);
        eventually(DEADLINE, "both wait", || async {
            waiting(&store).await == Ok(2)
        })
        .await;
        drop(native);
        amqp.delete("orders").await;
        let mut parked = take(&amqp, "orders.parked", 2).await;
        parked.sort_by_key(|message| message.id() == Some("deferred"));
        let counts = parked.iter().map(|message| {
            let headers = message.properties.headers().clone().unwrap();
            headers.inner()["x-retry-count"].clone()
        });
        assert_eq!(
            counts.collect::<Vec<_>>(),
            [0, 2].map(AMQPValue::LongLongInt),
            "with which the last attempt began"
        );
        let headers = parked[0].properties.headers().clone().unwrap();
        assert_eq!(
            headers.inner()["x-retry-error"],
            text(
                "it has waited, and cannot come back to orders: there is no queue `orders`; declare it, or check its name and the virtual host; once that is mended, replay it"
            )
        );
        assert_eq!(parked[0].id(), Some("lonely"));
        is_empty(&store).await;
        replica
            .counts("retryrmq_serve_store_given_up_total", 2)
            .await;
        assert!(replica.end().await.success());
    })
    .await;
}

/// The command `retryrmq`, beside the program that was built.
fn built_command() -> std::path::PathBuf {
    let program = std::path::Path::new(env!("CARGO_BIN_EXE_retryrmq-serve"));
    let command = program.with_file_name("retryrmq");
    assert!(
        command.exists(),
        "build the command, too: cargo build -p retryrmq-cli"
    );
    command
}

/// What it says: exit code, standard output, standard error.
async fn command(vhost: &Vhost, arguments: &[&str]) -> (i32, String, String) {
    let done = tokio::process::Command::new(built_command())
        .env("RETRYRMQ_URL", vhost.url())
        .args(arguments)
        .stdin(std::process::Stdio::null())
        .output()
        .await
        .unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (
        done.status.code().unwrap_or(-1),
        text(&done.stdout),
        text(&done.stderr),
    )
}

#[tokio::test]
async fn an_operator_lists_brings_back_and_parks_what_waits_in_the_store() {
    on_brokers(|broker| async move {
        let Some(servers) = one_server(KINDS[0], &[]) else {
            return;
        };
        let vhost = broker.vhost().await;
        let amqp = vhost.connect().await;
        let file = file("fixed(2h, retries=5)", &servers);
        let replica = Replica::start(&vhost, Some(file.path())).await;
        let path = file.path().to_str().unwrap();
        for queue in ["orders", "billing"] {
            declare(&amqp, queue, QueueType::Quorum, true).await;
        }
        let (_orders, back) = reject_first_attempts(&vhost).await;
        let _billing = NativeConsumer::start(&vhost, "billing", |_| false).await;
        for number in 0..3 {
            amqp.publish_with(
                "orders",
                &format!("body {number}"),
                id(&format!("o{number}")),
            )
            .await;
        }
        amqp.publish_with("billing", "x", id("bill")).await;
        let store = store(&servers, &vhost);
        eventually(DEADLINE, "all wait in Redis", || async {
            match waiting(&store).await {
                Ok(4) => Ok(()),
                other => Err(format!("{other:?}")),
            }
        })
        .await;

        // Without the store it does not say that there is nothing.
        let (code, _, said) = command(&vhost, &["waiting", "ls", "orders"]).await;
        assert_eq!(code, 3, "{said}");
        assert!(
            said.contains("in the broker") && said.contains("Redis was not looked for"),
            "{said}"
        );
        let (code, listed, said) = command(
            &vhost,
            &[
                "--json", "waiting", "ls", "orders", "--look", "--store", path,
            ],
        )
        .await;
        assert_eq!(code, 0, "{said}");
        let listed: serde_json::Value = serde_json::from_str(&listed).unwrap();
        assert_eq!(
            (&listed["waiting"], &listed["store"]["waiting"]),
            (&3.into(), &3.into())
        );
        let messages = listed["store"]["messages"].as_array().unwrap();
        let mut names: Vec<_> = messages
            .iter()
            .map(|one| one["id"].as_str().unwrap())
            .collect();
        names.sort_unstable();
        assert_eq!(names, ["o0", "o1", "o2"]);
        assert!(messages.iter().all(|one| one["retries"] == 1), "{listed}");
        let (code, listed, said) =
            command(&vhost, &["waiting", "ls", "orders", "--store", path]).await;
        assert!(
            code == 0 && listed.contains("in 1h59m") && listed.contains("the store of"),
            "{listed}{said}"
        );
        let (code, shown, said) = command(
            &vhost,
            &["waiting", "show", "orders", "o1", "--store", path],
        )
        .await;
        assert!(code == 0 && shown.contains("body 1"), "{shown}{said}");

        let (code, _, said) = command(
            &vhost,
            &[
                "waiting", "flush", "orders", "--id=o0", "--yes", "--store", path,
            ],
        )
        .await;
        assert!(
            code == 0 && said.contains("1 message of the store due now"),
            "{said}"
        );
        eventually(DEADLINE, "it came back", || async {
            back.lock().unwrap().as_slice() == ["o0"]
        })
        .await;
        let mark = messages.iter().find(|one| one["id"] == "o1").unwrap()["mark"].as_str();
        let named = format!("--id=#{}", mark.unwrap());
        let (code, _, said) = command(
            &vhost,
            &[
                "waiting", "cancel", "orders", &named, "--yes", "--store", path,
            ],
        )
        .await;
        assert!(
            code == 0 && said.contains("1 message taken out into orders.parked"),
            "{said}"
        );
        let parked = take(&amqp, "orders.parked", 1).await;
        let headers = parked[0].properties.headers().clone().unwrap();
        assert_eq!(parked[0].id(), Some("o1"));
        assert_eq!(headers.inner()["x-retry-parked-reason"], text("requested"));
        assert_eq!(parked[0].text(), "body 1");

        let (code, _, said) = command(
            &vhost,
            &[
                "waiting", "flush", "orders", "--id=o1", "--yes", "--store", path,
            ],
        )
        .await;
        assert_eq!(code, 3, "it is parked: {said}");
        let (code, _, said) = command(
            &vhost,
            &[
                "waiting", "flush", "orders", "--all", "--yes", "--store", path,
            ],
        )
        .await;
        assert_eq!(code, 0, "{said}");
        eventually(DEADLINE, "the last one came back", || async {
            let back = back.lock().unwrap().clone();
            (back == ["o0", "o2"])
                .then_some(())
                .ok_or(format!("{back:?}"))
        })
        .await;
        // It is deleted once the broker has confirmed it.
        eventually(
            DEADLINE,
            "only what waits for another queue is left",
            || async {
                match waiting(&store).await {
                    Ok(1) => Ok(()),
                    other => Err(format!("{other:?}")),
                }
            },
        )
        .await;
        let (code, _, said) = command(&vhost, &["waiting", "ls", "orders", "--store", path]).await;
        assert!(
            code == 0 && said.contains("nothing waits for orders in the broker, and nothing in"),
            "{said}"
        );
        assert!(replica.end().await.success());
    })
    .await;
}

/// What waits for two hours.
fn drafts(count: usize) -> Vec<StoredMessage> {
    let draft = |number| MessageDraft {
        routing_key: "orders".to_owned(),
        properties: id(&format!("m{number}")),
        body: b"a body".to_vec(),
        delay: HOUR * 2,
        ..MessageDraft::default()
    };
    (0..count)
        .map(|number| StoredMessage::new(draft(number)).unwrap())
        .collect()
}

/// Begins to park so many.
fn cancel_all(vhost: &Vhost, path: &str, count: usize) -> tokio::process::Child {
    tokio::process::Command::new(built_command())
        .env("RETRYRMQ_URL", vhost.url())
        .args(["waiting", "cancel", "orders", "--yes", "--store", path])
        .args((1..count).map(|number| format!("--id=m{number}")))
        .stderr(std::process::Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap()
}

fn send(process: u32, signal: Signal) {
    let pid = rustix::process::Pid::from_raw(process.cast_signed());
    rustix::process::kill_process(pid.unwrap(), signal).unwrap();
}

/// The program that a process runs.
fn child_of(process: u32) -> u32 {
    let tasks = std::fs::read_dir(format!("/proc/{process}/task")).unwrap();
    let children: String = tasks
        .map(|task| std::fs::read_to_string(task.unwrap().path().join("children")).unwrap())
        .collect();
    children.split_whitespace().next().unwrap().parse().unwrap()
}

#[tokio::test]
async fn who_stops_a_cancel_keeps_each_message_in_one_place() {
    const ALL: usize = 1_000;
    on_brokers(|broker| async move {
        let Some(servers) = one_server(KINDS[0], &[]) else {
            return;
        };
        let vhost = broker.vhost().await;
        let amqp = vhost.connect().await;
        let file = file("fixed(2h, retries=5)", &servers);
        let path = file.path().to_str().unwrap();
        declare(&amqp, "orders", QueueType::Quorum, true).await;
        let store = store(&servers, &vhost);
        let messages = drafts(ALL);
        store.keep(&messages).await.unwrap();

        // Ids of the store are base64url.
        let begins = |message: &StoredMessage| message.id().as_str().starts_with('-');
        let number = messages.iter().position(begins).unwrap();
        let name = format!("m{number}");
        let show = [
            "--json", "waiting", "show", "orders", &name, "--store", path,
        ];
        let (code, shown, said) = command(&vhost, &show).await;
        assert_eq!(code, 0, "{said}");
        let shown: serde_json::Value = serde_json::from_str(&shown).unwrap();
        assert_eq!(shown["id"], name);
        assert_eq!(shown["store_id"], messages[number].id().as_str());
        assert_eq!(
            (&shown["body"], &shown["bytes"]),
            (&"a body".into(), &6.into())
        );
        let direct = ["--config", path, "--show", messages[number].id().as_str()];
        let done = program()
            .env("RETRYRMQ_URL", vhost.url())
            .args(direct)
            .output()
            .await
            .unwrap();
        assert!(done.status.success(), "{done:?}");

        // Nobody serves, so it stays where it is, and is due.
        let flush = [
            "waiting", "flush", "orders", "--id=m0", "--yes", "--store", path,
        ];
        let (code, _, said) = command(&vhost, &flush).await;
        assert_eq!(code, 0, "{said}");
        let list = [
            "--json", "waiting", "ls", "orders", "--look", "--store", path,
        ];
        let (code, listed, said) = command(&vhost, &list).await;
        assert_eq!(code, 0, "{said}");
        let listed: serde_json::Value = serde_json::from_str(&listed).unwrap();
        let at = |name: &str| listed["store"][name].as_str().unwrap().to_owned();
        assert!(at("next_at") < at("last_at"), "it is due now: {listed}");
        let first = &listed["store"]["messages"][0];
        assert_eq!(
            (&first["id"], &first["due_at"]),
            (&"m0".into(), &listed["store"]["next_at"])
        );

        // The program ends behind the message that it is at.
        let policy = ServiceConfig::read(&std::fs::read_to_string(path).unwrap()).unwrap();
        let inspector = StoreInspector::open(&policy, vhost.url()).unwrap();
        let client = retryrmq::Client::connect(vhost.url()).await.unwrap();
        let ids: Vec<_> = messages[..3]
            .iter()
            .map(|one| one.id().to_string())
            .collect();
        let stop = AtomicBool::new(false);
        let parked = inspector.park(&ids, &client, &stop, |_| {
            stop.store(true, Ordering::Relaxed)
        });
        assert_eq!(parked.await.unwrap(), Moved::Stopped);
        client.close().await;
        depth(&amqp, "orders.parked", 1).await;
        assert_eq!(waiting(&store).await, Ok(ALL as u64 - 1));

        let cancel = cancel_all(&vhost, path, ALL);
        // More than one, after the first.
        eventually(DEADLINE, "some are parked", || async {
            amqp.depth("orders.parked").await > Some(2)
        })
        .await;
        send(cancel.id().unwrap(), Signal::TERM);
        let done = cancel.wait_with_output().await.unwrap();
        let said = String::from_utf8_lossy(&done.stderr).into_owned();
        assert_eq!(done.status.code(), Some(130), "{said}");
        let left = usize::try_from(waiting(&store).await.unwrap()).unwrap();
        assert!(left > 0, "nothing was stopped: {said}");
        let moved = ALL - left - 1;
        assert!(
            said.contains(&format!("interrupted: {moved} messages taken out")),
            "{said}"
        );
        depth(&amqp, "orders.parked", u32::try_from(ALL - left).unwrap()).await;
        let part = Page {
            from: None,
            limit: ALL,
            destination: None,
        };
        let listing = store.list(&part).await.unwrap();
        assert!(
            listing
                .messages
                .iter()
                .all(|one| !one.claimed && one.remaining > HOUR)
        );

        // What was moved is told, too, if somebody kills the program that does it.
        let cancel = cancel_all(&vhost, path, ALL);
        let before = u32::try_from(ALL - left).unwrap();
        eventually(DEADLINE, "more are parked", || async {
            amqp.depth("orders.parked").await > Some(before + 2)
        })
        .await;
        send(child_of(cancel.id().unwrap()), Signal::KILL);
        let done = cancel.wait_with_output().await.unwrap();
        let said = String::from_utf8_lossy(&done.stderr).into_owned();
        assert_eq!(done.status.code(), Some(1), "{said}");
        assert!(said.contains("ended early (signal: 9"), "{said}");
        let told = said.split(" messages taken out").next().unwrap();
        let told: u32 = told.rsplit(' ').next().unwrap().parse().unwrap();
        let parked = amqp.depth("orders.parked").await.unwrap();
        assert!(told > 0 && told <= parked - before, "{said}");
    })
    .await;
}

#[tokio::test]
async fn a_cancel_that_cannot_park_all_says_so_and_leaves_the_rest_waiting() {
    on_brokers(|broker| async move {
        let Some(servers) = one_server(KINDS[0], &[]) else {
            return;
        };
        let vhost = broker.vhost().await;
        let amqp = vhost.connect().await;
        let file = file("fixed(2h, retries=5)", &servers);
        let path = file.path().to_str().unwrap();
        declare(&amqp, "orders", QueueType::Quorum, true).await;
        let one = serde_json::json!({"max-length": 1, "overflow": "reject-publish"});
        let policy = Policy::new("^orders[.]parked$", one);
        vhost.put_policy("one", &policy).await.unwrap();
        // A quorum queue takes a few more than it may.
        amqp.declare("orders.parked", QueueType::Classic).await;
        let store = store(&servers, &vhost);
        store.keep(&drafts(4)).await.unwrap();
        let cancel = [
            "--json", "waiting", "cancel", "orders", "--id=m1", "--id=m2", "--id=m3", "--yes",
            "--store", path,
        ];
        let (code, told, said) = command(&vhost, &cancel).await;
        assert_eq!(code, 1, "{said}");
        let lines: Vec<serde_json::Value> = told
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        let of = |outcome: &str| -> Vec<_> {
            let fitting = lines.iter().filter(|line| line["outcome"] == outcome);
            fitting.map(|line| line["id"].as_str().unwrap()).collect()
        };
        let (parked, failed) = (of("cancelled"), of("failed"));
        assert_eq!((parked.len(), failed.len()), (1, 2), "{told}");
        let why = lines
            .iter()
            .find(|line| line["outcome"] == "failed")
            .unwrap();
        assert!(
            why["error"]
                .as_str()
                .unwrap()
                .contains("the broker did not take the message"),
            "{why}"
        );
        assert!(
            said.contains("1 message taken out into orders.parked"),
            "{said}"
        );

        // What is told is what happened, and what was not parked waits as long as before.
        let there = take(&amqp, "orders.parked", 1).await;
        assert_eq!(there[0].id(), Some(parked[0]));
        depth(&amqp, "orders.parked", 0).await;
        let part = Page {
            from: None,
            limit: 10,
            destination: None,
        };
        let listing = store.list(&part).await.unwrap();
        let waits = listing.messages.iter().map(|listed| {
            assert!(!listed.claimed && listed.remaining > HOUR, "{listed:?}");
            let id = listed.message.draft().properties.message_id().as_ref();
            id.unwrap().as_str().to_owned()
        });
        let waits: BTreeSet<String> = waits.collect();
        let left = ["m0", failed[0], failed[1]].map(str::to_owned);
        assert_eq!(waits, BTreeSet::from(left));
    })
    .await;
}

#[tokio::test]
async fn a_cancel_whose_store_goes_away_says_that_the_message_may_come_back_as_well() {
    on_brokers_where(Broker::is_controllable, |broker| async move {
        let Some(servers) = one_server(KINDS[0], &[]) else {
            return;
        };
        let node = broker.own_node(&[]).await;
        let vhost = node.vhost().await;
        let amqp = vhost.connect().await;
        let file = file("fixed(2h, retries=5)", &servers);
        let path = file.path().to_str().unwrap();
        declare(&amqp, "orders", QueueType::Quorum, true).await;
        let store = store(&servers, &vhost);
        store.keep(&drafts(2)).await.unwrap();
        // The copy is held up in the middle: the message is taken out of the store, and the broker reads nothing.
        node.raise_memory_alarm().await;
        let cancel = cancel_all(&vhost, path, 2);
        eventually(DEADLINE, "it is claimed", || async {
            let part = Page {
                from: None,
                limit: 10,
                destination: None,
            };
            let listing = store.list(&part).await.unwrap();
            listing.messages.iter().any(|listed| listed.claimed)
        })
        .await;
        servers.tell("kill", 0, &[]);
        node.set_memory_watermark(0.4).await;
        let done = cancel.wait_with_output().await.unwrap();
        let said = String::from_utf8_lossy(&done.stderr).into_owned();
        assert_eq!(done.status.code(), Some(1), "{said}");
        assert!(
            said.contains("m1: it may come back: ") && said.contains("1 message taken out"),
            "{said}"
        );

        // It is in both places.
        let parked = take(&amqp, "orders.parked", 1).await;
        assert_eq!(parked[0].id(), Some("m1"));
        servers.start(0, &[]);
        eventually(DEADLINE, "the store answers", || async {
            match waiting(&store).await {
                Ok(2) => Ok(()),
                other => Err(format!("{other:?}")),
            }
        })
        .await;
    })
    .await;
}

/// A consumer of `orders` that rejects the first attempt of each message, and the ids of those that came back.
async fn reject_first_attempts(vhost: &Vhost) -> (NativeConsumer, Arc<Mutex<Vec<String>>>) {
    let back = Arc::<Mutex<Vec<String>>>::default();
    let noted = Arc::clone(&back);
    let consumer = NativeConsumer::start(vhost, "orders", move |seen| {
        let again = seen.attempt() > 1;
        if again {
            noted.lock().unwrap().push(seen.id.clone());
        }
        again
    });
    (consumer.await, back)
}

#[tokio::test]
async fn the_page_lists_brings_back_and_parks_what_waits_in_the_store() {
    on_brokers(|broker| async move {
        let Some(servers) = one_server(KINDS[0], &[]) else {
            return;
        };
        let vhost = broker.vhost().await;
        let amqp = vhost.connect().await;
        let folder = tempfile::tempdir().unwrap();
        let store_section = format!(
            "[defaults]\nretry = \"fixed(2h, retries=5)\"\n[store.redis]\naddresses = [\"{}\"]\nlease = \"2s\"\n",
            servers.address(0)
        );
        let file = policy(&people(folder.path(), &store_section));
        let replica = Replica::start(&vhost, Some(file.path())).await;
        declare(&amqp, "orders", QueueType::Quorum, true).await;
        let (_orders, back) = reject_first_attempts(&vhost).await;
        amqp.publish_with("orders", "a body", id("one")).await;
        let mut olga = Visitor::with_token(&replica, "olga-0123456789abcdef").await;
        let page = olga.sees("/waiting", &["one", "in 2 h", "<b>1</b> in the store"]).await;
        let (word, mark) = (value_of(&page, "word"), value_of(&page, "mark"));
        let form = |work| {
            [("word", word.clone()), ("queue", "orders".to_owned()), ("work", work), ("mark", mark.clone())]
        };
        let cancel = form("cancel".to_owned());
        let cancel = cancel.each_ref().map(|(name, value)| (*name, value.as_str()));
        let confirmed = olga.post("/confirm", &cancel).await.body;
        assert!(confirmed.contains("Take out and park 1 message?") && confirmed.contains(">one<"), "{confirmed}");
        let page = olga.does(&cancel).await.1;
        assert!(page.contains("taken out and parked"), "{page}");
        depth(&amqp, "orders.parked", 1).await;
        olga.sees("/queues/orders", &["<b>1</b> parked", "<b>0</b> waiting in the store"])
            .await;

        amqp.publish_with("orders", "a body", id("two")).await;
        let page = olga.sees("/waiting", &["two", "<b>1</b> in the store"]).await;
        let mark = value_of(&page, "mark");
        let flush = [("word", word.as_str()), ("queue", "orders"), ("work", "flush"), ("mark", &mark)];
        let confirmed = olga.post("/confirm", &flush).await.body;
        assert!(confirmed.contains("Bring back 1 message?"), "{confirmed}");
        let page = olga.does(&flush).await.1;
        assert!(page.contains("comes back now"), "{page}");
        eventually(DEADLINE, "it came back", || async {
            back.lock().unwrap().as_slice() == ["two"]
        })
        .await;
        let page = olga.does(&flush).await.1;
        assert!(page.contains("no longer waiting"), "{page}");
        assert!(replica.end().await.success());
    })
    .await;
}

#[tokio::test]
async fn the_page_says_of_each_message_whether_it_waits_in_the_broker_or_in_the_store() {
    on_brokers(|broker| async move {
        let Some(servers) = one_server(KINDS[0], &[]) else {
            return;
        };
        let vhost = broker.vhost().await;
        let amqp = vhost.connect().await;
        let folder = tempfile::tempdir().unwrap();
        let without = "[defaults]\nretry = \"fixed(2h, retries=5)\"\n";
        let with = format!(
            "{without}[store.redis]\naddresses = [\"{}\"]\nlease = \"2s\"\n[delayed.later]\nto = \"\"\n[delayed.topics]\nto = \"shop\"\n",
            servers.address(0)
        );
        let without = policy(&people(folder.path(), without));
        let with = policy(&people(folder.path(), &with));
        let replica = Replica::start(&vhost, Some(without.path())).await;
        declare(&amqp, "orders", QueueType::Quorum, true).await;
        let (_orders, back) = reject_first_attempts(&vhost).await;
        amqp.publish_with("orders", "a body", id("early")).await;
        let mut olga = Visitor::with_token(&replica, "olga-0123456789abcdef").await;
        let page = olga
            .sees("/waiting", &["early", "<b>1</b> wait for their next attempt"])
            .await;
        assert!(!page.contains("Waits in"), "there is one place: {page}");
        assert!(replica.end().await.success());

        // The policy is another: what failed before waits where it was.
        let replica = Replica::start(&vhost, Some(with.path())).await;
        replica.says("kept until they are due").await;
        amqp.publish_with("orders", "a body", id("late")).await;
        let mut olga = Visitor::with_token(&replica, "olga-0123456789abcdef").await;
        let both = ["<b>1</b> in the store", "<b>1</b> in the broker"];
        let page = olga.sees("/waiting", &both).await;
        let place = |page: &str, name: &str| {
            let rows = page.split("<tr>").find(|row| row.contains(&format!(">{name}<")));
            let row = rows.unwrap_or_else(|| panic!("{name}: {page}")).to_owned();
            let places = ["broker", "store", "a store that this service does not use"];
            let told = places.into_iter().find(|place| row.contains(&format!("<td>{place}</td>")));
            told.unwrap_or_else(|| panic!("{row}"))
        };
        assert_eq!((place(&page, "early"), place(&page, "late")), ("broker", "store"));
        let of_orders = [
            "<b>1</b> waiting in the store",
            "<b>1</b> waiting in the broker, according to the history",
        ];
        olga.sees("/queues/orders", &of_orders).await;
        let split = "2 <small>1 in the store, 1 in the broker</small>";
        olga.sees("/", &[">orders</a>", split]).await;

        // What was published with a delay counts with the queue that it goes to, and is listed with where it goes.
        for (exchange, key, name) in [("later", "orders", "straight"), ("topics", "order.paid", "by-topic")] {
            let properties = delayed(name, AMQPValue::LongInt(7_200_000));
            amqp.publish_to(exchange, key, "a body", properties).await;
        }
        let listed = [
            "<b>3</b> in the store",
            "retryrmq.delayed",
            "to the queue orders",
            "to the exchange shop, routing key order.paid",
        ];
        let page = olga.sees("/waiting", &listed).await;
        assert_eq!(place(&page, "straight"), "store");
        let counted = ["<b>2</b> waiting in the store", "delayed messages for this queue"];
        olga.sees("/queues/orders", &counted).await;
        let counted = ["<b>1</b> waiting in the store", "These go to exchanges."];
        olga.sees("/queues/retryrmq.delayed", &counted).await;
        let page = olga.sees("/", &[">retryrmq.delayed</a>"]).await;
        assert!(page.contains("Delayed messages are counted under their target queue"), "{page}");

        // What waits in the broker is brought back from there.
        let page = olga.get("/waiting").await.body;
        let row = page.split("<tr>").find(|row| row.contains(">early<")).unwrap();
        let (word, mark) = (value_of(&page, "word"), value_of(row, "mark"));
        let flush = [("word", word.as_str()), ("queue", "orders"), ("work", "flush"), ("mark", &mark)];
        let page = olga.does(&flush).await.1;
        assert!(page.contains("comes back now"), "{page}");
        eventually(DEADLINE, "it came back", || async {
            back.lock().unwrap().as_slice() == ["early"]
        })
        .await;
        let page = olga.get("/waiting").await.body;
        assert!(!page.contains(">early<") && !page.contains("in the broker"), "{page}");
        assert!(replica.end().await.success());

        // Without the store nobody brings back what waits in it.
        let replica = Replica::start(&vhost, Some(without.path())).await;
        let mut olga = Visitor::with_token(&replica, "olga-0123456789abcdef").await;
        let stuck = ["<b>0</b> wait for their next attempt", "<b>1</b> wait in a store"];
        let page = olga.sees("/waiting", &stuck).await;
        assert_eq!(place(&page, "late"), "a store that this service does not use");
        olga.sees("/queues/orders", &["<b>1</b> waiting in a store that this service does not use"])
            .await;
        assert!(replica.end().await.success());
    })
    .await;
}

#[tokio::test]
async fn a_store_that_would_lose_messages_ends_the_start() {
    let Some(servers) = one_server(KINDS[1], &["appendonly no"]) else {
        return;
    };
    let file = file("fixed(1s)", &servers);
    let done = program()
        .args(["--listen", "127.0.0.1:0", "--config"])
        .arg(file.path())
        .output()
        .await
        .unwrap();
    let said = String::from_utf8_lossy(&done.stderr);
    assert_eq!(done.status.code(), Some(5), "{said}");
    assert!(said.contains("`appendonly yes`"), "{said}");
}

#[tokio::test]
async fn a_reload_never_changes_the_store() {
    on_brokers(|broker| async move {
        let Some(servers) = one_server(KINDS[0], &[]) else {
            return;
        };
        let vhost = broker.vhost().await;
        let file = file("fixed(1s)", &servers);
        let replica = Replica::start(&vhost, Some(file.path())).await;
        std::fs::write(file.path(), "[defaults]\nretry = \"fixed(2s)\"\n").unwrap();
        replica.signal(Signal::HUP);
        let said = replica.says("policy file is refused").await;
        let error = said["error"].as_str().unwrap();
        assert!(error.contains("restart the service"), "{error}");
        assert!(replica.end().await.success());
    })
    .await;
}
