//! A broker that is short of memory.

use crate::brokers::SETTLING;
use crate::stage::Gate;
use retryrmq::{Client, Message, Policy};
use retryrmq_faults::PATIENCE;
use retryrmq_faults::tape::Tape;
use retryrmq_harness::{Node, QueueType, eventually};
use std::time::Duration;

/// Longer than the library waits for any one answer.
const ALARM: Duration = Duration::from_secs(25);

/// While the broker is short of memory it takes nothing from publishers: acknowledgements go on, copies wait.
pub(crate) async fn alarm(node: &Node) {
    const SUCCEED: usize = 200;
    const FAIL: usize = 40;
    let client = Client::connect(node.url()).await.unwrap();
    let gate = Gate::closed();
    let mut running = Vec::new();
    for kind in QueueType::ALL {
        let queue = format!("alarm.{kind}");
        node.connect().await.declare(&queue, kind).await;
        let (tape, gate) = (Tape::new(), gate.clone());
        let taped = tape.clone();
        let consumer = client
            .consumer(queue.as_str())
            .dlx(true)
            .retry("fixed(200ms, retries=3)".parse::<Policy>().unwrap())
            .prefetch(128)
            .on_event(tape.listener())
            .start(move |message: Message| {
                let (tape, gate) = (taped.clone(), gate.clone());
                async move {
                    let id = tape.attempt(&message);
                    gate.pass().await;
                    if id.starts_with("fail") && message.attempt() == 1 {
                        return Err("once");
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
    let amqp = node.connect().await;
    for (_, queue, ..) in &running {
        let ids = (0..SUCCEED).map(|number| format!("succeed-{number}"));
        let ids = ids.chain((0..FAIL).map(|number| format!("fail-{number}")));
        let messages = ids.map(|id| {
            let properties = lapin::BasicProperties::default().with_message_id(id.as_str().into());
            (queue.as_str(), id, properties)
        });
        amqp.publish_all("", messages).await;
    }
    node.raise_memory_alarm().await;
    gate.open();
    for (kind, _, tape, consumer) in &running {
        let what = format!("{}, {kind}, alarm", **node);
        eventually(
            PATIENCE,
            "every first attempt is made and every success acknowledged",
            || async {
                let stats = consumer.stats();
                let done = tape.attempts().len() >= SUCCEED + FAIL && stats.acked >= SUCCEED as u64;
                done.then_some(())
                    .ok_or_else(|| format!("{what}: {stats:?}"))
            },
        )
        .await;
    }
    // The copies go on waiting for longer than any one answer is waited for.
    tokio::time::sleep(ALARM).await;
    for (kind, _, tape, consumer) in &running {
        let what = format!("{}, {kind}, alarm", **node);
        println!("{what}, while it lasts: {:?}", consumer.stats());
        assert_eq!(
            tape.count("retried"),
            0,
            "{what}: copies were stored, so there was no alarm"
        );
    }
    node.set_memory_watermark(0.6).await;
    for (kind, queue, tape, consumer) in running {
        let what = format!("{}, {kind}, alarm", **node);
        eventually(PATIENCE, "all are handled, and nothing is left", || async {
            let settled = tape.handled_count() == SUCCEED + FAIL
                && amqp.depth(&queue).await == Some(0)
                && consumer.stats().outstanding == 0;
            settled
                .then_some(())
                .ok_or_else(|| format!("{what}: {:?}", consumer.stats()))
        })
        .await;
        let runs = tape.attempts().len();
        println!(
            "{what}: {runs} attempts at {} messages, {:?}",
            SUCCEED + FAIL,
            consumer.stats()
        );
        assert_eq!(tape.count("parked"), 0, "{what}");
        consumer.close().await;
    }
    client.close().await;
}
