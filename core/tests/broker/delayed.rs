//! The strategy `delayed-exchange` with its plugin: what it needs beside the queues, and what cannot be seen.

use std::{sync::Arc, time::Duration};

use retryrmq::{Client, Consumer, ErrorKind, Finding, Item, Status, Strategy};
use retryrmq_harness::{
    Amqp, Broker, CutProxy, Direction, QueueType, Version, eventually,
    lapin::{
        ExchangeKind,
        options::{ExchangeDeclareOptions, ExchangeDeleteOptions},
        types::{FieldTable, ShortString},
    },
    on_brokers_where,
};
use tokio::time::timeout;

use crate::{
    connecting::refused,
    fixture::{DEADLINE, Observations, PARKED, QUEUE, connect, id, policy, start, stats},
    log_capture,
};

const PLUGIN: &str = "plugins = rabbitmq_delayed_message_exchange";
const EXCHANGE: &str = "orders.delayed";

fn consumer(client: &Client, queue: &str) -> Consumer {
    client
        .consumer(queue)
        .dlx(true)
        .strategy(Strategy::DelayedExchange)
        .retry(policy("fixed(500ms, retries=3)"))
}

fn is_stored(observations: &Observations, id: &str) -> bool {
    let events = observations.events();
    events.iter().any(|event| {
        let fields = event.fields();
        event.name() == "retried" && fields.message_id == Some(id)
    })
}

/// As an operator makes it with `retryrmq topology --apply`.
async fn apply(client: &Client, queue: &str) {
    let plan = consumer(client, queue).plan().unwrap();
    client.apply_plan(&plan).await.unwrap();
}

async fn unbind(amqp: &Amqp) {
    let queue = ShortString::from(QUEUE);
    let channel = amqp.new_channel().await;
    channel
        .queue_unbind(queue.clone(), EXCHANGE.into(), queue, FieldTable::default())
        .await
        .unwrap();
}

#[tokio::test]
async fn the_binding_is_made_where_queues_may_not_be_and_again_when_it_is_gone() {
    on_brokers_where(Broker::may_have_delayed_messages, |broker| async move {
        let node = broker.own_node(&[PLUGIN]).await;
        let vhost = node.vhost().await;
        let (client, amqp) = (connect(&vhost).await, vhost.connect().await);
        apply(&client, QUEUE).await;
        unbind(&amqp).await;
        let observations = Observations::default();
        let consumer = consumer(&client, QUEUE).declare(false);
        let running = start(consumer, &observations, |message| match message.attempt() {
            1 => Err("not yet".into()),
            _ => Ok(()),
        })
        .await;
        amqp.publish_with(QUEUE, "x", id("unbound")).await;
        observations.until("unbound", 2).await;
        stats(&running, "it is settled", |stats| stats.outstanding == 0).await;
        // The binding goes with its queue.
        amqp.delete(QUEUE).await;
        observations.event("disconnected").await;
        amqp.declare(QUEUE, QueueType::Quorum).await;
        amqp.publish_with(QUEUE, "x", id("remade")).await;
        observations.until("remade", 2).await;
        running.close().await;
    })
    .await;
}

#[tokio::test]
async fn who_may_not_bind_is_told_how_to_look() {
    log_capture::start();
    on_brokers_where(Broker::may_have_delayed_messages, |broker| async move {
        let node = broker.own_node(&[PLUGIN]).await;
        let vhost = node.vhost().await;
        // A queue of its own for each version: the lines of all tests are in one place.
        let queue = format!("unseen-{}", vhost.name());
        let owner = connect(&vhost).await;
        apply(&owner, &queue).await;
        node.ctl(&["add_user", "bob", "pw"]).await;
        let write = format!(r"^({queue}\.delayed|amq\.default)$");
        let read = format!("^{queue}$");
        let may = [
            "set_permissions",
            "-p",
            vhost.name(),
            "bob",
            "^$",
            &write,
            &read,
        ];
        node.ctl(&may).await;
        let client = Client::connect(&vhost.url_as("bob", "pw")).await.unwrap();
        let observations = Observations::default();
        let running = start(
            consumer(&client, &queue).declare(false),
            &observations,
            |_| Ok(()),
        )
        .await;
        eventually(DEADLINE, "the binding is warned of", || async {
            log_capture::lines().into_iter().find(|line| {
                line.contains("WARN")
                    && line.contains(&format!("`{queue}`"))
                    && line.contains("rabbitmqctl list_bindings")
            })
        })
        .await;
        // What was made by somebody else serves.
        let amqp = vhost.connect().await;
        amqp.publish_with(&queue, "x", id("a")).await;
        observations.until("a", 1).await;
        running.close().await;
    })
    .await;
}

/// Declares the exchange as somebody else did.
async fn declare_exchange(amqp: &Amqp, kind: &str, arguments: FieldTable) {
    let durable = ExchangeDeclareOptions {
        durable: true,
        ..ExchangeDeclareOptions::default()
    };
    let kind = ExchangeKind::Custom(kind.to_owned());
    let channel = amqp.new_channel().await;
    channel
        .exchange_declare(EXCHANGE.into(), kind, durable, arguments)
        .await
        .unwrap();
}

async fn exchange_status(client: &Client) -> Status {
    let plan = consumer(client, QUEUE).plan().unwrap();
    let findings = client.compare_plan(&plan).await.unwrap();
    let of_exchange = |finding: &Finding| matches!(finding.item, Item::Exchange { .. });
    findings.into_iter().find(of_exchange).unwrap().status
}

#[tokio::test]
async fn an_exchange_of_another_kind_is_refused() {
    on_brokers_where(Broker::may_have_delayed_messages, |broker| async move {
        let node = broker.own_node(&[PLUGIN]).await;
        let vhost = node.vhost().await;
        let (client, amqp) = (connect(&vhost).await, vhost.connect().await);
        amqp.declare(QUEUE, QueueType::Quorum).await;
        amqp.declare(PARKED, QueueType::Quorum).await;
        declare_exchange(&amqp, "direct", FieldTable::default()).await;
        let is_told = |why: &str| {
            assert!(why.contains(EXCHANGE) && why.contains("'direct'"), "{why}");
            assert!(why.contains("retry-queues"), "{why}");
        };
        for declare in [true, false] {
            let subscribed = consumer(&client, QUEUE).declare(declare).subscribe().await;
            is_told(&refused(subscribed, ErrorKind::Mismatch));
        }
        match exchange_status(&client).await {
            Status::Differs(why) => is_told(&why),
            other => panic!("{other:?}"),
        }
        // Who may not declare it takes it as it is, and is told.
        let queue = format!("taken-{}", vhost.name());
        apply(&client, &queue).await;
        node.ctl(&["add_user", "bob", "pw"]).await;
        let configure = format!(r"^{queue}(\.retry\.[0-9]+|\.parked|\.unreadable)?$");
        let may = [
            "set_permissions",
            "-p",
            vhost.name(),
            "bob",
            &configure,
            ".*",
            ".*",
        ];
        node.ctl(&may).await;
        log_capture::start();
        let bob = Client::connect(&vhost.url_as("bob", "pw")).await.unwrap();
        let subscription = consumer(&bob, &queue).subscribe().await.unwrap();
        eventually(DEADLINE, "the exchange is warned of", || async {
            log_capture::lines().into_iter().find(|line| {
                line.contains("WARN")
                    && line.contains(&format!("`{queue}.delayed`"))
                    && line.contains("rabbitmqctl list_exchanges")
            })
        })
        .await;
        subscription.close();
        subscription.wait_closed().await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn an_exchange_is_not_made_where_nothing_may_be() {
    on_brokers_where(Broker::may_have_delayed_messages, |broker| async move {
        let node = broker.own_node(&[PLUGIN]).await;
        let vhost = node.vhost().await;
        let (client, amqp) = (connect(&vhost).await, vhost.connect().await);
        amqp.declare(QUEUE, QueueType::Quorum).await;
        amqp.declare(PARKED, QueueType::Quorum).await;
        let subscribed = consumer(&client, QUEUE).declare(false).subscribe().await;
        let why = refused(subscribed, ErrorKind::QueueNotFound);
        assert!(
            why.contains(EXCHANGE) && why.contains("topology --apply"),
            "{why}"
        );
        assert_eq!(exchange_status(&client).await, Status::Missing);
        apply(&client, QUEUE).await;
        assert_eq!(exchange_status(&client).await, Status::Present);
    })
    .await;
}

/// One that does not delay, on a broker without the plugin: it looked like the right one.
#[tokio::test]
async fn an_exchange_does_not_stand_for_its_plugin() {
    let before = |broker: &Broker| broker.version() < Version::V4_3;
    on_brokers_where(before, |broker| async move {
        let vhost = broker.vhost().await;
        let (client, amqp) = (connect(&vhost).await, vhost.connect().await);
        declare_exchange(&amqp, "direct", FieldTable::default()).await;
        let subscribed = consumer(&client, QUEUE).subscribe().await;
        let why = refused(subscribed, ErrorKind::StrategyRefused);
        assert!(
            why.contains("plugin") && why.contains("retry-queues"),
            "{why}"
        );
    })
    .await;
}

#[tokio::test]
async fn an_exchange_that_was_deleted_is_made_again_while_its_consumer_runs() {
    on_brokers_where(Broker::may_have_delayed_messages, |broker| async move {
        let node = broker.own_node(&[PLUGIN]).await;
        let vhost = node.vhost().await;
        let (client, amqp) = (connect(&vhost).await, vhost.connect().await);
        let observations = Observations::default();
        let running = start(
            consumer(&client, QUEUE),
            &observations,
            |message| match message.attempt() {
                1 => Err("not yet".into()),
                _ => Ok(()),
            },
        )
        .await;
        let channel = amqp.new_channel().await;
        let options = ExchangeDeleteOptions::default();
        channel
            .exchange_delete(EXCHANGE.into(), options)
            .await
            .unwrap();
        amqp.publish_with(QUEUE, "x", id("a")).await;
        observations.until("a", 2).await;
        stats(&running, "it is settled", |stats| stats.outstanding == 0).await;
        let names = observations.event_names();
        assert!(!names.contains(&"disconnected"), "{names:?}");
        running.close().await;
    })
    .await;
}

/// The host of a broker may die without a word, and what the plugin has confirmed dies with it.
#[tokio::test]
async fn a_copy_is_not_called_stored_because_nothing_was_heard() {
    on_brokers_where(Broker::may_have_delayed_messages, |broker| async move {
        let node = broker.own_node(&[PLUGIN]).await;
        let vhost = node.vhost().await;
        let proxy = Arc::new(CutProxy::to(vhost.url()).await);
        let client = Client::connect(&format!("{}?heartbeat=60", proxy.url()))
            .await
            .unwrap();
        let observations = Observations::default();
        let dying = Arc::clone(&proxy);
        let seen = observations.clone();
        let running = start(consumer(&client, QUEUE), &observations, move |message| {
            if message.attempt() == 1 {
                return Err("not yet".into());
            }
            // Usually half a second after the confirm, and a second before the copy would be safe.
            let id = message.message_id().unwrap_or_default();
            if !is_stored(&seen, id) {
                dying.stall(Direction::ToBroker);
            }
            Ok(())
        })
        .await;
        let amqp = vhost.connect().await;
        let mut number = 0;
        // On a busy machine the second attempt may come when the copy is safe already. Then there is another message.
        let last = loop {
            let name = number.to_string();
            amqp.publish_with(QUEUE, "x", id(&name)).await;
            observations.until(&name, 2).await;
            if !is_stored(&observations, &name) {
                break name;
            }
            proxy.resume();
            number += 1;
            assert!(number < 10, "every copy was safe before its attempt");
        };
        let stored = || {
            eventually(DEADLINE, "the copy is stored", || async {
                is_stored(&observations, &last)
            })
        };
        let told = timeout(Duration::from_secs(4), stored()).await;
        assert!(told.is_err(), "nobody knows whether the copy is stored");
        proxy.resume();
        stored().await;
        stats(&running, "it is settled", |stats| stats.outstanding == 0).await;
        running.close().await;
    })
    .await;
}
