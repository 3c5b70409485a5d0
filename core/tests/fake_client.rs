//! The client without a broker: what it keeps, whom it calls, and what it refuses as the real one does.
#![allow(missing_docs)]

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use retryrmq::{
    BasicProperties, Client, Consumer, Error, ErrorKind, FakeClient, MINUTE, Message, Outcome,
    ParkReason, Plan, Publish, SECOND, Step, Strategy, StreamFrom, Trial, park,
    types::{AMQPValue, FieldTable, ShortString},
};
use tokio::sync::Notify;

fn order(body: &str) -> Publish {
    Publish::to_queue("orders", body)
}

fn orders(client: &Client) -> Consumer {
    let policy = "fixed(1m, retries=3)".parse().unwrap();
    client.consumer("orders").dlx(true).retry(policy)
}

fn table(name: &str, value: AMQPValue) -> FieldTable {
    let mut table = FieldTable::default();
    table.insert(ShortString::from(name), value);
    table
}

fn steps(trials: &[Trial]) -> Vec<&'static str> {
    let steps = trials.iter().map(|trial| match trial.step {
        Step::Acked => "acked",
        Step::Retried { .. } => "retried",
        Step::Deferred { .. } => "deferred",
        Step::Parked { .. } => "parked",
        Step::Rejected => "rejected",
        _ => "other",
    });
    steps.collect()
}

/// Fails the first attempt.
async fn second_time_lucky(message: Message) -> Result<(), &'static str> {
    match message.attempt() {
        1 => Err("the warehouse does not answer"),
        _ => Ok(()),
    }
}

#[tokio::test]
async fn it_keeps_what_is_published() {
    let fake = FakeClient::new();
    let rmq = fake.client();
    let headers = table("tenant", AMQPValue::LongString("a".into()));
    for message in [
        order("{\"id\": 7}").headers(headers).message_id("m-7"),
        Publish::to_exchange("events", "created", [0]).mandatory(false),
        order("later").delay(5 * MINUTE).timeout(SECOND),
        order("now").delay(Duration::ZERO),
    ] {
        rmq.publish(message).await.unwrap();
    }
    let published = fake.published();
    let delays: Vec<_> = published.iter().map(|one| one.delay).collect();
    assert_eq!(delays, [None, None, Some(5 * MINUTE), None]);
    let messages: Vec<_> = published.iter().map(|one| &one.message).collect();
    let [first, event, later, _] = messages[..] else {
        panic!("{messages:?}")
    };
    assert_eq!((first.exchange(), first.routing_key()), ("", "orders"));
    assert_eq!(
        (first.queue(), first.body()),
        ("orders", &b"{\"id\": 7}"[..])
    );
    assert_eq!((first.message_id(), first.attempt()), (Some("m-7"), 1));
    assert!(first.headers().unwrap().contains_key("tenant"));
    assert_eq!(*first.properties().delivery_mode(), Some(2));
    assert_eq!(
        (event.exchange(), event.routing_key()),
        ("events", "created")
    );
    assert_eq!((event.queue(), event.body()), ("", &[0][..]));
    assert_eq!(
        (later.routing_key(), later.body()),
        ("orders", &b"later"[..])
    );
}

/// Nothing of it is spawned, and nothing needs a timer.
#[test]
fn it_needs_no_runtime() {
    let fake = FakeClient::default();
    let client = fake.client();
    assert!(client.health().is_ok() && client.end().is_none());
    assert_eq!(client.server().product, "fake");
    let text = client.metrics_text();
    assert!(
        text.contains("connection_up{purpose=\"publish\"} 1"),
        "{text}"
    );
    assert!(format!("{fake:?} {client:?}").contains("FakeClient"));
}

#[tokio::test]
async fn it_refuses_what_a_client_refuses() {
    let fake = FakeClient::new();
    fake.set_publish_error(Some(ErrorKind::Unreachable)); // is not asked for
    let long = "q".repeat(256);
    let large = AMQPValue::LongString("x".repeat(130_000).into());
    let expires = BasicProperties::default().with_expiration("1000".into());
    let replies = BasicProperties::default().with_reply_to("amq.rabbitmq.reply-to".into());
    let event = Publish::to_exchange("events", "created", "7");
    for (message, kind) in [
        (Publish::to_queue(&long, "7"), ErrorKind::TooLarge),
        (Publish::to_exchange(&long, "a", "7"), ErrorKind::TooLarge),
        (order("7").headers(table("a", large)), ErrorKind::TooLarge),
        (
            Publish::to_queue("q".repeat(250), "7").delay(SECOND),
            ErrorKind::TooLarge,
        ),
        (
            order("7").headers(table("a", AMQPValue::Double(f64::NAN))),
            ErrorKind::InvalidOption,
        ),
        (order("7").timeout(Duration::ZERO), ErrorKind::InvalidOption),
        (order("7").properties(replies), ErrorKind::InvalidOption),
        (
            order("7").properties(expires).delay(SECOND),
            ErrorKind::InvalidOption,
        ),
        (event.delay(SECOND), ErrorKind::InvalidOption),
    ] {
        let error = fake.client().publish(message.clone()).await.unwrap_err();
        assert_eq!(error.kind(), kind, "{message:?}: {error}");
    }
    assert!(fake.published().is_empty());
}

#[tokio::test]
async fn every_publish_fails_with_the_error_that_was_set() {
    let fake = FakeClient::new();
    let rmq = fake.client();
    fake.set_publish_error(Some(ErrorKind::Unreachable));
    for message in [
        order("7"),
        order("7").delay(SECOND),
        order("7").timeout(SECOND),
    ] {
        let error = rmq.publish(message).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unreachable);
        assert!(error.to_string().contains("unreachable"), "{error}");
    }
    assert_eq!(rmq.health().unwrap_err().kind(), ErrorKind::Unreachable);
    assert!(
        rmq.metrics_text()
            .contains("connection_up{purpose=\"consume\"} 0")
    );
    fake.set_publish_error(None);
    assert!(rmq.health().is_ok());
    rmq.publish(order("7")).await.unwrap();
    assert_eq!(fake.published().len(), 1);
}

#[tokio::test]
async fn a_handler_gets_what_is_delivered_with_its_real_policy() {
    let fake = FakeClient::new();
    let rmq = fake.client();
    let running = orders(&rmq)
        .start(move |message: Message| {
            let rmq = rmq.clone();
            async move {
                if message.attempt() == 1 {
                    return Err("the warehouse does not answer".to_owned());
                }
                let shipped = Publish::to_queue("shipped", message.body()).delay(MINUTE);
                rmq.publish(shipped).await.map_err(|why| why.to_string())
            }
        })
        .await
        .unwrap();
    let tenant = table("tenant", AMQPValue::LongString("a".into()));
    let trials = fake.deliver("orders", order("7").headers(tenant)).await;
    let trials = trials.unwrap();
    assert_eq!(steps(&trials), ["retried", "acked"]);
    assert_eq!(trials[1].at, MINUTE);
    let second = &trials[1].message;
    assert!(second.headers().unwrap().contains_key("tenant"));
    assert_eq!(second.last_error(), Some("the warehouse does not answer"));
    let published = fake.published();
    assert_eq!(published[0].message.body(), b"7");
    assert_eq!(published[0].delay, Some(MINUTE));
    let stats = running.stats();
    assert_eq!((stats.delivered, stats.failed), (2, 1));
    assert_eq!((stats.retried, stats.acked, stats.outstanding), (1, 1, 0));
    let metrics = fake.client().metrics_text();
    let counted = "retryrmq_messages_retried_total{queue=\"orders\"} 1";
    assert!(metrics.contains(counted), "{metrics}");
    let taken = "retryrmq_handler_seconds_count{queue=\"orders\"} 2";
    assert!(metrics.contains(taken), "{metrics}");
}

#[tokio::test]
async fn a_message_is_parked_with_its_record() {
    let fake = FakeClient::new();
    let handler = |message: Message| async move {
        match message.body() {
            b"7" => Err(park("no such customer")),
            _ => panic!("as it is meant"),
        }
    };
    orders(&fake.client()).start(handler).await.unwrap();
    for (body, attempts, why, error) in [
        ("7", 1, ParkReason::Requested, "no such customer"),
        ("8", 4, ParkReason::Exhausted, "panic: as it is meant"),
    ] {
        let trials = fake.deliver("orders", order(body)).await.unwrap();
        assert_eq!(trials.len(), attempts);
        let Step::Parked {
            reason, message, ..
        } = &trials[attempts - 1].step
        else {
            panic!("{trials:?}")
        };
        assert_eq!((*reason, message.last_error()), (why, Some(error)));
    }
    assert!(fake.published().is_empty());
}

#[tokio::test]
async fn without_dlx_a_failure_is_rejected() {
    let fake = FakeClient::new();
    let consumer = fake.client().consumer("orders").dlx(false);
    consumer.start(second_time_lucky).await.unwrap();
    let trials = fake.deliver("orders", order("7")).await.unwrap();
    assert_eq!(steps(&trials), ["rejected"]);
}

#[tokio::test(start_paused = true)]
async fn a_handler_has_its_timeout() {
    let fake = FakeClient::new();
    let consumer = orders(&fake.client()).handler_timeout(SECOND);
    let handler = |message: Message| async move {
        if message.attempt() == 1 {
            std::future::pending::<()>().await;
        }
        Ok::<(), &str>(())
    };
    consumer.start(handler).await.unwrap();
    let trials = fake.deliver("orders", order("7")).await.unwrap();
    assert_eq!(steps(&trials), ["retried", "acked"]);
    let error = trials[1].message.last_error();
    assert_eq!(error, Some("the handler took longer than 1s"));
}

#[tokio::test]
async fn batches_get_each_message_at_once() {
    let fake = FakeClient::new();
    let consumer = orders(&fake.client()).batch(100).batch_wait(MINUTE);
    let handler = |batch: Vec<Message>| async move {
        assert_eq!(batch.len(), 1);
        second_time_lucky(batch[0].clone()).await
    };
    consumer.start_batches(handler).await.unwrap();
    let (one, other) = tokio::join!(
        fake.deliver("orders", order("7")),
        fake.deliver("orders", order("8")),
    );
    assert_eq!(steps(&one.unwrap()), ["retried", "acked"]);
    assert_eq!(steps(&other.unwrap()), ["retried", "acked"]);
}

#[tokio::test]
async fn whoever_runs_no_handlers_gets_the_messages_too() {
    let fake = FakeClient::new();
    let mut messages = orders(&fake.client()).messages().await.unwrap();
    let answers = async {
        drop(messages.next().await); // without an answer: a failure
        messages.next().await.unwrap().ack();
        messages.close().await;
    };
    let (trials, ()) = tokio::join!(fake.deliver("orders", order("7")), answers);
    assert_eq!(steps(&trials.unwrap()), ["retried", "acked"]);

    let subscription = orders(&fake.client()).subscribe().await.unwrap();
    let settles = async {
        assert!(subscription.ready().await);
        // Given back without having been started: it comes again, and nothing has happened.
        let first = subscription.try_next_batch(9);
        subscription.give_back([first[0].token]);
        assert!(subscription.ready().await);
        let again = subscription.try_next_batch(9);
        assert_eq!(again[0].message.attempt(), 1);
        assert_ne!(again[0].token, first[0].token);
        subscription.settle([(again[0].token, Outcome::Ack)]);
        subscription.settle([(first[0].token, Outcome::Ack)]);
    };
    let (trials, ()) = tokio::join!(fake.deliver("orders", order("7")), settles);
    assert_eq!(steps(&trials.unwrap()), ["acked"]);
    subscription.close();
    subscription.wait_closed().await.unwrap();
    assert!(!subscription.ready().await);
    assert_eq!(subscription.stats().stale, 1);
}

/// `run` returns only at the end, so a test starts it beside itself.
#[tokio::test]
async fn a_delivery_waits_for_the_consumer() {
    let fake = FakeClient::new();
    let rmq = fake.client();
    let deliver = async {
        let trials = fake.deliver("orders", order("7")).await.unwrap();
        rmq.close().await;
        trials
    };
    let (trials, ended) = tokio::join!(deliver, orders(&rmq).run(second_time_lucky));
    assert_eq!(steps(&trials), ["retried", "acked"]);
    ended.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_queue_without_a_consumer_is_an_error() {
    let fake = FakeClient::new();
    let told = async || {
        let error = fake.deliver("orderz", order("7")).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidOption);
        error.to_string()
    };
    let none = "the fake client has no consumer of `orderz`; it has none";
    assert_eq!(told().await, none);
    let running = orders(&fake.client()).start(second_time_lucky).await;
    assert!(told().await.ends_with("it has `orders`"));
    running.unwrap().close().await;
    assert_eq!(told().await, none);
}

#[tokio::test]
async fn many_deliveries_at_a_time_are_independent() {
    let fake = FakeClient::new();
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&calls);
    let consumer = orders(&fake.client()).concurrency(3);
    let handler = move |message: Message| {
        counted.fetch_add(1, Ordering::SeqCst);
        async move {
            tokio::task::yield_now().await;
            second_time_lucky(message).await
        }
    };
    let running = consumer.start(handler).await.unwrap();
    let deliveries: Vec<_> = (0..50)
        .map(|number: u32| {
            let fake = fake.clone();
            tokio::spawn(async move {
                let body = number.to_string();
                let trials = fake.deliver("orders", order(&body)).await.unwrap();
                assert_eq!(steps(&trials), ["retried", "acked"]);
                assert!(
                    trials
                        .iter()
                        .all(|trial| trial.message.body() == body.as_bytes())
                );
            })
        })
        .collect();
    for delivery in deliveries {
        delivery.await.unwrap();
    }
    assert_eq!(calls.load(Ordering::SeqCst), 100);
    assert_eq!(running.stats().outstanding, 0);
}

/// A handler that has begun, and ends when it is told to.
async fn held(consumer: Consumer) -> (retryrmq::RunningConsumer, Arc<Notify>, Arc<Notify>) {
    let (begun, go_on) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (tell, wait) = (Arc::clone(&begun), Arc::clone(&go_on));
    let handler = move |_: Message| {
        let (tell, wait) = (Arc::clone(&tell), Arc::clone(&wait));
        async move {
            tell.notify_one();
            wait.notified().await;
            Ok::<(), Error>(())
        }
    };
    (consumer.start(handler).await.unwrap(), begun, go_on)
}

#[tokio::test]
async fn closing_waits_for_the_running_attempt_and_takes_no_other() {
    let fake = FakeClient::new();
    let (running, begun, go_on) = held(orders(&fake.client()).concurrency(1)).await;
    let closes = async {
        begun.notified().await;
        // The only worker is busy, so nobody begins this one.
        let waits = fake.deliver("orders", order("8"));
        let close = async {
            tokio::task::yield_now().await;
            let mut closed = std::pin::pin!(running.close());
            let early = tokio::time::timeout(Duration::from_millis(50), &mut closed).await;
            assert!(early.is_err(), "a handler still runs");
            go_on.notify_one();
            closed.await;
        };
        let (waited, ()) = tokio::join!(waits, close);
        let error = waited.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Closed);
        assert!(error.to_string().contains("`orders`"), "{error}");
    };
    let (trials, ()) = tokio::join!(fake.deliver("orders", order("7")), closes);
    assert_eq!(steps(&trials.unwrap()), ["acked"]);
    let stats = running.stats();
    assert_eq!((stats.acked, stats.outstanding), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn closing_waits_only_for_the_drain_timeout() {
    let fake = FakeClient::new();
    let consumer = orders(&fake.client()).drain_timeout(3 * SECOND);
    let (running, begun, _) = held(consumer).await;
    let closes = async {
        begun.notified().await;
        let asked = tokio::time::Instant::now();
        running.close().await;
        assert_eq!(asked.elapsed().as_secs(), 3);
    };
    let (delivered, ()) = tokio::join!(fake.deliver("orders", order("7")), closes);
    assert_eq!(delivered.unwrap_err().kind(), ErrorKind::Closed);
    assert_eq!(running.stats().outstanding, 0);
}

#[tokio::test]
async fn a_delivery_that_nobody_waits_for_counts_no_longer() {
    let fake = FakeClient::new();
    let (running, begun, go_on) = held(orders(&fake.client())).await;
    tokio::select! {
        _ = fake.deliver("orders", order("7")) => panic!("the handler still runs"),
        () = begun.notified() => {}
    }
    assert_eq!(running.stats().outstanding, 0);
    go_on.notify_one();
    running.close().await;
    assert_eq!(running.stats().acked, 0);
}

#[tokio::test]
async fn nothing_goes_on_after_the_client_is_closed() {
    let fake = FakeClient::new();
    let rmq = fake.client();
    let (running, begun, _) = held(orders(&rmq)).await;
    let closes = async {
        begun.notified().await;
        rmq.close().await;
        running.closed().await.unwrap(); // without waiting for the handler
    };
    let (delivered, ()) = tokio::join!(fake.deliver("orders", order("7")), closes);
    for error in [
        delivered.unwrap_err(),
        rmq.publish(order("7")).await.unwrap_err(),
        rmq.health().unwrap_err(),
        fake.deliver("orders", order("7")).await.unwrap_err(),
        orders(&rmq).start(second_time_lucky).await.unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::Closed, "{error}");
    }
    assert!(fake.published().is_empty() && rmq.end().is_none());
}

#[tokio::test]
async fn options_of_consumers_are_checked() {
    let client = FakeClient::new().client();
    let policy = || "fixed(1s)".parse().unwrap();
    for (consumer, kind) in [
        (
            client.consumer("orders").retry(policy()),
            ErrorKind::InvalidOption,
        ),
        (client.consumer("orders.parked"), ErrorKind::InvalidOption),
        (client.consumer("q".repeat(256)), ErrorKind::TooLarge),
        (
            orders(&client).strategy(Strategy::Service),
            ErrorKind::StrategyRefused,
        ),
        (orders(&client).batch(10), ErrorKind::InvalidOption),
    ] {
        let error = consumer.start(second_time_lucky).await.unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
    }
}

#[tokio::test]
async fn what_needs_a_broker_says_so() {
    let client = FakeClient::new().client();
    let plan: Plan = orders(&client).plan().unwrap();
    for error in [
        client.parked("orders").browse().await.unwrap_err(),
        client.apply_plan(&plan).await.unwrap_err(),
        client.compare_plan(&plan).await.unwrap_err(),
        client.retrier("orders").unwrap_err(),
        client.queue_totals(["orders"]).await.unwrap_err(),
        client
            .read_stream("log", StreamFrom::After(0))
            .await
            .unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::Closed);
        let text = error.to_string();
        assert_eq!(text, "this needs a broker, and a fake client has none");
    }
}
