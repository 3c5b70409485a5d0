//! Headers that a publisher wrote under our names and the broker's: believed where they can be, never obeyed blindly.

use retryrmq::{
    HistoryEntry, Message, Strategy,
    types::{AMQPValue, FieldTable},
};
use retryrmq_harness::{QueueType, Version, on_brokers, on_queue_types};

use crate::fixture::{
    Answer, Observations, PARKED, QUEUE, array, connect, connect_with, id, int, parked, policy,
    start, stats, table, take, text, with_headers,
};

/// Values that none of the headers should have.
fn junk() -> Vec<AMQPValue> {
    let nested = (0..20).fold(text("deep"), |inner, _| {
        AMQPValue::FieldTable(table([("k", inner)]))
    });
    let death = |count: AMQPValue| {
        let entries = [
            ("queue", text(QUEUE)),
            ("reason", text("rejected")),
            ("count", count),
        ];
        array(vec![AMQPValue::FieldTable(table(entries))])
    };
    vec![
        int(-1),
        int(i64::MIN),
        int(i64::MAX),
        text("7"),
        text(""),
        text(&"9".repeat(5_000)),
        nested,
        array(vec![]),
        array(vec![int(1), text("x"), AMQPValue::Void]),
        array((0..500).map(int).collect()),
        AMQPValue::Boolean(true),
        AMQPValue::Void,
        AMQPValue::Double(-0.5), // RabbitMQ itself does not take NaN
        AMQPValue::Timestamp(u64::MAX),
        AMQPValue::ByteArray(vec![0xff; 100].into()),
        death(int(-1)),
        death(int(i64::MAX)),
        death(text("3")),
        death(array(vec![])),
    ]
}

/// What we write, what the broker writes, and what others before us wrote.
const NAMES: [&str; 22] = [
    "x-retry-count",
    "x-retry-deferrals",
    "x-retry-crashes",
    "x-retry-first-failed-at",
    "x-retry-error",
    "x-retry-error-type",
    "x-retry-error-stack",
    "x-retry-history",
    "x-retry-exchange",
    "x-retry-routing-key",
    "x-retry-user-id",
    "x-retry-expiration",
    "x-retry-protocol",
    "x-retry-parked-at",
    "x-retry-parked-reason",
    "x-retry-fingerprint",
    "x-retry-replays",
    "x-retries",
    "x-death",
    "x-delivery-count",
    "x-acquired-count",
    "x-delay",
];

#[tokio::test]
async fn values_that_cannot_be_count_as_absent() {
    on_queue_types(|broker, kind| async move {
        let vhost = broker.vhost().await;
        let (client, amqp) = (connect_with(&vhost, kind).await, vhost.connect().await);
        amqp.declare(QUEUE, kind).await;
        let mut forged: Vec<(String, FieldTable)> = Vec::new();
        for (offset, name) in NAMES.into_iter().enumerate() {
            // Every third, each name another third: brokers are slow to take them all, six times over.
            for (number, value) in junk().into_iter().enumerate().skip(offset % 3).step_by(3) {
                forged.push((format!("{name} {number}"), table([(name, value)])));
            }
        }
        for (number, value) in junk().into_iter().enumerate() {
            let all = NAMES.map(|name| (name, value.clone()));
            forged.push((format!("all {number}"), table(all)));
        }
        let messages = forged
            .iter()
            .map(|(name, headers)| (QUEUE, "x", with_headers(name, headers.clone())));
        amqp.publish_all("", messages).await;
        let observations = Observations::default();
        let consumer = client
            .consumer(QUEUE)
            .dlx(true)
            .retry(policy("fixed(30ms, retries=2)"));
        let running = start(consumer, &observations, |_| Err("no".into())).await;
        let done = stats(&running, "all are parked", |stats| {
            stats.parked as usize == forged.len() && stats.outstanding == 0
        })
        .await;
        assert_eq!(
            (done.reconnects, done.publish_failures, done.stale),
            (0, 0, 0)
        );
        for (name, _) in &forged {
            let attempts = observations.of(name);
            let numbers: Vec<u32> = attempts.iter().map(|one| one.message.attempt()).collect();
            assert_eq!(numbers, [1, 2, 3], "{name}");
        }
        // What is parked can be read, whatever came with it.
        let mut walk = client.parked(QUEUE).browse().await.unwrap();
        while let Some(record) = walk.next().await.unwrap() {
            let name = record.message().message_id().unwrap().to_owned();
            assert_eq!(record.error, "no", "{name}");
            assert_eq!((record.attempts, record.history.len()), (3, 3), "{name}");
            assert_eq!(record.reason.unwrap().as_str(), "exhausted", "{name}");
            walk.drop(&record).await.unwrap();
        }
        walk.close().await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn counts_that_can_be_are_believed_and_bounded() {
    on_queue_types(|broker, kind| async move {
        let vhost = broker.vhost().await;
        let (client, amqp) = (connect_with(&vhost, kind).await, vhost.connect().await);
        amqp.declare(QUEUE, kind).await;
        let death = array(vec![AMQPValue::FieldTable(table([
            ("queue", text(QUEUE)),
            ("reason", text("rejected")),
            ("count", int(1)),
        ]))]);
        let cases = [
            (
                "count",
                table([("x-retry-count", AMQPValue::ShortShortUInt(1))]),
                2,
                "exhausted",
            ),
            (
                "spent",
                table([("x-retry-count", int(1_000_000))]),
                1_000_001,
                "exhausted",
            ),
            ("older", table([("x-retries", int(1))]), 2, "exhausted"),
            ("died", table([("x-death", death)]), 2, "exhausted"),
            (
                "crashed",
                table([("x-retry-crashes", int(10))]),
                0,
                "delivery-limit",
            ),
        ];
        let messages = cases
            .iter()
            .map(|(name, headers, ..)| (QUEUE, "x", with_headers(name, headers.clone())));
        amqp.publish_all("", messages).await;
        let observations = Observations::default();
        let consumer = client
            .consumer(QUEUE)
            .dlx(true)
            .retry(policy("fixed(30ms, retries=2)"));
        let _running = start(consumer, &observations, |_| Err("no".into())).await;
        let all = take(&amqp, PARKED, cases.len()).await;
        for (name, _, first, reason) in cases {
            let message = all
                .iter()
                .find(|message| message.id() == Some(name))
                .unwrap();
            assert_eq!(
                message.header_text("x-retry-parked-reason").as_deref(),
                Some(reason),
                "{name}"
            );
            let attempts = observations.of(name);
            match first {
                0 => assert!(attempts.is_empty(), "{name}"),
                first => assert_eq!(attempts[0].message.attempt(), first, "{name}"),
            }
        }
    })
    .await;
}

/// RabbitMQ counts deaths on from what a publisher wrote, before 4.0: a count that cannot be true stays so.
#[tokio::test]
async fn a_count_of_deaths_that_cannot_be_true_comes_to_an_end() {
    on_brokers(|broker| async move {
        let vhost = broker.vhost().await;
        let (client, amqp) = (connect(&vhost).await, vhost.connect().await);
        let consumer = client
            .consumer(QUEUE)
            .dlx(true)
            .strategy(Strategy::DeadLetter)
            .retry(policy("fixed(100ms, retries=2)"));
        let observations = Observations::default();
        let running = start(consumer, &observations, |_| Err("no".into())).await;
        let counts = [2_000_000, -2_000_000, i64::MAX, i64::MIN];
        let messages = counts.map(|count| {
            let death = table([
                ("queue", text(QUEUE)),
                ("reason", text("rejected")),
                ("count", AMQPValue::LongLongInt(count)),
                ("exchange", text("")),
                ("routing-keys", array(vec![text(QUEUE)])),
            ]);
            let deaths = table([("x-death", array(vec![AMQPValue::FieldTable(death)]))]);
            (QUEUE, "x", with_headers(&count.to_string(), deaths))
        });
        amqp.publish_all("", messages).await;
        let runs = if broker.version() < Version::V4_0 {
            1
        } else {
            3
        };
        for parked in take(&amqp, PARKED, counts.len()).await {
            let reason = parked.header_text("x-retry-parked-reason");
            assert_eq!(reason.as_deref(), Some("exhausted"));
            let name = parked.id().unwrap();
            assert_eq!(observations.of(name).len(), runs, "{name}");
        }
        running.close().await;
    })
    .await;
}

fn large(bytes: usize, parts: usize) -> FieldTable {
    let names: Vec<String> = (0..parts).map(|part| format!("own-{part:05}")).collect();
    let value = "v".repeat(bytes / parts - 15);
    table(names.iter().map(|name| (name.as_str(), text(&value))))
}

#[tokio::test]
async fn copies_of_large_headers_fit_into_a_frame() {
    on_queue_types(|broker, kind| async move {
        let vhost = broker.vhost().await;
        let (client, amqp) = (connect_with(&vhost, kind).await, vhost.connect().await);
        amqp.declare(QUEUE, kind).await;
        const KIB: usize = 1024;
        let ours = |name: &str, value: AMQPValue| {
            let mut headers = large(60 * KIB, 10);
            headers.insert(name.into(), value);
            headers
        };
        let history = array(
            (0..1_000)
                .map(|attempt| {
                    AMQPValue::FieldTable(table([
                        ("attempt", int(attempt)),
                        ("at", AMQPValue::Timestamp(1)),
                        ("error", text("old")),
                    ]))
                })
                .collect(),
        );
        let cases = [
            ("kept", large(120 * KIB, 1), true),
            ("kept in parts", large(120 * KIB, 2_000), true),
            ("cut", large(127 * KIB, 4), false),
            ("one that is cut", large(127 * KIB, 1), false),
            (
                "error",
                ours("x-retry-error", text(&"e".repeat(60 * KIB))),
                true,
            ),
            (
                "stack",
                ours("x-retry-error-stack", text(&"e".repeat(60 * KIB))),
                true,
            ),
            ("history", ours("x-retry-history", history), true),
            (
                "exchange",
                ours("x-retry-exchange", text(&"e".repeat(60 * KIB))),
                true,
            ),
            (
                "unknown",
                ours("x-retry-something", text(&"e".repeat(50 * KIB))),
                true,
            ),
        ];
        for (name, headers, _) in &cases {
            amqp.publish_with(QUEUE, name, with_headers(name, headers.clone()))
                .await;
        }
        let observations = Observations::default();
        let long_error = "x".repeat(300 * KIB);
        let consumer = client
            .consumer(QUEUE)
            .dlx(true)
            .retry(policy("fixed(30ms, retries=2)"));
        let running = start(consumer, &observations, move |_: &Message| -> Answer {
            Err(long_error.clone().into())
        })
        .await;
        let all = take(&amqp, PARKED, cases.len()).await;
        for (name, headers, kept) in cases {
            let message = all
                .iter()
                .find(|message| message.id() == Some(name))
                .unwrap();
            assert_eq!(message.text(), name);
            assert_eq!(observations.of(name).len(), 3, "{name}");
            assert_eq!(message.header_int("x-retry-count"), Some(2), "{name}");
            let error = message.header_text("x-retry-error").unwrap_or_default();
            assert!(error.len() <= 1024, "{name}");
            let own = headers
                .inner()
                .keys()
                .filter(|key| key.as_str().starts_with("own-"));
            let lost = own
                .filter(|key| message.header(key.as_str()).is_none())
                .count();
            assert_eq!(lost == 0, kept, "{name} lost {lost} headers");
            assert_eq!(
                message.header("x-retry-headers-cut").is_some(),
                !kept,
                "{name}"
            );
            assert!(HistoryEntry::read(&message.headers()).len() <= 10, "{name}");
        }
        assert_eq!((running.stats().reconnects, client.reconnects()), (0, 0));
    })
    .await;
}

#[tokio::test]
async fn bodies_of_any_size_come_back_whole() {
    on_brokers(|broker| async move {
        let vhost = broker.vhost().await;
        let (client, amqp) = (connect(&vhost).await, vhost.connect().await);
        amqp.declare(QUEUE, QueueType::Quorum).await;
        let bodies = [
            Vec::new(),
            vec![0u8; 1],
            (0..=255).cycle().take(16 << 20).collect::<Vec<u8>>(),
        ];
        for body in bodies {
            amqp.publish_with(QUEUE, &body, id("sized")).await;
            let expected = body.clone();
            let observations = Observations::default();
            let consumer = client
                .consumer(QUEUE)
                .dlx(true)
                .retry(policy("fixed(30ms, retries=1)"));
            let running = start(
                consumer,
                &observations,
                move |message: &Message| -> Answer {
                    assert!(message.body() == expected, "the body is whole");
                    Err("no".into())
                },
            )
            .await;
            let message = parked(&amqp).await;
            assert_eq!(message.header_text("x-retry-error").as_deref(), Some("no"));
            assert!(message.body == body);
            running.close().await;
        }
    })
    .await;
}
