//! Whole fleets: several queues of both types, consumers that reject at random, and a ledger of every message.

use std::sync::{Arc, Mutex};

use retryrmq_harness::{Ledger, QueueType, eventually, on_brokers};

use crate::fixture::{
    DEADLINE, INTAKE_PARKED, NativeConsumer, Replica, Seen, declare, id, policy, take,
};

const POLICY: &str = "[defaults]\nretry = \"list(100ms, 300ms)\"\n";

/// Queues, their types, and whether they dead-letter at least once.
const QUEUES: [(&str, QueueType, bool); 4] = [
    ("orders", QueueType::Quorum, true),
    ("billing", QueueType::Quorum, false),
    ("mail", QueueType::Classic, false),
    ("stock.eu", QueueType::Classic, false),
];

const EACH: usize = 60;

/// How many attempts a message takes: a number of its own, 1 to 4, of which the last are too many.
fn attempts_of(name: &str) -> usize {
    let sum: usize = name.bytes().map(usize::from).sum();
    sum % 4 + 1
}

#[tokio::test]
async fn nothing_is_lost_and_each_message_comes_back_to_its_own_queue_only() {
    on_brokers(|broker| async move {
        let vhost = broker.vhost().await;
        let amqp = vhost.connect().await;
        let file = policy(POLICY);
        let mut replicas = vec![
            Replica::start(&vhost, Some(file.path())).await,
            Replica::start(&vhost, Some(file.path())).await,
        ];
        let ledger = Arc::new(Ledger::new());
        let astray = Arc::<Mutex<Vec<String>>>::default();
        let mut consumers = Vec::new();
        for (queue, kind, at_least_once) in QUEUES {
            declare(&amqp, queue, kind, at_least_once).await;
            let (ledger, astray) = (Arc::clone(&ledger), Arc::clone(&astray));
            let accepts = move |message: &Seen| {
                if message.body != message.queue.as_bytes() {
                    astray.lock().unwrap().push(message.id.clone());
                }
                // By its count and not by what was seen, so that a copy that came twice ends as the other.
                let accepted = message.attempt() >= attempts_of(&message.id);
                if accepted {
                    ledger.handled(&message.id);
                }
                accepted
            };
            consumers.push(NativeConsumer::start(&vhost, queue, accepts).await);
        }
        for number in 0..EACH {
            for (queue, ..) in QUEUES {
                let name = format!("{queue}-{number}");
                amqp.publish_with(queue, queue, id(&name)).await;
                ledger.published(name);
            }
            if number == EACH / 2 {
                replicas.remove(0).kill().await;
            }
        }
        // Copies that the kill has doubled are among those that are parked, so their number says nothing.
        eventually(DEADLINE, "all are handled or parked", || async {
            let amqp = vhost.connect().await; // looking for a queue that is missing costs a channel
            for (queue, ..) in QUEUES {
                let parking = format!("{queue}.parked");
                if amqp.depth(&parking).await.is_none() {
                    continue;
                }
                for parked in amqp.drain(&parking).await {
                    assert_eq!(parked.text(), queue);
                    assert_eq!(parked.header_int("x-retry-count"), Some(2));
                    let said = |name| parked.header_text(name).unwrap_or_default();
                    assert_eq!(said("x-retry-parked-reason"), "exhausted");
                    assert_eq!(
                        said("x-retry-error"),
                        format!("a consumer of {queue} rejected it")
                    );
                    ledger.parked(parked.id().unwrap());
                }
            }
            let open = ledger.unsettled();
            if open.is_empty() {
                Ok(())
            } else {
                Err(format!("{open:?}"))
            }
        })
        .await;
        let report = ledger.assert_nothing_lost(&format!("{broker}"));
        assert_eq!(report.unrecorded, 0);
        assert_eq!(*astray.lock().unwrap(), Vec::<String>::new());
        assert_eq!(amqp.depth(INTAKE_PARKED).await, Some(0));
        let last = replicas.remove(0);
        assert!(last.end().await.success());
    })
    .await;
}

#[tokio::test]
async fn a_body_of_sixteen_mebibytes_comes_back_whole() {
    on_brokers(|broker| async move {
        let vhost = broker.vhost().await;
        let amqp = vhost.connect().await;
        let file = policy(POLICY);
        let replica = Replica::start(&vhost, Some(file.path())).await;
        declare(&amqp, "orders", QueueType::Quorum, true).await;
        let body = vec![b'x'; 16 << 20];
        amqp.publish_with("orders", &body, id("large")).await;
        let (told, mut said) = tokio::sync::mpsc::unbounded_channel();
        let seen = std::sync::atomic::AtomicUsize::new(0);
        let _native = NativeConsumer::start(&vhost, "orders", move |message| {
            let again = seen.fetch_add(1, std::sync::atomic::Ordering::Relaxed) > 0;
            if again {
                let _ = told.send((message.body.len(), message.properties.headers().clone()));
            }
            again
        })
        .await;
        let (length, headers) = tokio::time::timeout(DEADLINE, said.recv())
            .await
            .unwrap()
            .unwrap();
        assert_eq!(length, 16 << 20);
        assert!(headers.unwrap().contains_key("x-retry-count"));
        replica
            .counts(
                "retryrmq_serve_retried_total{queue=\"orders\",reason=\"rejected\"}",
                1,
            )
            .await;
        let _ = take(&amqp, "orders", 0).await;
    })
    .await;
}
