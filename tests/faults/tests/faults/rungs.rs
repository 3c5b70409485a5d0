//! A waiting queue that was made a moment before its broker is killed.

use crate::brokers::SETTLING;
use crate::stage::seen;
use retryrmq::{Client, Message, Policy, retry_after};
use retryrmq_faults::PATIENCE;
use retryrmq_faults::tape::Tape;
use retryrmq_harness::{Amqp, Ledger, Node, QueueType, eventually};
use std::time::Duration;

/// A rung made a moment ago is not a safe place yet: the original is still there when the broker comes back without it.
pub(crate) async fn killed_after_a_rung_was_made(node: &Node) {
    const MESSAGES: usize = 10;
    let client = Client::connect(node.url()).await.unwrap();
    let mut running = Vec::new();
    for kind in QueueType::ALL {
        let queue = format!("rung.{kind}");
        node.connect().await.declare(&queue, kind).await;
        let tape = Tape::new();
        let taped = tape.clone();
        let consumer = client
            .consumer(queue.as_str())
            .dlx(true)
            .retry("fixed(200ms, retries=5)".parse::<Policy>().unwrap())
            .drain_timeout(Duration::from_secs(1))
            .on_event(tape.listener())
            .start(move |message: Message| {
                let tape = taped.clone();
                async move {
                    let id = tape.attempt(&message);
                    if message.attempt() == 1 {
                        return Err(retry_after(Duration::from_secs(5), "busy"));
                    }
                    tape.success(&id);
                    Ok(())
                }
            })
            .await
            .unwrap();
        running.push((kind, queue, tape, consumer));
    }
    tokio::time::sleep(SETTLING).await;
    let amqp = Amqp::connect(node.url()).await;
    for (_, queue, ..) in &running {
        for number in 0..MESSAGES {
            let id = format!("{number}");
            let properties = lapin::BasicProperties::default().with_message_id(id.as_str().into());
            amqp.publish_with(queue, &id, properties).await;
        }
    }
    for (.., tape, _) in &running {
        seen("all copies are stored", || {
            tape.count("retried") >= MESSAGES
        })
        .await;
    }
    node.kill().await;
    node.start().await;
    let amqp = node.connect().await;
    for (kind, queue, tape, consumer) in running {
        let what = format!("{}, {kind}, killed after a rung was made", **node);
        // The young queue may have come back without a leader, and then takes no copy, for as long as it exists.
        eventually(
            PATIENCE,
            "all are handled, or kept because their rung is dead",
            || async {
                let (handled, failed) = (tape.handled_count(), tape.count("publish_failed"));
                (handled == MESSAGES || failed > 0)
                    .then_some(())
                    .ok_or_else(|| format!("{what}: {:?}", consumer.stats()))
            },
        )
        .await;
        consumer.close().await;
        let ledger = Ledger::new();
        for number in 0..MESSAGES {
            let id = number.to_string();
            ledger.published(id.as_str());
            (0..tape.handled(&id)).for_each(|_| ledger.handled(id.as_str()));
        }
        eventually(PATIENCE, "all are accounted for", || async {
            let back = amqp.drain(&queue).await;
            back.iter()
                .for_each(|message| ledger.queued(message.text()));
            ledger
                .report()
                .lost
                .is_empty()
                .then_some(())
                .ok_or_else(|| ledger.report().to_string())
        })
        .await;
        ledger.assert_nothing_lost(&what);
    }
    client.close().await;
}
