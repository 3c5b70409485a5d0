//! The retry budget: a consumer whose attempts all fail pauses, and probes.

use crate::fixture::{QUEUE, Fixture, seen};
use retryrmq::{Message, Pause, Policy, Publish};
use retryrmq_faults::recorder::Recorder;
use retryrmq_harness::on_queue_types;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const MESSAGES: usize = 100;
const WINDOW: usize = 10;
const CONCURRENCY: usize = 4;
const PREFETCH: u16 = 16;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_nothing_works_hardly_any_attempt_is_spent_and_afterwards_all_is_handled() {
    on_queue_types(|broker, kind| async move {
        let what = format!("{broker}, {kind}, paused");
        let stage = Fixture::set(&broker, kind).await;
        let client = stage.client().await;
        for number in 0..MESSAGES {
            client
                .publish(Publish::to_queue(QUEUE, number.to_string()))
                .await
                .unwrap();
        }
        let (tape, works) = (Recorder::new(), Arc::new(AtomicBool::new(false)));
        let (taped, working) = (tape.clone(), Arc::clone(&works));
        let running = client
            .consumer(QUEUE)
            .dlx(true)
            .retry("fixed(100ms, retries=20)".parse::<Policy>().unwrap())
            .concurrency(CONCURRENCY)
            .prefetch(PREFETCH)
            .pause(
                Pause::default()
                    .failures(0.5)
                    .window(WINDOW)
                    .pause(Duration::from_millis(300)),
            )
            .on_event(tape.listener())
            .start(move |message: Message| {
                let (tape, works) = (taped.clone(), Arc::clone(&working));
                async move {
                    let id = tape.attempt(&message);
                    tokio::time::sleep(Duration::from_millis(2)).await;
                    if works.load(Ordering::SeqCst) {
                        tape.success(&id);
                        Ok(())
                    } else {
                        Err("the database is down")
                    }
                }
            })
            .await
            .unwrap();
        seen("it has paused often", || tape.count("paused") >= 8).await;
        works.store(true, Ordering::SeqCst);
        let (attempts, pauses) = (tape.attempts().len(), tape.count("paused"));
        // The window that began it, what could be taken before the engine got to see that, and a probe for every pause.
        assert!(
            attempts <= WINDOW + usize::from(PREFETCH) + pauses + 1,
            "{what}: {attempts} attempts in {pauses} pauses"
        );
        seen("all are handled", || tape.handled_count() == MESSAGES).await;
        assert!(tape.count("resumed") >= 1, "{what}");
        println!(
            "{what}: {attempts} attempts in {pauses} pauses, {:?}",
            running.stats()
        );
        assert_eq!(tape.count("parked"), 0, "{what}");
        stage.is_empty(QUEUE).await;
        running.close().await;
    })
    .await;
}
