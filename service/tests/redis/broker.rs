//! From Redis to a real RabbitMQ, through the core.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use retryrmq::{Client, types::FieldTable};
use retryrmq_harness::{Matrix, QueueType, brokers};
use retryrmq_serve::store::{
    BrokerSink, DueDispatcher, DueMessage, MessageDraft, PublishRefused, Sink, Store, StoredMessage,
};
use tokio::sync::oneshot;

use crate::{
    message_drafts::{kept, laden, many},
    server::{eventually, on_kinds},
};

struct Parking {
    broker: BrokerSink,
    parked: Mutex<Vec<String>>,
}

impl Sink for Parking {
    async fn publish(&self, due: &DueMessage) -> Result<(), PublishRefused> {
        self.broker.publish(due).await
    }

    async fn give_up(&self, due: &DueMessage, why: &str) -> Result<(), PublishRefused> {
        let queue = &due.message.draft().routing_key;
        self.parked.lock().unwrap().push(format!("{queue}: {why}"));
        Ok(())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_due_is_in_its_queue_and_what_has_none_is_given_up() {
    on_kinds(&[], |servers| async move {
        for broker in Matrix::of_this_run().choose(
            "what_is_due_is_in_its_queue_and_what_has_none_is_given_up",
            brokers(),
        ) {
            let vhost = broker.vhost().await;
            let amqp = vhost.connect().await;
            amqp.declare("orders", QueueType::Quorum).await;
            let store = Arc::new(servers.store());
            let client = Client::connect(vhost.url()).await.unwrap();
            let sink = Arc::new(Parking {
                broker: BrokerSink::new(client),
                parked: Mutex::default(),
            });
            let laden = StoredMessage::new(MessageDraft {
                routing_key: "orders".to_owned(),
                properties: laden(),
                body: b"laden".to_vec(),
                ..MessageDraft::default()
            });
            store
                .keep(&many("orders", 500, Duration::from_millis(100)))
                .await
                .unwrap();
            store
                .keep(&[laden.unwrap(), kept("gone", "gone", Duration::ZERO)])
                .await
                .unwrap();
            let (stop, stopped) = oneshot::channel::<()>();
            let dispatcher = DueDispatcher::new(Arc::clone(&store), Arc::clone(&sink));
            let running = tokio::spawn(dispatcher.run(
                async {
                    let _ = stopped.await;
                },
                Duration::from_secs(10),
            ));
            eventually("all gone from the store", || async {
                store.count().await.unwrap().is_empty().then_some(())
            })
            .await;
            let messages = amqp.drain("orders").await;
            assert_eq!(messages.len(), 501, "each of them once");
            let found = messages
                .iter()
                .find(|message| message.body == b"laden")
                .unwrap();
            // Quorum queues of RabbitMQ 3.10 write one of their own.
            let own = |headers: &Option<FieldTable>| {
                let mut headers = headers.clone().unwrap().inner().clone();
                headers.remove("x-delivery-count");
                headers
            };
            assert_eq!(
                own(found.properties.headers()),
                own(crate::message_drafts::laden().headers())
            );
            assert_eq!(
                found.properties.message_id(),
                crate::message_drafts::laden().message_id()
            );
            let parked = sink.parked.lock().unwrap().clone();
            assert!(
                matches!(&parked[..], [one] if one.starts_with("gone: ")),
                "{parked:?}"
            );
            stop.send(()).unwrap();
            running.await.unwrap();
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_queue_that_is_full_does_not_stop_another() {
    on_kinds(&[], |servers| async move {
        for broker in
            Matrix::of_this_run().choose("a_queue_that_is_full_does_not_stop_another", brokers())
        {
            let vhost = broker.vhost().await;
            let amqp = vhost.connect().await;
            let mut arguments = retryrmq::types::FieldTable::default();
            arguments.insert(
                "x-max-length".into(),
                retryrmq::types::AMQPValue::LongInt(1),
            );
            arguments.insert(
                "x-overflow".into(),
                retryrmq::types::AMQPValue::LongString("reject-publish".into()),
            );
            amqp.declare_with("full", QueueType::Classic, arguments)
                .await;
            amqp.publish("full", "first").await;
            amqp.declare("orders", QueueType::Quorum).await;
            let store = Arc::new(servers.store());
            let client = Client::connect(vhost.url()).await.unwrap();
            let sink = Arc::new(Parking {
                broker: BrokerSink::new(client),
                parked: Mutex::default(),
            });
            store
                .keep(&many("full", 300, Duration::ZERO))
                .await
                .unwrap();
            store
                .keep(&many("orders", 300, Duration::ZERO))
                .await
                .unwrap();
            let (stop, stopped) = oneshot::channel::<()>();
            let dispatcher = DueDispatcher::new(Arc::clone(&store), sink);
            let metrics = dispatcher.dispatcher_metrics();
            let running = tokio::spawn(dispatcher.run(
                async {
                    let _ = stopped.await;
                },
                Duration::from_secs(10),
            ));
            eventually("the others are through", || async {
                let count = store.count().await.unwrap();
                (count.len() == 1 && amqp.depth("orders").await == Some(300)).then_some(())
            })
            .await;
            assert_eq!(amqp.depth("full").await, Some(1));
            // Room again, and what waits comes by itself.
            eventually("refused", || async {
                (metrics.refused() > 0).then_some(())
            })
            .await;
            amqp.drain("full").await;
            eventually("one more came", || async {
                (amqp.depth("full").await == Some(1)).then_some(())
            })
            .await;
            stop.send(()).unwrap();
            running.await.unwrap();
            for (line, _) in store.count().await.unwrap() {
                servers.cli(0, &["flushall"]);
                assert_eq!(
                    line,
                    retryrmq_serve::store::Destination::Queue("full".to_owned())
                );
            }
        }
    })
    .await;
}
