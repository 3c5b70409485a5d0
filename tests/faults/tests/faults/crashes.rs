//! Consumers that are killed at random moments under load.

use crate::fixture::{Fixture, QUEUE, WORKER, seen};
use retryrmq_faults::disruption::Disruption;
use retryrmq_faults::ledger::LoadLedger;
use retryrmq_faults::publisher::Publisher;
use retryrmq_faults::worker::{HandlerScript, Worker, WorkerOptions, WorkerOutput};
use retryrmq_harness::{Broker, QueueType, on_queue_types};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

const KILLS: usize = 6;

/// A consumer that is killed soon after each start, from the first one on, which creates the queues: copies that are confirmed do not come again.
async fn is_killed_after_each_start(broker: &Broker, kind: QueueType, handles: HandlerScript) {
    const MESSAGES: usize = 5;
    const ROUNDS: u32 = 10;
    /// After this, the broker's counts are not those from before.
    const COUNTED: Duration = Duration::from_millis(1_500);
    let (queue, event) = match handles {
        HandlerScript::Parks => ("orders.parked", "parked"),
        _ => ("orders.retry.60000", "retried"),
    };
    let what = format!("{broker}, {kind}, killed after each start, {queue}");
    let fixture = Fixture::set(broker, kind).await;
    let load_ledger = LoadLedger::new(QUEUE);
    let orders = WorkerOptions {
        handles,
        ..WorkerOptions::load(fixture.vhost.url(), QUEUE)
    };
    // Whether messages may have been between confirm and acknowledgement, by round, and how many of earlier rounds come as well.
    let (mut in_between, mut earlier) = (Vec::new(), 0);
    for round in 1..=ROUNDS {
        for number in 0..MESSAGES {
            fixture
                .amqp
                .publish(QUEUE, format!("{round}.{number}"))
                .await;
        }
        let worker_output = WorkerOutput::default();
        let mut worker = Worker::start(WORKER, &orders, &worker_output, &load_ledger);
        worker.ready().await;
        let until = Instant::now() + Duration::from_millis(300) * round;
        let are_stored = || worker_output.count_of("event", event) >= MESSAGES + earlier;
        // Every other one is killed whatever it has done by then.
        if round.is_multiple_of(2) {
            seen("the copies are stored", are_stored).await;
        }
        tokio::time::sleep_until(until.into()).await;
        let is_clean = are_stored();
        // What is stored is acknowledged when it is killed. Only the broker knows that.
        if is_clean {
            tokio::time::sleep(COUNTED).await;
            fixture.is_empty(QUEUE).await;
        }
        worker.kill().await;
        earlier = (MESSAGES + earlier).saturating_sub(worker_output.count_of("event", event));
        in_between.push(!is_clean);
    }
    let worker = Worker::start(WORKER, &orders, &WorkerOutput::default(), &load_ledger);
    fixture.is_empty(QUEUE).await;
    worker.kill().await;
    let mut copies = BTreeMap::<String, usize>::new();
    for message in fixture.amqp.drain(queue).await {
        *copies.entry(message.text().to_owned()).or_default() += 1;
    }
    assert_eq!(
        copies.len(),
        MESSAGES * ROUNDS as usize,
        "{what}: {copies:?}"
    );
    let extra: usize = copies.values().map(|copies| copies - 1).sum();
    let kills = in_between.iter().filter(|kill| **kill).count();
    println!("{what}: {extra} extra copies, {kills} kills between confirm and acknowledgement");
    for (message, copies) in copies {
        // It is acknowledged in the first round that lets it be.
        let round: usize = message.split('.').next().unwrap().parse().unwrap();
        let kills = in_between[round - 1..].iter().take_while(|kill| **kill);
        let allowed = 1 + kills.count();
        assert!(
            copies <= allowed,
            "{what}: {message} has {copies} copies, and {in_between:?}"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_consumer_that_is_killed_after_each_start_multiplies_no_messages() {
    on_queue_types(|broker, kind| async move {
        is_killed_after_each_start(&broker, kind, HandlerScript::Parks).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nor_one_whose_messages_wait_to_be_retried() {
    on_queue_types(|broker, kind| async move {
        is_killed_after_each_start(&broker, kind, HandlerScript::Delays).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_lost_when_the_consumer_is_killed_again_and_again() {
    on_queue_types(|broker, kind| async move {
        let what = format!("{broker}, {kind}, consumer killed");
        let fixture = Fixture::set(&broker, kind).await;
        let load_ledger = LoadLedger::new(QUEUE);
        let worker_output = WorkerOutput::default();
        let publisher = Publisher::start(fixture.client().await, QUEUE, load_ledger.clone());
        let orders = WorkerOptions::load(fixture.vhost.url(), QUEUE);
        let mut disruption = Disruption::new(&what, KILLS);
        while disruption.goes_on() {
            let mut worker = Worker::start(WORKER, &orders, &worker_output, &load_ledger);
            // Now and then it is killed while it starts.
            if !disruption.made().is_multiple_of(3) {
                worker.ready().await;
            }
            disruption.pause(20..1_200).await;
            worker.kill().await;
        }
        let published = publisher.stop().await;
        let worker = Worker::start(WORKER, &orders, &worker_output, &load_ledger);
        load_ledger.settled(&fixture.amqp).await;
        worker.kill().await;
        println!(
            "{what}: {published} published over {} kills, {} attempts, {} detours, {} acknowledged unseen",
            disruption.made(),
            worker_output.count("begin"),
            worker_output.count_of("event", "detoured"),
            worker_output.count_of("event", "already_handled"),
        );
        load_ledger.balance(&broker, fixture.vhost.name(), &fixture.amqp, &what).await;
    })
    .await;
}
