//! Which messages the consumer takes, and that one of them never stops the others.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use retryrmq::Message;
use retryrmq_harness::{
    QueueType,
    lapin::options::{QueueBindOptions, QueueDeclareOptions},
    on_brokers, on_queue_types,
};

use crate::fixture::{
    Answer, DEADLINE, Observations, PARKED, QUEUE, connect, id, int, policy, settled, start, stats,
    table, text, with_headers,
};

#[tokio::test]
async fn an_auto_delete_queue_keeps_its_messages_and_bindings() {
    const MESSAGES: usize = 50;
    on_brokers(|broker| async move {
        let vhost = broker.vhost().await;
        let (client, amqp) = (connect(&vhost).await, vhost.connect().await);
        let options = QueueDeclareOptions {
            auto_delete: true,
            durable: true,
            ..QueueDeclareOptions::default()
        };
        let channel = amqp.channel();
        let kind = table([("x-queue-type", text("classic"))]);
        channel
            .queue_declare(QUEUE.into(), options, kind)
            .await
            .unwrap();
        channel
            .queue_bind(
                QUEUE.into(),
                "amq.fanout".into(),
                "".into(),
                QueueBindOptions::default(),
                Default::default(),
            )
            .await
            .unwrap();
        let all: Vec<String> = (0..MESSAGES).map(|number| number.to_string()).collect();
        amqp.publish_all(
            "amq.fanout",
            all.iter().map(|one| ("", one.as_str(), id(one))),
        )
        .await;
        let observations = Observations::default();
        // The first one fails, so that the consumer is cautious, narrow and wide again.
        let consumer = client
            .consumer(QUEUE)
            .dlx(true)
            .retry(policy("fixed(100ms)"));
        let running = start(consumer, &observations, |message| {
            if message.attempt() == 1 && message.message_id() == Some("0") {
                return Err("once".into());
            }
            Ok(())
        })
        .await;
        stats(&running, "all are handled", |stats| {
            stats.acked as usize == MESSAGES
        })
        .await;
        amqp.publish_all("amq.fanout", [("", "later", id("later"))])
            .await;
        observations.until("later", 1).await;
        settled(&vhost, &amqp, &running, QUEUE).await;
        running.close().await;
    })
    .await;
}

#[tokio::test]
async fn a_single_active_consumer_stays_the_active_one() {
    const MESSAGES: usize = 100;
    on_queue_types(|broker, kind| async move {
        let vhost = broker.vhost().await;
        let (client, amqp) = (connect(&vhost).await, vhost.connect().await);
        let single = table([(
            "x-single-active-consumer",
            retryrmq::types::AMQPValue::Boolean(true),
        )]);
        amqp.declare_with(QUEUE, kind, single).await;
        let (first, second) = (Observations::default(), Observations::default());
        let consumer = || client.consumer(QUEUE).dlx(true).concurrency(1);
        let active = start(consumer(), &first, |_| Ok(())).await;
        let waiting = start(consumer(), &second, |_| Ok(())).await;
        let all: Vec<String> = (0..MESSAGES).map(|number| number.to_string()).collect();
        amqp.publish_all("", all.iter().map(|one| (QUEUE, one.as_str(), id(one))))
            .await;
        stats(&active, "the active one handles all", |stats| {
            stats.acked as usize == MESSAGES
        })
        .await;
        let order: Vec<_> = first
            .all()
            .iter()
            .map(|seen| seen.message.message_id().unwrap().to_owned())
            .collect();
        assert_eq!(order, all);
        assert_eq!(second.all().len(), 0);
        active.close().await;
        amqp.publish_all("", [(QUEUE, "last", id("last"))]).await;
        second.until("last", 1).await;
        waiting.close().await;
    })
    .await;
}

/// A handler that never ends, and a message that anybody can forge: what is behind them runs all the same.
#[tokio::test]
async fn a_handler_that_hangs_and_a_forged_suspect_stop_nobody() {
    crate::log_capture::start();
    on_queue_types(|broker, kind| async move {
        let vhost = broker.vhost().await;
        let (client, amqp) = (connect(&vhost).await, vhost.connect().await);
        amqp.declare(QUEUE, kind).await;
        let observations = Observations::default();
        let noted = observations.clone();
        let running = client
            .consumer(QUEUE)
            .dlx(true)
            .concurrency(4)
            .drain_timeout(Duration::from_secs(1))
            .start(move |message: Message| {
                noted.note(&message);
                async move {
                    if message
                        .message_id()
                        .is_some_and(|id| id.starts_with("hangs"))
                    {
                        std::future::pending::<()>().await;
                    }
                    Ok::<(), String>(())
                }
            })
            .await
            .unwrap();
        let forged = |name: &str| with_headers(name, table([("x-retry-crashes", int(3))]));
        amqp.publish_all(
            "",
            [
                (QUEUE, "hangs", id("hangs")),
                (QUEUE, "forged", forged("forged")),
                (QUEUE, "behind", id("behind")),
                (QUEUE, "hangs-alone", forged("hangs-alone")),
                (QUEUE, "last", id("last")),
            ],
        )
        .await;
        for name in ["hangs", "forged", "behind", "hangs-alone", "last"] {
            observations.until(name, 1).await;
        }
        running.close().await;
        let lines = crate::log_capture::lines();
        let told =
            "handlers still running after the drain timeout of 1s: 2; their messages are requeued";
        assert!(lines.iter().any(|line| line.contains(told)), "{lines:?}");
    })
    .await;
}

/// What comes first after a start needs a place where it cannot be stored: those behind it run all the same, and it is kept.
#[tokio::test]
async fn a_first_message_that_cannot_be_stored_stops_nobody() {
    on_queue_types(|broker, kind| async move {
        for prefetch in [1, 64] {
            let vhost = broker.vhost().await;
            let (client, amqp) = (connect(&vhost).await, vhost.connect().await);
            amqp.declare(QUEUE, kind).await;
            let full = table([
                ("x-max-length", int(1)),
                ("x-overflow", text("reject-publish")),
            ]);
            amqp.declare_with(PARKED, QueueType::Classic, full).await;
            amqp.publish(PARKED, "full").await;
            let poison = table([("x-retry-crashes", int(10)), ("x-retry-protocol", int(1))]);
            amqp.publish_all("", [(QUEUE, "poison", with_headers("poison", poison))])
                .await;
            for number in 0..20 {
                let name = number.to_string();
                amqp.publish_all("", [(QUEUE, name.as_str(), id(&name))])
                    .await;
            }
            let observations = Observations::default();
            let consumer = client.consumer(QUEUE).dlx(true).prefetch(prefetch);
            let running = start(consumer, &observations, |_| Ok(())).await;
            stats(&running, "those behind it are handled", |stats| {
                stats.acked == 20
            })
            .await;
            assert_eq!(observations.of("poison").len(), 0);
            amqp.take(PARKED).await.expect("it is full");
            observations.event("parked").await;
            settled(&vhost, &amqp, &running, QUEUE).await;
            running.close().await;
        }
    })
    .await;
}

/// While the consumer pauses it keeps its place, and takes nothing.
#[tokio::test]
async fn a_pause_keeps_an_auto_delete_queue() {
    on_brokers(|broker| async move {
        let vhost = broker.vhost().await;
        let (client, amqp) = (connect(&vhost).await, vhost.connect().await);
        let options = QueueDeclareOptions {
            auto_delete: true,
            ..QueueDeclareOptions::default()
        };
        let kind = table([("x-queue-type", text("classic"))]);
        let durable = QueueDeclareOptions {
            durable: true,
            ..options
        };
        amqp.channel()
            .queue_declare(QUEUE.into(), durable, kind)
            .await
            .unwrap();
        let (observations, works) = (Observations::default(), Arc::new(AtomicBool::new(false)));
        let working = Arc::clone(&works);
        let consumer = client
            .consumer(QUEUE)
            .dlx(true)
            .retry(policy("fixed(50ms, retries=100)"))
            .pause(
                retryrmq::Pause::default()
                    .failures(0.5)
                    .window(4)
                    .pause(Duration::from_millis(300)),
            );
        let running = start(consumer, &observations, move |_| -> Answer {
            if working.load(Ordering::SeqCst) {
                Ok(())
            } else {
                Err("down".into())
            }
        })
        .await;
        let all: Vec<String> = (0..20).map(|number| number.to_string()).collect();
        amqp.publish_all("", all.iter().map(|one| (QUEUE, one.as_str(), id(one))))
            .await;
        observations.event("paused").await;
        works.store(true, Ordering::SeqCst);
        tokio::time::timeout(
            DEADLINE,
            stats(&running, "all are handled", |stats| stats.acked == 20),
        )
        .await
        .unwrap();
        running.close().await;
    })
    .await;
}
