//! The marker of a queue: it tells at once that a waiting or parking queue is old.

use lapin::{
    ExchangeKind,
    options::{ExchangeDeclareOptions, ExchangeDeleteOptions, QueueBindOptions},
};
use retryrmq::{Client, DeleteResult, Event, Message, RunningConsumer, park, types::FieldTable};
use retryrmq_harness::{Amqp, Permissions, Vhost, eventually, on_every_broker};

use crate::fixture::{
    DEADLINE, Observations, PARKED, QUEUE, connect, id, parked, policy, start, stats, take,
};

const WAITING_QUEUE: &str = "orders.retry.60000";
const CLOCK: &str = "orders.retry.80000000000";

fn marker() -> ExchangeDeclareOptions {
    ExchangeDeclareOptions {
        durable: true,
        internal: true,
        ..ExchangeDeclareOptions::default()
    }
}

async fn declare(
    amqp: &Amqp,
    name: &str,
    kind: ExchangeKind,
    options: ExchangeDeclareOptions,
) -> Result<(), String> {
    let channel = amqp.new_channel().await;
    channel
        .exchange_declare(name.into(), kind, options, FieldTable::default())
        .await
        .map_err(|why| why.to_string())
}

/// Whether an exchange exists.
async fn exists(amqp: &Amqp, name: &str) -> bool {
    let passive = ExchangeDeclareOptions {
        passive: true,
        ..ExchangeDeclareOptions::default()
    };
    declare(amqp, name, ExchangeKind::Fanout, passive)
        .await
        .is_ok()
}

/// Whether the marker of a queue is bound.
async fn is_marked(amqp: &Amqp, name: &str) -> bool {
    if !exists(amqp, name).await {
        return false;
    }
    let if_unused = ExchangeDeleteOptions {
        if_unused: true,
        ..ExchangeDeleteOptions::default()
    };
    let channel = amqp.new_channel().await;
    let deleted = channel.exchange_delete(name.into(), if_unused).await;
    deleted.is_err_and(|why| why.to_string().contains("in use"))
}

async fn until_marked(amqp: &Amqp, name: &str) {
    let what = format!("{name} is marked");
    // A look at a marker that is being set would delete it.
    eventually(DEADLINE, &what, || async { exists(amqp, name).await }).await;
    eventually(DEADLINE, &what, || async {
        is_marked(amqp, name).await.then_some(()).ok_or("not bound")
    })
    .await;
}

async fn parking(client: &Client, observations: &Observations) -> RunningConsumer {
    let consumer = client.consumer(QUEUE).dlx(true).retry(policy("fixed(1m)"));
    start(consumer, observations, |_: &Message| {
        Err(park("never").into())
    })
    .await
}

#[tokio::test]
async fn queues_are_marked_when_they_are_old_and_another_of_the_name_is_not() {
    on_every_broker(|broker| async move {
        let vhost = broker.vhost().await;
        let (amqp, client) = (vhost.connect().await, connect(&vhost).await);
        let observations = Observations::default();
        let running = parking(&client, &observations).await;
        for queue in [WAITING_QUEUE, PARKED] {
            until_marked(&amqp, queue).await;
        }
        assert!(
            !exists(&amqp, QUEUE).await,
            "the work queue is nobody's to mark"
        );
        running.close().await;
        // The marker is believed: it is still there after a start, and the original goes.
        let running = parking(&client, &observations).await;
        amqp.publish_with(QUEUE, "1", id("a")).await;
        assert_eq!(parked(&amqp).await.id(), Some("a"));
        stats(&running, "the original is acknowledged", |stats| {
            stats.outstanding == 0
        })
        .await;
        running.close().await;
        assert!(is_marked(&amqp, PARKED).await);
        for queue in [WAITING_QUEUE, PARKED] {
            amqp.delete(queue).await;
            assert!(
                !is_marked(&amqp, queue).await,
                "the binding goes with {queue}"
            );
        }
        let running = parking(&client, &observations).await;
        for queue in [WAITING_QUEUE, PARKED] {
            until_marked(&amqp, queue).await;
        }
        running.close().await;
        let waiting = client.waiting(QUEUE);
        let queues = waiting.queues([policy("fixed(1m)")]).await.unwrap();
        let minute = queues.iter().find(|queue| queue.name == WAITING_QUEUE);
        let deleted = waiting.delete_unused(minute.unwrap(), true).await.unwrap();
        assert_eq!(deleted, DeleteResult::Deleted);
        for queue in [WAITING_QUEUE, CLOCK] {
            assert!(!exists(&amqp, queue).await, "nothing is left of {queue}");
        }
    })
    .await;
}

/// Its broker measures the age of a queue, so a client need not live for as long.
#[tokio::test]
async fn a_queue_is_marked_at_once_and_old_when_its_clock_is_gone() {
    on_every_broker(|broker| async move {
        let clock_in = async |vhost: &Vhost| {
            let path = format!("queues/{}/{CLOCK}", vhost.name());
            broker.management().get(path).await.ok()
        };
        let observations = Observations::default();
        let mut tries = 5;
        let (vhost, client, running, found) = loop {
            let vhost = broker.vhost().await;
            let client = connect(&vhost).await;
            let mut found = None;
            // Beside each other: the start may take longer than the clock runs.
            let running = {
                let start = parking(&client, &observations);
                tokio::pin!(start);
                loop {
                    tokio::select! {
                        running = &mut start => break running,
                        seen = clock_in(&vhost) => found = found.or(seen),
                    }
                }
            };
            if found.is_none() {
                found = clock_in(&vhost).await;
            }
            if let Some(found) = found {
                break (vhost, client, running, found);
            }
            // A busy machine may look too late.
            tries -= 1;
            assert!(tries > 0, "nobody has seen the clock");
            running.close().await;
            client.close().await;
        };
        let amqp = vhost.connect().await;
        let clock = || clock_in(&vhost);
        assert_eq!(found["arguments"]["x-expires"], 2_000);
        assert_eq!(found["durable"], true);
        until_marked(&amqp, PARKED).await;
        running.close().await;
        client.close().await;
        eventually(DEADLINE, "it is gone", || async {
            clock().await.is_none().then_some(())
        })
        .await;
        // A consumer that starts then need not wait.
        let client = connect(&vhost).await;
        let running = parking(&client, &observations).await;
        amqp.publish_with(QUEUE, "1", id("a")).await;
        assert_eq!(parked(&amqp).await.id(), Some("a"));
        running.close().await;
        assert_eq!(clock().await, None, "nobody has started it again");
    })
    .await;
}

#[tokio::test]
async fn an_exchange_that_is_somebody_elses_is_left_alone() {
    on_every_broker(|broker| async move {
        let vhost = broker.vhost().await;
        let (amqp, client) = (vhost.connect().await, connect(&vhost).await);
        let theirs = ExchangeDeclareOptions {
            durable: true,
            ..ExchangeDeclareOptions::default()
        };
        // One that is bound, and one that is not.
        amqp.declare("theirs", retryrmq_harness::QueueType::Classic)
            .await;
        for name in [WAITING_QUEUE, PARKED] {
            declare(&amqp, name, ExchangeKind::Topic, theirs)
                .await
                .unwrap();
        }
        let (options, none) = (QueueBindOptions::default(), FieldTable::default());
        amqp.channel()
            .queue_bind("theirs".into(), PARKED.into(), "#".into(), options, none)
            .await
            .unwrap();
        works_as_before(&amqp, &client).await;
        for name in [WAITING_QUEUE, PARKED] {
            declare(&amqp, name, ExchangeKind::Topic, theirs)
                .await
                .unwrap_or_else(|why| panic!("{name}: {why}"));
            let error = declare(&amqp, name, ExchangeKind::Fanout, marker()).await;
            assert!(error.is_err_and(|why| why.contains("inequivalent arg")));
        }
    })
    .await;
}

#[tokio::test]
async fn without_the_permission_for_markers_everything_works_as_before() {
    on_every_broker(|broker| async move {
        let vhost = broker.vhost().await;
        let name = format!("{}-bob", vhost.name());
        let management = vhost.broker().management();
        management.create_user(&name, "pw", "").await.unwrap();
        let family = r"^orders(\.retry\.[0-9]+|\.parked|\.unreadable)?$";
        let may = Permissions {
            configure: family,
            write: r"^amq\.default$",
            read: family,
        };
        management
            .set_permissions(vhost.name(), &name, may)
            .await
            .unwrap();
        let client = Client::connect(&vhost.url_as(&name, "pw")).await.unwrap();
        let amqp = vhost.connect().await;
        works_as_before(&amqp, &client).await;
        for queue in [WAITING_QUEUE, PARKED] {
            assert!(!is_marked(&amqp, queue).await, "{queue}");
        }
        management.delete_user(&name).await.unwrap();
    })
    .await;
}

/// Two consumers one after the other park a message each, and neither loses its connection.
async fn works_as_before(amqp: &Amqp, client: &Client) {
    for message in ["a", "b"] {
        let observations = Observations::default();
        let running = parking(client, &observations).await;
        let before = running.stats().parked; // of all consumers of the queue
        amqp.publish_with(QUEUE, message, id(message)).await;
        // Acknowledged when the parking queue was old, after which its consumer tries to mark it.
        stats(&running, "the original is acknowledged", |stats| {
            stats.parked == before + 1 && stats.outstanding == 0
        })
        .await;
        let all = take(amqp, PARKED, 1).await;
        assert_eq!(all[0].id(), Some(message));
        amqp.publish_with(QUEUE, message, id("once more")).await;
        stats(&running, "it works on", |stats| {
            stats.parked == before + 2 && stats.outstanding == 0
        })
        .await;
        take(amqp, PARKED, 1).await;
        running.close().await;
        let lost = |event: &Event| matches!(event, Event::Disconnected { .. });
        assert!(
            !observations.events().iter().any(lost),
            "{:?}",
            observations.event_names()
        );
    }
}
