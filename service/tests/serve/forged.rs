//! What somebody forges, and what comes the wrong way.

use retryrmq_harness::{
    QueueType, eventually,
    hostile::{RawPublisher, entry, flag, long, properties, short},
    lapin::{
        BasicProperties,
        options::{BasicPublishOptions, QueueBindOptions},
        types::{AMQPValue, FieldArray, FieldTable},
    },
    on_brokers,
};
use serde_json::json;

use crate::{
    delayed,
    fixture::{
        DEAD, DEADLINE, INTAKE, INTAKE_PARKED, NativeConsumer, Replica, declare, id, policy, take,
        text,
    },
};

/// A death in `victim`, as its broker would write it.
fn death_in(victim: &str) -> FieldTable {
    let mut death = FieldTable::default();
    for (name, value) in [
        ("queue", text(victim)),
        ("reason", text("rejected")),
        ("exchange", text("")),
        ("count", AMQPValue::LongLongInt(1)),
        ("time", AMQPValue::Timestamp(4_000_000_000)),
    ] {
        death.insert(name.into(), value);
    }
    death.insert(
        "routing-keys".into(),
        AMQPValue::FieldArray(FieldArray::from(vec![text(victim)])),
    );
    let mut table = FieldTable::default();
    let deaths = vec![
        AMQPValue::FieldTable(death.clone()),
        AMQPValue::FieldTable(death),
    ];
    table.insert(
        "x-death".into(),
        AMQPValue::FieldArray(FieldArray::from(deaths)),
    );
    for name in ["x-first-death-queue", "x-last-death-queue"] {
        table.insert(name.into(), text(victim));
    }
    for name in ["x-first-death-reason", "x-last-death-reason"] {
        table.insert(name.into(), text("rejected"));
    }
    table
}

fn forged(name: &str) -> BasicProperties {
    id(name).with_headers(death_in("victim"))
}

#[tokio::test]
async fn a_forged_death_never_reaches_a_queue_that_did_not_fail() {
    on_brokers(|broker| async move {
        let vhost = broker.vhost().await;
        let amqp = vhost.connect().await;
        let file = policy("[defaults]\nretry = \"fixed(100ms, retries=9)\"\n");
        let replica = Replica::start(&vhost, Some(file.path())).await;
        amqp.declare("victim", QueueType::Quorum).await;
        // Straight into the intake's queue: parked there, with a sentence.
        amqp.publish_with(INTAKE, "by hand", forged("by-hand"))
            .await;
        let stray = take(&amqp, INTAKE_PARKED, 1).await.remove(0);
        assert_eq!(stray.text(), "by hand");
        let error = stray.header_text("x-retry-error").unwrap();
        assert!(
            error.contains("published straight into retryrmq.intake"),
            "{error}"
        );
        replica.counts("retryrmq_serve_unroutable_total", 1).await;
        // Through the exchange, which is internal: refused.
        let channel = amqp.new_channel().await;
        let sent = channel
            .basic_publish(
                DEAD.into(),
                "victim".into(),
                BasicPublishOptions::default(),
                b"refused",
                forged("refused"),
            )
            .await;
        drop(sent);
        eventually(DEADLINE, "the channel is closed", || async {
            !channel.status().connected()
        })
        .await;
        // On a message that really dies, in front of the death that really was.
        for kind in QueueType::ALL {
            let queue = format!("orders.{}", kind.as_str());
            declare(&amqp, &queue, kind, kind == QueueType::Quorum).await;
            amqp.publish_with(&queue, "dies", forged(&queue)).await;
            let (told, mut said) = tokio::sync::mpsc::unbounded_channel();
            let native = NativeConsumer::start(&vhost, &queue, move |seen| {
                let count = seen
                    .properties
                    .headers()
                    .as_ref()
                    .and_then(|headers| headers.inner().get("x-retry-count").cloned());
                let is_back = count.is_some();
                if is_back {
                    let _ = told.send(count);
                }
                is_back
            })
            .await;
            let count = tokio::time::timeout(DEADLINE, said.recv())
                .await
                .unwrap()
                .unwrap();
            assert_eq!(count, Some(AMQPValue::LongLongInt(1)));
            drop(native);
        }
        assert_eq!(amqp.depth("victim").await, Some(0));
    })
    .await;
}

#[tokio::test]
async fn what_leaves_a_parking_queue_is_not_retried_again() {
    on_brokers(|broker| async move {
        let vhost = broker.vhost().await;
        let amqp = vhost.connect().await;
        let _replica = Replica::start(&vhost, None).await;
        amqp.declare("orders", QueueType::Quorum).await;
        declare(&amqp, "orders.parked", QueueType::Quorum, false).await;
        amqp.publish_with("orders.parked", "x", id("parked")).await;
        let _native = NativeConsumer::start(&vhost, "orders.parked", |_| false).await;
        let stray = take(&amqp, INTAKE_PARKED, 1).await.remove(0);
        let error = stray.header_text("x-retry-error").unwrap();
        assert!(
            error.contains("messages of orders wait or are parked"),
            "{error}"
        );
        assert_eq!(amqp.depth("orders").await, Some(0));
    })
    .await;
}

#[tokio::test]
async fn an_exchange_of_that_name_that_clients_may_publish_to_is_refused() {
    on_brokers(|broker| async move {
        let vhost = broker.vhost().await;
        let path = format!("exchanges/{}/{DEAD}", vhost.name());
        let open = json!({"type": "fanout", "durable": true, "internal": false});
        broker.management().put(path, open).await.unwrap();
        let done = crate::fixture::program()
            .env("RETRYRMQ_URL", vhost.url())
            .args(["--listen", "127.0.0.1:0"])
            .output()
            .await
            .unwrap();
        let said = String::from_utf8_lossy(&done.stderr).into_owned();
        assert_eq!(done.status.code(), Some(5), "{said}");
        assert!(said.contains("delete it"), "{said}");
    })
    .await;
}

/// A copy could have their names only as they were mended, and would go to other queues, or be taken for another message.
#[tokio::test]
async fn what_is_no_valid_amqp_is_parked_byte_for_byte_and_never_published_as_a_copy() {
    on_brokers(|broker| async move {
        let vhost = broker.vhost().await;
        let amqp = vhost.connect().await;
        delayed::shop(&amqp, "shop").await;
        let bound = amqp.channel().queue_bind(
            "due".into(),
            "shop".into(),
            "#".into(),
            QueueBindOptions::default(),
            FieldTable::default(),
        );
        bound.await.unwrap();
        let file = policy(delayed::POLICY);
        let replica = Replica::start(&vhost, Some(file.path())).await;
        replica.says("kept until they are due").await;
        let url = vhost.url().to_owned();
        let published = tokio::task::spawn_blocking(move || {
            let mut publisher = RawPublisher::connect(&url);
            let delay = long(&entry(b"x-delay", b'I', &100i32.to_be_bytes()));
            let alone = properties(flag::HEADERS, &delay);
            publisher.publish_raw("orders", b"order.m\xfcller", &alone, b"key");
            let named = [&delay[..], &short(b"\xfa\x01")].concat();
            let named = properties(flag::HEADERS | flag::CORRELATION_ID, &named);
            publisher.publish_raw("orders", b"order.x", &named, b"name");
        });
        published.await.unwrap();
        replica
            .counts(r#"retryrmq_serve_delayed_total{result="parked"}"#, 2)
            .await;
        eventually(DEADLINE, "both are parked", || async {
            amqp.depth(delayed::PARKED).await == Some(2)
        })
        .await;
        let client = retryrmq::Client::connect(vhost.url()).await.unwrap();
        let mut browse = client.parked(delayed::DELAYED).browse().await.unwrap();
        while let Some(record) = browse.next().await.unwrap() {
            let message = record.message();
            match message.body() {
                b"key" => {
                    let keys = format!("{:?}", message.headers().unwrap().inner()["x-death"]);
                    let whole = AMQPValue::LongString(b"order.m\xfcller"[..].into());
                    assert!(keys.contains(&format!("{whole:?}")), "{keys}");
                }
                _ => assert_eq!(message.mended(), Some("correlation_id is not UTF-8")),
            }
            let why = browse.replay(&record).await.unwrap_err().to_string();
            assert!(
                why.contains("not UTF-8") && why.contains("still parked"),
                "{why}"
            );
        }
        browse.close().await.unwrap();
        client.close().await;
        assert_eq!(amqp.depth(delayed::PARKED).await, Some(2));
        assert_eq!(amqp.depth("due").await, Some(0));
        assert!(replica.end().await.success());
    })
    .await;
}
