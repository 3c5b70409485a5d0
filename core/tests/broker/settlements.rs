//! The boundary under the handlers: tokens, the pause, and the end.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use retryrmq::{Failure, Message, Outcome, Pause, Subscription, Token};
use retryrmq_harness::{QueueType, eventually, on_brokers, on_queue_types};

use crate::fixture::{
    DEADLINE, Observations, QUEUE, connect, connect_with, id, ms, policy, start, stats,
};

async fn next(subscription: &Subscription) -> retryrmq::Delivery {
    assert!(subscription.ready().await);
    subscription.try_next_batch(1).remove(0)
}

#[tokio::test]
async fn settling_what_is_settled_is_counted_and_does_nothing() {
    on_queue_types(|broker, kind| async move {
        let vhost = broker.vhost().await;
        let (client, amqp) = (connect_with(&vhost, kind).await, vhost.connect().await);
        amqp.declare(QUEUE, kind).await;
        let subscription = client.consumer(QUEUE).dlx(true).subscribe().await.unwrap();
        for number in 0..3 {
            amqp.publish_with(QUEUE, "x", id(&number.to_string())).await;
        }
        for _ in 0..3 {
            let token = next(&subscription).await.token;
            assert!(token.to_u64() < 1 << 53);
            subscription.settle([(token, Outcome::Ack), (token, Outcome::Ack)]);
            subscription.settle([
                (token, Outcome::Defer { delay: ms(1) }),
                (Token::from_u64(u64::MAX), Outcome::Ack),
                (Token::from_u64(0), Outcome::Ack),
            ]);
        }
        eventually(DEADLINE, "stale settlements are counted", || async {
            let stats = subscription.stats();
            if (stats.acked, stats.stale, stats.outstanding) == (3, 12, 0) {
                Ok(())
            } else {
                Err(format!("{stats:?}"))
            }
        })
        .await;
        assert_eq!(subscription.stats().reconnects, 0, "no channel was closed");
        // After the end everything is stale as well, and nothing hangs.
        amqp.publish_with(QUEUE, "x", id("held")).await;
        let held = next(&subscription).await;
        subscription.settle([(held.token, Outcome::Ack)]);
        subscription.close();
        subscription.wait_closed().await.unwrap();
        subscription.settle([(held.token, Outcome::Ack)]);
        assert!(!subscription.ready().await);
        assert_eq!(amqp.depth(QUEUE).await, Some(0));
    })
    .await;
}

#[tokio::test]
async fn when_most_fail_the_consumer_pauses_and_a_probe_ends_it() {
    on_queue_types(|broker, kind| async move {
        let vhost = broker.vhost().await;
        let (client, amqp) = (connect_with(&vhost, kind).await, vhost.connect().await);
        amqp.declare(QUEUE, kind).await;
        let observations = Observations::default();
        let broken = Arc::new(AtomicBool::new(true));
        let state = Arc::clone(&broken);
        let pause = Pause::default().failures(0.5).window(4).pause(ms(400));
        let consumer = client
            .consumer(QUEUE)
            .dlx(true)
            .pause(pause)
            .prefetch(2)
            .retry(policy("fixed(50ms, retries=100)"));
        let running = start(consumer, &observations, move |_| {
            if state.load(Ordering::SeqCst) {
                Err("the database is down".into())
            } else {
                Ok(())
            }
        })
        .await;
        for number in 0..20 {
            amqp.publish_with(QUEUE, "x", id(&number.to_string())).await;
        }
        observations.event("paused").await;
        broken.store(false, Ordering::SeqCst);
        observations.event("resumed").await;
        let stats = stats(&running, "all are handled", |stats| stats.acked == 20).await;
        assert!(stats.pauses >= 1);
        assert_eq!(stats.parked, 0);
    })
    .await;
}

#[tokio::test]
async fn a_pause_leaves_handlers_nothing_to_begin_with() {
    on_queue_types(|broker, kind| async move {
        let vhost = broker.vhost().await;
        let (client, amqp) = (connect_with(&vhost, kind).await, vhost.connect().await);
        amqp.declare(QUEUE, kind).await;
        for number in 0..100 {
            amqp.publish_with(QUEUE, "x", id(&number.to_string())).await;
        }
        let observations = Observations::default();
        let pause = Pause::default()
            .failures(0.5)
            .window(4)
            .pause(Duration::from_secs(60));
        let subscription = client
            .consumer(QUEUE)
            .dlx(true)
            .pause(pause)
            .prefetch(100)
            .retry(policy("fixed(1h)"))
            .on_event(observations.listener())
            .subscribe()
            .await
            .unwrap();
        let mut failing = Vec::new();
        while failing.len() < 4 {
            subscription.ready().await;
            failing.extend(subscription.try_next_batch(4 - failing.len()));
        }
        subscription.settle(failing.iter().map(|delivery| {
            let failure = Failure::new("the database is down");
            let delay = None;
            (delivery.token, Outcome::Retry { failure, delay })
        }));
        while !observations.event_names().contains(&"paused") {
            tokio::task::yield_now().await;
        }
        assert_eq!(subscription.try_next_batch(100).len(), 0);
        subscription.close();
        subscription.wait_closed().await.unwrap();
        eventually(DEADLINE, "the others are back in the queue", || async {
            amqp.depth(QUEUE).await == Some(96)
        })
        .await;
    })
    .await;
}

#[tokio::test]
async fn closing_lets_handlers_finish_and_gives_the_rest_back() {
    on_brokers(|broker| async move {
        let vhost = broker.vhost().await;
        let (client, amqp) = (connect(&vhost).await, vhost.connect().await);
        amqp.declare(QUEUE, QueueType::Quorum).await;
        let observations = Observations::default();
        let seen = observations.clone();
        let gate = Arc::new(tokio::sync::Semaphore::new(0));
        let opened = Arc::clone(&gate);
        let running = client
            .consumer(QUEUE)
            .dlx(true)
            .concurrency(2)
            .prefetch(10)
            .start(move |message: Message| {
                seen.note(&message);
                let gate = Arc::clone(&opened);
                async move { gate.acquire().await.map(drop) }
            })
            .await
            .unwrap();
        for number in 0..10 {
            amqp.publish_with(QUEUE, "x", id(&number.to_string())).await;
        }
        stats(
            &running,
            "two handlers run, one at least waits its turn",
            |stats| stats.delivered >= 3 && observations.all().len() == 2,
        )
        .await;
        let closing = tokio::spawn({
            let running = running.clone();
            async move { running.close().await }
        });
        eventually(DEADLINE, "what no handler had begun is back", || async {
            amqp.depth(QUEUE).await == Some(8)
        })
        .await;
        gate.add_permits(100);
        closing.await.unwrap();
        assert_eq!(observations.all().len(), 2);
        assert_eq!(running.stats().acked, 2);
        assert_eq!(amqp.depth(QUEUE).await, Some(8));
    })
    .await;
}

#[tokio::test]
async fn a_message_that_waits_through_many_ends_is_not_blamed_for_them() {
    on_queue_types(|broker, kind| async move {
        let vhost = broker.vhost().await;
        let (client, amqp) = (connect_with(&vhost, kind).await, vhost.connect().await);
        amqp.declare(QUEUE, kind).await;
        let observations = Observations::default();
        let consumer = || {
            let events = observations.listener();
            let consumer = client.consumer(QUEUE).dlx(true).prefetch(8);
            consumer
                .retry(policy("fixed(50ms, retries=1)"))
                .on_event(events)
        };
        for name in ["a", "b", "c"] {
            amqp.publish_with(QUEUE, name, id(name)).await;
        }
        for drain in 0..14 {
            let subscription = consumer().subscribe().await.unwrap();
            let mut taken = Vec::new();
            // Some ends come when the messages are in the inbox, some when they were taken and no handler has begun.
            eventually(DEADLINE, "all three are here", || {
                if drain % 2 == 0 {
                    taken.extend(subscription.try_next_batch(8));
                }
                let outstanding = subscription.stats().outstanding;
                let here = drain % 2 == 1 || taken.len() == 3;
                async move { here && outstanding == 3 }
            })
            .await;
            subscription.close();
            subscription.give_back(taken.iter().map(|delivery| delivery.token));
            subscription.wait_closed().await.unwrap();
            eventually(DEADLINE, "all three are back", || async {
                amqp.depth(QUEUE).await == Some(3)
            })
            .await;
        }
        let running = consumer()
            .start(observations.handler(|_| Ok(())))
            .await
            .unwrap();
        for name in ["a", "b", "c"] {
            let attempt = observations.until(name, 1).await.remove(0).message;
            assert_eq!((attempt.attempt(), attempt.body()), (1, name.as_bytes()));
            assert!(attempt.state().crashes < 3, "{:?}", attempt.state());
        }
        let stats = stats(&running, "all are handled", |stats| stats.acked == 3).await;
        assert_eq!((stats.parked, stats.outstanding), (0, 0));
        running.close().await;
        assert_eq!(amqp.depth(QUEUE).await, Some(0), "none was doubled");
    })
    .await;
}

/// Does something in the middle of the consumer's own task, where that logs.
struct Amid<F>(F);

impl<F: Fn(&str) + Send + Sync + 'static> tracing::Subscriber for Amid<F> {
    fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        let mut text = String::new();
        event.record(
            &mut |_: &tracing::field::Field, value: &dyn std::fmt::Debug| {
                text += &format!("{value:?}");
            },
        );
        self.0(&text);
    }

    fn enter(&self, _: &tracing::span::Id) {}

    fn exit(&self, _: &tracing::span::Id) {}
}

/// One thread runs it all, so that its log is the consumer's, too.
#[tokio::test(flavor = "current_thread")]
async fn a_consumer_that_breaks_says_so_and_loses_nothing() {
    let breaks = |text: &str| assert!(!text.contains("; retry in "), "the log broke");
    let _log = tracing::subscriber::set_default(Amid(breaks));
    on_brokers(|broker| async move {
        let vhost = broker.vhost().await;
        let (client, amqp) = (connect(&vhost).await, vhost.connect().await);
        amqp.declare(QUEUE, QueueType::Quorum).await;
        for number in 0..5 {
            amqp.publish_with(QUEUE, "x", id(&number.to_string())).await;
        }
        let consumer = client
            .consumer(QUEUE)
            .dlx(true)
            .concurrency(1)
            .retry(policy("fixed(1h)"));
        let began = Arc::new(AtomicUsize::default());
        let counted = Arc::clone(&began);
        let error = {
            let handler = move |_| {
                counted.fetch_add(1, Ordering::SeqCst);
                async { Err::<(), _>(std::io::Error::other("no")) }
            };
            tokio::time::timeout(DEADLINE, consumer.run(handler))
                .await
                .expect("it does not go on without its task")
                .expect_err("it says that it has broken")
        };
        assert_eq!(error.kind(), retryrmq::ErrorKind::Closed);
        assert!(error.to_string().contains("the log broke"), "{error}");
        assert!(began.load(Ordering::SeqCst) >= 1);
        eventually(DEADLINE, "all are back in their queue", || async {
            let depth = amqp.depth(QUEUE).await;
            (depth == Some(5))
                .then_some(())
                .ok_or_else(|| format!("{depth:?}"))
        })
        .await;
        let metrics = client.metrics_text();
        let outstanding = metrics
            .lines()
            .find(|line| line.starts_with("retryrmq_messages_outstanding{"));
        assert!(outstanding.unwrap().ends_with(" 0"), "{outstanding:?}");
        client.close().await;
    })
    .await;
}

/// One thread runs it all, so that its log is the consumer's, too.
#[tokio::test(flavor = "current_thread")]
async fn what_is_settled_just_before_the_end_stays_settled() {
    type End = Box<dyn FnOnce() + Send>;
    let end: Arc<Mutex<Option<End>>> = Arc::default();
    let ends = Arc::clone(&end);
    let amid = move |text: &str| {
        if text.contains("dlx is off") {
            let end = ends.lock().unwrap().take();
            end.expect("only one has failed")();
        }
    };
    let _log = tracing::subscriber::set_default(Amid(amid));
    let broker = retryrmq_harness::brokers().remove(0);
    let vhost = broker.vhost().await;
    let (client, amqp) = (connect(&vhost).await, vhost.connect().await);
    amqp.declare(QUEUE, QueueType::Quorum).await;
    for name in ["fails", "handled", "left"] {
        amqp.publish_with(QUEUE, name, id(name)).await;
    }
    let subscription = client.consumer(QUEUE).prefetch(3).subscribe().await;
    let subscription = Arc::new(subscription.unwrap());
    let mut taken = Vec::new();
    while taken.len() < 3 {
        taken.push(next(&subscription).await.token);
    }
    let (own, handled, left) = (Arc::clone(&subscription), taken[1], taken[2]);
    // When the consumer has already fetched what was settled, and before it looks whether it is to end.
    *end.lock().unwrap() = Some(Box::new(move || {
        own.settle([(handled, Outcome::Ack)]);
        own.give_back([left]);
        own.abandon();
    }));
    subscription.settle([(taken[0], Outcome::retry(Failure::new("no")))]);
    subscription.wait_closed().await.unwrap();
    let stats = subscription.stats();
    assert_eq!((stats.acked, stats.requeued), (1, 1), "{stats:?}");
    eventually(DEADLINE, "the one that was given back is back", || async {
        amqp.depth(QUEUE).await == Some(1)
    })
    .await;
    client.close().await;
}
