//! Consumers that are killed at random moments under load.

use crate::stage::{QUEUE, Stage, WORKER, seen};
use retryrmq_faults::accounts::Accounts;
use retryrmq_faults::publisher::Publisher;
use retryrmq_faults::trouble::Trouble;
use retryrmq_faults::worker::{Orders, Told, Worker};
use retryrmq_harness::{eventually, on_queue_types};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

const KILLS: usize = 6;

const PARKED: &str = "orders.parked";

/// A consumer that is killed soon after each start: copies that are confirmed do not come again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_consumer_that_is_killed_after_each_start_multiplies_no_messages() {
    const MESSAGES: usize = 5;
    const ROUNDS: u32 = 10;
    on_queue_types(|broker, kind| async move {
        let what = format!("{broker}, {kind}, killed after each start");
        let stage = Stage::set(&broker, kind).await;
        let accounts = Accounts::new(QUEUE);
        let orders = Orders {
            parks: true,
            ..Orders::load(stage.vhost.url(), QUEUE)
        };
        // One consumer lives long enough to know that its queues are old.
        let first = Worker::start(WORKER, &orders, &Told::default(), &accounts);
        eventually(
            retryrmq_faults::PATIENCE,
            "the parking queue is marked",
            || async {
                let bindings = format!("exchanges/{}/{PARKED}/bindings/source", stage.vhost.name());
                let found = broker.management().get(bindings).await;
                let is_bound =
                    found.is_ok_and(|found| found.as_array().is_some_and(|all| !all.is_empty()));
                is_bound.then_some(()).ok_or("it is not bound")
            },
        )
        .await;
        first.kill().await;
        for round in 1..=ROUNDS {
            for number in 0..MESSAGES {
                stage.amqp.publish(QUEUE, format!("{round}.{number}")).await;
            }
            let told = Told::default();
            let mut worker = Worker::start(WORKER, &orders, &told, &accounts);
            worker.ready().await;
            let until = Instant::now() + Duration::from_millis(300) * round;
            seen("the copies are stored", || {
                told.count_of("event", "parked") >= MESSAGES
            })
            .await;
            tokio::time::sleep_until(until.into()).await;
            worker.kill().await;
        }
        let worker = Worker::start(WORKER, &orders, &Told::default(), &accounts);
        stage.is_empty(QUEUE).await;
        worker.kill().await;
        let mut copies = BTreeMap::<String, usize>::new();
        for message in stage.amqp.drain(PARKED).await {
            *copies.entry(message.text().to_owned()).or_default() += 1;
        }
        assert_eq!(
            copies.len(),
            MESSAGES * ROUNDS as usize,
            "{what}: {copies:?}"
        );
        // A kill between the confirm and the acknowledgement, which on a busy machine happens.
        let extra: usize = copies.values().map(|copies| copies - 1).sum();
        println!("{what}: {extra} extra copies");
        assert!(extra <= MESSAGES, "{what}: {copies:?}");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_lost_when_the_consumer_is_killed_again_and_again() {
    on_queue_types(|broker, kind| async move {
        let what = format!("{broker}, {kind}, consumer killed");
        let stage = Stage::set(&broker, kind).await;
        let accounts = Accounts::new(QUEUE);
        let told = Told::default();
        let publisher = Publisher::start(stage.client().await, QUEUE, accounts.clone());
        let orders = Orders::load(stage.vhost.url(), QUEUE);
        let mut trouble = Trouble::new(&what, KILLS);
        while trouble.goes_on() {
            let mut worker = Worker::start(WORKER, &orders, &told, &accounts);
            // Now and then it is killed while it starts.
            if !trouble.made().is_multiple_of(3) {
                worker.ready().await;
            }
            trouble.pause(20..1_200).await;
            worker.kill().await;
        }
        let published = publisher.stop().await;
        let worker = Worker::start(WORKER, &orders, &told, &accounts);
        accounts.settled(&stage.amqp).await;
        worker.kill().await;
        println!(
            "{what}: {published} published over {} kills, {} attempts, {} detours, {} acknowledged unseen",
            trouble.made(),
            told.count("begin"),
            told.count_of("event", "detoured"),
            told.count_of("event", "already_handled"),
        );
        accounts.balance(&broker, stage.vhost.name(), &stage.amqp, &what).await;
    })
    .await;
}
