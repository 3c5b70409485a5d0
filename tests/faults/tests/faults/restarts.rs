//! Ordinary restarts, which must cost no message anything.

use crate::fixture::{Fixture, QUEUE, WORKER};
use nix::sys::signal::Signal;
use retryrmq::Publish;
use retryrmq_faults::ledger::LoadLedger;
use retryrmq_faults::worker::{Worker, WorkerOptions, WorkerOutput};
use retryrmq_harness::{Amqp, QueueType, on_queue_types};
use std::collections::BTreeMap;

const MESSAGES: usize = 240;
const RESTARTS: usize = 4;

/// A worker that has more prefetched than it works on is stopped cleanly, several times.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn restarts_in_good_order_cost_nothing() {
    on_queue_types(|broker, kind| async move {
        let what = format!("{broker}, {kind}, {RESTARTS} restarts");
        let fixture = Fixture::set(&broker, kind).await;
        let client = fixture.client().await;
        let load_ledger = LoadLedger::new(QUEUE);
        for number in 0..MESSAGES {
            client
                .publish(Publish::to_queue(QUEUE, number.to_string()))
                .await
                .unwrap();
            load_ledger.published(&number.to_string());
        }
        let worker_output = WorkerOutput::default();
        let mut orders = WorkerOptions::load(fixture.vhost.url(), QUEUE);
        (orders.prefetch, orders.concurrency, orders.milliseconds) = (64, 4, Some(40));
        for restart in 1..=RESTARTS {
            let mut worker = Worker::start(WORKER, &orders, &worker_output, &load_ledger);
            worker.ready().await;
            let begun = worker_output.count("begin") + 8; // two rounds of handlers: the rest is prefetched and waits
            crate::fixture::seen("handlers run", || worker_output.count("begin") >= begun).await;
            worker.signal(Signal::SIGTERM);
            assert!(worker.ended().await.success(), "{what}: restart {restart}");
        }
        assert_eq!(
            worker_output.count("begin"),
            worker_output.count("done"),
            "{what}: a handler was not let finish"
        );
        let counts = returns(&fixture.amqp).await;
        println!("{what}: messages by x-delivery-count before the last start: {counts:?}");
        if kind == QueueType::Quorum {
            // As peeked at once more, which counts as one return.
            assert!(
                counts.keys().all(|count| *count <= RESTARTS as i64 + 1),
                "{what}: {counts:?}"
            );
        }
        orders.concurrency = 32;
        let worker = Worker::start(WORKER, &orders, &worker_output, &load_ledger);
        crate::fixture::seen("all are handled", || {
            load_ledger.handled_count() == MESSAGES
        })
        .await;
        worker.signal(Signal::SIGTERM);
        assert!(worker.ended().await.success(), "{what}");
        assert_eq!(worker_output.count_of("event", "parked"), 0, "{what}");
        let report = load_ledger
            .balance(&broker, fixture.vhost.name(), &fixture.amqp, &what)
            .await;
        assert_eq!(report.duplicates, 0, "{what}");
    })
    .await;
}

/// How many messages of the work queue have been returned how often.
async fn returns(amqp: &Amqp) -> BTreeMap<i64, usize> {
    let channel = amqp.new_channel().await;
    let mut counts = BTreeMap::new();
    while let Some(message) = channel
        .basic_get(QUEUE.into(), lapin::options::BasicGetOptions::default())
        .await
        .unwrap()
    {
        let message = retryrmq_harness::Message::from(&message.delivery);
        *counts
            .entry(message.header_int("x-delivery-count").unwrap_or(0))
            .or_default() += 1;
    }
    channel.close(200, "looked".into()).await.unwrap();
    counts
}
