//! Queues that refuse messages because they are full.

use crate::fixture::{Fixture, Gate, QUEUE, WORKER, seen};
use lapin::types::{AMQPValue, FieldTable};
use nix::sys::signal::Signal;
use retryrmq::{Client, Message, Policy, Publish};
use retryrmq_faults::DEADLINE;
use retryrmq_faults::ledger::LoadLedger;
use retryrmq_faults::recorder::Recorder;
use retryrmq_faults::worker::{HandlerScript, Worker, WorkerOptions, WorkerOutput};
use retryrmq_harness::{Node, QueueType, eventually, on_queue_types};
use std::collections::BTreeSet;
use std::sync::Mutex;

/// A message is parked when there is room; until then its original is kept.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_full_parking_queue_refuses_is_kept_until_there_is_room() {
    const MESSAGES: usize = 8;
    on_queue_types(|broker, kind| async move {
        let what = format!("{broker}, {kind}, parking queue full");
        let fixture = Fixture::set(&broker, kind).await;
        // One that takes exactly what it may: a quorum queue's limit is soft.
        fixture
            .amqp
            .declare_with("orders.parked", QueueType::Classic, at_most(1))
            .await;
        let client = fixture.client().await;
        for number in 0..MESSAGES {
            client
                .publish(Publish::to_queue(QUEUE, number.to_string()))
                .await
                .unwrap();
        }
        let recorder = Recorder::new();
        let taped = recorder.clone();
        let running = client
            .consumer(QUEUE)
            .dlx(true)
            .retry("fixed(100ms, retries=1)".parse::<Policy>().unwrap())
            .on_event(recorder.listener())
            .start(move |message: Message| {
                let recorder = taped.clone();
                async move {
                    recorder.attempt(&message);
                    Err::<(), _>("never")
                }
            })
            .await
            .unwrap();
        seen("a copy was refused for each", || {
            recorder.count("publish_failed") >= MESSAGES - 1
        })
        .await;
        // Also those whose waiting queue was too young to be relied on are acknowledged by then.
        seen("all others are kept", || {
            running.stats().outstanding == MESSAGES as u64 - 1
        })
        .await;
        let parked = Mutex::new(BTreeSet::new());
        eventually(DEADLINE, "all were parked, one by one", || async {
            let taken = fixture.amqp.take("orders.parked").await;
            let mut parked = parked.lock().unwrap();
            parked.extend(taken.map(|message| message.text().to_owned()));
            (parked.len() == MESSAGES)
                .then_some(())
                .ok_or_else(|| format!("{parked:?}"))
        })
        .await;
        println!("{what}: {:?}", running.stats());
        fixture.is_empty(QUEUE).await;
        running.close().await;
    })
    .await;
}

/// A work queue that refuses what returns to it: the messages wait on. On a node of its own, because the broker offers
/// them again only after three minutes, which is a setting of the whole node.
pub(crate) async fn full_work_queue(node: &Node) {
    const ROOM: usize = 10;
    node.ctl(&[
        "eval",
        "application:set_env(rabbit, dead_letter_worker_publisher_confirm_timeout, 1000).",
    ])
    .await;
    let client = Client::connect(node.url()).await.unwrap();
    let amqp = node.connect().await;
    for kind in QueueType::ALL {
        let what = format!("{}, {kind}, work queue full", **node);
        let queue = format!("full.{kind}");
        amqp.declare_with(&queue, kind, at_most(ROOM as i64)).await;
        let (recorder, gate) = (Recorder::new(), Gate::closed());
        let (taped, gated) = (recorder.clone(), gate.clone());
        let running = client
            .consumer(queue.as_str())
            .dlx(true)
            // None comes back before the queue is full, although a copy in a young queue is stored only after 2 s.
            .retry("fixed(30s, retries=1)".parse::<Policy>().unwrap())
            .prefetch(ROOM as u16)
            .on_event(recorder.listener())
            .start(move |message: Message| {
                let (recorder, gate) = (taped.clone(), gated.clone());
                async move {
                    let id = recorder.attempt(&message);
                    if id.starts_with("filler") {
                        gate.pass().await;
                    } else if message.attempt() == 1 {
                        return Err("once");
                    }
                    recorder.success(&id);
                    Ok(())
                }
            })
            .await
            .unwrap();
        for number in 0..ROOM {
            client
                .publish(Publish::to_queue(queue.as_str(), number.to_string()))
                .await
                .unwrap();
        }
        seen("all wait", || recorder.count("retried") == ROOM).await;
        // As many as are prefetched and held by handlers, and as many as fill the queue.
        let mut refused = 0;
        for number in 0..3 * ROOM {
            let filler = Publish::to_queue(queue.as_str(), format!("filler-{number}"));
            refused += usize::from(client.publish(filler).await.is_err());
        }
        assert!(refused > 0, "{what}: the queue takes everything");
        // A quorum queue refuses its publishers only, and lets in what is dead-lettered to it.
        if kind == QueueType::Classic {
            let waiting = format!("{queue}.retry.30000");
            eventually(DEADLINE, "some were refused", || async {
                let waiting = node
                    .management()
                    .queue("/", &waiting)
                    .await
                    .unwrap()
                    .unwrap();
                (waiting.dead_lettering() >= Some(1) && waiting.ready() == Some(0))
                    .then_some(())
                    .ok_or_else(|| {
                        let counts = (
                            waiting.messages(),
                            waiting.ready(),
                            waiting.dead_lettering(),
                        );
                        format!("{what}: (all, ready, refused): {counts:?}")
                    })
            })
            .await;
        }
        gate.open();
        eventually(DEADLINE, "all have returned and are handled", || async {
            let handled = (0..ROOM)
                .filter(|number| recorder.handled(&number.to_string()) > 0)
                .count();
            (handled == ROOM)
                .then_some(())
                .ok_or_else(|| format!("{what}: {handled} of {ROOM}"))
        })
        .await;
        println!(
            "{what}: {ROOM} messages, {refused} refused by the full queue, {:?}",
            running.stats()
        );
        running.close().await;
    }
    client.close().await;
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

/// A message that is to be parked and cannot be is kept, however often its consumer ends: a broker drops what has spent its
/// delivery limit.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_parked_outlives_any_number_of_restarts() {
    const RESTARTS: usize = 25;
    on_queue_types(|broker, kind| async move {
        let what = format!("{broker}, {kind}, parking queue full, restarts");
        let fixture = Fixture::set(&broker, kind).await;
        fixture
            .amqp
            .declare_with("orders.parked", QueueType::Classic, at_most(1))
            .await;
        fixture.amqp.publish("orders.parked", "full").await;
        fixture.amqp.publish(QUEUE, "kept").await;
        let (worker_output, load_ledger) = (WorkerOutput::default(), LoadLedger::new(QUEUE));
        let mut orders = WorkerOptions::load(fixture.vhost.url(), QUEUE);
        orders.handles = HandlerScript::Parks;
        for restart in 0..RESTARTS {
            let worker = Worker::start(WORKER, &orders, &worker_output, &load_ledger);
            seen("its copy was refused once more", || {
                worker_output.count_of("event", "publish_failed") > restart
            })
            .await;
            if restart % 5 == 4 {
                worker.signal(Signal::SIGTERM);
                worker.ended().await;
            } else {
                worker.kill().await;
            }
        }
        fixture.amqp.drain("orders.parked").await;
        let worker = Worker::start(WORKER, &orders, &worker_output, &load_ledger);
        eventually(DEADLINE, "it is parked", || async {
            (fixture.amqp.depth("orders.parked").await == Some(1)).then_some(())
        })
        .await;
        worker.kill().await;
        let parked = fixture.amqp.drain("orders.parked").await;
        assert_eq!(parked[0].text(), "kept", "{what}");
        println!("{what}: {} attempts", worker_output.count("begin"));
    })
    .await;
}
