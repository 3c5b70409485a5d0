//! The ticker brings back what is due, once, and one queue in trouble does not stop another.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use retryrmq_serve::store::{
    DispatcherMetrics, DueDispatcher, DueMessage, MessageDraft, PublishRefused, Sink, Store,
    StoredMessage,
    redis::{Configuration, RedisStore},
};
use tokio::{sync::oneshot, task::JoinHandle};

use crate::{
    message_drafts::{draft, kept, many},
    server::{eventually, on_kinds},
};

const SHORTEST_LEASE: Duration = Duration::from_secs(1);

/// Takes what it is given, but for some queues: `gone` is unroutable, `full` refuses, `stuck…` never answers, `slow` takes its time,
/// `panics` does; and it counts.
#[derive(Default)]
struct Counter {
    published: Mutex<HashMap<String, u32>>,
    given_up: Mutex<Vec<String>>,
    away: Mutex<bool>,
    parks: Mutex<bool>,
}

impl Sink for Counter {
    async fn publish(&self, due: &DueMessage) -> Result<(), PublishRefused> {
        let draft = due.message.draft();
        if *self.away.lock().unwrap() {
            return Err(PublishRefused::Broker("away".to_owned()));
        }
        match draft.routing_key.as_str() {
            "gone" => return Err(PublishRefused::Hopeless("no queue takes it".to_owned())),
            "full" => return Err(PublishRefused::Line("full".to_owned())),
            key if key.starts_with("stuck") => std::future::pending().await,
            "slow" => tokio::time::sleep(Duration::from_secs(3)).await,
            "panics" => panic!("as it is meant"),
            _ => {}
        }
        let name = format!(
            "{}/{}",
            draft.routing_key,
            String::from_utf8_lossy(&draft.body)
        );
        *self.published.lock().unwrap().entry(name).or_default() += 1;
        Ok(())
    }

    async fn give_up(&self, due: &DueMessage, why: &str) -> Result<(), PublishRefused> {
        if !*self.parks.lock().unwrap() {
            return Err(PublishRefused::Line("parking is full".to_owned()));
        }
        let body = String::from_utf8_lossy(&due.message.draft().body).into_owned();
        self.given_up.lock().unwrap().push(format!("{body}: {why}"));
        Ok(())
    }
}

impl Counter {
    /// Messages of a queue that were published, and the most often that one was.
    fn of(&self, queue: &str) -> (usize, u32) {
        let published = self.published.lock().unwrap();
        let of: Vec<_> = published
            .iter()
            .filter(|(name, _)| name.starts_with(&format!("{queue}/")))
            .map(|(_, count)| *count)
            .collect();
        (of.len(), of.into_iter().max().unwrap_or(0))
    }
}

struct Running {
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
    metrics: Arc<DispatcherMetrics>,
}

impl Running {
    fn start(store: &Arc<RedisStore>, sink: &Arc<Counter>) -> Self {
        let dispatcher = DueDispatcher::new(Arc::clone(store), Arc::clone(sink));
        let metrics = dispatcher.dispatcher_metrics();
        let (stop, stopped) = oneshot::channel();
        let stopped = async {
            let _ = stopped.await;
        };
        let task = tokio::spawn(dispatcher.run(stopped, Duration::from_secs(5)));
        Self {
            stop,
            task,
            metrics,
        }
    }

    async fn stop(self) {
        self.stop.send(()).unwrap();
        self.task.await.unwrap();
    }
}

/// A message that goes to a queue behind an exchange.
fn to(routing_key: &str, body: &str) -> StoredMessage {
    let draft = MessageDraft {
        exchange: "shop".to_owned(),
        ..draft(routing_key, body, Duration::ZERO)
    };
    StoredMessage::new(draft).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_exchange_whose_queue_never_answers_does_not_stop_a_queue() {
    on_kinds(&[], |servers| async move {
        let store = Arc::new(servers.store());
        let sink = Arc::new(Counter::default());
        // Each with a routing key of its own, and more than a ticker has in hand.
        let stuck: Vec<_> = (0..3_000).map(|n| to(&format!("stuck.{n}"), "")).collect();
        store.keep(&stuck).await.unwrap();
        store.keep(&many("fine", 50, Duration::ZERO)).await.unwrap();
        let running = Running::start(&store, &sink);
        eventually("the fine ones published", || async {
            (sink.of("fine").0 == 50).then_some(())
        })
        .await;
        running.stop().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn several_exchanges_whose_queues_never_answer_do_not_stop_a_queue() {
    on_kinds(&[], |servers| async move {
        let store = Arc::new(servers.store());
        let sink = Arc::new(Counter::default());
        for exchange in 0..5 {
            let stuck = (0..800).map(|n| {
                let draft = MessageDraft {
                    exchange: format!("shop.{exchange}"),
                    ..draft(&format!("stuck.{n}"), "", Duration::ZERO)
                };
                StoredMessage::new(draft).unwrap()
            });
            store.keep(&stuck.collect::<Vec<_>>()).await.unwrap();
        }
        let running = Running::start(&store, &sink);
        eventually("as many in hand as may be", || async {
            (running.metrics.in_flight() >= 1_500).then_some(())
        })
        .await;
        tokio::time::sleep(Duration::from_secs(1)).await;
        store.keep(&many("fine", 50, Duration::ZERO)).await.unwrap();
        eventually("the fine ones published", || async {
            (sink.of("fine").0 == 50).then_some(())
        })
        .await;
        running.stop().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_queue_that_never_answers_leaves_room_for_others_also_with_large_messages() {
    on_kinds(&[], |servers| async move {
        let store = Arc::new(servers.store());
        let sink = Arc::new(Counter::default());
        for number in 0..30 {
            let body = format!("{number}{}", "x".repeat(3 << 20));
            let large = kept("stuck", &body, Duration::ZERO);
            store.keep(&[large]).await.unwrap();
        }
        let running = Running::start(&store, &sink);
        eventually("some in hand", || async {
            (running.metrics.in_flight() >= 10).then_some(())
        })
        .await;
        tokio::time::sleep(Duration::from_secs(1)).await;
        store.keep(&many("fine", 50, Duration::ZERO)).await.unwrap();
        eventually("the fine ones published", || async {
            (sink.of("fine").0 == 50).then_some(())
        })
        .await;
        running.stop().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_full_queue_behind_an_exchange_does_not_pause_its_other_routing_keys() {
    on_kinds(&[], |servers| async move {
        let store = Arc::new(servers.store());
        let sink = Arc::new(Counter::default());
        let running = Running::start(&store, &sink);
        store.keep(&[to("full", "one")]).await.unwrap();
        // After the fourth time it is paused for eight seconds.
        eventually("refused again and again", || async {
            (running.metrics.refused() >= 4).then_some(())
        })
        .await;
        let refused = running.metrics.refused();
        store.keep(&[to("orders", "two")]).await.unwrap();
        eventually("the other is published", || async {
            (sink.of("orders") == (1, 1)).then_some(())
        })
        .await;
        assert_eq!(running.metrics.refused(), refused, "meanwhile");
        running.stop().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_replicas_bring_everything_back_once() {
    on_kinds(&[], |servers| async move {
        let (one, other) = (Arc::new(servers.store()), Arc::new(servers.store()));
        let sink = Arc::new(Counter::default());
        let replicas = [Running::start(&one, &sink), Running::start(&other, &sink)];
        for part in 0..8 {
            let batch: Vec<_> = (0..500)
                .map(|number| {
                    let delay = Duration::from_millis(number % 400);
                    kept("orders", &format!("{part}-{number}"), delay)
                })
                .collect();
            one.keep(&batch).await.unwrap();
        }
        eventually("all published", || async {
            (sink.of("orders").0 == 4_000).then_some(())
        })
        .await;
        eventually("all deleted", || async {
            one.count().await.unwrap().is_empty().then_some(())
        })
        .await;
        assert_eq!(sink.of("orders"), (4_000, 1));
        let [first, second] = replicas;
        assert_eq!(
            first.metrics.published() + second.metrics.published(),
            4_000
        );
        first.stop().await;
        second.stop().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_queue_in_trouble_does_not_stop_another() {
    on_kinds(&[], |servers| async move {
        let store = Arc::new(servers.store());
        let sink = Arc::new(Counter::default());
        for queue in ["gone", "full", "stuck", "panics"] {
            store.keep(&many(queue, 700, Duration::ZERO)).await.unwrap();
        }
        store
            .keep(&many("fine", 700, Duration::ZERO))
            .await
            .unwrap();
        let running = Running::start(&store, &sink);
        eventually("the fine ones published", || async {
            (sink.of("fine").0 == 700).then_some(())
        })
        .await;
        eventually("others refused", || async {
            (running.metrics.refused() > 0).then_some(())
        })
        .await;
        // Nothing of the others is lost, not even what cannot be parked.
        eventually("what was published deleted", || async {
            let count = store.count().await.unwrap();
            (count.len() == 4 && count.iter().all(|(_, count)| *count == 700)).then_some(())
        })
        .await;
        *sink.parks.lock().unwrap() = true;
        eventually("given up", || async {
            (sink.given_up.lock().unwrap().len() == 700).then_some(())
        })
        .await;
        assert!(sink.given_up.lock().unwrap()[0].ends_with(": no queue takes it"));
        // What never answers does not hold up the end.
        running.stop().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_confirm_outlasts_the_lease() {
    on_kinds(&[], |servers| async move {
        let store = Arc::new(servers.store_of_leases(SHORTEST_LEASE));
        let sink = Arc::new(Counter::default());
        store.keep(&many("slow", 20, Duration::ZERO)).await.unwrap();
        let replicas = [
            Running::start(&store, &sink),
            Running::start(&Arc::new(servers.store_of_leases(SHORTEST_LEASE)), &sink),
        ];
        eventually("all deleted", || async {
            store.count().await.unwrap().is_empty().then_some(())
        })
        .await;
        let lapsed = |running: &Running| running.metrics.lost() + running.metrics.again();
        if replicas.iter().map(lapsed).sum::<u64>() == 0 {
            assert_eq!(sink.of("slow"), (20, 1));
        } else {
            // This machine was too busy to extend a lease of a second: twice is allowed then, and none is lost.
            assert_eq!(sink.of("slow").0, 20);
        }
        for running in replicas {
            running.stop().await;
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_published_while_redis_was_away_is_not_published_again() {
    on_kinds(&[], |servers| async move {
        // Its leases run out meanwhile.
        let store = Arc::new(servers.store_of_leases(Duration::from_secs(3)));
        let sink = Arc::new(Counter::default());
        store.keep(&many("slow", 50, Duration::ZERO)).await.unwrap();
        let running = Running::start(&store, &sink);
        eventually("claimed", || async {
            (running.metrics.in_flight() == 50).then_some(())
        })
        .await;
        servers.tell("kill", 0, &[]);
        eventually("published", || async {
            (sink.of("slow").0 == 50).then_some(())
        })
        .await;
        servers.start(0, &[]);
        eventually("deleted", || async {
            store
                .count()
                .await
                .is_ok_and(|count| count.is_empty())
                .then_some(())
        })
        .await;
        assert_eq!(sink.of("slow"), (50, 1));
        // And it goes on by itself.
        store.keep(&many("fine", 50, Duration::ZERO)).await.unwrap();
        eventually("published", || async {
            (sink.of("fine").0 == 50).then_some(())
        })
        .await;
        running.stop().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_that_is_away_is_waited_for() {
    on_kinds(&[], |servers| async move {
        let store = Arc::new(servers.store());
        let sink = Arc::new(Counter::default());
        *sink.away.lock().unwrap() = true;
        store
            .keep(&many("fine", 300, Duration::ZERO))
            .await
            .unwrap();
        let running = Running::start(&store, &sink);
        eventually("refused", || async {
            (running.metrics.refused() > 0).then_some(())
        })
        .await;
        *sink.away.lock().unwrap() = false;
        eventually("published", || async {
            (sink.of("fine") == (300, 1)).then_some(())
        })
        .await;
        running.stop().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_end_gives_out_nothing_twice() {
    on_kinds(&[], |servers| async move {
        let configuration = Configuration {
            name: "end".to_owned(),
            ..servers.configuration()
        };
        let store = Arc::new(RedisStore::new(&configuration, "/").unwrap());
        let sink = Arc::new(Counter::default());
        for _ in 0..3 {
            store
                .keep(&many("fine", 2_000, Duration::ZERO))
                .await
                .unwrap();
            let running = Running::start(&store, &sink);
            eventually("begun", || async {
                (running.metrics.published() > 0).then_some(())
            })
            .await;
            running.stop().await;
        }
        let running = Running::start(&store, &sink);
        eventually("all deleted", || async {
            store.count().await.unwrap().is_empty().then_some(())
        })
        .await;
        // Three times the same bodies: each was kept as a message of its own.
        assert_eq!(sink.of("fine"), (2_000, 3));
        assert_eq!(running.metrics.again(), 0);
        running.stop().await;
    })
    .await;
}
