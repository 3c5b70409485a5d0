//! Everything a handler can answer, and what becomes of the message.

use std::io;

use retryrmq::{Limits, Message, defer, fatal, park, retry_after, types::AMQPValue};
use retryrmq_harness::on_queue_types;

use crate::fixture::{
    CLOCK, Observations, PARKED, QUEUE, connect_with, id, int, ms, parked, policy, settled, start,
    stats, text,
};

/// A future that panics when it is given up.
struct PanicsOnDrop;

impl Drop for PanicsOnDrop {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            panic!("on being dropped");
        }
    }
}

#[tokio::test]
async fn a_future_that_panics_at_its_timeout_is_a_failed_attempt_and_its_worker_goes_on() {
    on_queue_types(|broker, kind| async move {
        let vhost = broker.vhost().await;
        let (client, amqp) = (connect_with(&vhost, kind).await, vhost.connect().await);
        amqp.declare(QUEUE, kind).await;
        let observations = Observations::default();
        let handled = observations.clone();
        let running = client
            .consumer(QUEUE)
            .dlx(true)
            .retry(policy("fixed(50ms, retries=1)"))
            .concurrency(1)
            .handler_timeout(ms(200))
            .start(move |message: Message| {
                handled.note(&message);
                let hangs = message.message_id() == Some("hangs");
                async move {
                    if hangs {
                        let _brittle = PanicsOnDrop;
                        std::future::pending::<()>().await;
                    }
                    Ok::<(), io::Error>(())
                }
            })
            .await
            .unwrap();
        amqp.publish_all("", ["hangs", "next"].map(|name| (QUEUE, name, id(name))))
            .await;
        observations.until("next", 1).await;
        observations.until("hangs", 2).await;
        assert_eq!(parked(&amqp).await.text(), "hangs");
        settled(&vhost, &amqp, &running, QUEUE).await;
        running.close().await;
    })
    .await;
}

// More threads than handlers that block: one on each broker and type at a time.
#[tokio::test(flavor = "multi_thread", worker_threads = 9)]
async fn a_handler_that_blocks_its_thread_holds_up_nobody_else() {
    const OTHERS: usize = 300;
    on_queue_types(|broker, kind| async move {
        let vhost = broker.vhost().await;
        let (client, amqp) = (connect_with(&vhost, kind).await, vhost.connect().await);
        amqp.declare(QUEUE, kind).await;
        let (release, released) = std::sync::mpsc::channel::<()>();
        let released = std::sync::Mutex::new(released);
        let running = client
            .consumer(QUEUE)
            .dlx(true)
            .start(move |message: Message| {
                if message.message_id() == Some("blocks") {
                    // Without giving the thread back to the runtime, and with the last messages behind it.
                    let _ = released.lock().unwrap().recv();
                }
                std::future::ready(Ok::<(), io::Error>(()))
            })
            .await
            .unwrap();
        let names = (0..OTHERS).map(|number| match number {
            number if number + 8 == OTHERS => "blocks".to_owned(),
            number => number.to_string(),
        });
        let messages = names.map(|name| (QUEUE, "x", id(&name)));
        amqp.publish_all("", messages).await;
        stats(&running, "all others are acknowledged", |stats| {
            stats.acked == OTHERS as u64 - 1
        })
        .await;
        release.send(()).unwrap();
        settled(&vhost, &amqp, &running, QUEUE).await;
        running.close().await;
    })
    .await;
}

#[tokio::test]
async fn each_answer_has_its_consequence() {
    on_queue_types(|broker, kind| async move {
        let vhost = broker.vhost().await;
        let (client, amqp) = (connect_with(&vhost, kind).await, vhost.connect().await);
        amqp.declare(QUEUE, kind).await;
        let all = [
            "fine", "once", "later", "junk", "fatal", "deferred", "panics", "wrapped",
        ];
        let observations = Observations::default();
        let consumer = client
            .consumer(QUEUE)
            .dlx(true)
            .retry(policy("fixed(100ms, retries=2)"));
        let running = start(consumer, &observations, |message| {
            match (message.message_id().unwrap(), message.attempt()) {
                ("once", 1) => Err("no".into()),
                ("later", 1) => Err(retry_after(ms(330), "busy").into()),
                ("junk", _) => Err(park("no such customer").into()),
                ("fatal", _) => Err(fatal(io::Error::other("bad data")).into()),
                ("wrapped", _) => Err(io::Error::other(fatal("deep inside")).into()),
                ("deferred", 1) if message.state().deferrals < 2 => Err(defer(ms(120)).into()),
                ("panics", 1) => panic!("on purpose"),
                _ => Ok(()),
            }
        })
        .await;
        amqp.publish_all("", all.map(|name| (QUEUE, name, id(name))))
            .await;

        for name in ["once", "panics"] {
            let attempts = observations.until(name, 2).await;
            assert_eq!(attempts[1].message.attempt(), 2, "{name}");
        }
        let panicked = observations.of("panics").remove(1).message;
        assert!(panicked.last_error().unwrap().contains("on purpose"));
        let headers = panicked.headers().unwrap().inner();
        assert_eq!(headers.get("x-retry-error-type"), Some(&text("panic")));

        // A delay of one's own is waited on the next delay step, to the millisecond.
        let later = observations.until("later", 2).await;
        assert_eq!(later[1].message.attempt(), 2);
        assert!(
            later[1].at - later[0].at + CLOCK >= ms(330),
            "{:?}",
            later[1].at - later[0].at
        );
        let Some(AMQPValue::FieldArray(deaths)) = later[1]
            .message
            .headers()
            .unwrap()
            .inner()
            .get("x-death")
            .cloned()
        else {
            panic!("it did not wait in a queue");
        };
        let AMQPValue::FieldTable(death) = &deaths.as_slice()[0] else {
            panic!("{deaths:?}")
        };
        assert_eq!(death.inner().get("queue"), Some(&text("orders.retry.400")));
        assert_eq!(death.inner().get("original-expiration"), Some(&text("330")));

        // A deferral spends no attempt, and is counted.
        let deferred = observations.until("deferred", 3).await;
        for (times, attempt) in (0..).zip(&deferred) {
            assert_eq!(
                (attempt.message.attempt(), attempt.message.state().deferrals),
                (1, times)
            );
            assert_eq!(attempt.message.last_error(), None);
        }
        let pause = deferred[1].at - deferred[0].at;
        assert!(pause + CLOCK >= ms(120), "came after {pause:?}");

        let mut gone = crate::fixture::take(&amqp, PARKED, 3).await;
        gone.sort_by_key(|message| message.id().map(str::to_owned));
        let told: Vec<_> = gone
            .iter()
            .map(|message| {
                let header = |name: &str| message.header_text(name).unwrap_or_default();
                (
                    message.id().unwrap(),
                    header("x-retry-parked-reason"),
                    header("x-retry-error"),
                )
            })
            .collect();
        let expected = [
            ("fatal", "fatal", "bad data"),
            ("junk", "requested", "no such customer"),
            ("wrapped", "fatal", "deep inside"),
        ];
        let expected =
            expected.map(|(id, reason, error)| (id, reason.to_owned(), error.to_owned()));
        assert_eq!(told, expected);
        for name in ["fine", "junk", "fatal", "wrapped"] {
            assert_eq!(observations.of(name).len(), 1, "{name}");
        }
        let stats = stats(&running, "all is settled", |stats| stats.outstanding == 0).await;
        // fine, once, later, deferred, panics: handled in the end. Deferrals are no failures.
        assert_eq!((stats.acked, stats.failed, stats.retried), (5, 6, 3));
        assert_eq!((stats.deferred, stats.parked, stats.stale), (2, 3, 0));
        assert_eq!(stats.delivered, 8 + 3 + 2);
        settled(&vhost, &amqp, &running, QUEUE).await;
    })
    .await;
}

#[tokio::test]
async fn a_handler_that_takes_too_long_has_failed() {
    on_queue_types(|broker, kind| async move {
        let vhost = broker.vhost().await;
        let (client, amqp) = (connect_with(&vhost, kind).await, vhost.connect().await);
        amqp.declare(QUEUE, kind).await;
        amqp.publish_with(QUEUE, "1", id("a")).await;
        let observations = Observations::default();
        let seen = observations.clone();
        let _running = client
            .consumer(QUEUE)
            .dlx(true)
            .retry(policy("fixed(100ms, retries=1)"))
            .handler_timeout(ms(150))
            .start(move |message: Message| {
                seen.note(&message);
                async move {
                    if message.attempt() == 1 {
                        std::future::pending::<()>().await;
                    }
                    Ok::<(), io::Error>(())
                }
            })
            .await
            .unwrap();
        let attempts = observations.until("a", 2).await;
        let error = attempts[1].message.last_error().unwrap();
        assert!(error.contains("150ms"), "{error}");
        let headers = attempts[1].message.headers().unwrap().inner();
        assert_eq!(
            headers.get("x-retry-error-type"),
            Some(&text("HandlerTimeout"))
        );
    })
    .await;
}

#[tokio::test]
async fn a_short_delay_does_not_wait_behind_a_long_one() {
    on_queue_types(|broker, kind| async move {
        let vhost = broker.vhost().await;
        let (client, amqp) = (connect_with(&vhost, kind).await, vhost.connect().await);
        amqp.declare(QUEUE, kind).await;
        let observations = Observations::default();
        let consumer = client.consumer(QUEUE).dlx(true);
        let _running = start(consumer, &observations, |message| {
            match (message.message_id().unwrap(), message.attempt()) {
                ("long", 1) => Err(retry_after(10 * retryrmq::MINUTE, "busy").into()),
                ("short", 1) => Err(retry_after(ms(200), "busy").into()),
                _ => Ok(()),
            }
        })
        .await;
        amqp.publish_with(QUEUE, "1", id("long")).await;
        observations.event("retried").await;
        amqp.publish_with(QUEUE, "2", id("short")).await;
        observations.until("short", 2).await;
        assert_eq!(observations.of("long").len(), 1);
        assert_eq!(amqp.depth("orders.retry.630000").await, Some(1));
    })
    .await;
}

#[tokio::test]
async fn deferrals_come_to_an_end() {
    on_queue_types(|broker, kind| async move {
        let vhost = broker.vhost().await;
        let (client, amqp) = (connect_with(&vhost, kind).await, vhost.connect().await);
        amqp.declare(QUEUE, kind).await;
        amqp.publish_with(QUEUE, "1", id("a")).await;
        let observations = Observations::default();
        let limits = Limits::default().deferrals(3);
        let consumer = client.consumer(QUEUE).dlx(true).limits(limits);
        let _running = start(consumer, &observations, |_| Err(defer(ms(20)).into())).await;
        let message = parked(&amqp).await;
        assert_eq!(message.header("x-retry-deferrals"), Some(int(3)));
        assert_eq!(
            message.header_text("x-retry-parked-reason").as_deref(),
            Some("exhausted")
        );
        let error = message.header_text("x-retry-error").unwrap();
        assert!(error.contains("deferred 3 times"), "{error}");
        assert_eq!(observations.all().len(), 4);
        assert!(
            observations
                .all()
                .iter()
                .all(|attempt| attempt.message.attempt() == 1)
        );
    })
    .await;
}
