//! Parked messages that come from elsewhere: from a file that they were exported to.

use std::sync::Arc;

use lapin::BasicProperties;

use super::{Parked, Record, copies::Copies};
use crate::{
    Client, ErrorKind, Result,
    connection::{Addresses, Census, Connection, Count},
    topology::{Mode, Plan, QueueType, apply, name, parking_item},
};

impl Parked {
    /// Makes the parking queue if there is none; one that is there stays as it is. A queue younger than two seconds forgets what
    /// it confirmed when its broker is killed.
    ///
    /// # Errors
    /// [`AccessRefused`](crate::ErrorKind::AccessRefused) without the right to configure it, and those of a lost connection.
    pub async fn make(&self) -> Result<()> {
        let connection = Connection::open(self.client().addresses(), "parked").await?;
        let plan = Plan {
            items: vec![parking_item(self.queue(), QueueType::Quorum)],
        };
        let made = apply(&connection, &plan, Mode::Apply).await;
        connection.close().await;
        made.map(|_| ())
    }

    /// Parks messages with the record that they already have: headers, properties, and the `exchange` and `routing_key` that they
    /// were first published with. The copies are made as those of a look: persistent, `mandatory`, confirmed, without the
    /// broker's count of deliveries, and with `user_id` and `expiration` in headers of ours. One answer for each, in order.
    ///
    /// # Errors
    /// Each message has its own: [`Unroutable`](crate::ErrorKind::Unroutable) where there is no parking queue,
    /// [`TooLarge`](crate::ErrorKind::TooLarge) for headers that fill a frame, and those of publishing.
    pub async fn restore(
        &self,
        messages: Vec<(String, String, BasicProperties, Vec<u8>)>,
    ) -> Vec<Result<()>> {
        let copies = Copies::new(self.client(), &self.name(), fastrand::u64(..));
        let work = Arc::from(self.queue());
        let received: Vec<_> = messages
            .into_iter()
            .map(|(exchange, key, properties, body)| {
                let (exchange, key) = (name(&exchange)?, name(&key)?);
                Ok(Record::read((0, 0), &work, body, properties, exchange, key).received)
            })
            .collect();
        let sound: Vec<_> = received.iter().flatten().map(Arc::clone).collect();
        let mut answers = copies.renew(&sound).await.into_iter();
        received
            .into_iter()
            .filter_map(|received| match received {
                Ok(_) => answers.next(),
                Err(error) => Some(Err(error)),
            })
            .collect()
    }
}

impl Client {
    /// How many messages are ready in each of these queues, and how many consumers it has (`queue.declare`, passive); `None` for
    /// one that does not exist. What is with a consumer and unacknowledged does not count, and nothing is disturbed. A quorum queue that says it is empty has to prove it
    /// (`basic.get`), where the user may read it.
    ///
    /// # Errors
    /// [`Timeout`](crate::ErrorKind::Timeout) where it cannot, because a majority of its nodes is away, or where the node of a classic queue
    /// is; [`AccessRefused`](crate::ErrorKind::AccessRefused), and those of a lost connection.
    pub async fn depths(&self, queues: &[String]) -> Result<Vec<Option<(u32, u32)>>> {
        let census = Census::new(self.addresses());
        let depths = depths(self.addresses(), &census, queues).await;
        census.close().await;
        depths
    }
}

async fn depths(
    addresses: &Arc<Addresses>,
    census: &Census,
    queues: &[String],
) -> Result<Vec<Option<(u32, u32)>>> {
    let mut depths = Vec::with_capacity(queues.len());
    let mut connection = Connection::open(addresses, "depths").await?;
    for queue in queues {
        let queue = name(queue)?;
        let mut count = census.of(&connection, &queue).await;
        if matches!(&count, Err(error) if error.kind() == ErrorKind::ConnectionLost) {
            // Each queue that is missing costs a channel for good: the next connection has all of them again.
            connection.close().await;
            connection = Connection::open(addresses, "depths").await?;
            count = census.of(&connection, &queue).await;
        }
        depths.push(match count {
            Ok(Count { found, .. }) => Some((found.message_count(), found.consumer_count())),
            Err(error) if error.kind() == ErrorKind::QueueNotFound => None,
            Err(error) => return Err(error),
        });
    }
    connection.close().await;
    Ok(depths)
}
