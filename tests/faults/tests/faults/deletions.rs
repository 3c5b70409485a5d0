//! Queues that somebody deletes while they are needed.

use crate::fixture::{Fixture, QUEUE, loaded, seen};
use retryrmq::{Message, Policy, Publish};
use retryrmq_faults::ledger::LoadLedger;
use retryrmq_faults::recorder::Recorder;
use retryrmq_faults::{DEADLINE, load, publisher};
use retryrmq_harness::{eventually, on_queue_types};

/// A work queue that this consumer made is made again; one that was there before it is waited for: what was bound to it
/// only its owner knows.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_work_queue_that_is_deleted_is_consumed_when_it_is_there_again() {
    on_queue_types(|broker, kind| async move {
        for is_ours in [true, false] {
            let what = format!("{broker}, {kind}, work queue deleted, made by us: {is_ours}");
            let fixture = Fixture::set(&broker, kind).await;
            if is_ours {
                fixture.amqp.delete(QUEUE).await;
            }
            let client = fixture.client().await;
            let load_ledger = LoadLedger::new(QUEUE);
            let (recorder, ledger) = (Recorder::new(), load_ledger.clone());
            let running = client
                .consumer(QUEUE)
                .dlx(true)
                .retry(load::policy())
                .on_event(recorder.listener())
                .start(loaded(&recorder, move |id| ledger.handled(id)))
                .await
                .unwrap();
            for round in 0..3 {
                for number in round * 25..(round + 1) * 25 {
                    publisher::publish(&client, QUEUE, number, &load_ledger).await;
                }
                load_ledger.settled(&fixture.amqp).await; // what is in a queue goes with it, of course
                fixture.amqp.delete(QUEUE).await;
                if !is_ours {
                    seen("the consumer is without its queue", || {
                        recorder.count("disconnected") > round
                    })
                    .await;
                    stays_away(&fixture).await;
                    fixture.amqp.declare(QUEUE, kind).await;
                }
                eventually(DEADLINE, "it is there again, and consumed", || async {
                    fixture.amqp.consumers(QUEUE).await == Some(1)
                })
                .await;
                seen("the consumer has noticed", || {
                    recorder.count("reconnected") > round
                })
                .await;
            }
            assert_eq!(recorder.count("reconnected"), 3, "{what}");
            running.close().await;
            client.close().await;
            load_ledger
                .balance(&broker, fixture.vhost.name(), &fixture.amqp, &what)
                .await;
            fixture.no_connection_is_left().await;
        }
    })
    .await;
}

/// Looks for a while at a queue that should not come back by itself.
async fn stays_away(fixture: &Fixture) {
    for _ in 0..20 {
        assert_eq!(fixture.amqp.depth(QUEUE).await, None, "it was made again");
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
}

/// The originals are still unacknowledged when the broker says that it has no such queue.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiting_and_parking_queues_that_are_deleted_are_made_again_and_no_copy_is_lost() {
    on_queue_types(|broker, kind| async move {
        let what = format!("{broker}, {kind}, waiting and parking queues deleted");
        let fixture = Fixture::set(&broker, kind).await;
        let client = fixture.client().await;
        let recorder = Recorder::new();
        let policy: Policy = "list(100ms, 300ms)".parse().unwrap();
        let taped = recorder.clone();
        let running = client
            .consumer(QUEUE)
            .dlx(true)
            .retry(policy)
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
        let gone = ["orders.retry.100", "orders.retry.300", "orders.parked"];
        for round in 1..=3 {
            for queue in gone {
                fixture.amqp.delete(queue).await;
            }
            for number in 0..20 {
                client
                    .publish(Publish::to_queue(QUEUE, format!("{round}-{number}")))
                    .await
                    .unwrap();
            }
            seen("all are parked", || recorder.count("parked") == 20 * round).await;
            eventually(DEADLINE, "all are in the parking queue", || async {
                fixture.amqp.depth("orders.parked").await == Some(20)
            })
            .await;
        }
        println!("{what}: {:?}", running.stats());
        assert!(
            recorder.count("publish_failed") > 0,
            "{what}: no copy met a queue that was gone"
        );
        assert_eq!(recorder.attempts().len(), 3 * 20 * 3, "{what}");
        assert_eq!(recorder.count("requeued"), 0, "{what}");
        fixture.is_empty(QUEUE).await;
        running.close().await;
    })
    .await;
}

/// Without leave to declare, the consumer keeps what it cannot store until somebody makes the queue.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_leave_to_declare_the_originals_are_kept_until_the_queue_is_back() {
    on_queue_types(|broker, kind| async move {
        let fixture = Fixture::set(&broker, kind).await;
        let client = fixture.client().await;
        let recorder = Recorder::new();
        let taped = recorder.clone();
        let consumer = client
            .consumer(QUEUE)
            .dlx(true)
            .declare(false)
            .retry("fixed(100ms, retries=1)".parse::<Policy>().unwrap())
            .on_event(recorder.listener());
        client.apply_plan(&consumer.plan().unwrap()).await.unwrap();
        let running = consumer
            .start(move |message: Message| {
                let recorder = taped.clone();
                async move {
                    recorder.attempt(&message);
                    if message.attempt() == 1 {
                        Err("once")
                    } else {
                        recorder.success(&message.attempt().to_string());
                        Ok(())
                    }
                }
            })
            .await
            .unwrap();
        fixture.amqp.delete("orders.retry.100").await;
        for number in 0..10 {
            client
                .publish(Publish::to_queue(QUEUE, number.to_string()))
                .await
                .unwrap();
        }
        seen("all were attempted, and all copies have failed", || {
            recorder.count("publish_failed") >= 10 && recorder.attempts().len() == 10
        })
        .await;
        assert_eq!(
            (recorder.attempts().len(), running.stats().outstanding),
            (10, 10)
        );
        let plan = client
            .consumer(QUEUE)
            .dlx(true)
            .retry("fixed(100ms, retries=1)".parse::<Policy>().unwrap())
            .plan();
        client.apply_plan(&plan.unwrap()).await.unwrap();
        seen("all are handled at their second attempt", || {
            recorder.handled("2") == 10
        })
        .await;
        assert_eq!(recorder.count("requeued"), 0);
        fixture.is_empty(QUEUE).await;
        running.close().await;
    })
    .await;
}
