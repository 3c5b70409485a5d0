//! Queues that refuse messages because they are full.

use crate::stage::{QUEUE, Stage, seen};
use lapin::types::{AMQPValue, FieldTable};
use retryrmq::{Message, Policy, Publish};
use retryrmq_faults::PATIENCE;
use retryrmq_faults::tape::Tape;
use retryrmq_harness::{QueueType, eventually, on_every_queue_type};
use std::collections::BTreeSet;
use std::sync::Mutex;

/// A message is parked when there is room; until then its original is kept.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_full_parking_queue_refuses_is_kept_until_there_is_room() {
    const MESSAGES: usize = 8;
    on_every_queue_type(|broker, kind| async move {
        let what = format!("{broker}, {kind}, parking queue full");
        let stage = Stage::set(&broker, kind).await;
        // One that takes exactly what it may: a quorum queue's limit is soft.
        stage
            .amqp
            .declare_with("orders.parked", QueueType::Classic, at_most(1))
            .await;
        let client = stage.client().await;
        for number in 0..MESSAGES {
            client
                .publish(Publish::to_queue(QUEUE, number.to_string()))
                .await
                .unwrap();
        }
        let tape = Tape::new();
        let taped = tape.clone();
        let running = client
            .consumer(QUEUE)
            .dlx(true)
            .retry("fixed(100ms, retries=1)".parse::<Policy>().unwrap())
            .on_event(tape.listener())
            .start(move |message: Message| {
                let tape = taped.clone();
                async move {
                    tape.attempt(&message);
                    Err::<(), _>("never")
                }
            })
            .await
            .unwrap();
        seen("a copy was refused for each", || {
            tape.count("publish_failed") >= MESSAGES - 1
        })
        .await;
        // Also those whose waiting queue was too young to be relied on are acknowledged by then.
        seen("all others are kept", || {
            running.stats().outstanding == MESSAGES as u64 - 1
        })
        .await;
        let parked = Mutex::new(BTreeSet::new());
        eventually(PATIENCE, "all were parked, one by one", || async {
            let taken = stage.amqp.take("orders.parked").await;
            let mut parked = parked.lock().unwrap();
            parked.extend(taken.map(|message| message.text().to_owned()));
            (parked.len() == MESSAGES)
                .then_some(())
                .ok_or_else(|| format!("{parked:?}"))
        })
        .await;
        println!("{what}: {:?}", running.stats());
        stage.is_empty(QUEUE).await;
        running.close().await;
    })
    .await;
}

fn at_most(messages: i64) -> FieldTable {
    let mut arguments = FieldTable::default();
    arguments.insert("x-max-length".into(), AMQPValue::LongLongInt(messages));
    arguments.insert(
        "x-overflow".into(),
        AMQPValue::LongString("reject-publish".into()),
    );
    arguments
}
