//! Messages with a delay: to the real exchange, whole and on time, from the broker's queues and from Redis; and what the plugin does with the same
//! publishers.

use std::{
    collections::BTreeMap,
    path::Path,
    process::Stdio,
    sync::{Arc, Mutex},
    time::{Duration, SystemTime},
};

use futures_util::StreamExt;
use retryrmq_harness::{
    Amqp, Broker, QueueType, Version, Vhost, eventually,
    lapin::{
        BasicProperties, ExchangeKind,
        message::Delivery,
        options::{BasicAckOptions, BasicPublishOptions, ExchangeDeclareOptions, QueueBindOptions},
        types::{AMQPValue, FieldTable, ShortString},
    },
    on_brokers, on_every_broker, on_every_broker_where,
};
use retryrmq_serve::store::{Page, Store, redis::RedisStore};
use tokio::{process::Command, task::AbortHandle};

use crate::{
    fixture::{DEADLINE, Replica, id, policy, program, take, text},
    server::{KINDS, Servers, available},
};

pub(crate) const POLICY: &str = "[delayed.orders]\nto = \"shop\"\n";
pub(crate) const DELAYED: &str = "retryrmq.delayed";
pub(crate) const PARKED: &str = "retryrmq.delayed.parked";
const PLUGIN: &str = "plugins = rabbitmq_delayed_message_exchange";

/// The exchange `exchange`, and a queue `due` that takes `order.#` from it.
pub(crate) async fn shop(amqp: &Amqp, exchange: &str) {
    let durable = ExchangeDeclareOptions {
        durable: true,
        ..ExchangeDeclareOptions::default()
    };
    let channel = amqp.channel();
    let declared = channel.exchange_declare(
        exchange.into(),
        ExchangeKind::Topic,
        durable,
        FieldTable::default(),
    );
    declared.await.unwrap();
    bind(amqp, exchange).await;
}

async fn bind(amqp: &Amqp, exchange: &str) {
    // A quorum queue of RabbitMQ 3.10 adds a header.
    amqp.declare("due", QueueType::Classic).await;
    let bound = amqp.channel().queue_bind(
        "due".into(),
        exchange.into(),
        "order.#".into(),
        QueueBindOptions::default(),
        FieldTable::default(),
    );
    bound.await.unwrap();
}

/// By id, what came when, in milliseconds.
type Arrivals = BTreeMap<String, Vec<(u64, Delivery)>>;

/// What came to the queue `due`.
struct Due {
    seen: Arc<Mutex<Arrivals>>,
    task: AbortHandle,
}

impl Due {
    async fn watch(vhost: &Vhost) -> Self {
        let amqp = vhost.connect().await;
        let mut consumer = amqp.consume("due", 100).await;
        let seen = Arc::<Mutex<BTreeMap<String, Vec<(u64, Delivery)>>>>::default();
        let noted = Arc::clone(&seen);
        let task = tokio::spawn(async move {
            let _amqp = amqp;
            while let Some(Ok(delivery)) = consumer.next().await {
                let name = delivery.properties.message_id().clone().unwrap();
                delivery
                    .acker
                    .ack(BasicAckOptions::default())
                    .await
                    .unwrap();
                let mut noted = noted.lock().unwrap();
                let all = noted.entry(name.to_string()).or_default();
                all.push((now(), delivery));
            }
        });
        Self {
            seen,
            task: task.abort_handle(),
        }
    }

    /// When it came first, and as what.
    async fn came(&self, name: &str) -> (u64, BasicProperties, String, String) {
        eventually(DEADLINE, &format!("{name} came"), || async {
            let seen = self.seen.lock().unwrap();
            let (at, delivery) = seen.get(name)?.first()?;
            Some((
                *at,
                delivery.properties.clone(),
                delivery.exchange.to_string(),
                delivery.routing_key.to_string(),
            ))
        })
        .await
    }
}

impl Drop for Due {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn now() -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    u64::try_from(now.unwrap().as_millis()).unwrap()
}

pub(crate) fn delayed(name: &str, delay: AMQPValue) -> BasicProperties {
    let mut headers = FieldTable::default();
    headers.insert("x-delay".into(), delay);
    headers.insert("kind".into(), text("invoice"));
    id(name)
        .with_headers(headers)
        .with_expiration("600000".into())
        .with_priority(3)
        .with_content_type("text/plain".into())
}

pub(crate) async fn send(amqp: &Amqp, key: &str, properties: BasicProperties) -> u64 {
    let sent = now();
    let options = BasicPublishOptions {
        mandatory: true,
        ..BasicPublishOptions::default()
    };
    let channel = amqp.channel();
    let confirm = channel.basic_publish(
        "orders".into(),
        key.into(),
        options,
        b"body",
        properties.with_delivery_mode(2),
    );
    let confirm = confirm.await.unwrap().await.unwrap();
    assert!(
        confirm.take_message().is_none(),
        "the exchange leads somewhere"
    );
    sent
}

/// The same for each store.
async fn is_published_when_due(vhost: &Vhost, file: &Path) {
    let amqp = vhost.connect().await;
    shop(&amqp, "shop").await;
    let one = Replica::start(vhost, Some(file)).await;
    one.says("kept until they are due").await;
    let due = Due::watch(vhost).await;
    let mut sent = BTreeMap::new();
    for ms in [4_321i64, 2_500, 700, 30, 0] {
        let name = format!("in-{ms}");
        let properties = delayed(&name, AMQPValue::LongLongInt(ms));
        sent.insert(ms, send(&amqp, &format!("order.{ms}"), properties).await);
    }
    send(&amqp, "order.plain", id("plain")).await;
    for (name, delay) in [
        ("negative", AMQPValue::LongInt(-5)),
        ("text", text("soon")),
        ("long", AMQPValue::LongLongInt(31_536_000_001)),
    ] {
        send(&amqp, "order.x", delayed(name, delay)).await;
    }
    send(
        &amqp,
        "nobody.takes.it",
        delayed("astray", AMQPValue::LongInt(100)),
    )
    .await;
    due.came("plain").await;
    for (ms, sent) in sent {
        let (at, properties, exchange, key) = due.came(&format!("in-{ms}")).await;
        let waited = at.saturating_sub(sent);
        assert!(
            waited >= ms.unsigned_abs(),
            "in-{ms} came after {waited} ms"
        );
        assert_eq!((exchange.as_str(), key), ("shop", format!("order.{ms}")));
        let headers = properties.headers().clone().unwrap();
        let names: Vec<_> = headers.inner().keys().map(ShortString::as_str).collect();
        assert_eq!(names, ["kind", "x-delay"]);
        assert_eq!(headers.inner()["x-delay"], AMQPValue::LongLongInt(-ms));
        assert_eq!(properties.expiration(), &Some("600000".into()));
        assert_eq!(properties.priority(), &Some(3));
        assert_eq!(properties.content_type(), &Some("text/plain".into()));
    }
    let parked = take(&amqp, PARKED, 4).await;
    let words: BTreeMap<_, _> = parked
        .iter()
        .map(|message| {
            (
                message.id().unwrap(),
                message.header_text("x-retry-error").unwrap(),
            )
        })
        .collect();
    for (name, says) in [
        ("negative", "not below zero"),
        ("text", "no whole number"),
        ("long", "longest delay"),
        (
            "astray",
            "cannot be published to the exchange shop with the routing key nobody.takes.it",
        ),
    ] {
        assert!(words[name].contains(says), "{name}: {words:?}");
    }
    let astray = parked.iter().find(|one| one.id() == Some("astray"));
    let (from, key) = ("x-retry-exchange", "x-retry-routing-key");
    assert_eq!(astray.unwrap().header_text(from).as_deref(), Some("orders"));
    assert_eq!(
        astray.unwrap().header_text(key).as_deref(),
        Some("nobody.takes.it")
    );
    // The service that has it is killed, and another one comes.
    let sent = send(
        &amqp,
        "order.kill",
        delayed("kill", AMQPValue::LongInt(3_000)),
    )
    .await;
    one.counts("retryrmq_serve_delayed_total{result=\"waits\"}", 4)
        .await;
    one.kill().await;
    let other = Replica::start(vhost, Some(file)).await;
    let (at, ..) = due.came("kill").await;
    assert!(at - sent >= 3_000, "{} ms", at - sent);
    assert!(other.end().await.success());
    let seen = due.seen.lock().unwrap();
    let names: Vec<_> = seen.keys().map(String::as_str).collect();
    assert_eq!(
        names,
        [
            "in-0", "in-2500", "in-30", "in-4321", "in-700", "kill", "plain"
        ]
    );
}

#[tokio::test]
async fn what_is_published_with_a_delay_waits_in_the_broker_and_comes_when_it_is_due() {
    on_brokers(|broker| async move {
        let vhost = broker.vhost().await;
        let file = policy(POLICY);
        is_published_when_due(&vhost, file.path()).await;
    })
    .await;
}

#[tokio::test]
async fn what_is_published_with_a_delay_waits_in_redis_and_is_listed_and_cancelled_by_id() {
    on_brokers(|broker| async move {
        if !available() {
            return;
        }
        let servers = Servers::new(KINDS[0]);
        servers.start(0, &[]);
        let vhost = broker.vhost().await;
        let redis = format!(
            "[store.redis]\naddresses = [\"{}\"]\nlease = \"2s\"\n",
            servers.address(0)
        );
        let file = policy(&format!("{POLICY}{redis}"));
        is_published_when_due(&vhost, file.path()).await;
        let replica = Replica::start(&vhost, Some(file.path())).await;
        let amqp = vhost.connect().await;
        send(
            &amqp,
            "order.later",
            delayed("later", AMQPValue::LongInt(3_600_000)),
        )
        .await;
        let store = RedisStore::new(&servers.configuration(), vhost.name()).unwrap();
        let page = Page {
            from: None,
            limit: 10,
            destination: None,
        };
        // What was published before may be on its way twice, after a replica that was killed.
        let listed = eventually(DEADLINE, "it alone is listed", || async {
            let listing = store.list(&page).await.map_err(|why| why.to_string())?;
            let count = listing.messages.len();
            let mut later = listing
                .messages
                .into_iter()
                .filter(|listed| listed.message.draft().routing_key.as_str() == "order.later");
            later
                .next()
                .filter(|_| count == 1)
                .ok_or_else(|| format!("{count} are listed"))
        })
        .await;
        let draft = listed.message.draft();
        assert_eq!(
            (draft.exchange.as_str(), draft.routing_key.as_str()),
            ("shop", "order.later")
        );
        let told = async |more: &[&str]| {
            let mut command = program();
            command
                .env("RETRYRMQ_URL", vhost.url())
                .arg("--config")
                .arg(file.path());
            let done = command.args(more).output().await.unwrap();
            (done.status.code(), String::from_utf8(done.stdout).unwrap())
        };
        let (code, lines) = told(&["--waiting"]).await;
        let line: serde_json::Value = serde_json::from_str(&lines).unwrap();
        assert_eq!(
            (code, line["message_id"].as_str()),
            (Some(0), Some("later"))
        );
        assert_eq!(line["delayed_from"], "orders");
        assert_eq!(line["id"], listed.message.id().as_str());
        assert_eq!(
            told(&["--cancel", listed.message.id().as_str()]).await.0,
            Some(0)
        );
        assert_eq!(
            told(&["--cancel", listed.message.id().as_str()]).await.0,
            Some(5)
        );
        assert_eq!(store.list(&page).await.unwrap().total, 0);
        assert!(replica.end().await.success());
    })
    .await;
}

#[tokio::test]
async fn what_waits_in_the_broker_is_seen_and_its_exchange_may_be_missing_for_a_while() {
    on_brokers(|broker| async move {
        let vhost = broker.vhost().await;
        let amqp = vhost.connect().await;
        let file = policy("[defaults]\nretry = \"fixed(1s)\"\n");
        let replica = Replica::start(&vhost, Some(file.path())).await;
        // The section comes later.
        std::fs::write(file.path(), POLICY).unwrap();
        replica.says("kept until they are due").await;
        send(&amqp, "order.a", delayed("a", AMQPValue::LongInt(50))).await;
        let parked = take(&amqp, PARKED, 1).await.remove(0);
        let error = parked.header_text("x-retry-error").unwrap();
        assert!(
            error.contains("exchange shop") && error.contains("replay"),
            "{error}"
        );
        shop(&amqp, "shop").await;
        let due = Due::watch(&vhost).await;
        // As `retryrmq parked replay retryrmq.delayed` sends it back.
        let client = retryrmq::Client::connect(vhost.url()).await.unwrap();
        amqp.publish_with(PARKED, parked.body.clone(), parked.properties.clone())
            .await;
        let mut browse = client.parked(DELAYED).browse().await.unwrap();
        let one = browse.next().await.unwrap().unwrap();
        browse.replay(&one).await.unwrap();
        browse.close().await.unwrap();
        due.came("a").await;
        // What waits is counted in the queues of its wait.
        send(
            &amqp,
            "order.b",
            delayed("b", AMQPValue::LongInt(3_600_000)),
        )
        .await;
        eventually(DEADLINE, "it waits in the queue of an hour", || async {
            let waiting_queues = client.waiting(DELAYED).queues([]).await.unwrap();
            let waiting: Vec<_> = waiting_queues
                .iter()
                .filter(|queue| queue.messages > 0)
                .collect();
            match waiting[..] {
                [queue] if queue.delay == Duration::from_millis(3_200_000) => Ok(()),
                _ => Err(format!("{waiting_queues:?}")),
            }
        })
        .await;
        client.close().await;
        assert!(replica.end().await.success());
    })
    .await;
}

#[tokio::test]
async fn what_waits_for_the_last_section_is_parked_when_due_also_after_a_restart_without_it() {
    on_brokers(|broker| async move {
        let vhost = broker.vhost().await;
        let amqp = vhost.connect().await;
        let file = policy(POLICY);
        let replica = Replica::start(&vhost, Some(file.path())).await;
        replica.says("kept until they are due").await;
        send(&amqp, "order.a", delayed("a", AMQPValue::LongInt(10_000))).await;
        replica
            .counts(r#"retryrmq_serve_delayed_total{result="waits"}"#, 1)
            .await;
        assert!(replica.end().await.success());
        std::fs::write(file.path(), "").unwrap();
        let replica = Replica::start(&vhost, Some(file.path())).await;
        let parked = take(&amqp, PARKED, 1).await.remove(0);
        let error = parked.header_text("x-retry-error").unwrap();
        assert!(error.contains("says nothing any more"), "{error}");
        assert!(replica.end().await.success());
    })
    .await;
}

#[tokio::test]
async fn what_a_publisher_passes_on_shortens_no_wait_and_what_is_too_large_to_wait_is_parked() {
    on_brokers(|broker| async move {
        let vhost = broker.vhost().await;
        let amqp = vhost.connect().await;
        shop(&amqp, "shop").await;
        let file = policy(POLICY);
        let replica = Replica::start(&vhost, Some(file.path())).await;
        replica.says("kept until they are due").await;
        let due = Due::watch(&vhost).await;
        // With all headers of the message that its publisher was handling.
        let mut headers = FieldTable::default();
        headers.insert("x-delay".into(), AMQPValue::LongInt(3_000));
        headers.insert("x-retry-replays".into(), AMQPValue::LongLongInt(1));
        headers.insert("x-retry-expiration".into(), text("600000"));
        let sent = send(&amqp, "order.a", id("passed-on").with_headers(headers)).await;
        // A frame has no room for more than this.
        let mut headers = FieldTable::default();
        headers.insert("x-delay".into(), AMQPValue::LongInt(3_000));
        headers.insert("fill".into(), text(&"x".repeat(130_980)));
        send(&amqp, "order.a", id("large").with_headers(headers)).await;
        let (at, properties, ..) = due.came("passed-on").await;
        assert!(at - sent >= 3_000, "it came after {} ms", at - sent);
        assert_eq!(properties.expiration(), &None, "its publisher set none");
        let parked = take(&amqp, PARKED, 1).await.remove(0);
        assert_eq!(parked.id(), Some("large"));
        // Its headers leave no room for the sentence.
        let kind = parked.header_text("x-retry-error-type");
        assert_eq!(kind.as_deref(), Some("NotDelayed"));
        assert!(replica.end().await.success());
    })
    .await;
}

#[tokio::test]
async fn an_exchange_of_another_type_is_in_nobody_elses_way() {
    on_brokers(|broker| async move {
        let vhost = broker.vhost().await;
        let amqp = vhost.connect().await;
        shop(&amqp, "shop").await;
        let declared = amqp.channel().exchange_declare(
            "accounts".into(),
            ExchangeKind::Direct,
            ExchangeDeclareOptions {
                durable: true,
                ..ExchangeDeclareOptions::default()
            },
            FieldTable::default(),
        );
        declared.await.unwrap();
        let file = policy(&format!("[delayed.accounts]\nto = \"shop\"\n\n{POLICY}"));
        let replica = Replica::start(&vhost, Some(file.path())).await;
        replica.says("kept until they are due").await;
        let due = Due::watch(&vhost).await;
        send(&amqp, "order.a", delayed("a", AMQPValue::LongInt(100))).await;
        due.came("a").await;
        let (status, why) = replica.page("/readyz").await;
        assert!(status == 503 && why.contains("accounts"), "{status} {why}");
        assert!(replica.end().await.success());
    })
    .await;
}

/// Runs the publishers of each language with their native clients, and says when each began. `by` is `plugin` or `serve`, and changes one declaration.
async fn publish_natively(vhost: &Vhost, by: &str) -> Vec<(String, u64)> {
    let prepare = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/serve/prepare");
    let prepared = Command::new(prepare)
        .stderr(Stdio::inherit())
        .output()
        .await
        .unwrap();
    let mut languages = Vec::new();
    for line in String::from_utf8(prepared.stdout).unwrap().lines() {
        let mut parts = line.split('|');
        let (name, publisher) = (parts.next().unwrap(), parts.nth(1).unwrap());
        let mut words = publisher.split(' ');
        let began = now();
        let run = Command::new(words.next().unwrap())
            .args(words)
            .args(["orders", by, "8000", "3000", "0"])
            .env("RETRYRMQ_URL", vhost.url())
            .output()
            .await
            .unwrap();
        assert!(
            run.status.success(),
            "{}",
            String::from_utf8_lossy(&run.stderr)
        );
        languages.push((name.to_owned(), began));
    }
    languages
}

async fn come_in_their_order(vhost: &Vhost, due: &Due, by: &str) {
    for (language, began) in publish_natively(vhost, by).await {
        let mut times = Vec::new();
        for ms in [0, 3000, 8000i64] {
            let (at, properties, _, key) = due.came(&format!("{language}-{ms}")).await;
            assert_eq!(key, format!("order.{ms}"));
            let headers = properties.headers().clone().unwrap();
            let shown = match headers.inner().get("x-delay").unwrap() {
                AMQPValue::LongLongInt(ms) => *ms,
                AMQPValue::LongInt(ms) => i64::from(*ms),
                AMQPValue::ShortInt(ms) => i64::from(*ms),
                AMQPValue::ShortShortInt(ms) => i64::from(*ms),
                other => panic!("{language} {other:?}"),
            };
            // Below zero on what was delayed; the plugin of 3.10 leaves it as it was.
            let as_it_was = by == "plugin" && vhost.broker().version() < Version::V4_0;
            let left = if as_it_was { ms } else { -ms };
            assert_eq!(shown, left, "{by} {language}");
            assert!(
                at - began >= ms.unsigned_abs(),
                "{by} {language}: {ms} ms after {began}, {at}"
            );
            times.push(at);
        }
        // The first one that was published does not hold up the others.
        assert!(times.is_sorted(), "{by} {language}: {times:?}");
    }
}

#[tokio::test]
async fn native_publishers_change_one_declaration() {
    on_every_broker(|broker| async move {
        let vhost = broker.vhost().await;
        let amqp = vhost.connect().await;
        shop(&amqp, "shop").await;
        let file = policy(POLICY);
        let replica = Replica::start(&vhost, Some(file.path())).await;
        replica.says("kept until they are due").await;
        let due = Due::watch(&vhost).await;
        come_in_their_order(&vhost, &due, "serve").await;
        assert!(replica.end().await.success());
    })
    .await;
}

#[tokio::test]
async fn and_the_plugin_does_the_same_with_them() {
    on_every_broker_where(Broker::may_have_delayed_messages, |broker| async move {
        let node = broker.own_node(&[PLUGIN]).await;
        let vhost = node.vhost().await;
        let amqp = vhost.connect().await;
        let mut arguments = FieldTable::default();
        arguments.insert("x-delayed-type".into(), text("topic"));
        let durable = ExchangeDeclareOptions {
            durable: true,
            ..ExchangeDeclareOptions::default()
        };
        let kind = ExchangeKind::Custom("x-delayed-message".to_owned());
        let channel = amqp.channel();
        let declared = channel.exchange_declare("orders".into(), kind, durable, arguments);
        declared.await.unwrap();
        bind(&amqp, "orders").await;
        let due = Due::watch(&vhost).await;
        come_in_their_order(&vhost, &due, "plugin").await;
    })
    .await;
}

#[tokio::test]
async fn what_the_service_gives_back_at_its_end_waits_when_it_is_there_again() {
    on_brokers(|broker| async move {
        let vhost = broker.vhost().await;
        let amqp = vhost.connect().await;
        shop(&amqp, "shop").await;
        let file = policy(POLICY);
        // The longest that is not longer than an hour, of another kind than the service's: nothing can wait there.
        let waiting = "retryrmq.delayed.retry.3200000";
        amqp.declare(waiting, QueueType::Classic).await;
        let replica = Replica::start(&vhost, Some(file.path())).await;
        replica.says("kept until they are due").await;
        let crashed = delayed("one", AMQPValue::LongInt(3_600_000));
        let mut headers = crashed.headers().clone().unwrap();
        // Anybody may write that.
        headers.insert("x-retry-crashes".into(), AMQPValue::LongInt(2));
        send(&amqp, "order.1", crashed.with_headers(headers)).await;
        replica.says("could not be passed on").await;
        assert!(replica.end().await.success());
        eventually(DEADLINE, "it is given back", || async {
            amqp.depth(DELAYED).await == Some(1)
        })
        .await;
        amqp.delete(waiting).await;
        let replica = Replica::start(&vhost, Some(file.path())).await;
        eventually(DEADLINE, "it is somewhere", || async {
            let waits = amqp.depth(waiting).await.unwrap_or(0);
            (waits + amqp.depth(PARKED).await.unwrap_or(0) == 1).then_some(())
        })
        .await;
        assert_eq!(amqp.depth(PARKED).await, Some(0), "{broker}");
        assert!(replica.end().await.success());
    })
    .await;
}
