//! Counts what is in queues, when it is asked for.

use std::sync::Arc;

use super::Client;
use crate::{
    ErrorKind, Result,
    connection::{Addresses, Connection, QueueCount, ReadyCounter},
    topology::name,
};

impl Client {
    /// How many messages are ready in each of these queues, and how many consumers it has (`queue.declare`, passive); `None` for a queue
    /// that does not exist. Messages that a consumer holds do not count. A quorum queue that says it is empty is checked with `basic.get`,
    /// if the user may read it.
    ///
    /// # Errors
    /// [`Timeout`](crate::ErrorKind::Timeout) if a majority of a queue's nodes is away, or the node of a classic queue;
    /// [`AccessRefused`](crate::ErrorKind::AccessRefused), and those of a lost connection.
    pub async fn depths(&self, queues: &[String]) -> Result<Vec<Option<(u32, u32)>>> {
        let counter = ReadyCounter::new(self.addresses());
        let depths = depths(self.addresses(), &counter, queues).await;
        counter.close().await;
        depths
    }
}

async fn depths(
    addresses: &Arc<Addresses>,
    counter: &ReadyCounter,
    queues: &[String],
) -> Result<Vec<Option<(u32, u32)>>> {
    let mut depths = Vec::with_capacity(queues.len());
    let mut connection = Connection::open(addresses, "depths").await?;
    for queue in queues {
        let queue = name(queue)?;
        let mut count = counter.of(&connection, &queue).await;
        if matches!(&count, Err(error) if error.kind() == ErrorKind::ConnectionLost) {
            // Each missing queue uses up a channel number for good; the next connection has all of them.
            connection.close().await;
            connection = Connection::open(addresses, "depths").await?;
            count = counter.of(&connection, &queue).await;
        }
        depths.push(match count {
            Ok(QueueCount { found, .. }) => Some((found.message_count(), found.consumer_count())),
            Err(error) if error.kind() == ErrorKind::QueueNotFound => None,
            Err(error) => return Err(error),
        });
    }
    connection.close().await;
    Ok(depths)
}
