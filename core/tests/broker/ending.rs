//! The end of a consumer that was wanted: nothing about it is a failure.

use std::{collections::BTreeSet, sync::Arc};

use retryrmq::{Event, Message, Publish};
use retryrmq_harness::{QueueType, eventually, on_brokers, on_queue_types};
use tokio::sync::{Notify, mpsc};

use crate::{
    fixture::{DEADLINE, Observations, QUEUE, connect, id, int, stats, table, take},
    log_capture,
};

/// The client is closed at the moment at which its consumer takes its first message, and consumes anew with the whole prefetch.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_consumer_that_widens_while_its_client_is_closed_has_not_failed() {
    log_capture::start();
    on_queue_types(|broker, kind| async move {
        let vhost = broker.vhost().await;
        let (publisher, amqp) = (connect(&vhost).await, vhost.connect().await);
        for round in 0..15 {
            let queue = format!("ending.{}.{kind}.{round}", broker.version());
            amqp.declare(&queue, kind).await;
            let client = connect(&vhost).await;
            let (begin, mut began) = mpsc::unbounded_channel();
            let (tell, mut told) = mpsc::unbounded_channel();
            let running = client
                .consumer(queue.as_str())
                .dlx(true)
                .on_event(move |event: &Event| {
                    let _ = tell.send(event.clone());
                })
                .start(move |_: Message| {
                    let _ = begin.send(());
                    async { Ok::<_, &str>(()) }
                })
                .await
                .unwrap();
            publisher
                .publish(Publish::to_queue(queue.as_str(), "1"))
                .await
                .unwrap();
            began.recv().await.unwrap();
            if round % 3 == 0 {
                running.close().await;
                client.close().await;
            } else {
                client.close().await;
                running.close().await;
            }
            let failures: Vec<_> = log_capture::lines()
                .into_iter()
                .filter(|line| line.contains(&queue))
                .filter(|line| line.contains("WARN") || line.contains("ERROR"))
                .collect();
            assert!(failures.is_empty(), "{broker}, {kind}: {failures:#?}");
            drop(client);
            while let Ok(event) = told.try_recv() {
                assert!(!matches!(event, Event::Reconnected { .. }), "{event:?}");
            }
        }
    })
    .await;
}

/// Each end hands back what no handler had begun with. However strictly its owner limits deliveries, a message is not lost by
/// that, nor by a consumer without retries.
#[tokio::test]
async fn ends_however_many_spend_no_delivery_limit() {
    const MESSAGES: usize = 12;
    on_brokers(|broker| async move {
        for (dlx, limit) in [(true, 1), (true, 3), (false, 1), (false, 3)] {
            let vhost = broker.vhost().await;
            let (client, amqp) = (connect(&vhost).await, vhost.connect().await);
            let limited = table([("x-delivery-limit", int(limit))]);
            amqp.declare_with(QUEUE, QueueType::Quorum, limited).await;
            let names = (0..MESSAGES).map(|number| number.to_string());
            amqp.publish_all("", names.map(|name| (QUEUE, "x", id(&name))))
                .await;
            let observations = Observations::default();
            for _ in 0..6 {
                let gate = Arc::new(Notify::new());
                let (handled, entered) = (observations.clone(), Arc::clone(&gate));
                let before = observations.all().len();
                let running = client
                    .consumer(QUEUE)
                    .dlx(dlx)
                    .concurrency(1)
                    .start(move |message: Message| {
                        handled.note(&message);
                        let gate = Arc::clone(&entered);
                        async move {
                            gate.notified().await;
                            Ok::<_, &str>(())
                        }
                    })
                    .await
                    .unwrap();
                stats(&running, "it holds messages that no handler has", |stats| {
                    stats.outstanding >= 2 && observations.all().len() > before
                })
                .await;
                // The end is wanted first: the handler is the last one.
                tokio::join!(running.close(), async { gate.notify_one() });
            }
            let handled = observations.all().len();
            let left = take(&amqp, QUEUE, MESSAGES - handled).await;
            let seen: BTreeSet<_> = left
                .iter()
                .filter_map(|message| message.properties.message_id().clone())
                .collect();
            assert_eq!(seen.len(), left.len(), "dlx {dlx}, limit {limit}");
        }
    })
    .await;
}

/// Whoever loses the leadership drops what it ran, and its consumer must end with it: nobody could stop it any more.
#[tokio::test]
async fn a_consumer_whose_run_is_dropped_finishes_what_it_has_begun_and_ends() {
    on_brokers(|broker| async move {
        let vhost = broker.vhost().await;
        let (client, amqp) = (connect(&vhost).await, vhost.connect().await);
        amqp.declare(QUEUE, QueueType::Classic).await;
        amqp.publish_with(QUEUE, "x", id("begun")).await;
        let (begin, mut began) = mpsc::unbounded_channel();
        let gate = Arc::new(Notify::new());
        let entered = Arc::clone(&gate);
        let run = client.consumer(QUEUE).run(move |_: Message| {
            let _ = begin.send(());
            let gate = Arc::clone(&entered);
            async move {
                gate.notified().await;
                Ok::<_, &str>(())
            }
        });
        tokio::select! {
            ended = run => panic!("{ended:?}"),
            begun = began.recv() => begun.unwrap(),
        }
        eventually(DEADLINE, "nobody consumes", || async {
            match amqp.consumers(QUEUE).await {
                Some(0) => Ok(()),
                other => Err(format!("{other:?}")),
            }
        })
        .await;
        gate.notify_one();
        eventually(DEADLINE, "what it had begun is handled", || async {
            let metrics = client.metrics_text();
            let acked = r#"retryrmq_messages_acked_total{queue="orders"} 1"#;
            metrics.contains(acked).then_some(()).ok_or(metrics)
        })
        .await;
        client.close().await;
    })
    .await;
}
