//! A broker that is short of memory.

use crate::brokers::SETTLING;
use crate::fixture::Gate;
use retryrmq::{Client, Message, Policy};
use retryrmq_faults::DEADLINE;
use retryrmq_faults::recorder::Recorder;
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
        let (recorder, gate) = (Recorder::new(), gate.clone());
        let taped = recorder.clone();
        let consumer = client
            .consumer(queue.as_str())
            .dlx(true)
            .retry("fixed(200ms, retries=3)".parse::<Policy>().unwrap())
            .prefetch(128)
            .on_event(recorder.listener())
            .start(move |message: Message| {
                let (recorder, gate) = (taped.clone(), gate.clone());
                async move {
                    let id = recorder.attempt(&message);
                    gate.pass().await;
                    if id.starts_with("fail") && message.attempt() == 1 {
                        return Err("once");
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
    for (kind, _, recorder, consumer) in &running {
        let what = format!("{}, {kind}, alarm", **node);
        eventually(
            DEADLINE,
            "every first attempt is made and every success acknowledged",
            || async {
                let stats = consumer.stats();
                let done =
                    recorder.attempts().len() >= SUCCEED + FAIL && stats.acked >= SUCCEED as u64;
                done.then_some(())
                    .ok_or_else(|| format!("{what}: {stats:?}"))
            },
        )
        .await;
    }
    // The copies go on waiting for longer than any one answer is waited for.
    tokio::time::sleep(ALARM).await;
    for (kind, _, recorder, consumer) in &running {
        let what = format!("{}, {kind}, alarm", **node);
        println!("{what}, while it lasts: {:?}", consumer.stats());
        assert_eq!(
            recorder.count("retried"),
            0,
            "{what}: copies were stored, so there was no alarm"
        );
    }
    node.set_memory_watermark(0.6).await;
    for (kind, queue, recorder, consumer) in running {
        let what = format!("{}, {kind}, alarm", **node);
        eventually(DEADLINE, "all are handled, and nothing is left", || async {
            let settled = recorder.handled_count() == SUCCEED + FAIL
                && amqp.depth(&queue).await == Some(0)
                && consumer.stats().outstanding == 0;
            settled
                .then_some(())
                .ok_or_else(|| format!("{what}: {:?}", consumer.stats()))
        })
        .await;
        let runs = recorder.attempts().len();
        println!(
            "{what}: {runs} attempts at {} messages, {:?}",
            SUCCEED + FAIL,
            consumer.stats()
        );
        assert_eq!(recorder.count("parked"), 0, "{what}");
        consumer.close().await;
    }
    client.close().await;
}

/// The end of a consumer withdraws the copies that an alarm holds up: when it is over only the originals are there. All but one,
/// which was sent before the client heard of the alarm.
pub(crate) async fn ended_in_an_alarm(node: &Node) {
    const FAIL: usize = 40;
    const ENDED: &str = "alarm.ended";
    const WAITING: &str = "alarm.ended.retry.3600000";
    let what = format!("{}, ended in an alarm", **node);
    let amqp = node.connect().await;
    amqp.declare(ENDED, QueueType::Classic).await;
    let client = Client::connect(node.url()).await.unwrap();
    let (alarmed, blocked) = (Gate::closed(), Gate::closed());
    let gates = (alarmed.clone(), blocked.clone());
    let consumer = client
        .consumer(ENDED)
        .dlx(true)
        .retry("fixed(1h, retries=3)".parse::<Policy>().unwrap())
        .prefetch(128)
        .concurrency(FAIL + 1)
        .drain_timeout(Duration::from_secs(1))
        .start(move |message: Message| {
            let (alarmed, blocked) = gates.clone();
            async move {
                let is_first = message.body() == b"first";
                (if is_first { &alarmed } else { &blocked }).pass().await;
                Err::<(), _>("it fails")
            }
        })
        .await
        .unwrap();
    for number in 0..=FAIL {
        let body = if number == 0 { "first" } else { "another" };
        let message = retryrmq::Publish::to_queue(ENDED, body);
        client.publish(message).await.unwrap();
    }
    node.raise_memory_alarm().await;
    alarmed.open();
    eventually(DEADLINE, "the client is blocked", || async {
        let open = node.management().connections("/").await.unwrap();
        let states: Vec<_> = open.into_iter().map(|open| open.state).collect();
        let is_blocked = states.iter().any(|state| state == "blocked");
        is_blocked
            .then_some(())
            .ok_or_else(|| format!("{what}: {states:?}"))
    })
    .await;
    blocked.open();
    eventually(DEADLINE, "all have failed", || async {
        let stats = consumer.stats();
        let all = stats.failed == FAIL as u64 + 1;
        all.then_some(())
            .ok_or_else(|| format!("{what}: {stats:?}"))
    })
    .await;
    consumer.close().await;
    node.set_memory_watermark(0.6).await;
    let last = retryrmq::Publish::to_queue(WAITING, "last");
    client.publish(last).await.unwrap();
    assert_eq!(
        amqp.depth(WAITING).await,
        Some(2),
        "{what}: the first one and the last"
    );
    eventually(DEADLINE, "all originals are there", || async {
        let depth = amqp.depth(ENDED).await;
        (depth == Some(FAIL as u32 + 1))
            .then_some(())
            .ok_or_else(|| format!("{what}: {depth:?}"))
    })
    .await;
    client.close().await;
}
