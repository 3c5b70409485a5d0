//! How many messages and consumers a queue has.

use crate::{
    Client, ErrorKind, Result,
    connection::{Connection, OpenChannel, look},
    topology::name,
};

/// What a broker says of a queue that it is asked for by name (AMQP `queue.declare`, passive).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct QueueTotals {
    /// Messages that are ready; those that a consumer holds are not among them.
    pub ready: u32,
    /// Consumers.
    pub consumers: u32,
}

impl Client {
    /// Asks for queues by name, one after the other, on a connection of its own. Each answer is [`None`] for a queue that does not
    /// exist, and [`ErrorKind::AccessRefused`] or [`ErrorKind::TooLarge`] for one that this user cannot ask for, or that belongs to another
    /// connection, and [`ErrorKind::Timeout`] for one whose node is away. Makes nothing, and needs no plugin.
    ///
    /// # Errors
    /// Those of a connection that cannot be made or is lost: then nothing is known of any queue.
    pub async fn queue_totals<'q>(
        &self,
        queues: impl IntoIterator<Item = &'q str>,
    ) -> Result<Vec<Result<Option<QueueTotals>>>> {
        self.same_process()?;
        // Not on those that consume and publish: each queue that is not there closes a channel.
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
                    // Its channels are spent: the next one has all of them again.
                    Err(error) if error.kind() == ErrorKind::ConnectionLost => {
                        connection = Connection::open(self.addresses(), "totals").await?;
                        connection.channel().await?
                    }
                    channel => channel?,
                },
            };
            match look(channel.lapin(), wire).await {
                Ok(found) => totals.push(Ok(Some(QueueTotals {
                    ready: found.message_count(),
                    consumers: found.consumer_count(),
                }))),
                Err(error) if error.kind() == ErrorKind::QueueNotFound => totals.push(Ok(None)),
                // Only its own node is away.
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
}
