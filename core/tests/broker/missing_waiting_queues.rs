//! Waiting queues that cannot be had: another one does, and nobody is kept waiting.

use std::time::Instant;

use lapin::options::BasicGetOptions;
use retryrmq::{Consumer, Message, defer, retry_after};
use retryrmq_harness::{Amqp, QueueType, on_brokers, on_queue_types};

use crate::fixture::{
    CLOCK, Observations, QUEUE, connect, connect_with, id, int, ms, policy, start, stats, table,
};

/// Takes every message of a queue and dies.
async fn crash(vhost: &retryrmq_harness::Vhost, count: usize) {
    let amqp = vhost.connect().await;
    for _ in 0..count {
        let options = BasicGetOptions::default();
        let got = amqp.channel().basic_get(QUEUE.into(), options).await;
        assert!(got.unwrap().is_some());
    }
    amqp.close().await;
}

/// Ten messages that were with a consumer that died, on a queue that does not count that: all of them take the detour.
async fn ten_redelivered(vhost: &retryrmq_harness::Vhost, amqp: &Amqp) -> Vec<String> {
    let names: Vec<String> = (0..10).map(|number| format!("m{number}")).collect();
    amqp.publish_all("", names.iter().map(|name| (QUEUE, "x", id(name))))
        .await;
    crash(vhost, names.len()).await;
    names
}

fn undeclared(consumer: Consumer) -> Consumer {
    consumer
        .dlx(true)
        .declare(false)
        .retry(policy("fixed(2s, retries=3)"))
}

#[tokio::test]
async fn without_declaring_the_detour_has_its_queue() {
    on_brokers(|broker| async move {
        let vhost = broker.vhost().await;
        let client = connect_with(&vhost, QueueType::Classic).await;
        let amqp = vhost.connect().await;
        amqp.declare(QUEUE, QueueType::Classic).await;
        let consumer = undeclared(client.consumer(QUEUE));
        client.apply_plan(&consumer.plan().unwrap()).await.unwrap();
        let names = ten_redelivered(&vhost, &amqp).await;
        let observations = Observations::default();
        let running = start(consumer, &observations, |_| Ok(())).await;
        for name in &names {
            observations.until(name, 1).await;
        }
        let stats = stats(&running, "all is settled", |stats| stats.outstanding == 0).await;
        assert_eq!(
            (stats.detoured, stats.publish_failures),
            (10, 0),
            "{stats:?}"
        );
    })
    .await;
}

/// What an older version planned had no queue for it.
#[tokio::test]
async fn without_it_the_detour_goes_another_way() {
    on_brokers(|broker| async move {
        let vhost = broker.vhost().await;
        let client = connect_with(&vhost, QueueType::Classic).await;
        let amqp = vhost.connect().await;
        amqp.declare(QUEUE, QueueType::Classic).await;
        let consumer = undeclared(client.consumer(QUEUE));
        client.apply_plan(&consumer.plan().unwrap()).await.unwrap();
        amqp.delete("orders.retry.100").await;
        let names = ten_redelivered(&vhost, &amqp).await;
        let observations = Observations::default();
        let running = start(consumer, &observations, |_| Ok(())).await;
        for name in &names {
            observations.until(name, 1).await;
        }
        stats(&running, "all is settled", |stats| stats.outstanding == 0).await;
        assert_eq!(amqp.depth("orders.retry.100").await, None);
    })
    .await;
}

#[tokio::test]
async fn without_declaring_a_chosen_delay_waits_in_a_queue_that_there_is() {
    on_queue_types(|broker, kind| async move {
        let vhost = broker.vhost().await;
        let (client, amqp) = (connect_with(&vhost, kind).await, vhost.connect().await);
        amqp.declare(QUEUE, kind).await;
        let consumer = undeclared(client.consumer(QUEUE));
        client.apply_plan(&consumer.plan().unwrap()).await.unwrap();
        let names: Vec<String> = (0..20).map(|number| format!("m{number}")).collect();
        amqp.publish_all("", names.iter().map(|name| (QUEUE, "x", id(name))))
            .await;
        let observations = Observations::default();
        let first = |message: &Message| message.attempt() == 1;
        let running = start(consumer, &observations, move |message| {
            let number: u64 = message.message_id().unwrap()[1..].parse().unwrap();
            match number % 2 {
                0 if first(message) => Err(retry_after(ms(1_500), "busy").into()),
                1 if message.state().deferrals == 0 => Err(defer(ms(1_500)).into()),
                _ => Ok(()),
            }
        })
        .await;
        for name in &names {
            let attempts = observations.until(name, 2).await;
            let waited = attempts[1].at - attempts[0].at;
            assert!(waited + CLOCK >= ms(1_500), "{name} is early: {waited:?}");
        }
        stats(&running, "all is settled", |stats| stats.outstanding == 0).await;
        assert_eq!(amqp.depth("orders.retry.1600").await, None);
    })
    .await;
}

/// Nothing is as long as what is asked for: then the longest, and the message is not kept from everybody for ever.
#[tokio::test]
async fn without_declaring_a_delay_that_nothing_is_long_enough_for_is_cut() {
    on_brokers(|broker| async move {
        let vhost = broker.vhost().await;
        let (client, amqp) = (connect(&vhost).await, vhost.connect().await);
        let consumer = undeclared(client.consumer(QUEUE));
        client.apply_plan(&consumer.plan().unwrap()).await.unwrap();
        amqp.publish_with(QUEUE, "x", id("a")).await;
        let observations = Observations::default();
        let running = start(consumer, &observations, |message| match message.attempt() {
            1 => Err(retry_after(ms(3_600_000), "busy").into()),
            _ => Ok(()),
        })
        .await;
        let attempts = observations.until("a", 2).await;
        assert!(attempts[1].at - attempts[0].at + CLOCK >= ms(2_000));
        stats(&running, "all is settled", |stats| stats.outstanding == 0).await;
    })
    .await;
}

/// Somebody made the queue of a delay step with other arguments: it is never usable, and costs the others nothing.
#[tokio::test]
async fn a_waiting_queue_that_is_refused_gives_way_to_another() {
    on_brokers(|broker| async move {
        let vhost = broker.vhost().await;
        let (client, amqp) = (connect(&vhost).await, vhost.connect().await);
        amqp.declare(QUEUE, QueueType::Quorum).await;
        let other = table([("x-message-ttl", int(7))]);
        amqp.declare_with("orders.retry.500", QueueType::Classic, other)
            .await;
        let names: Vec<String> = (0..100).map(|number| number.to_string()).collect();
        amqp.publish_all("", names.iter().map(|name| (QUEUE, "x", id(name))))
            .await;
        let observations = Observations::default();
        let consumer = client
            .consumer(QUEUE)
            .dlx(true)
            .retry(policy("fixed(1s, retries=3)"));
        let since = Instant::now();
        let running = start(consumer, &observations, |message| match message.attempt() {
            1 => Err(retry_after(ms(500), "busy").into()),
            _ => Ok(()),
        })
        .await;
        for name in &names {
            observations.until(name, 2).await;
        }
        let stats = stats(&running, "all is settled", |stats| stats.outstanding == 0).await;
        println!(
            "{broker}: {:?}, {} refused",
            since.elapsed(),
            stats.publish_failures
        );
        assert!(
            stats.publish_failures > 0,
            "the waiting queue was never asked for"
        );
        assert_eq!(amqp.depth("orders.retry.500").await, Some(0));
    })
    .await;
}
