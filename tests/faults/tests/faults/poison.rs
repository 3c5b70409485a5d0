//! A message that takes its consumer down, and its innocent neighbours.

use crate::fixture::{Fixture, QUEUE, WORKER, seen};
use retryrmq::types::{AMQPValue, FieldTable};
use retryrmq::{Message, Policy, Publish};
use retryrmq_faults::ledger::LoadLedger;
use retryrmq_faults::recorder::Recorder;
use retryrmq_faults::worker::{Worker, WorkerOptions, WorkerOutput};
use retryrmq_faults::{DEADLINE, load};
use retryrmq_harness::{eventually, on_queue_types};
use std::collections::BTreeMap;
use tokio::time::Instant;

const NEIGHBOURS: usize = 20;
const POISON: &str = "poison";
/// As many as a message survives, and some for a process that is ended before it has begun.
const RESTARTS: usize = 20;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_poison_message_is_parked_and_no_neighbour_is() {
    on_queue_types(|broker, kind| async move {
        let what = format!("{broker}, {kind}, poison");
        let fixture = Fixture::set(&broker, kind).await;
        let client = fixture.client().await;
        let load_ledger = LoadLedger::new(QUEUE);
        let worker_output = WorkerOutput::default();
        for number in 0..NEIGHBOURS {
            if number == NEIGHBOURS / 2 {
                client.publish(Publish::to_queue(QUEUE, POISON).message_id(POISON)).await.unwrap();
            }
            client.publish(load::message(QUEUE, number)).await.unwrap();
            load_ledger.published(&number.to_string());
        }
        let mut orders = WorkerOptions::load(fixture.vhost.url(), QUEUE);
        (orders.prefetch, orders.concurrency) = (64, 32);
        // Longer than it takes for all neighbours to be prefetched: all are outstanding when the poison strikes.
        orders.milliseconds = Some(300);
        orders.poison = Some(POISON.into());
        let mut restarts = 0;
        let parking = format!("{QUEUE}.parked");
        let deadline = Instant::now() + DEADLINE;
        let mut worker = None;
        while load_ledger.handled_count() < NEIGHBOURS || fixture.amqp.depth(&parking).await != Some(1) {
            let running = match worker.take() {
                Some(running) => running,
                None => {
                    restarts += 1;
                    assert!(restarts <= RESTARTS, "{what}: the poison is never parked");
                    Worker::start(WORKER, &orders, &worker_output, &load_ledger)
                }
            };
            assert!(Instant::now() < deadline, "{what}: {} handled", load_ledger.handled_count());
            worker = running.unless_ended().await;
        }
        let runs = worker_output.count_of("begin", POISON);
        let strays = (0..NEIGHBOURS).map(|number| worker_output.count_of("begin", &number.to_string())).max();
        println!("{what}: {restarts} starts, {runs} attempts at the poison, at most {strays:?} at a neighbour");
        let parked = fixture.amqp.drain(&parking).await;
        assert_eq!(parked.len(), 1, "{what}");
        assert_eq!(parked[0].text(), POISON);
        assert_eq!(parked[0].header_text("x-retry-parked-reason").as_deref(), Some("delivery-limit"));
        assert!(runs <= 10, "{what}: it ran {runs} times");
        drop(worker);
        load_ledger.balance(&broker, fixture.vhost.name(), &fixture.amqp, &what).await;
    })
    .await;
}

/// Suspects arrive together, and among messages that are none: each is to run alone, and waiting for that must not
/// count against it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_suspects_among_others_all_run_and_none_is_parked() {
    const SUSPECTS: usize = 30;
    const OTHERS: usize = 600;
    const LAST: i64 = 9; // one more, from whatever, and it is parked
    on_queue_types(|broker, kind| async move {
        let what = format!("{broker}, {kind}, suspects");
        let fixture = Fixture::set(&broker, kind).await;
        let client = fixture.client().await;
        for number in 0..OTHERS {
            client
                .publish(Publish::to_queue(QUEUE, number.to_string()))
                .await
                .unwrap();
            if number % (OTHERS / SUSPECTS) == 3 {
                let mut headers = FieldTable::default();
                headers.insert("x-retry-crashes".into(), AMQPValue::LongLongInt(LAST));
                headers.insert("x-retry-protocol".into(), AMQPValue::LongLongInt(1));
                let suspect =
                    Publish::to_queue(QUEUE, format!("suspect-{number}")).headers(headers);
                client.publish(suspect).await.unwrap();
            }
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
                    let id = recorder.attempt(&message);
                    tokio::time::sleep(std::time::Duration::from_millis(2)).await;
                    recorder.success(&id);
                    Ok::<_, String>(())
                }
            })
            .await
            .unwrap();
        eventually(DEADLINE, "all are handled or parked", || async {
            let (handled, parked) = (recorder.handled_count(), recorder.count("parked"));
            if handled + parked == OTHERS + SUSPECTS {
                Ok(())
            } else {
                Err(format!("{handled} handled, {parked} parked"))
            }
        })
        .await;
        let mut runs: BTreeMap<usize, usize> = BTreeMap::new();
        for (id, _) in recorder.attempts() {
            *runs.entry(recorder.runs(&id)).or_default() += 1;
        }
        println!("{what}: {:?}", running.stats());
        assert_eq!(
            recorder.count("parked"),
            0,
            "{what}: parked for having waited: {:?}",
            recorder.events()
        );
        assert_eq!(
            runs.keys().copied().collect::<Vec<_>>(),
            [1],
            "{what}: some ran twice"
        );
        running.close().await;
        fixture.is_empty(QUEUE).await;
        seen("nothing is outstanding", || {
            running.stats().outstanding == 0
        })
        .await;
    })
    .await;
}
