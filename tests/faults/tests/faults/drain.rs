//! How a consumer drains and ends.

use crate::fixture::{Fixture, Gate, QUEUE, UnansweredQuestion, WORKER, seen};
use nix::sys::signal::Signal;
use retryrmq::{Client, Message, Policy, Publish};
use retryrmq_faults::ledger::LoadLedger;
use retryrmq_faults::recorder::Recorder;
use retryrmq_faults::worker::{Worker, WorkerOptions, WorkerOutput};
use retryrmq_faults::{DEADLINE, load};
use retryrmq_harness::{CutProxy, Direction, eventually, on_queue_types};
use std::collections::BTreeSet;
use std::sync::Mutex;
use std::time::Duration;
use tokio::io::AsyncReadExt;
use tokio::net::TcpListener;
use tokio::time::timeout;

const MESSAGES: usize = 40;
const SHORT: Duration = Duration::from_millis(500);

async fn publish(fixture: &Fixture) -> Client {
    let client = fixture.client().await;
    for number in 0..MESSAGES {
        client
            .publish(Publish::to_queue(QUEUE, number.to_string()))
            .await
            .unwrap();
    }
    client
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn handlers_that_run_finish_and_the_rest_goes_back() {
    on_queue_types(|broker, kind| async move {
        let what = format!("{broker}, {kind}");
        let fixture = Fixture::set(&broker, kind).await;
        let client = publish(&fixture).await;
        let (recorder, gate) = (Recorder::new(), Gate::closed());
        let (taped, gated) = (recorder.clone(), gate.clone());
        let running = client
            .consumer(QUEUE)
            .dlx(true)
            .retry(load::policy())
            .concurrency(8)
            .start(move |message: Message| {
                let (recorder, gate) = (taped.clone(), gated.clone());
                async move {
                    let id = recorder.attempt(&message);
                    gate.pass().await;
                    recorder.success(&id);
                    // Some fail at the very end: their copies have to be stored before it.
                    if id.ends_with('3') {
                        Err("late")
                    } else {
                        Ok(())
                    }
                }
            })
            .await
            .unwrap();
        seen("eight run and the rest is here", || {
            recorder.attempts().len() == 8 && running.stats().outstanding == MESSAGES as u64
        })
        .await;
        let closing = tokio::spawn({
            let running = running.clone();
            async move { running.close().await }
        });
        // The rest goes back while the eight still run.
        eventually(DEADLINE, "the rest is back", || async {
            fixture.amqp.depth(QUEUE).await == Some(MESSAGES as u32 - 8)
        })
        .await;
        assert!(
            !closing.is_finished(),
            "{what}: the end did not wait for handlers"
        );
        gate.open();
        timeout(DEADLINE, closing)
            .await
            .expect("the consumer ends")
            .unwrap();
        assert_eq!(recorder.handled_count(), 8, "{what}");
        let failed = (0..MESSAGES as u32)
            .filter(|number| recorder.runs(&number.to_string()) > 0 && number % 10 == 3)
            .count();
        let retried = running.stats().retried;
        assert_eq!(retried, failed as u64, "{what}");
        eventually(
            DEADLINE,
            "all that was not handled is in the queue",
            || async { fixture.amqp.depth(QUEUE).await == Some((MESSAGES - 8 + failed) as u32) },
        )
        .await;
        client.close().await;
        fixture.no_connection_is_left().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_that_is_asked_to_end_drains() {
    on_queue_types(|broker, kind| async move {
        let fixture = Fixture::set(&broker, kind).await;
        let load_ledger = LoadLedger::new(QUEUE);
        let client = publish(&fixture).await;
        (0..MESSAGES).for_each(|number| load_ledger.published(&number.to_string()));
        let worker_output = WorkerOutput::default();
        let mut orders = WorkerOptions::load(fixture.vhost.url(), QUEUE);
        orders.milliseconds = Some(200);
        let worker = Worker::start(WORKER, &orders, &worker_output, &load_ledger);
        seen("handlers run", || worker_output.count("begin") >= 8).await;
        worker.signal(Signal::SIGTERM);
        assert!(worker.ended().await.success());
        assert_eq!(worker_output.count("begin"), worker_output.count("done"));
        let report = load_ledger
            .balance(
                &broker,
                fixture.vhost.name(),
                &fixture.amqp,
                &format!("{broker}, {kind}, SIGTERM"),
            )
            .await;
        assert_eq!(
            (report.duplicates, report.queued),
            (0, MESSAGES - worker_output.count("done"))
        );
        client.close().await;
        fixture.no_connection_is_left().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handler_that_never_ends_is_given_up_and_its_message_goes_back() {
    on_queue_types(|broker, kind| async move {
        let fixture = Fixture::set(&broker, kind).await;
        let client = publish(&fixture).await;
        let recorder = Recorder::new();
        let taped = recorder.clone();
        let running = client
            .consumer(QUEUE)
            .dlx(true)
            .retry(load::policy())
            .drain_timeout(SHORT)
            .start(move |message: Message| {
                taped.attempt(&message);
                std::future::pending::<Result<(), String>>()
            })
            .await
            .unwrap();
        seen("handlers run", || recorder.attempts().len() == 16).await;
        timeout(DEADLINE, running.close())
            .await
            .expect("the consumer ends");
        eventually(DEADLINE, "all are back", || async {
            fixture.amqp.depth(QUEUE).await == Some(MESSAGES as u32)
        })
        .await;
        client.close().await;
        fixture.no_connection_is_left().await;
    })
    .await;
}

/// Nobody answers: the end comes all the same, and soon.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_end_does_not_wait_for_a_broker_that_does_not_answer() {
    on_queue_types(|broker, kind| async move {
        let what = format!("{broker}, {kind}");
        let fixture = Fixture::set(&broker, kind).await;
        let publisher = fixture.client().await;
        for direction in [Direction::ToBroker, Direction::ToClient, Direction::Both] {
            let queue = format!("{QUEUE}.{direction:?}");
            fixture.amqp.declare(&queue, kind).await;
            for number in 0..MESSAGES {
                let message = Publish::to_queue(queue.as_str(), number.to_string());
                publisher.publish(message).await.unwrap();
            }
            let proxy = CutProxy::to(fixture.vhost.url()).await;
            let client = Client::connect(proxy.url()).await.unwrap();
            let (recorder, gate) = (Recorder::new(), Gate::closed());
            let (taped, gated) = (recorder.clone(), gate.clone());
            let running = client
                .consumer(queue)
                .dlx(true)
                .retry("fixed(50ms, retries=5)".parse::<Policy>().unwrap())
                .drain_timeout(SHORT)
                .start(move |message: Message| {
                    let (recorder, gate) = (taped.clone(), gated.clone());
                    async move {
                        recorder.attempt(&message);
                        gate.pass().await;
                        Err::<(), _>("no")
                    }
                })
                .await
                .unwrap();
            seen("handlers run", || recorder.attempts().len() == 16).await;
            let question = UnansweredQuestion::prepare(&fixture).await;
            proxy.stall(direction);
            gate.open();
            let began = std::time::Instant::now();
            tokio::select! {
                () = async {
                    running.close().await;
                    client.close().await;
                } => {}
                why = question.given_up() => panic!("{what}, {direction:?}: the end waits as for an answer: {why}"),
            }
            println!(
                "{what}: closing with the network stalled {direction:?} took {:?}",
                began.elapsed()
            );
            question.withdraw().await;
            proxy.resume();
            seen("the proxy has no connection left", || proxy.open() == 0).await;
        }
        publisher.close().await;
        fixture.no_connection_is_left().await;
    })
    .await;
}

/// Closed, or simply dropped, at any moment of a reconnection: nothing stays behind.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn closing_in_the_middle_of_a_reconnection_leaves_nothing_behind() {
    on_queue_types(|broker, kind| async move {
        let fixture = Fixture::set(&broker, kind).await;
        publish(&fixture).await.close().await;
        let proxy = CutProxy::to(fixture.vhost.url()).await;
        for round in 0..12u64 {
            let client = Client::connect(proxy.url()).await.unwrap();
            let running = client
                .consumer(QUEUE)
                .dlx(true)
                .retry(load::policy())
                .drain_timeout(SHORT)
                .start(|_: Message| std::future::pending::<Result<(), String>>())
                .await
                .unwrap();
            // A handshake has many steps; delayed, the end falls into each of them in turn.
            proxy.delay(Direction::Both, Duration::from_millis(60));
            proxy.cut();
            tokio::time::sleep(Duration::from_millis(40 + round * 75)).await;
            running.close().await;
            if round % 2 == 0 {
                client.close().await;
            }
            drop((running, client));
            proxy.resume();
        }
        seen("the proxy has no connection left", || proxy.open() == 0).await;
        fixture.no_connection_is_left().await;
        // Each round counts as a crash, so that some wait or are parked by now.
        let found = Mutex::new(BTreeSet::new());
        // A message on its way between two queues is in none of them.
        eventually(DEADLINE, "every message is in a queue", || async {
            for queue in fixture.vhost.queues().await {
                let messages = fixture.amqp.drain(queue.name()).await;
                let ids = messages.iter().map(|message| message.text().to_owned());
                found.lock().unwrap().extend(ids);
            }
            let found = found.lock().unwrap();
            (found.len() == MESSAGES)
                .then_some(())
                .ok_or_else(|| format!("{found:?}"))
        })
        .await;
    })
    .await;
}

/// A peer that takes the connection and says nothing: whoever gives up waiting for it hangs up.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_attempt_to_connect_that_is_given_up_leaves_no_socket() {
    const GREETING: usize = 8;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("amqp://{}", listener.local_addr().unwrap());
    let attempt = tokio::spawn(async move { Client::connect(&url).await });
    let (mut peer, _) = listener.accept().await.unwrap();
    let mut greeting = [0; GREETING];
    peer.read_exact(&mut greeting).await.unwrap();
    attempt.abort();
    let end = timeout(DEADLINE, peer.read(&mut greeting)).await;
    assert_eq!(end.expect("the socket is closed").unwrap_or(0), 0);
}
