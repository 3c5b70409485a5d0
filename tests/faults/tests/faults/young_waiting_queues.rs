//! A waiting queue that was made a moment before its broker is killed.

use crate::brokers::SETTLING;
use crate::fixture::{seen, show_logs};
use lapin::ExchangeKind;
use lapin::options::{ExchangeDeclareOptions, QueueBindOptions};
use lapin::types::{AMQPValue, FieldTable};
use retryrmq::{Client, Message, Policy, Publish, Strategy, park, retry_after};
use retryrmq_faults::DEADLINE;
use retryrmq_faults::recorder::Recorder;
use retryrmq_harness::{Amqp, Ledger, Node, QueueType, eventually, on_brokers};
use std::time::{Duration, Instant};

/// A waiting queue made a moment ago is not a safe place yet: the original is still there when the broker comes back without it.
pub(crate) async fn killed_after_a_waiting_queue_was_made(node: &Node) {
    const MESSAGES: usize = 10;
    let client = Client::connect(node.url()).await.unwrap();
    let mut running = Vec::new();
    for kind in QueueType::ALL {
        let queue = format!("waiting queue.{kind}");
        node.connect().await.declare(&queue, kind).await;
        let recorder = Recorder::new();
        let taped = recorder.clone();
        let consumer = client
            .consumer(queue.as_str())
            .dlx(true)
            .retry("fixed(200ms, retries=5)".parse::<Policy>().unwrap())
            .drain_timeout(Duration::from_secs(1))
            .on_event(recorder.listener())
            .start(move |message: Message| {
                let recorder = taped.clone();
                async move {
                    let id = recorder.attempt(&message);
                    if message.attempt() == 1 {
                        return Err(retry_after(Duration::from_secs(5), "busy"));
                    }
                    recorder.success(&id);
                    Ok(())
                }
            })
            .await
            .unwrap();
        running.push((kind, queue, recorder, consumer));
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
    for (.., recorder, _) in &running {
        seen("all copies are stored", || {
            recorder.count("retried") >= MESSAGES
        })
        .await;
    }
    node.kill().await;
    node.start().await;
    let amqp = node.connect().await;
    for (kind, queue, recorder, consumer) in running {
        let what = format!("{}, {kind}, killed after a waiting queue was made", **node);
        // The young queue may have come back without a leader, and then takes no copy, for as long as it exists.
        eventually(
            DEADLINE,
            "all are handled, or kept because their waiting queue is dead",
            || async {
                let (handled, failed) =
                    (recorder.handled_count(), recorder.count("publish_failed"));
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
            (0..recorder.handled(&id)).for_each(|_| ledger.handled(id.as_str()));
        }
        eventually(DEADLINE, "all are accounted for", || async {
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

/// As [`killed_after_a_waiting_queue_was_made`], but others made the queues: nobody tells how old a queue is that is found.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_goes_to_a_queue_that_another_has_just_made_is_not_lost_with_its_broker() {
    on_brokers(|broker| async move {
        if !broker.is_controllable() {
            return eprintln!("skipped: {broker} was given and must not be killed");
        }
        show_logs();
        let node = broker.own_node(&[]).await;
        for use_of in [Use::Retried, Use::Rejected, Use::Parked, Use::Delayed] {
            killed_right_after_another_made_it(&node, use_of).await;
        }
    })
    .await;
}

/// What the queue is needed for.
#[derive(Clone, Copy, Debug)]
enum Use {
    Retried,
    /// The broker itself moves what failed.
    Rejected,
    Parked,
    Delayed,
}

async fn killed_right_after_another_made_it(node: &Node, use_of: Use) {
    let queue = format!("young.{use_of:?}");
    let amqp = node.connect().await;
    let strategy = match use_of {
        Use::Rejected => Strategy::DeadLetter, // the plan makes its work queue
        Use::Retried | Use::Parked | Use::Delayed => {
            amqp.declare(&queue, QueueType::Classic).await;
            Strategy::RetryQueues
        }
    };
    let client = Client::connect(node.url()).await.unwrap();
    let recorder = Recorder::new();
    let consumer = client
        .consumer(&queue)
        .dlx(true)
        .strategy(strategy)
        .retry("fixed(1m, retries=5)".parse::<Policy>().unwrap())
        .drain_timeout(Duration::from_secs(1))
        .on_event(recorder.listener());
    client.apply_plan(&consumer.plan().unwrap()).await.unwrap();
    let (young, arguments) = match use_of {
        Use::Retried | Use::Rejected => (format!("{queue}.retry.60000"), waiting(&queue, 60_000)),
        Use::Delayed => (format!("{queue}.retry.63000"), waiting(&queue, 63_000)),
        Use::Parked => (format!("{queue}.parked"), unlimited()),
    };
    // There was one of the same name that was known to be old.
    if amqp.depth(&young).await.is_none() {
        amqp.declare_with(&young, QueueType::Quorum, arguments.clone())
            .await;
    }
    mark(&amqp, &young).await;
    amqp.delete(&young).await;
    let process = node.ctl(&["eval", "os:getpid()."]).await;
    tokio::time::sleep(SETTLING).await;
    // It must be the last that is made: what is made after it makes its broker remember it.
    let made = Instant::now();
    amqp.declare_with(&young, QueueType::Quorum, arguments)
        .await;
    let (mut running, mut publishing) = (None, None);
    if let Use::Delayed = use_of {
        let message = Publish::to_queue(&queue, "message").delay(Duration::from_secs(63));
        let client = client.clone();
        publishing = Some(tokio::spawn(async move { client.publish(message).await }));
        eventually(DEADLINE, "the copy is stored", || async {
            amqp.depth(&young).await == Some(1)
        })
        .await;
    } else {
        amqp.publish(&queue, "message").await;
        let handler = move |_| async move {
            match use_of {
                Use::Parked => Err(Box::<dyn std::error::Error + Send + Sync>::from(park(
                    "never",
                ))),
                _ => Err("not now".into()),
            }
        };
        running = Some(consumer.start(handler).await.unwrap());
        seen("the copy is stored", || {
            recorder.count("retried") + recorder.count("parked") > 0
        })
        .await;
    }
    tokio::time::sleep(Duration::from_millis(50)).await; // for an answer that should not be given yet
    kill_at_once(node, &process);
    println!("{}, {use_of:?}: killed at {:?}", **node, made.elapsed());
    node.kill().await; // where that was not its process, and so that it may be started again
    let mut is_promised = true;
    if let Some(publishing) = publishing {
        is_promised = publishing.await.unwrap().is_ok();
    }
    if let Some(running) = running {
        running.close().await;
    }
    client.close().await;
    node.start().await;
    if is_promised {
        is_in_one_of(
            &node.connect().await,
            &queue,
            &young,
            &format!("{}, {use_of:?}", **node),
        )
        .await;
    }
}

/// Sets the marker of a queue that is old.
async fn mark(amqp: &Amqp, queue: &str) {
    let options = ExchangeDeclareOptions {
        durable: true,
        internal: true,
        ..ExchangeDeclareOptions::default()
    };
    let (channel, none) = (amqp.channel(), FieldTable::default());
    channel
        .exchange_declare(queue.into(), ExchangeKind::Fanout, options, none.clone())
        .await
        .unwrap();
    let options = QueueBindOptions::default();
    channel
        .queue_bind(queue.into(), queue.into(), "".into(), options, none)
        .await
        .unwrap();
}

/// A young queue may have come back without a leader, and then does not answer: it is asked only when the other is empty.
/// What the broker itself moves is in neither of them until its queues have leaders again.
async fn is_in_one_of(amqp: &Amqp, queue: &str, further: &str, what: &str) {
    eventually(DEADLINE, "one of the queues has the message", || async {
        let is_here = amqp.take(queue).await.is_some()
            || amqp.depth(further).await.is_some_and(|depth| depth > 0);
        is_here
            .then_some(())
            .ok_or_else(|| format!("{what}: neither {queue} nor {further} has the message"))
    })
    .await;
}

/// Kills a broker in no time, where it is a process of this machine: the usual way takes a busy machine too long.
fn kill_at_once(node: &Node, process: &str) {
    let process = process.trim().trim_matches('"');
    let port = node.url().rsplit_once(':').map_or("", |(_, rest)| rest);
    let port = port.split('/').next().unwrap_or_default();
    // In a container the number is that of another process here.
    let environment = std::fs::read(format!("/proc/{process}/environ")).unwrap_or_default();
    let is_it = format!("RABBITMQ_NODE_PORT={port}");
    if environment
        .split(|byte| *byte == 0)
        .any(|variable| variable == is_it.as_bytes())
    {
        let mut kill = std::process::Command::new("kill");
        let _ = kill.args(["-9", process]).status();
    }
}

fn unlimited() -> FieldTable {
    let mut arguments = FieldTable::default();
    let limit = AMQPValue::LongLongInt(1_000_000_000);
    arguments.insert("x-delivery-limit".into(), limit);
    arguments
}

fn waiting(queue: &str, ms: i64) -> FieldTable {
    let text = |text: &str| AMQPValue::LongString(text.into());
    let mut arguments = FieldTable::default();
    for (name, value) in [
        ("x-message-ttl", AMQPValue::LongLongInt(ms)),
        ("x-dead-letter-exchange", text("")),
        ("x-dead-letter-routing-key", text(queue)),
        ("x-dead-letter-strategy", text("at-least-once")),
        ("x-overflow", text("reject-publish")),
    ] {
        arguments.insert(name.into(), value);
    }
    arguments
}
