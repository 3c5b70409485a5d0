//! Where a message comes back: at the tail, and in its own queue only.

use retryrmq::{Message, types::FieldTable};
use retryrmq_harness::{lapin::options::QueueBindOptions, on_queue_types};

use crate::fixture::{
    DEADLINE, Observations, QUEUE, connect_with, id, ms, policy, settled, start, stats,
};

#[tokio::test]
async fn of_two_queues_of_a_fanout_only_the_failing_one_sees_the_message_again() {
    on_queue_types(|broker, kind| async move {
        let vhost = broker.vhost().await;
        let (client, amqp) = (connect_with(&vhost, kind).await, vhost.connect().await);
        let (bills, letters) = (Observations::default(), Observations::default());
        for queue in ["bills", "letters"] {
            amqp.declare(queue, kind).await;
            let options = QueueBindOptions::default();
            amqp.channel()
                .queue_bind(
                    queue.into(),
                    "amq.fanout".into(),
                    "".into(),
                    options,
                    FieldTable::default(),
                )
                .await
                .unwrap();
        }
        let retry = || policy("fixed(50ms, retries=3)");
        let failing = client.consumer("bills").dlx(true).retry(retry());
        let failing = start(failing, &bills, |message| match message.attempt() {
            4 => Ok(()),
            _ => Err("no".into()),
        })
        .await;
        let fine = client.consumer("letters").dlx(true).retry(retry());
        let fine = start(fine, &letters, |_| Ok(())).await;
        amqp.publish_to("amq.fanout", "any.key", "1", id("a")).await;
        let attempts = bills.until("a", 4).await;
        for attempt in &attempts {
            let message = &attempt.message;
            assert_eq!(
                (message.exchange(), message.routing_key()),
                ("amq.fanout", "any.key")
            );
        }
        settled(&vhost, &amqp, &failing, "bills").await;
        settled(&vhost, &amqp, &fine, "letters").await;
        assert_eq!((bills.all().len(), letters.all().len()), (4, 1));
    })
    .await;
}

#[tokio::test]
async fn a_message_comes_back_at_the_tail() {
    on_queue_types(|broker, kind| async move {
        let vhost = broker.vhost().await;
        let (client, amqp) = (connect_with(&vhost, kind).await, vhost.connect().await);
        amqp.declare(QUEUE, kind).await;
        // A waiting queue that is a safe place already lets the original go at once.
        let consumer = client
            .consumer(QUEUE)
            .dlx(true)
            .retry(policy("fixed(100ms)"));
        client.apply_plan(&consumer.plan().unwrap()).await.unwrap();
        let all = ["first", "blocker", "second"];
        amqp.publish_all("", all.map(|name| (QUEUE, "x", id(name))))
            .await;
        let observations = Observations::default();
        let (seen, gate) = (
            observations.clone(),
            std::sync::Arc::new(tokio::sync::Notify::new()),
        );
        let opened = std::sync::Arc::clone(&gate);
        let running = consumer
            .prefetch(1)
            .concurrency(1)
            .on_event(observations.listener())
            .start(move |message: Message| {
                seen.note(&message);
                let gate = std::sync::Arc::clone(&opened);
                async move {
                    match message.message_id().unwrap() {
                        "first" if message.attempt() == 1 => return Err("no"),
                        // Holds the only place of the prefetch until the first is back in the queue.
                        "blocker" => gate.notified().await,
                        _ => {}
                    }
                    Ok(())
                }
            })
            .await
            .unwrap();
        observations.until("blocker", 1).await;
        retryrmq_harness::eventually(DEADLINE, "the first is back behind the second", || async {
            amqp.depth("orders.retry.100").await == Some(0) && amqp.depth(QUEUE).await == Some(2)
        })
        .await;
        gate.notify_one();
        observations.until("first", 2).await;
        let order: Vec<_> = observations
            .all()
            .iter()
            .map(|attempt| attempt.message.message_id().unwrap().to_owned())
            .collect();
        assert_eq!(order, ["first", "blocker", "second", "first"]);
        stats(&running, "all is settled", |stats| stats.outstanding == 0).await;
    })
    .await;
}

#[tokio::test]
async fn a_burst_of_failures_comes_back_whole() {
    on_queue_types(|broker, kind| async move {
        const COUNT: usize = 500;
        let vhost = broker.vhost().await;
        let (client, amqp) = (connect_with(&vhost, kind).await, vhost.connect().await);
        amqp.declare(QUEUE, kind).await;
        let names: Vec<String> = (0..COUNT).map(|number| number.to_string()).collect();
        amqp.publish_all("", names.iter().map(|name| (QUEUE, name, id(name))))
            .await;
        let observations = Observations::default();
        let consumer = client
            .consumer(QUEUE)
            .dlx(true)
            .retry(policy("fixed(100ms, retries=1)"));
        let running = start(consumer, &observations, |message| match message.attempt() {
            1 => Err("no".into()),
            _ => Ok(()),
        })
        .await;
        let stats = stats(&running, "each was handled", |stats| {
            stats.acked == COUNT as u64 && stats.outstanding == 0
        })
        .await;
        assert_eq!(
            (stats.delivered, stats.retried),
            (2 * COUNT as u64, COUNT as u64)
        );
        for name in &names {
            let attempts = observations.of(name);
            assert_eq!(attempts.len(), 2, "{name}");
            assert_eq!(attempts[1].message.body(), name.as_bytes());
            assert!(attempts[1].at - attempts[0].at + crate::fixture::CLOCK >= ms(100));
        }
        assert_eq!(amqp.depth(QUEUE).await, Some(0));
    })
    .await;
}
