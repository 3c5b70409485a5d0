//! What a consumer tells: events, numbers, and a text that Prometheus can read.

use std::collections::{BTreeMap, BTreeSet};

use lapin::types::AMQPValue;
use retryrmq::{Client, Event, retry_after};
use retryrmq_harness::{
    Broker, Permissions, QueueType, eventually, on_brokers, on_brokers_where, on_queue_types,
};
use tokio::time::sleep;

use crate::connecting::host_and_port;
use crate::fixture::{
    DEADLINE, Observations, QUEUE, connect, connect_with, id, ms, policy, start, stats, table,
};

/// The samples of a text in the Prometheus exposition format, by name and labels; anything else in it is an error.
fn samples(text: &str) -> BTreeMap<(String, String), f64> {
    assert!(text.ends_with('\n'));
    let mut typed = BTreeSet::new();
    let mut samples = BTreeMap::new();
    for line in text.lines() {
        if let Some(comment) = line.strip_prefix("# ") {
            let mut words = comment.splitn(3, ' ');
            match words.next() {
                Some("TYPE") => {
                    let name = words.next().expect("a type is of a metric").to_owned();
                    assert!(
                        ["counter", "gauge", "histogram"].contains(&words.next().unwrap()),
                        "{line}"
                    );
                    assert!(typed.insert(name), "twice: {line}");
                }
                Some("HELP") => assert!(words.nth(1).is_some(), "{line}"),
                Some("EOF") => {}
                _ => panic!("{line}"),
            }
            continue;
        }
        let (name, rest) = line
            .split_once('{')
            .unwrap_or_else(|| panic!("no labels: {line}"));
        assert!(
            name.bytes()
                .all(|sign| sign.is_ascii_lowercase() || sign == b'_'),
            "{line}"
        );
        let base = ["_total", "_count", "_sum", "_bucket"]
            .iter()
            .fold(name, |name, end| name.trim_end_matches(end));
        assert!(
            typed.contains(base) || typed.contains(name),
            "of no type: {line}"
        );
        let (labels, value) = rest.rsplit_once("} ").unwrap_or_else(|| panic!("{line}"));
        let value: f64 = value.parse().unwrap_or_else(|_| panic!("{line}"));
        // The bounds of a histogram come first.
        let label = match labels.strip_prefix("le=\"") {
            Some(rest) => rest.split_once(',').expect("a queue follows").1,
            None => labels,
        };
        samples.insert((name.to_owned(), unescaped(label, line)), value);
    }
    samples
}

/// The one label's value, of `queue="…"` or `purpose="…"`, with the escapes of the format undone.
fn unescaped(label: &str, line: &str) -> String {
    let inner = label
        .strip_prefix("queue=\"")
        .or_else(|| label.strip_prefix("purpose=\""))
        .and_then(|rest| rest.strip_suffix('"'));
    let mut out = String::new();
    let mut signs = inner.unwrap_or_else(|| panic!("{line}")).chars();
    while let Some(sign) = signs.next() {
        match sign {
            '\\' => match signs.next() {
                Some('n') => out.push('\n'),
                Some(sign @ ('\\' | '"')) => out.push(sign),
                other => panic!("a wrong escape {other:?}: {line}"),
            },
            '"' => panic!("a quote that is not escaped: {line}"),
            sign => out.push(sign),
        }
    }
    out
}

#[tokio::test]
async fn the_numbers_are_the_same_in_text() {
    on_brokers(|broker| async move {
        let vhost = broker.vhost().await;
        let (client, amqp) = (connect(&vhost).await, vhost.connect().await);
        for queue in ["orders", "we\"ird\\queue", "für {alle}"] {
            let observations = Observations::default();
            let consumer = client
                .consumer(queue)
                .dlx(true)
                .retry(policy("fixed(50ms, retries=1)"));
            let running = start(consumer, &observations, |message| {
                match message.message_id() {
                    Some("good") => Ok(()),
                    _ => Err("no".into()),
                }
            })
            .await;
            for name in ["good", "bad"] {
                amqp.publish_with(queue, "x", id(name)).await;
            }
            let stats = stats(&running, "all is settled", |stats| {
                stats.parked == 1 && stats.outstanding == 0
            })
            .await;
            assert_eq!(
                (stats.delivered, stats.acked, stats.failed, stats.retried),
                (3, 1, 2, 1)
            );
            let samples = samples(&client.metrics_text());
            let sample = |name: &str| samples.get(&(name.to_owned(), queue.to_owned())).copied();
            assert_eq!(
                sample("retryrmq_messages_delivered_total"),
                Some(3.0),
                "{samples:?}"
            );
            assert_eq!(sample("retryrmq_messages_acked_total"), Some(1.0));
            assert_eq!(sample("retryrmq_messages_parked_total"), Some(1.0));
            assert_eq!(sample("retryrmq_messages_outstanding"), Some(0.0));
            assert_eq!(sample("retryrmq_handler_seconds_count"), Some(3.0));
            let depth = sample("retryrmq_parked_depth");
            assert_eq!(
                depth, None,
                "nobody has looked since the message was parked"
            );
            eventually(DEADLINE, "the depth is known", || async {
                // Each call has it looked up for the next.
                let samples = self::samples(&client.metrics_text());
                let depth = samples.get(&("retryrmq_parked_depth".to_owned(), queue.to_owned()));
                match depth {
                    Some(1.0) => Ok(()),
                    other => Err(format!("{other:?}")),
                }
            })
            .await;
        }
    })
    .await;
}

/// A quorum queue without a leader says that it is empty (fact 80).
#[tokio::test]
async fn a_depth_that_is_not_known_is_not_shown() {
    on_brokers_where(Broker::is_controllable, |broker| async move {
        let (near, far) = tokio::join!(broker.own_node(&[]), broker.own_node(&[]));
        far.join(&near).await;
        let alone = || {
            let one = AMQPValue::LongInt(1);
            table([("x-quorum-initial-group-size", one)])
        };
        let parking = format!("{QUEUE}.parked");
        let (here, there) = (near.connect().await, far.connect().await);
        here.declare_with(QUEUE, QueueType::Quorum, alone()).await;
        there
            .declare_with(&parking, QueueType::Quorum, alone())
            .await;
        for _ in 0..2 {
            there.publish(&parking, "x").await;
        }
        let client = Client::connect(near.url()).await.unwrap();
        let consumer = client.consumer(QUEUE).dlx(true).declare(false);
        let consumer = consumer.retry(policy("fixed(1s, retries=0)"));
        let running = consumer
            .start(|_| async { Ok::<_, std::io::Error>(()) })
            .await
            .unwrap();
        let depth = || {
            let samples = samples(&client.metrics_text());
            samples
                .get(&("retryrmq_parked_depth".to_owned(), QUEUE.to_owned()))
                .copied()
        };
        let is = async |what: &str, wanted: Option<f64>| {
            eventually(DEADLINE, what, || async {
                match depth() {
                    seen if seen == wanted => Ok(()),
                    other => Err(format!("{other:?}")),
                }
            })
            .await;
        };
        is("both are seen", Some(2.0)).await;
        far.stop().await;
        is("the depth is not known any more", None).await;
        // For longer than a look is good for.
        for _ in 0..30 {
            assert_eq!(depth(), None);
            sleep(ms(200)).await;
        }
        far.start().await;
        is("the depth is known again", Some(2.0)).await;
        running.close().await;
        client.close().await;
    })
    .await;
}

/// To prove that a queue is empty takes connections of its own.
#[tokio::test]
async fn a_depth_that_cannot_be_asked_for_hides_no_other() {
    on_brokers_where(Broker::is_controllable, |broker| async move {
        let node = broker.own_node(&[]).await;
        let amqp = node.connect().await;
        for queue in ["a", "b"] {
            amqp.declare(queue, QueueType::Quorum).await;
            let parking = format!("{queue}.parked");
            amqp.declare(&parking, QueueType::Quorum).await;
        }
        for queue in ["a.parked", "b.parked", "b.parked"] {
            amqp.publish(queue, "x").await;
        }
        let management = node.management();
        management.create_user("limited", "pw", "").await.unwrap();
        let set = management.set_permissions("/", "limited", Permissions::ALL);
        set.await.unwrap();
        // As many as it takes to consume, to publish and to look at the queues beforehand.
        let limit = ["set_user_limits", "limited", r#"{"max-connections": 3}"#];
        node.ctl(&limit).await;
        let url = format!("amqp://limited:pw@{}/%2f", host_and_port(&node));
        let client = Client::connect(&url).await.unwrap();
        let mut running = Vec::new();
        for queue in ["a", "b"] {
            let consumer = client.consumer(queue).dlx(true).declare(false);
            let consumer = consumer.retry(policy("fixed(1s, retries=0)"));
            let handler = |_: retryrmq::Message| async { Ok::<_, std::io::Error>(()) };
            running.push(
                eventually(DEADLINE, "there is a connection left", || {
                    consumer.clone().start(handler)
                })
                .await,
            );
        }
        let are = async |what: &str, wanted: (Option<f64>, Option<f64>)| {
            eventually(DEADLINE, what, || async {
                let samples = samples(&client.metrics_text());
                let depth = |queue: &str| {
                    let labels = queue.to_owned();
                    samples
                        .get(&("retryrmq_parked_depth".to_owned(), labels))
                        .copied()
                };
                match (depth("a"), depth("b")) {
                    seen if seen == wanted => Ok(()),
                    other => Err(format!("{other:?}")),
                }
            })
            .await;
        };
        are("both depths are known", (Some(1.0), Some(2.0))).await;
        assert_eq!(amqp.drain("a.parked").await.len(), 1);
        are("the depth of one is known", (None, Some(2.0))).await;
        for running in running {
            running.close().await;
        }
        client.close().await;
    })
    .await;
}

#[tokio::test]
async fn events_tell_the_story_of_a_message() {
    on_queue_types(|broker, kind| async move {
        let vhost = broker.vhost().await;
        let (client, amqp) = (connect_with(&vhost, kind).await, vhost.connect().await);
        amqp.declare(QUEUE, kind).await;
        amqp.publish_with(QUEUE, "x", id("a")).await;
        let observations = Observations::default();
        let consumer = client
            .consumer(QUEUE)
            .dlx(true)
            .retry(policy("fixed(50ms, retries=2)"));
        let _running = start(consumer, &observations, |message| match message.attempt() {
            1 => Err(retry_after(ms(70), "busy").into()),
            _ => Err("no".into()),
        })
        .await;
        observations.event("parked").await;
        assert_eq!(observations.event_names(), ["retried", "retried", "parked"]);
        let events = observations.events();
        for (event, attempt, delay, why) in [
            (&events[0], 1, ms(70), "busy"),
            (&events[1], 2, ms(50), "no"),
        ] {
            let fields = event.fields();
            assert_eq!((fields.queue, fields.message_id), (QUEUE, Some("a")));
            assert_eq!((fields.attempt, fields.delay), (Some(attempt), Some(delay)));
            assert_eq!(fields.error, Some(why));
        }
        let Event::Parked {
            attempt: 3, error, ..
        } = &events[2]
        else {
            panic!("{events:?}")
        };
        assert_eq!(error, "no");
    })
    .await;
}

#[tokio::test]
async fn a_listener_that_panics_harms_nobody() {
    on_brokers(|broker| async move {
        let vhost = broker.vhost().await;
        let (client, amqp) = (connect(&vhost).await, vhost.connect().await);
        let observations = Observations::default();
        let consumer = client
            .consumer(QUEUE)
            .dlx(true)
            .retry(policy("fixed(50ms, retries=1)"));
        let _running = consumer
            .on_event(|event| panic!("on purpose: {event:?}"))
            .start(observations.handler(|_| Err("no".into())))
            .await
            .unwrap();
        amqp.publish_with(QUEUE, "x", id("a")).await;
        crate::fixture::parked(&amqp).await;
        assert_eq!(observations.all().len(), 2);
    })
    .await;
}
