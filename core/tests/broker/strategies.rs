//! The other strategies: what they need, what they do, and where they are refused.

use retryrmq::{
    Client, ErrorKind, Item, Status, Strategy, defer, retry_after,
    types::{AMQPValue, FieldTable},
};
use retryrmq_harness::{
    Broker, Policy, QueueType, Version, on_brokers, on_brokers_where, on_every_broker,
    on_every_queue_type, on_queue_types,
};
use serde_json::json;

use crate::{
    connecting::refused,
    fixture,
    fixture::{
        CLOCK, Observations, PARKED, QUEUE, connect, connect_with, id, ms, parked, policy, settled,
        start, stats, take,
    },
    log_capture,
};

fn consumer(client: &Client, strategy: Strategy, text: &str) -> retryrmq::Consumer {
    client
        .consumer(QUEUE)
        .dlx(true)
        .strategy(strategy)
        .retry(policy(text))
}

#[tokio::test]
async fn dead_letter_retries_and_parks() {
    on_queue_types(|broker, kind| async move {
        let vhost = broker.vhost().await;
        let (client, amqp) = (connect_with(&vhost, kind).await, vhost.connect().await);
        let observations = Observations::default();
        let consumer = consumer(&client, Strategy::DeadLetter, "fixed(150ms, retries=3)");
        let running = start(consumer, &observations, |message| {
            match (message.message_id().unwrap(), message.attempt()) {
                ("better", 3) => Ok(()),
                ("chosen", 1) => Err(retry_after(ms(120), "busy").into()),
                ("deferred", 1) if message.state().deferrals == 0 => Err(defer(ms(60)).into()),
                _ => Err("no".into()),
            }
        })
        .await;
        let all = ["better", "worse", "chosen", "deferred"];
        amqp.publish_all("", all.map(|name| (QUEUE, name, id(name))))
            .await;
        let lost = take(&amqp, PARKED, 3).await;
        for message in &lost {
            let name = message.id().unwrap();
            assert_eq!(
                message.header_text("x-retry-parked-reason").as_deref(),
                Some("exhausted"),
                "{name}"
            );
            assert_eq!(message.header_int("x-retry-count"), Some(3), "{name}");
            assert_eq!(
                message.header_text("x-retry-error").as_deref(),
                Some("no"),
                "{name}"
            );
        }
        for (name, expected) in [
            ("better", &[1, 2, 3][..]),
            ("worse", &[1, 2, 3, 4]),
            ("chosen", &[1, 2, 3, 4]),
            ("deferred", &[1, 1, 2, 3, 4]),
        ] {
            let attempts = observations.until(name, expected.len()).await;
            let numbers: Vec<u32> = attempts.iter().map(|one| one.message.attempt()).collect();
            assert_eq!(numbers, expected, "{name}");
        }
        let worse = observations.of("worse");
        for pair in worse.windows(2) {
            let pause = pair[1].at - pair[0].at;
            assert!(pause + CLOCK >= ms(150), "came after {pause:?}");
        }
        assert!(
            worse[1]
                .message
                .headers()
                .unwrap()
                .inner()
                .get("x-retry-count")
                .is_none(),
            "no copy of ours"
        );
        settled(&vhost, &amqp, &running, QUEUE).await;
    })
    .await;
}

#[tokio::test]
async fn dead_letter_is_refused_where_it_cannot_work() {
    on_every_queue_type(|broker, kind| async move {
        let vhost = broker.vhost().await;
        let (client, amqp) = (connect_with(&vhost, kind).await, vhost.connect().await);
        for text in [
            "list(1s, 2s)",
            "exponential(1s)",
            "fixed(1s, jitter=0.2)",
            "fixed(1s, retries=0)",
        ] {
            let why = refused(
                consumer(&client, Strategy::DeadLetter, text)
                    .subscribe()
                    .await,
                ErrorKind::StrategyRefused,
            );
            assert!(why.contains("retry-queues"), "{text}: {why}");
        }
        let many = consumer(&client, Strategy::DeadLetter, "fixed(1s, retries=16)")
            .subscribe()
            .await;
        if broker.version() >= Version::V4_0 {
            let why = refused(many, ErrorKind::StrategyRefused);
            assert!(why.contains("15") && why.contains("retry-queues"), "{why}");
        } else {
            drop(many.unwrap());
            amqp.delete(QUEUE).await;
        }
        // A queue without the route would drop what is rejected.
        amqp.declare(QUEUE, kind).await;
        let why = refused(
            consumer(&client, Strategy::DeadLetter, "fixed(1s)")
                .subscribe()
                .await,
            ErrorKind::Mismatch,
        );
        assert!(
            why.contains("`orders`") && why.contains("retry-queues"),
            "{why}"
        );
    })
    .await;
}

#[tokio::test]
async fn native_delays_and_parks() {
    let since = |broker: &retryrmq_harness::Broker| broker.version() >= Version::V4_3;
    on_brokers_where(since, |broker| async move {
        let vhost = broker.vhost().await;
        let (client, amqp) = (connect(&vhost).await, vhost.connect().await);
        let observations = Observations::default();
        let linear = consumer(
            &client,
            Strategy::Native,
            "linear(100ms, step=100ms, max=200ms, retries=3)",
        );
        let running = start(linear, &observations, |message| {
            match (message.message_id().unwrap(), message.attempt()) {
                ("better", 2) => Ok(()),
                ("chosen", 1) => Err(retry_after(ms(120), "busy").into()),
                ("deferred", 1) if message.state().deferrals == 0 => Err(defer(ms(60)).into()),
                _ => Err("no".into()),
            }
        })
        .await;
        let all = ["better", "worse", "chosen", "deferred"];
        amqp.publish_all("", all.map(|name| (QUEUE, name, id(name))))
            .await;
        for message in take(&amqp, PARKED, 3).await {
            let name = message.id().unwrap();
            assert_eq!(
                message.header_text("x-retry-parked-reason").as_deref(),
                Some("exhausted"),
                "{name}"
            );
            assert_eq!(message.header_int("x-retry-count"), Some(3), "{name}");
        }
        for (name, expected) in [
            ("better", &[1, 2][..]),
            ("worse", &[1, 2, 3, 4]),
            ("chosen", &[1, 2, 3, 4]),
            ("deferred", &[1, 1, 2, 3, 4]),
        ] {
            let attempts = observations.until(name, expected.len()).await;
            let numbers: Vec<u32> = attempts.iter().map(|one| one.message.attempt()).collect();
            assert_eq!(numbers, expected, "{name}");
        }
        let worse = observations.of("worse");
        for (pair, least) in worse.windows(2).zip([100, 200, 200]) {
            let pause = pair[1].at - pair[0].at;
            assert!(
                pause + CLOCK >= ms(least),
                "came after {pause:?} and not {least} ms"
            );
        }
        settled(&vhost, &amqp, &running, QUEUE).await;
        // Once more: a consumer that comes back finds its queue as it should be.
        running.close().await;
        let again = consumer(
            &client,
            Strategy::Native,
            "linear(100ms, step=100ms, max=200ms, retries=3)",
        );
        again.subscribe().await.unwrap();
    })
    .await;
}

/// Whoever has no management API notices it all the same.
#[tokio::test]
async fn where_a_policy_takes_the_delay_of_native_away_copies_wait_and_no_attempt_is_used_up() {
    let since = |broker: &retryrmq_harness::Broker| broker.version() >= Version::V4_3;
    on_brokers_where(since, |broker| async move {
        log_capture::start();
        let warnings = || {
            let is_it = |line: &&String| line.contains("a message came back too early");
            log_capture::lines().iter().filter(is_it).count()
        };
        for definition in [
            json!({ "delayed-retry-type": "disabled" }),
            json!({ "delayed-retry-min": 1, "delayed-retry-max": 1 }),
        ] {
            let before = warnings();
            let vhost = broker.vhost().await;
            let policy = Policy::new(".*", definition);
            vhost.put_policy("all", &policy).await.unwrap();
            let (client, amqp) = (connect(&vhost).await, vhost.connect().await);
            let observations = Observations::default();
            let fixed = consumer(&client, Strategy::Native, "fixed(3s, retries=2)");
            let running = start(fixed, &observations, |_| Err("no".into())).await;
            let all = ["one", "two"];
            amqp.publish_all("", all.map(|name| (QUEUE, name, id(name))))
                .await;
            for message in take(&amqp, PARKED, 2).await {
                let reason = message.header_text("x-retry-parked-reason");
                assert_eq!(reason.as_deref(), Some("exhausted"));
                assert_eq!(message.header_int("x-retry-count"), Some(2));
            }
            for name in all {
                let attempts = observations.until(name, 3).await;
                let numbers: Vec<u32> = attempts.iter().map(|one| one.message.attempt()).collect();
                assert_eq!(numbers, [1, 2, 3], "{name}");
                for pair in attempts.windows(2) {
                    let pause = pair[1].at - pair[0].at;
                    assert!(pause + CLOCK >= ms(3_000), "{name} came after {pause:?}");
                }
            }
            // Only the first failures were requeued.
            let detours = running.stats().detoured;
            assert!((1..=2).contains(&detours), "{detours}");
            assert!(observations.event_names().contains(&"detoured"));
            // Once, unless the consumer reconnects.
            assert!(warnings() > before);
            settled(&vhost, &amqp, &running, QUEUE).await;
        }
    })
    .await;
}

#[tokio::test]
async fn native_is_refused_where_it_cannot_work() {
    on_every_broker(|broker| async move {
        let vhost = broker.vhost().await;
        let (client, amqp) = (connect(&vhost).await, vhost.connect().await);
        for text in [
            "exponential(1s)",
            "list(1s, 2s)",
            "fixed(1s, jitter=0.2)",
            "linear(1s, step=2s)",
        ] {
            let why = refused(
                consumer(&client, Strategy::Native, text).subscribe().await,
                ErrorKind::StrategyRefused,
            );
            assert!(why.contains("retry-queues"), "{text}: {why}");
        }
        let ruled = consumer(&client, Strategy::Native, "fixed(1s)")
            .rules(["error=x => fixed(2s)".parse().unwrap()]);
        refused(ruled.subscribe().await, ErrorKind::StrategyRefused);
        let classic = connect_with(&vhost, QueueType::Classic).await;
        let why = refused(
            consumer(&classic, Strategy::Native, "fixed(1s)")
                .subscribe()
                .await,
            ErrorKind::StrategyRefused,
        );
        assert!(
            why.contains("quorum") && why.contains("retry-queues"),
            "{why}"
        );
        assert!(vhost.queues().await.is_empty(), "nothing was made");
        if broker.version() < Version::V4_3 {
            let why = refused(
                consumer(&client, Strategy::Native, "fixed(1s)")
                    .subscribe()
                    .await,
                ErrorKind::StrategyRefused,
            );
            assert!(why.contains("4.3") && why.contains("retry-queues"), "{why}");
            assert!(vhost.queues().await.is_empty(), "nothing was made");
        } else {
            for kind in QueueType::ALL {
                amqp.declare(QUEUE, kind).await;
                let why = refused(
                    consumer(&client, Strategy::Native, "fixed(1s)")
                        .subscribe()
                        .await,
                    ErrorKind::Mismatch,
                );
                assert!(
                    why.contains("`orders`") && why.contains("retry-queues"),
                    "{kind}: {why}"
                );
                amqp.delete(QUEUE).await;
            }
        }
    })
    .await;
}

#[tokio::test]
async fn a_delayed_exchange_needs_its_plugin() {
    on_brokers(|broker| async move {
        let vhost = broker.vhost().await;
        let client = connect(&vhost).await;
        let consumer = consumer(&client, Strategy::DelayedExchange, "exponential(1s)");
        let plan = consumer.plan().unwrap();
        assert!(
            plan.items.iter().any(|item| matches!(
                item,
                Item::Exchange { name, kind: "x-delayed-message", .. } if name == "orders.delayed"
            )),
            "{plan}"
        );
        let found = client.compare_plan(&plan).await.unwrap();
        assert!(
            found
                .iter()
                .all(|finding| matches!(finding.status, Status::Missing | Status::Unknown))
        );
        let why = refused(consumer.subscribe().await, ErrorKind::StrategyRefused);
        assert!(
            why.contains("plugin") && why.contains("retry-queues"),
            "{why}"
        );
        // 3.10 ends the connection over it; this client's own are not touched.
        assert_eq!(client.reconnects(), 0);
    })
    .await;
}

/// Where every retry is a redelivery, a message that looks like one that was handled may be another one.
#[tokio::test]
async fn of_two_messages_that_look_alike_both_are_handled() {
    on_every_queue_type(|broker, kind| async move {
        let native = broker.version() >= Version::V4_3 && kind == QueueType::Quorum;
        let strategies = [
            (Strategy::DeadLetter, true),
            (Strategy::RetryQueues, true),
            (Strategy::Native, native),
        ];
        for (strategy, _) in strategies.iter().filter(|(_, can)| *can) {
            let vhost = broker.vhost().await;
            let (client, amqp) = (connect_with(&vhost, kind).await, vhost.connect().await);
            let observations = Observations::default();
            let consumer = consumer(&client, *strategy, "fixed(100ms, retries=3)").concurrency(1);
            let running = start(consumer, &observations, |message| {
                if message.attempt() == 1 {
                    Err("once".into())
                } else {
                    Ok(())
                }
            })
            .await;
            for number in [1, 2] {
                let headers = fixture::table([("number", fixture::int(number))]);
                let alike = fixture::with_headers("alike", headers);
                amqp.publish_all("", [(QUEUE, "alike", alike)]).await;
                // One after the other, so that the second meets whatever the first left behind.
                stats(&running, "it is handled", |stats| {
                    stats.acked == number as u64
                })
                .await;
            }
            let attempts = observations.until("alike", 4).await;
            let numbers: Vec<u32> = attempts.iter().map(|one| one.message.attempt()).collect();
            assert_eq!(numbers, [1, 2, 1, 2], "{broker}, {kind}, {strategy}");
            settled(&vhost, &amqp, &running, QUEUE).await;
            running.close().await;
        }
    })
    .await;
}

#[tokio::test]
async fn what_an_owner_gave_his_queue_and_changes_nothing_is_taken() {
    on_brokers(|broker| async move {
        let owners = [
            ("x-max-priority", AMQPValue::LongInt(5)),
            ("x-single-active-consumer", AMQPValue::Boolean(true)),
            ("x-expires", AMQPValue::LongInt(3_600_000)),
        ];
        for forbidden in [false, true] {
            let vhost = broker.vhost().await;
            let kind = QueueType::Classic;
            let (client, amqp) = (connect_with(&vhost, kind).await, vhost.connect().await);
            let strict = || consumer(&client, Strategy::DeadLetter, "fixed(150ms, retries=1)");
            let mut arguments = FieldTable::default();
            for (name, value) in owners.clone() {
                arguments.insert(name.into(), value);
            }
            if forbidden {
                arguments.insert("x-message-ttl".into(), AMQPValue::LongInt(60_000));
            }
            let text = |text: &str| AMQPValue::LongString(text.into());
            arguments.insert("x-dead-letter-exchange".into(), text(""));
            arguments.insert("x-dead-letter-routing-key".into(), text("orders.retry.150"));
            amqp.declare_with(QUEUE, kind, arguments).await;
            if forbidden {
                let why = refused(strict().subscribe().await, ErrorKind::Mismatch);
                assert!(why.contains("x-message-ttl"), "{why}");
                continue;
            }
            let observations = Observations::default();
            let running = start(strict(), &observations, |_| Err("no".into())).await;
            amqp.publish_with(QUEUE, "x", id("a")).await;
            let lost = parked(&amqp).await;
            assert_eq!(lost.header_int("x-retry-count"), Some(1));
            assert_eq!(observations.of("a").len(), 2);
            running.close().await;
        }
    })
    .await;
}

#[tokio::test]
async fn with_its_plugin_a_delayed_exchange_delays() {
    on_brokers_where(Broker::may_have_delayed_messages, |broker| async move {
        let node = broker
            .own_node(&["plugins = rabbitmq_delayed_message_exchange"])
            .await;
        for kind in QueueType::ALL {
            let vhost = node.vhost().await;
            let (client, amqp) = (connect(&vhost).await, vhost.connect().await);
            amqp.declare(QUEUE, kind).await;
            let observations = Observations::default();
            let consumer = consumer(&client, Strategy::DelayedExchange, "list(300ms, 1s)");
            let running = start(consumer, &observations, |message| {
                match (message.message_id().unwrap(), message.attempt()) {
                    ("better", 3) => Ok(()),
                    ("chosen", 1) => Err(retry_after(ms(700), "busy").into()),
                    ("deferred", 1) if message.state().deferrals == 0 => Err(defer(ms(500)).into()),
                    ("chosen" | "deferred", _) => Ok(()),
                    _ => Err("no".into()),
                }
            })
            .await;
            let all = ["better", "worse", "chosen", "deferred"];
            amqp.publish_all("", all.map(|name| (QUEUE, name, id(name))))
                .await;
            let waited = async |name, attempts: usize, last: u64| {
                let seen = observations.until(name, attempts).await;
                let [.., before, after] = &*seen else {
                    panic!("{name}: {}", seen.len());
                };
                let waited = after.at - before.at;
                assert!(waited + CLOCK >= ms(last), "{kind}, {name}: {waited:?}");
            };
            waited("better", 3, 1_000).await;
            waited("worse", 3, 1_000).await;
            waited("chosen", 2, 700).await;
            waited("deferred", 2, 500).await;
            let delays = |name| {
                let of = |attempt: &fixture::Attempt| {
                    let headers = attempt.message.headers()?.inner();
                    match headers.get("x-delay")? {
                        AMQPValue::LongLongInt(ms) => Some(ms.abs()),
                        AMQPValue::LongInt(ms) => Some(i64::from(ms.abs())),
                        _ => None,
                    }
                };
                observations.of(name).iter().map(of).collect::<Vec<_>>()
            };
            // On 4.0 the plugin turns the sign of what it has delayed.
            assert_eq!(delays("better"), [None, Some(300), Some(1_000)], "{kind}");
            assert_eq!(delays("chosen"), [None, Some(700)], "{kind}");
            let lost = take(&amqp, PARKED, 1).await;
            assert_eq!(lost[0].id(), Some("worse"), "{kind}");
            assert_eq!(lost[0].header_int("x-retry-count"), Some(2), "{kind}");
            stats(&running, "all is settled", |stats| stats.outstanding == 0).await;
            running.close().await;
        }
    })
    .await;
}

#[tokio::test]
async fn what_waits_in_a_delayed_exchange_survives_its_broker() {
    on_brokers_where(Broker::may_have_delayed_messages, |broker| async move {
        let node = broker
            .own_node(&["plugins = rabbitmq_delayed_message_exchange"])
            .await;
        let vhost = node.vhost().await;
        let (client, amqp) = (connect(&vhost).await, vhost.connect().await);
        amqp.declare(QUEUE, QueueType::Quorum).await;
        let observations = Observations::default();
        // Longer than a restart takes.
        let consumer = consumer(&client, Strategy::DelayedExchange, "list(20s)");
        let running = start(consumer, &observations, |message| match message.attempt() {
            1 => Err("not yet".into()),
            _ => Ok(()),
        })
        .await;
        let names: Vec<String> = (0..20).map(|number| number.to_string()).collect();
        amqp.publish_all(
            "",
            names.iter().map(|name| (QUEUE, name.as_str(), id(name))),
        )
        .await;
        stats(&running, "all wait", |stats| {
            stats.retried == 20 && stats.outstanding == 0
        })
        .await;
        node.kill().await;
        node.start().await;
        for name in &names {
            let seen = observations.until(name, 2).await;
            assert_eq!(seen[1].message.attempt(), 2, "{name}");
        }
        running.close().await;
    })
    .await;
}
