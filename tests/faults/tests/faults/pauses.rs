//! The retry budget: a consumer whose attempts all fail pauses, and probes.

use crate::fixture::{Fixture, QUEUE, seen};
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
        let fixture = Fixture::set(&broker, kind).await;
        let client = fixture.client().await;
        for number in 0..MESSAGES {
            client
                .publish(Publish::to_queue(QUEUE, number.to_string()))
                .await
                .unwrap();
        }
        let (recorder, works) = (Recorder::new(), Arc::new(AtomicBool::new(false)));
        let (taped, working) = (recorder.clone(), Arc::clone(&works));
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
            .on_event(recorder.listener())
            .start(move |message: Message| {
                let (recorder, works) = (taped.clone(), Arc::clone(&working));
                async move {
                    let id = recorder.attempt(&message);
                    tokio::time::sleep(Duration::from_millis(2)).await;
                    if works.load(Ordering::SeqCst) {
                        recorder.success(&id);
                        Ok(())
                    } else {
                        Err("the database is down")
                    }
                }
            })
            .await
            .unwrap();
        seen("it has paused often", || recorder.count("paused") >= 8).await;
        // Before anything works: what succeeds ends the pause.
        let (attempts, pauses) = (recorder.attempts().len(), recorder.count("paused"));
        works.store(true, Ordering::SeqCst);
        // The window that began it, what could be taken before the engine got to see that, and a probe for every pause.
        assert!(
            attempts <= WINDOW + usize::from(PREFETCH) + pauses + 1,
            "{what}: {attempts} attempts in {pauses} pauses"
        );
        seen("all are handled", || recorder.handled_count() == MESSAGES).await;
        assert!(recorder.count("resumed") >= 1, "{what}");
        println!(
            "{what}: {attempts} attempts in {pauses} pauses, {:?}",
            running.stats()
        );
        assert_eq!(recorder.count("parked"), 0, "{what}");
        fixture.is_empty(QUEUE).await;
        running.close().await;
    })
    .await;
}
