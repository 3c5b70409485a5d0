//! What is written on a message that failed, and what is kept of it.

use std::{collections::BTreeSet, fmt, time::SystemTime};

use retryrmq::{
    Backoff, BasicProperties, Event, HistoryEntry, Message, ParkReason, defer,
    types::{AMQPValue, FieldTable},
};
use retryrmq_harness::{
    self as harness,
    lapin::{
        ExchangeKind,
        options::{ExchangeDeclareOptions, QueueBindOptions},
    },
    on_queue_types,
};

use crate::fixture::{
    CLOCK, Observations, QUEUE, connect_with, id, int, ms, parked, policy, settled, start, table,
    take, text,
};

#[derive(Debug)]
struct Late;

impl fmt::Display for Late {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("no answer from the stock")
    }
}

impl std::error::Error for Late {}

#[derive(Debug)]
struct OrderFailed(Late);

impl fmt::Display for OrderFailed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the order cannot be taken")
    }
}

impl std::error::Error for OrderFailed {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.0)
    }
}

fn keys(headers: &FieldTable) -> BTreeSet<String> {
    let keys = headers.inner().keys().map(|key| key.as_str().to_owned());
    keys.filter(|key| key.starts_with("x-retry-")).collect()
}

fn set(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|name| format!("x-retry-{name}")).collect()
}

const RETRIED: [&str; 8] = [
    "count",
    "first-failed-at",
    "error",
    "error-type",
    "history",
    "exchange",
    "routing-key",
    "protocol",
];

/// Within the last minute, in seconds since 1970.
#[track_caller]
fn just_now(value: Option<AMQPValue>) {
    let now = SystemTime::UNIX_EPOCH.elapsed().unwrap().as_secs();
    match value {
        Some(AMQPValue::Timestamp(at)) if at <= now && at + 90 > now => {}
        other => panic!("not a time just now: {other:?}"),
    }
}

#[tokio::test]
async fn a_failure_is_written_on_the_message() {
    on_queue_types(|broker, kind| async move {
        let vhost = broker.vhost().await;
        let (client, amqp) = (connect_with(&vhost, kind).await, vhost.connect().await);
        amqp.declare(QUEUE, kind).await;
        let durable = ExchangeDeclareOptions {
            durable: true,
            ..Default::default()
        };
        let channel = amqp.channel();
        channel
            .exchange_declare(
                "shop".into(),
                ExchangeKind::Topic,
                durable,
                FieldTable::default(),
            )
            .await
            .unwrap();
        let options = QueueBindOptions::default();
        channel
            .queue_bind(
                QUEUE.into(),
                "shop".into(),
                "eu.#".into(),
                options,
                FieldTable::default(),
            )
            .await
            .unwrap();
        let own = table([("tenant", text("acme")), ("size", int(7))]);
        let properties = BasicProperties::default()
            .with_message_id("a".into())
            .with_content_type("application/json".into())
            .with_content_encoding("identity".into())
            .with_correlation_id("c-1".into())
            .with_reply_to("answers".into())
            .with_type("order.placed".into())
            .with_app_id("shop".into())
            .with_priority(4)
            .with_timestamp(1_700_000_000)
            .with_headers(own.clone());
        amqp.publish_to("shop", "eu.order", "{\"n\":1}", properties.clone())
            .await;

        let observations = Observations::default();
        let handler = {
            let observations = observations.clone();
            move |message: Message| {
                observations.note(&message);
                std::future::ready(Err(OrderFailed(Late)))
            }
        };
        let consumer = client
            .consumer(QUEUE)
            .dlx(true)
            .retry(policy("list(100ms, 150ms)"));
        let running = consumer
            .on_event(observations.listener())
            .start(handler)
            .await
            .unwrap();
        let attempts = observations.until("a", 3).await;
        for (number, attempt) in (1..).zip(&attempts) {
            let message = &attempt.message;
            assert_eq!((message.attempt(), message.retries()), (number, number - 1));
            assert_eq!(message.body(), b"{\"n\":1}");
            assert_eq!(
                (message.exchange(), message.routing_key()),
                ("shop", "eu.order")
            );
            assert_eq!(message.queue(), QUEUE);
            let seen = message.properties();
            assert_eq!(seen.content_type(), properties.content_type());
            assert_eq!(seen.content_encoding(), properties.content_encoding());
            assert_eq!(seen.correlation_id(), properties.correlation_id());
            assert_eq!(seen.reply_to(), properties.reply_to());
            assert_eq!(seen.kind(), properties.kind());
            assert_eq!(seen.app_id(), properties.app_id());
            assert_eq!(seen.priority(), properties.priority());
            assert_eq!(seen.timestamp(), properties.timestamp());
            assert_eq!(seen.delivery_mode(), &Some(2));
            for (name, value) in &own {
                assert_eq!(
                    message.headers().unwrap().inner().get(name.as_str()),
                    Some(value)
                );
            }
        }
        let pause = attempts[1].at - attempts[0].at;
        assert!(pause + CLOCK >= ms(100), "came after {pause:?}");
        let pause = attempts[2].at - attempts[1].at;
        assert!(pause + CLOCK >= ms(150), "came after {pause:?}");

        assert!(keys(attempts[0].message.headers().unwrap()).is_empty());
        let second = &attempts[1].message;
        let headers = second.headers().unwrap();
        assert_eq!(keys(headers), set(&RETRIED));
        let header = |name: &str| headers.inner().get(name).cloned();
        assert_eq!(header("x-retry-count"), Some(int(1)));
        just_now(header("x-retry-first-failed-at"));
        assert_eq!(
            header("x-retry-error"),
            Some(text("the order cannot be taken"))
        );
        assert_eq!(header("x-retry-error-type"), Some(text("OrderFailed")));
        assert_eq!(header("x-retry-exchange"), Some(text("shop")));
        assert_eq!(header("x-retry-routing-key"), Some(text("eu.order")));
        assert_eq!(header("x-retry-protocol"), Some(int(1)));
        assert_eq!(second.last_error(), Some("the order cannot be taken"));
        assert!(second.first_failed_at().is_some());
        let [
            HistoryEntry {
                attempt: 1,
                error,
                host,
                app_version,
                ..
            },
        ] = &second.history()[..]
        else {
            panic!("{:?}", second.history());
        };
        assert_eq!(
            (error.as_str(), app_version.as_str()),
            ("the order cannot be taken", "7.1")
        );
        assert!(!host.is_empty());
        assert_eq!(
            attempts[2].message.first_failed_at(),
            second.first_failed_at()
        );
        assert_eq!(attempts[2].message.history().len(), 2);

        let message = parked(&amqp).await;
        let more = ["parked-at", "parked-reason", "error-stack", "fingerprint"];
        assert_eq!(
            keys(&message.headers()),
            set(&[&RETRIED[..], &more].concat())
        );
        assert_eq!(message.header("x-retry-count"), Some(int(2)));
        assert_eq!(
            message.header_text("x-retry-parked-reason").as_deref(),
            Some("exhausted")
        );
        just_now(message.header("x-retry-parked-at"));
        let stack = message.header_text("x-retry-error-stack").unwrap();
        assert!(
            stack.contains("cannot be taken") && stack.contains("no answer"),
            "{stack}"
        );
        let fingerprint = message.header_text("x-retry-fingerprint").unwrap();
        assert!(
            fingerprint.len() == 16 && fingerprint.bytes().all(|sign| sign.is_ascii_hexdigit())
        );
        assert_eq!(
            message.header("x-death"),
            None,
            "the broker's own does not travel"
        );
        assert_eq!(message.header("tenant"), Some(text("acme")));
        assert_eq!(
            message.properties.correlation_id(),
            properties.correlation_id()
        );
        settled(&vhost, &amqp, &running, QUEUE).await;
    })
    .await;
}

#[tokio::test]
async fn the_history_holds_the_newest_ten() {
    on_queue_types(|broker, kind| async move {
        let vhost = broker.vhost().await;
        let (client, amqp) = (connect_with(&vhost, kind).await, vhost.connect().await);
        amqp.declare(QUEUE, kind).await;
        amqp.publish_with(QUEUE, "1", id("a")).await;
        let observations = Observations::default();
        let consumer = client
            .consumer(QUEUE)
            .dlx(true)
            .retry(Backoff::fixed(ms(20)).retries(12));
        let _running = start(consumer, &observations, |message| {
            Err(format!("failure {}", message.attempt()).into())
        })
        .await;
        let message = parked(&amqp).await;
        assert_eq!(message.header("x-retry-count"), Some(int(12)));
        let history = HistoryEntry::read(&message.headers());
        let attempts: Vec<u32> = history.iter().map(|entry| entry.attempt).collect();
        assert_eq!(attempts, (4..=13).collect::<Vec<_>>());
        assert_eq!(history[9].error, "failure 13");
        let Event::Parked {
            attempt: 13,
            reason: ParkReason::Exhausted,
            ..
        } = observations.event("parked").await
        else {
            panic!("{:?}", observations.events());
        };
    })
    .await;
}

#[tokio::test]
async fn what_a_publisher_would_have_the_broker_do_does_not_meddle_with_copies() {
    on_queue_types(|broker, kind| async move {
        let vhost = broker.vhost().await;
        let (client, amqp) = (connect_with(&vhost, kind).await, vhost.connect().await);
        amqp.declare(QUEUE, kind).await;
        amqp.declare("copies", harness::QueueType::Classic).await;
        let headers = table([
            ("CC", crate::fixture::array(vec![text("copies")])),
            ("BCC", crate::fixture::array(vec![text("copies")])),
        ]);
        let properties = id("a")
            .with_headers(headers)
            .with_user_id("guest".into())
            .with_expiration("600000".into());
        amqp.publish_with(QUEUE, "1", properties).await;
        assert_eq!(crate::fixture::take(&amqp, "copies", 1).await.len(), 1);
        let observations = Observations::default();
        let consumer = client
            .consumer(QUEUE)
            .dlx(true)
            .retry(policy("fixed(50ms, retries=2)"));
        let _running = start(consumer, &observations, |_| Err("no".into())).await;
        let message = parked(&amqp).await;
        assert_eq!(
            message.header_text("x-retry-user-id").as_deref(),
            Some("guest")
        );
        assert_eq!(
            message.header_text("x-retry-expiration").as_deref(),
            Some("600000")
        );
        assert_eq!(message.properties.user_id(), &None);
        assert_eq!(message.properties.expiration(), &None);
        assert_eq!((message.header("CC"), message.header("BCC")), (None, None));
        assert_eq!(amqp.depth("copies").await, Some(0), "no copy of a copy");
    })
    .await;
}

/// Whoever looks for a group among what waits would overlook it.
#[tokio::test]
async fn a_long_error_keeps_its_group_when_its_message_is_put_off() {
    on_queue_types(|broker, kind| async move {
        let vhost = broker.vhost().await;
        let (client, amqp) = (connect_with(&vhost, kind).await, vhost.connect().await);
        amqp.declare(QUEUE, kind).await;
        amqp.publish_with(QUEUE, "x", id("a")).await;
        let observations = Observations::default();
        let consumer = client.consumer(QUEUE).dlx(true);
        let running = start(
            consumer.retry(policy("fixed(100ms)")),
            &observations,
            |message| match message.attempt() {
                1 => Err("long ".repeat(1_000).into()),
                _ => Err(defer(ms(3_600_000)).into()),
            },
        )
        .await;
        let seen = observations.until("a", 2).await;
        let group = |headers: &FieldTable| headers.inner().get("x-retry-fingerprint").cloned();
        let written = group(seen[1].message.headers().unwrap());
        assert!(written.is_some());
        let waits = take(&amqp, "orders.retry.4000000", 1).await;
        assert_eq!(group(&waits[0].headers()), written);
        running.close().await;
    })
    .await;
}
