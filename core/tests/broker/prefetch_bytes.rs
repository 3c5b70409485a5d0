//! `prefetch_bytes`: how many bytes of bodies a consumer holds.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use retryrmq::{Client, Consumer, Message, Outcome, RunningConsumer};
use retryrmq_harness::{Amqp, Broker, QueueType, eventually, on_brokers_where, on_queue_types};
use tokio::sync::watch;

use crate::fixture::{
    DEADLINE, Observations, PARKED, QUEUE, connect_with, id, policy, settled, start, stats,
};

const MIB: usize = 1 << 20;
const LIMIT: usize = 8 * MIB;

/// What handlers have begun with. They wait while the gate is closed.
#[derive(Clone)]
struct Handlers {
    gate: watch::Sender<bool>,
    /// The attempts of each message.
    attempts: Arc<Mutex<BTreeMap<String, Vec<u32>>>>,
    running: Arc<AtomicUsize>,
    most_running: Arc<AtomicUsize>,
}

impl Handlers {
    fn new(is_open: bool) -> Self {
        Self {
            gate: watch::channel(is_open).0,
            attempts: Arc::default(),
            running: Arc::default(),
            most_running: Arc::default(),
        }
    }

    async fn start(&self, consumer: Consumer) -> RunningConsumer {
        let all = self.clone();
        let handler = move |message: Message| {
            let id = message.message_id().unwrap_or_default().to_owned();
            let mut attempts = all.attempts.lock().unwrap();
            attempts.entry(id).or_default().push(message.attempt());
            drop(attempts);
            let running = all.running.fetch_add(1, Ordering::SeqCst) + 1;
            all.most_running.fetch_max(running, Ordering::SeqCst);
            let (mut gate, running) = (all.gate.subscribe(), Arc::clone(&all.running));
            async move {
                let ended = gate.wait_for(|open| *open).await.map(drop);
                running.fetch_sub(1, Ordering::SeqCst);
                ended
            }
        };
        consumer.start(handler).await.unwrap()
    }

    fn begun(&self) -> usize {
        self.attempts.lock().unwrap().len()
    }

    async fn until(&self, what: &str, begun: usize) {
        eventually(DEADLINE, what, || async {
            match self.begun() {
                now if now >= begun => Ok(()),
                now => Err(format!("{now} have begun")),
            }
        })
        .await;
    }

    /// Each message was handled once, at its first attempt.
    fn assert_once(&self, messages: usize) {
        let attempts = self.attempts.lock().unwrap();
        assert_eq!(attempts.len(), messages);
        for (id, attempts) in &*attempts {
            assert_eq!(attempts[..], [1], "{id}");
        }
    }
}

async fn publish(amqp: &Amqp, kind: &str, count: usize, bytes: usize) {
    let body = vec![b'x'; bytes];
    let ids = (0..count).map(|number| id(&format!("{kind}-{number}")));
    amqp.publish_all("", ids.map(|id| (QUEUE, &body, id))).await;
}

/// Nothing was parked as the message that takes its consumers down.
async fn assert_nothing_parked(amqp: &Amqp) {
    assert_eq!(amqp.depth(PARKED).await.unwrap_or(0), 0);
}

#[tokio::test]
async fn large_messages_that_wait_for_a_handler_stay_in_their_queue() {
    const MESSAGES: usize = 60;
    const BODY: usize = 2 * MIB;
    on_queue_types(|broker, kind| async move {
        let vhost = broker.vhost().await;
        let (client, amqp) = (connect_with(&vhost, kind).await, vhost.connect().await);
        amqp.declare(QUEUE, kind).await;
        publish(&amqp, "large", MESSAGES, BODY).await;
        let handlers = Handlers::new(false);
        let consumer = client.consumer(QUEUE).dlx(true).prefetch(64);
        let consumer = consumer.concurrency(1).prefetch_bytes(LIMIT as u64);
        let running = handlers.start(consumer).await;
        let most = Arc::new(AtomicU64::new(0));
        let is_within = || {
            let held = running.stats().outstanding;
            most.fetch_max(held, Ordering::SeqCst);
            held
        };
        eventually(DEADLINE, "several are held", || async {
            match is_within() {
                held if held >= 3 => Ok(()),
                held => Err(format!("{held} are held")),
            }
        })
        .await;
        handlers.gate.send_replace(true);
        eventually(DEADLINE, "all are handled", || async {
            is_within();
            match running.stats().acked as usize {
                MESSAGES => Ok(()),
                acked => Err(format!("{acked} are handled")),
            }
        })
        .await;
        let most = most.load(Ordering::SeqCst) as usize * BODY;
        assert!(most <= LIMIT + BODY, "{kind:?}: {most} bytes");
        assert_eq!(running.stats().requeued, 0, "the first one told their size");
        handlers.assert_once(MESSAGES);
        assert_nothing_parked(&amqp).await;
        settled(&vhost, &amqp, &running, QUEUE).await;
        running.close().await;
    })
    .await;
}

#[tokio::test]
async fn messages_that_become_large_go_back_and_are_handled_once() {
    const SMALL: usize = 200;
    const LARGE: usize = 20;
    on_queue_types(|broker, kind| async move {
        let vhost = broker.vhost().await;
        let (client, amqp) = (connect_with(&vhost, kind).await, vhost.connect().await);
        amqp.declare(QUEUE, kind).await;
        publish(&amqp, "small", SMALL, 256).await;
        let handlers = Handlers::new(true);
        let consumer = client.consumer(QUEUE).dlx(true).prefetch(64);
        let consumer = consumer.concurrency(64).prefetch_bytes(LIMIT as u64);
        let running = handlers.start(consumer).await;
        stats(&running, "the small ones are handled", |stats| {
            stats.acked as usize == SMALL && stats.outstanding == 0
        })
        .await;
        handlers.gate.send_replace(false);
        publish(&amqp, "large", LARGE, 2 * MIB).await;
        handlers.until("the limit is reached", SMALL + 4).await;
        stats(&running, "the rest goes back", |stats| stats.requeued > 0).await;
        let running_now = handlers.running.load(Ordering::SeqCst);
        assert_eq!(running_now * 2 * MIB, LIMIT, "{kind:?}");
        handlers.gate.send_replace(true);
        stats(&running, "all are handled", |stats| {
            stats.acked as usize == SMALL + LARGE
        })
        .await;
        handlers.assert_once(SMALL + LARGE);
        assert_nothing_parked(&amqp).await;
        settled(&vhost, &amqp, &running, QUEUE).await;
        running.close().await;
    })
    .await;
}

#[tokio::test]
async fn a_message_larger_than_the_limit_is_handled_alone() {
    on_queue_types(|broker, kind| async move {
        let vhost = broker.vhost().await;
        let (client, amqp) = (connect_with(&vhost, kind).await, vhost.connect().await);
        amqp.declare(QUEUE, kind).await;
        publish(&amqp, "before", 20, 256).await;
        let handlers = Handlers::new(true);
        let consumer = client.consumer(QUEUE).dlx(true).concurrency(16);
        let consumer = consumer.prefetch_bytes(LIMIT as u64);
        let running = handlers.start(consumer).await;
        stats(&running, "others are handled", |stats| {
            stats.acked == 20 && stats.outstanding == 0
        })
        .await;
        handlers.gate.send_replace(false);
        handlers.most_running.store(0, Ordering::SeqCst);
        publish(&amqp, "large", 1, 12 * MIB).await;
        handlers.until("the large one runs", 21).await;
        publish(&amqp, "after", 20, 256).await;
        stats(&running, "others do not fit", |stats| stats.requeued > 0).await;
        assert_eq!(handlers.most_running.load(Ordering::SeqCst), 1, "{kind:?}");
        handlers.gate.send_replace(true);
        stats(&running, "all are handled", |stats| stats.acked == 41).await;
        handlers.assert_once(41);
        assert_nothing_parked(&amqp).await;
        settled(&vhost, &amqp, &running, QUEUE).await;
        running.close().await;
    })
    .await;
}

/// Consuming is what ends an alarm, if what waits in the queue has raised it.
#[tokio::test]
async fn in_an_alarm_large_messages_that_fail_keep_no_room_from_the_others() {
    const BAD: usize = 4;
    const GOOD: usize = 100;
    on_brokers_where(Broker::is_controllable, |broker| async move {
        for kind in QueueType::ALL {
            let node = broker.own_node(&[]).await;
            let (client, amqp) = (
                Client::connect(node.url()).await.unwrap(),
                node.connect().await,
            );
            amqp.declare(QUEUE, kind).await;
            let consumer = client
                .consumer(QUEUE)
                .dlx(true)
                .retry(policy("fixed(100ms, retries=2)"))
                .prefetch_bytes(1_000_000);
            client.apply_plan(&consumer.plan().unwrap()).await.unwrap();
            publish(&amqp, "bad", BAD, 600_000).await;
            publish(&amqp, "good", GOOD, 1_000).await;
            node.raise_memory_alarm().await;
            let observations = Observations::default();
            let running = start(consumer, &observations, |message| {
                let is_bad = message.message_id().is_some_and(|id| id.starts_with("bad"));
                match message.attempt() {
                    1 if is_bad => Err("no".into()),
                    _ => Ok(()),
                }
            })
            .await;
            let during = stats(&running, "the good ones are handled", |stats| {
                stats.acked as usize == GOOD
            })
            .await;
            assert_eq!(during.failed as usize, BAD, "{kind:?}");
            assert_eq!(during.outstanding as usize, BAD, "their copies wait");
            node.set_memory_watermark(0.4).await;
            stats(&running, "the others are as well", |stats| {
                stats.acked as usize == GOOD + BAD
            })
            .await;
            assert_eq!(observations.all().len(), GOOD + 2 * BAD, "{kind:?}");
            running.close().await;
            client.close().await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_large_message_that_is_deferred_without_dlx_keeps_no_room_from_the_others() {
    /// As long as a consumer holds it.
    const PUT_OFF: Duration = Duration::from_secs(60);
    on_queue_types(|broker, kind| async move {
        let vhost = broker.vhost().await;
        let (client, amqp) = (connect_with(&vhost, kind).await, vhost.connect().await);
        amqp.declare(QUEUE, kind).await;
        publish(&amqp, "large", 1, 900_000).await;
        publish(&amqp, "next", 3, 200_000).await;
        let consumer = client.consumer(QUEUE).prefetch_bytes(1_000_000);
        let began = Instant::now();
        let running = consumer
            .start(|message: Message| async move {
                match message.message_id() {
                    Some("large-0") => Outcome::defer(PUT_OFF),
                    _ => Outcome::Ack,
                }
            })
            .await
            .unwrap();
        stats(&running, "the others are handled", |stats| stats.acked == 3).await;
        let time = began.elapsed();
        assert!(time < PUT_OFF, "{kind:?}: after {time:?}");
        running.close().await;
        assert_eq!(amqp.depth(QUEUE).await, Some(1), "{kind:?}: the large one");
    })
    .await;
}
