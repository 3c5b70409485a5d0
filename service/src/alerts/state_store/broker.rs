//! RabbitMQ itself: a quorum queue of one message.
//!
//! The queue has `x-max-length=1` and `x-overflow=drop-head`, so the broker puts each state in the place of the last. To read it
//! is to hold it, to publish it again, and to acknowledge the one that was held: wherever a reader dies, one of the two is there. A look
//! that only gave back would spend deliveries of the queue's limit.

use std::time::Duration;

use futures_util::future::BoxFuture;
use retryrmq::{Argument, Client, Publish, Status};
use tokio::{sync::Mutex, time::timeout};

use super::StateStore;
use crate::alerts::topology;

/// How long a state that was saved once may be on its way back from a reader that died.
const ON_ITS_WAY: Duration = Duration::from_secs(5);

/// Keeps the state in a queue. Clones share nothing but the client.
#[derive(Clone, Debug)]
pub struct BrokerStateStore {
    client: Client,
    queue: String,
    /// One reader at a time in this process.
    reading: std::sync::Arc<Mutex<()>>,
}

impl BrokerStateStore {
    /// Keeps it in this queue, which is made when it is missing. No other queue of the service has this name.
    #[must_use]
    pub fn new(client: Client, queue: impl Into<String>) -> Self {
        Self {
            client,
            queue: queue.into(),
            reading: std::sync::Arc::default(),
        }
    }

    async fn declare(&self) -> Result<Status, String> {
        let arguments = [
            ("x-queue-type", Argument::Text("quorum".to_owned())),
            ("x-max-length", Argument::Number(1)),
            // A reader that dies has spent a delivery.
            ("x-delivery-limit", Argument::Number(1_000_000_000)),
            ("x-overflow", Argument::Text("drop-head".to_owned())),
        ];
        topology::declare(&self.client, &self.queue, arguments).await
    }

    async fn read(&self) -> Result<Option<Vec<u8>>, String> {
        let _alone = self.reading.lock().await;
        if self.declare().await? == Status::Created {
            return Ok(None);
        }
        let failed = |why: retryrmq::Error| {
            format!(
                "the queue `{}` with the state of the alerts cannot be read: {why}",
                self.queue
            )
        };
        let consumer = self
            .client
            .consumer(&self.queue)
            .dlx(false)
            .prefetch(1)
            .wait(false);
        let mut messages = consumer.messages().await.map_err(failed)?;
        let first = timeout(ON_ITS_WAY, messages.next()).await;
        let value = match first {
            Ok(Some(held)) => {
                let value = held.message().body().to_vec();
                match self.write(value.clone()).await {
                    Ok(()) => {
                        held.ack();
                        Ok(Some(value))
                    }
                    Err(why) => {
                        drop(held); // gives it back
                        Err(why)
                    }
                }
            }
            Ok(None) => Err(format!("the consumer of the queue `{}` ended", self.queue)),
            Err(_) => Ok(None),
        };
        messages.close().await;
        value
    }

    async fn write(&self, value: Vec<u8>) -> Result<(), String> {
        let message = Publish::to_queue(&self.queue, value).mandatory(true);
        self.client.publish(message).await.map_err(|why| {
            format!(
                "the state of the alerts cannot be kept in the queue `{}`: {why}",
                self.queue
            )
        })
    }
}

impl StateStore for BrokerStateStore {
    fn load(&self) -> BoxFuture<'_, Result<Option<Vec<u8>>, String>> {
        Box::pin(self.read())
    }

    fn save(&self, value: Vec<u8>) -> BoxFuture<'_, Result<(), String>> {
        Box::pin(self.write(value))
    }
}
