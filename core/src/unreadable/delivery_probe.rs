//! Finds out whether RabbitMQ can deliver a message over AMQP 0-9-1, by asking for it on a connection that nobody else uses.

use std::time::Duration;

use lapin::options::{BasicGetOptions, BasicNackOptions};
use tokio::time::timeout;

use crate::{
    Client, Error, ErrorKind, Result,
    connection::{Connection, OpenChannel, Operation, ask, is_crash},
};

/// How long the broker may take for an answer.
const ANSWER: Duration = Duration::from_secs(10);

/// The end of a question for a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Delivery {
    /// It came, and was given back.
    Made,
    /// No message is ready.
    None,
    /// The broker closed the connection instead.
    Impossible,
}

/// A connection that asks for messages.
pub(super) struct DeliveryProbe {
    connection: Connection,
    channel: OpenChannel,
}

impl DeliveryProbe {
    /// # Errors
    /// Those of connecting.
    pub(super) async fn open(client: &Client) -> Result<Self> {
        let connection = Connection::open(client.addresses(), "unreadable").await?;
        let channel = connection.channel().await?;
        Ok(Self {
            connection,
            channel,
        })
    }

    /// Asks for the first message (AMQP `basic.get`), and gives it back.
    ///
    /// # Errors
    /// Those that tell nothing about the message: one consumer alone may read the queue, or it has no leader.
    pub(super) async fn get(&self, queue: &str) -> Result<Delivery> {
        let got = self
            .channel
            .lapin()
            .basic_get(queue.into(), BasicGetOptions::default());
        match timeout(ANSWER, ask(Operation::Consuming(queue), got)).await {
            Ok(Ok(Some(message))) => {
                // RabbitMQ 4.3 does not count this.
                let back = BasicNackOptions {
                    requeue: true,
                    ..BasicNackOptions::default()
                };
                ask(Operation::Consuming(queue), message.acker.nack(back)).await?;
                Ok(Delivery::Made)
            }
            Ok(Ok(None)) => Ok(Delivery::None),
            Ok(Err(error)) if is_crash(&error) => Ok(Delivery::Impossible),
            Ok(Err(error)) => Err(error),
            Err(_) => Err(Error::new(
                ErrorKind::Timeout,
                format!("the broker did not deliver a message of `{queue}` in time"),
            )),
        }
    }

    pub(super) async fn close(self) {
        self.channel.close().await;
        self.connection.close().await;
    }
}
