//! Which policy decides, and what its parts do.

use std::collections::BTreeMap;

use retryrmq::{Backoff, Rule, types::AMQPValue};
use retryrmq_harness::on_queue_types;

use crate::fixture::{
    Answer, CLOCK, Observations, QUEUE, connect_with, id, ms, parked, policy, start, table, take,
    text, with_headers,
};

#[tokio::test]
async fn jitter_spreads_over_three_queues_and_is_never_early() {
    on_queue_types(|broker, kind| async move {
        const COUNT: usize = 60;
        let vhost = broker.vhost().await;
        let (client, amqp) = (connect_with(&vhost, kind).await, vhost.connect().await);
        amqp.declare(QUEUE, kind).await;
        let observations = Observations::default();
        let consumer = client
            .consumer(QUEUE)
            .dlx(true)
            .retry(policy("fixed(400ms, jitter=0.5)"));
        let _running = start(consumer, &observations, |message| match message.attempt() {
            1 => Err("no".into()),
            _ => Ok(()),
        })
        .await;
        let names: Vec<String> = (0..COUNT).map(|number| number.to_string()).collect();
        amqp.publish_all("", names.iter().map(|name| (QUEUE, "x", id(name))))
            .await;
        let mut waited: BTreeMap<u64, usize> = BTreeMap::new();
        for name in &names {
            let attempts = observations.until(name, 2).await;
            let Some(AMQPValue::FieldArray(deaths)) = attempts[1]
                .message
                .headers()
                .unwrap()
                .inner()
                .get("x-death")
                .cloned()
            else {
                panic!("it did not wait in a queue");
            };
            let AMQPValue::FieldTable(death) = &deaths.as_slice()[0] else {
                panic!("{deaths:?}")
            };
            let Some(AMQPValue::LongString(queue)) = death.inner().get("queue") else {
                panic!("{death:?}")
            };
            let queue = String::from_utf8(queue.as_bytes().to_vec()).unwrap();
            let delay: u64 = queue
                .strip_prefix("orders.retry.")
                .unwrap()
                .parse()
                .unwrap();
            let pause = attempts[1].at - attempts[0].at;
            assert!(
                pause + CLOCK >= ms(delay),
                "{pause:?} instead of {delay} ms"
            );
            *waited.entry(delay).or_default() += 1;
        }
        // 60 draws of three: that one of them never comes up has a chance of 1 in 10 000 000 000.
        assert_eq!(
            waited.keys().copied().collect::<Vec<_>>(),
            [200, 300, 400],
            "{waited:?}"
        );
    })
    .await;
}

#[derive(Debug)]
struct ReadTimeout;

impl std::fmt::Display for ReadTimeout {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("late")
    }
}

impl std::error::Error for ReadTimeout {}

#[tokio::test]
async fn the_first_rule_that_holds_decides() {
    on_queue_types(|broker, kind| async move {
        let vhost = broker.vhost().await;
        let (client, amqp) = (connect_with(&vhost, kind).await, vhost.connect().await);
        amqp.declare(QUEUE, kind).await;
        let bind = harness_bind(&amqp, "eu.#");
        bind.await;
        harness_bind(&amqp, "us.#").await;
        let rules: [Rule; 3] = [
            "routing_key=eu.# => fixed(51ms, retries=1)",
            "header.kind=invoice* => fixed(52ms, retries=2)",
            "error=*Timeout => fixed(53ms, retries=3)",
        ]
        .map(|rule| rule.parse().unwrap());
        let consumer = client
            .consumer(QUEUE)
            .dlx(true)
            .retry(Backoff::fixed(ms(54)).retries(4))
            .rules(rules);
        let observations = Observations::default();
        let seen = observations.clone();
        let _running = consumer
            .start(move |message: retryrmq::Message| {
                seen.note(&message);
                std::future::ready(Err(ReadTimeout))
            })
            .await
            .unwrap();
        let kind_of = |value: &str| table([("kind", text(value))]);
        amqp.publish_to(
            "amq.topic",
            "eu.order",
            "1",
            with_headers("eu", kind_of("invoice-a")),
        )
        .await;
        amqp.publish_to(
            "amq.topic",
            "us.order",
            "1",
            with_headers("invoice", kind_of("invoice-b")),
        )
        .await;
        amqp.publish_to(
            "amq.topic",
            "us.order",
            "1",
            with_headers("other", kind_of("receipt")),
        )
        .await;
        let mut counts = BTreeMap::new();
        for message in take(&amqp, crate::fixture::PARKED, 3).await {
            counts.insert(
                message.id().unwrap().to_owned(),
                message.header_int("x-retry-count").unwrap(),
            );
        }
        // The routing key of the first publication decides on every attempt, though copies come with another.
        let expected = [("eu", 1), ("invoice", 2), ("other", 3)];
        assert_eq!(
            counts,
            expected
                .map(|(name, count)| (name.to_owned(), count))
                .into()
        );
        // No rule is about this one: the error's type is not known.
        let plain = client.consumer("plain").dlx(true);
        let plain = plain
            .retry(Backoff::fixed(ms(54)).retries(4))
            .rules(["error=*Timeout => fixed(53ms, retries=3)".parse().unwrap()]);
        let answer = |_: &retryrmq::Message| -> Answer { Err("text".into()) };
        let _plain = start(plain, &observations, answer).await;
        amqp.publish_with("plain", "1", id("text")).await;
        let last = take(&amqp, "plain.parked", 1).await.remove(0);
        assert_eq!(last.header_int("x-retry-count"), Some(4));
    })
    .await;
}

async fn harness_bind(amqp: &retryrmq_harness::Amqp, key: &str) {
    use retryrmq_harness::lapin::{options::QueueBindOptions, types::FieldTable};
    let options = QueueBindOptions::default();
    amqp.channel()
        .queue_bind(
            QUEUE.into(),
            "amq.topic".into(),
            key.into(),
            options,
            FieldTable::default(),
        )
        .await
        .unwrap();
}

#[tokio::test]
async fn what_would_come_too_late_is_parked_as_too_old() {
    on_queue_types(|broker, kind| async move {
        let vhost = broker.vhost().await;
        let (client, amqp) = (connect_with(&vhost, kind).await, vhost.connect().await);
        amqp.declare(QUEUE, kind).await;
        let now = std::time::SystemTime::UNIX_EPOCH
            .elapsed()
            .unwrap()
            .as_secs();
        let old = id("old").with_timestamp(now - 3600);
        let new = id("new").with_timestamp(now);
        amqp.publish_all("", [(QUEUE, "1", old), (QUEUE, "2", new)])
            .await;
        let observations = Observations::default();
        let text = "fixed(50ms, retries=2, max_age=30m, age_from=published)";
        let consumer = client.consumer(QUEUE).dlx(true).retry(policy(text));
        let _running = start(consumer, &observations, |_| Err("no".into())).await;
        let mut reasons = BTreeMap::new();
        for message in take(&amqp, crate::fixture::PARKED, 2).await {
            reasons.insert(
                message.id().unwrap().to_owned(),
                message.header_text("x-retry-parked-reason").unwrap(),
            );
        }
        assert_eq!(reasons["old"], "too-old");
        assert_eq!(reasons["new"], "exhausted");
        assert_eq!(
            (observations.of("old").len(), observations.of("new").len()),
            (1, 3)
        );
    })
    .await;
}

#[tokio::test]
async fn without_retries_the_first_failure_parks() {
    on_queue_types(|broker, kind| async move {
        let vhost = broker.vhost().await;
        let (client, amqp) = (connect_with(&vhost, kind).await, vhost.connect().await);
        amqp.declare(QUEUE, kind).await;
        amqp.publish_with(QUEUE, "1", id("a")).await;
        let observations = Observations::default();
        let consumer = client
            .consumer(QUEUE)
            .dlx(true)
            .retry(policy("fixed(1s, retries=0)"));
        assert_eq!(
            consumer.plan().unwrap().items.len(),
            3,
            "and nothing waits anywhere but for the detour"
        );
        let _running = start(consumer, &observations, |_| Err("no".into())).await;
        assert_eq!(parked(&amqp).await.header_int("x-retry-count"), Some(0));
        assert_eq!(observations.all().len(), 1);
    })
    .await;
}
