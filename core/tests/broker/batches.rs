//! Handlers that get several messages at once: each message keeps its own count and its own end.

use std::{
    collections::BTreeSet,
    io,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use retryrmq::{
    Consumer, ErrorKind, Message, Outcome, Pause, RunningConsumer, Subscription, defer, fatal,
    park, retry_after,
};
use retryrmq_harness::{Amqp, on_queue_types};
use tokio::sync::Notify;

use crate::fixture::{
    Answer, Observations, PARKED, QUEUE, connect_with, id, ms, policy, settled, stats, take,
};

/// Longer than a test waits: only complete batches come.
const FOR_ALL: Duration = Duration::from_secs(60);

/// The batches that a handler got, as the ids of their messages.
#[derive(Clone, Default)]
struct Batches {
    observations: Observations,
    ids: Arc<Mutex<Vec<Vec<String>>>>,
}

impl Batches {
    fn note(&self, batch: &[Message]) {
        for message in batch {
            self.observations.note(message);
        }
        let ids = batch.iter().filter_map(Message::message_id);
        self.ids
            .lock()
            .unwrap()
            .push(ids.map(str::to_owned).collect());
    }

    fn sizes(&self) -> Vec<usize> {
        self.ids.lock().unwrap().iter().map(Vec::len).collect()
    }

    fn attempts(&self, id: &str) -> Vec<u32> {
        let seen = self.observations.of(id);
        seen.iter().map(|seen| seen.message.attempt()).collect()
    }
}

async fn publish(amqp: &Amqp, names: &[&str]) {
    let messages = names.iter().map(|name| (QUEUE, "x", id(name)));
    amqp.publish_all("", messages).await;
}

/// Starts a consumer that answers for each message of a batch.
async fn start_each(
    consumer: Consumer,
    batches: &Batches,
    answer: impl Fn(&Message) -> Answer + Send + Sync + 'static,
) -> RunningConsumer {
    let batches = batches.clone();
    consumer
        .start_batches(move |batch: Vec<Message>| {
            batches.note(&batch);
            let answers: Vec<_> = batch.iter().map(&answer).collect();
            std::future::ready(answers)
        })
        .await
        .expect("the consumer starts")
}

#[tokio::test]
async fn each_message_of_a_batch_has_its_own_end() {
    on_queue_types(|broker, kind| async move {
        let vhost = broker.vhost().await;
        let (client, amqp) = (connect_with(&vhost, kind).await, vhost.connect().await);
        amqp.declare(QUEUE, kind).await;
        let names = [
            "fine", "once", "always", "later", "junk", "fatal", "deferred",
        ];
        publish(&amqp, &names).await;
        let batches = Batches::default();
        let consumer = client
            .consumer(QUEUE)
            .dlx(true)
            .retry(policy("fixed(100ms, retries=2)"))
            .batch(names.len())
            .batch_wait(ms(500))
            .on_event(batches.observations.listener());
        let running = start_each(consumer, &batches, |message| {
            match (message.message_id().unwrap(), message.attempt()) {
                ("once", 1) | ("always", _) => Err("no".into()),
                ("later", 1) => Err(retry_after(ms(330), "busy").into()),
                ("junk", _) => Err(park("no such customer").into()),
                ("fatal", _) => Err(fatal(io::Error::other("bad data")).into()),
                ("deferred", 1) if message.deferrals() == 0 => Err(defer(ms(100)).into()),
                _ => Ok(()),
            }
        })
        .await;
        let given_up = take(&amqp, PARKED, 3).await;
        let given_up: BTreeSet<_> = given_up.iter().filter_map(|one| one.id()).collect();
        assert_eq!(given_up, ["always", "fatal", "junk"].into());
        settled(&vhost, &amqp, &running, QUEUE).await;
        for (name, attempts) in [
            ("fine", &[1][..]),
            ("once", &[1, 2]),
            ("always", &[1, 2, 3]),
            ("later", &[1, 2]),
            ("junk", &[1]),
            ("fatal", &[1]),
            ("deferred", &[1, 1]),
        ] {
            assert_eq!(batches.attempts(name), attempts, "{name}");
        }
        running.close().await;
    })
    .await;
}

#[tokio::test]
async fn a_batch_waits_until_it_is_complete() {
    on_queue_types(|broker, kind| async move {
        let vhost = broker.vhost().await;
        let (client, amqp) = (connect_with(&vhost, kind).await, vhost.connect().await);
        amqp.declare(QUEUE, kind).await;
        let batches = Batches::default();
        let consumer = client
            .consumer(QUEUE)
            .dlx(true)
            .batch(3)
            .batch_wait(FOR_ALL);
        let running = start_each(consumer, &batches, |_| Ok(())).await;
        publish(&amqp, &["a", "b", "c", "d", "e", "f"]).await;
        stats(&running, "all are acknowledged", |stats| stats.acked == 6).await;
        assert_eq!(batches.sizes(), [3, 3]);
        settled(&vhost, &amqp, &running, QUEUE).await;
        running.close().await;
    })
    .await;
}

#[tokio::test]
async fn an_incomplete_batch_is_handled_after_its_wait() {
    on_queue_types(|broker, kind| async move {
        let vhost = broker.vhost().await;
        let (client, amqp) = (connect_with(&vhost, kind).await, vhost.connect().await);
        amqp.declare(QUEUE, kind).await;
        for wait in [Duration::ZERO, ms(30)] {
            let batches = Batches::default();
            let consumer = client.consumer(QUEUE).dlx(true).batch(100).batch_wait(wait);
            let acked = {
                let running = start_each(consumer, &batches, |_| Ok(())).await;
                let before = running.stats().acked;
                publish(&amqp, &["a", "b", "c"]).await;
                stats(&running, "all are acknowledged", |stats| {
                    stats.acked == before + 3
                })
                .await;
                running.close().await;
                batches.sizes().iter().sum::<usize>()
            };
            assert_eq!(acked, 3);
        }
    })
    .await;
}

#[tokio::test]
async fn what_goes_wrong_in_the_call_is_a_failure_of_all() {
    on_queue_types(|broker, kind| async move {
        let vhost = broker.vhost().await;
        let (client, amqp) = (connect_with(&vhost, kind).await, vhost.connect().await);
        amqp.declare(QUEUE, kind).await;
        let names = ["a", "b", "c"];
        publish(&amqp, &names).await;
        let batches = Batches::default();
        let handled = batches.clone();
        let running = client
            .consumer(QUEUE)
            .dlx(true)
            .retry(policy("fixed(50ms, retries=3)"))
            .batch(names.len())
            .batch_wait(FOR_ALL)
            .handler_timeout(ms(400))
            .start_batches(move |batch: Vec<Message>| {
                handled.note(&batch);
                async move {
                    match batch[0].attempt() {
                        1 => panic!("no luck"),
                        2 => std::future::pending().await,
                        3 => Ok(Vec::new()),
                        _ => Err("the database is down"),
                    }
                    .map(|none: Vec<Result<(), String>>| none)
                }
            })
            .await
            .unwrap();
        let parked = take(&amqp, PARKED, names.len()).await;
        settled(&vhost, &amqp, &running, QUEUE).await;
        for message in &parked {
            let id = message.id().unwrap();
            assert_eq!(batches.attempts(id), [1, 2, 3, 4], "{id}");
            let errors = batches.observations.of(id);
            let before = |attempt: usize| errors[attempt].message.last_error().map(str::to_owned);
            assert_eq!(before(0), None);
            for (attempt, said) in [
                (1, "panic: no luck"),
                (2, "longer than 400ms"),
                (3, "answered 0 of"),
            ] {
                let last = before(attempt).unwrap_or_default();
                assert!(last.contains(said), "{last}");
            }
            assert_eq!(
                message.header_text("x-retry-error").as_deref(),
                Some("the database is down")
            );
        }
        running.close().await;
    })
    .await;
}

#[tokio::test]
async fn a_drain_finishes_the_batch_that_runs_and_requeues_the_one_that_waits() {
    on_queue_types(|broker, kind| async move {
        let vhost = broker.vhost().await;
        let (client, amqp) = (connect_with(&vhost, kind).await, vhost.connect().await);
        amqp.declare(QUEUE, kind).await;
        let (batches, gate) = (Batches::default(), Arc::new(Notify::new()));
        let (handled, entered) = (batches.clone(), Arc::clone(&gate));
        let running = client
            .consumer(QUEUE)
            .dlx(true)
            .batch(2)
            .batch_wait(FOR_ALL)
            .start_batches(move |batch: Vec<Message>| {
                handled.note(&batch);
                let gate = Arc::clone(&entered);
                async move { gate.notified().await }
            })
            .await
            .unwrap();
        publish(&amqp, &["a", "b", "c"]).await;
        stats(&running, "two run and one waits", |stats| {
            stats.outstanding == 3 && batches.sizes() == [2]
        })
        .await;
        // The end is wanted first: the handler is the last one.
        tokio::join!(running.close(), async { gate.notify_one() });
        let counted = running.stats();
        assert_eq!((counted.acked, counted.requeued), (2, 1), "{counted:?}");
        let next = Batches::default();
        let consumer = client.consumer(QUEUE).dlx(true).batch(1);
        let running = start_each(consumer, &next, |_| Ok(())).await;
        let seen = next.observations.until("c", 1).await;
        assert_eq!(seen[0].message.attempt(), 1);
        settled(&vhost, &amqp, &running, QUEUE).await;
        running.close().await;
    })
    .await;
}

/// Takes one batch of this size, and ends as if the process had crashed.
async fn crash(consumer: Consumer, size: usize) {
    let subscription = consumer.batch(size).batch_wait(FOR_ALL).subscribe().await;
    let subscription: Subscription = subscription.unwrap();
    assert!(subscription.ready().await);
    assert_eq!(subscription.try_next_batch(1).len(), size);
    subscription.abandon();
    subscription.wait_closed().await.unwrap();
}

#[tokio::test]
async fn a_crash_in_a_batch_loses_nothing_and_then_each_runs_alone() {
    on_queue_types(|broker, kind| async move {
        let vhost = broker.vhost().await;
        let (client, amqp) = (connect_with(&vhost, kind).await, vhost.connect().await);
        amqp.declare(QUEUE, kind).await;
        let names = ["a", "b", "c", "d"];
        publish(&amqp, &names).await;
        let consumer = || client.consumer(QUEUE).dlx(true);
        // As many as make a suspect.
        for _ in 0..3 {
            crash(consumer(), names.len()).await;
        }
        let batches = Batches::default();
        let running = start_each(
            consumer().batch(names.len()).batch_wait(ms(50)),
            &batches,
            |_| Ok(()),
        )
        .await;
        for name in names {
            batches.observations.until(name, 1).await;
        }
        settled(&vhost, &amqp, &running, QUEUE).await;
        for name in names {
            let seen = batches.observations.of(name);
            assert_eq!(seen.len(), 1, "{name}");
            assert_eq!(seen[0].message.attempt(), 1, "a crash is no failed attempt");
        }
        assert_eq!(batches.sizes(), [1; 4], "nobody else is there at a crash");
        running.close().await;
    })
    .await;
}

#[tokio::test]
async fn a_pause_is_decided_by_the_messages_of_a_batch_and_ended_by_one() {
    on_queue_types(|broker, kind| async move {
        let vhost = broker.vhost().await;
        let (client, amqp) = (connect_with(&vhost, kind).await, vhost.connect().await);
        amqp.declare(QUEUE, kind).await;
        let names = ["a", "b", "c", "d"];
        publish(&amqp, &names).await;
        let (batches, calls) = (Batches::default(), AtomicUsize::new(0));
        let handled = batches.clone();
        let pause = Pause::default().failures(0.5).window(4).pause(ms(300));
        let running = client
            .consumer(QUEUE)
            .dlx(true)
            .retry(policy("fixed(50ms, retries=5)"))
            .pause(pause)
            .batch(names.len())
            .batch_wait(ms(200))
            .on_event(batches.observations.listener())
            .start_batches(move |batch: Vec<Message>| {
                handled.note(&batch);
                // The first messages fail, until as many have failed as decide.
                let before = calls.fetch_add(batch.len(), Ordering::SeqCst);
                std::future::ready(if before < 4 { Err("no") } else { Ok(()) })
            })
            .await
            .unwrap();
        batches.observations.event("paused").await;
        batches.observations.event("resumed").await;
        stats(&running, "all are handled", |stats| stats.acked == 4).await;
        settled(&vhost, &amqp, &running, QUEUE).await;
        running.close().await;
    })
    .await;
}

/// Also if the prefetch holds no second batch, and if consumers end meanwhile.
#[tokio::test]
async fn many_messages_in_batches_are_all_handled() {
    const MESSAGES: u64 = 500;
    const BATCH: usize = 32;
    on_queue_types(|broker, kind| async move {
        let vhost = broker.vhost().await;
        let (client, amqp) = (connect_with(&vhost, kind).await, vhost.connect().await);
        amqp.declare(QUEUE, kind).await;
        let mut handled = 0;
        for prefetch in [32, 33, 128] {
            let batches = Batches::default();
            let names = (0..MESSAGES).map(|number| number.to_string());
            let messages: Vec<_> = names.map(|name| (QUEUE, "x", id(&name))).collect();
            amqp.publish_all("", messages).await;
            for share in [MESSAGES / 3, MESSAGES] {
                let consumer = client
                    .consumer(QUEUE)
                    .dlx(true)
                    .prefetch(prefetch)
                    .concurrency(4)
                    .batch(BATCH)
                    .batch_wait(ms(20));
                let running = start_each(consumer, &batches, |message| {
                    match message.message_id().unwrap().ends_with('7') {
                        true if message.attempt() == 1 => Err(retry_after(ms(10), "once").into()),
                        _ => Ok(()),
                    }
                })
                .await;
                stats(&running, "so many are acknowledged", |stats| {
                    stats.acked >= handled + share
                })
                .await;
                running.close().await;
                if share == MESSAGES {
                    settled(&vhost, &amqp, &running, QUEUE).await;
                }
            }
            handled += MESSAGES;
            assert!(
                batches
                    .sizes()
                    .iter()
                    .all(|size| (1..=BATCH).contains(size))
            );
        }
    })
    .await;
}

#[tokio::test]
async fn a_handler_must_fit_the_option() {
    on_queue_types(|broker, kind| async move {
        let vhost = broker.vhost().await;
        let client = connect_with(&vhost, kind).await;
        let single = |_: Message| std::future::ready(Outcome::Ack);
        let batch = |_: Vec<Message>| std::future::ready(Outcome::Ack);
        for (refused, said) in [
            (
                client.consumer(QUEUE).batch(2).start(single).await,
                "use `start_batches`",
            ),
            (
                client.consumer(QUEUE).start_batches(batch).await,
                "set `batch`",
            ),
        ] {
            let error = refused.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidOption);
            assert!(error.to_string().contains(said), "{error}");
        }
        let error = client
            .consumer(QUEUE)
            .batch(2)
            .messages()
            .await
            .unwrap_err();
        assert!(error.to_string().contains("`messages`"), "{error}");
    })
    .await;
}
