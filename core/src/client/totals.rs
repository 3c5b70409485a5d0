//! How many messages and consumers a queue has.

use crate::{
    Client, ErrorKind, Result,
    connection::{Connection, OpenChannel, QueueCount, ReadyCounter, passive_declare},
    topology::name,
};

/// How many messages and consumers a queue has (AMQP `queue.declare`, passive).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct QueueTotals {
    /// Messages ready for delivery. Messages that a consumer holds unacknowledged do not count.
    pub ready: u32,
    /// Consumers of the queue, on all connections.
    pub consumers: u32,
}

impl Client {
    /// Asks for queues by name, one after the other, on a connection of its own (AMQP `queue.declare`, passive). Creates nothing, and needs
    /// no plugin. The answers come in the order of `queues`:
    ///
    /// - `Ok(Some(…))` for a queue that exists, `Ok(None)` for one that does not
    /// - [`ErrorKind::AccessRefused`] for a queue that this user may not look at, or that is exclusive to another connection
    /// - [`ErrorKind::TooLarge`] for a name longer than 255 bytes
    /// - [`ErrorKind::Timeout`] for a queue whose node is away
    ///
    /// # Errors
    /// Those of a connection that cannot be made, or that is lost. Then no answers are returned.
    pub async fn queue_totals<'q>(
        &self,
        queues: impl IntoIterator<Item = &'q str>,
    ) -> Result<Vec<Result<Option<QueueTotals>>>> {
        self.same_process()?;
        // Not the consuming or publishing connection: each missing queue closes a channel.
        let mut connection = Connection::open(self.addresses(), "totals").await?;
        let mut totals = Vec::new();
        let mut open: Option<OpenChannel> = None;
        for queue in queues {
            let wire = match name(queue) {
                Ok(wire) => wire,
                Err(error) => {
                    totals.push(Err(error));
                    continue;
                }
            };
            let channel = match open.take().filter(OpenChannel::is_open) {
                Some(channel) => channel,
                None => match connection.channel().await {
                    // This connection has used up its channel numbers; a new one has all of them.
                    Err(error) if error.kind() == ErrorKind::ConnectionLost => {
                        connection = Connection::open(self.addresses(), "totals").await?;
                        connection.channel().await?
                    }
                    channel => channel?,
                },
            };
            match passive_declare(&channel, wire).await {
                Ok(found) => totals.push(Ok(Some(QueueTotals {
                    ready: found.message_count(),
                    consumers: found.consumer_count(),
                }))),
                Err(error) if error.kind() == ErrorKind::QueueNotFound => totals.push(Ok(None)),
                // Only this queue's node is away.
                Err(error) if error.kind() == ErrorKind::Timeout && !channel.is_open() => {
                    totals.push(Err(error));
                }
                Err(error) if error.is_transient() => return Err(error),
                Err(error) => totals.push(Err(error)),
            }
            open = Some(channel);
        }
        connection.close().await;
        Ok(totals)
    }

    /// Whether a queue has no messages, and no consumer that could hold some. A quorum queue without a leader says so of itself as well
    /// ([`queue_totals`](Self::queue_totals) shows that), so it has to prove it (AMQP `basic.get`; a message that comes is given back at once, which
    /// counts as a delivery before RabbitMQ 4.3). `true` for a queue that does not exist.
    ///
    /// # Errors
    /// Those of [`queue_totals`](Self::queue_totals), [`ErrorKind::Timeout`] for a quorum queue without a leader, and
    /// [`ErrorKind::AccessRefused`] for a user who may not read the queue.
    pub async fn is_queue_empty(&self, queue: &str) -> Result<bool> {
        self.same_process()?;
        let wire = name(queue)?;
        let connection = Connection::open(self.addresses(), "totals").await?;
        let counted = ReadyCounter::once(self.addresses(), &connection, &wire).await;
        connection.close().await;
        match counted.and_then(QueueCount::read) {
            Ok(found) => Ok(found.message_count() == 0 && found.consumer_count() == 0),
            Err(error) if error.kind() == ErrorKind::QueueNotFound => Ok(true),
            Err(error) => Err(error),
        }
    }
}
