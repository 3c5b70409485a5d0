//! Parks messages that come from a file to which they were exported.

use std::sync::Arc;

use lapin::BasicProperties;

use super::{Parked, Record, copies::Copies};
use crate::{
    Result,
    connection::Connection,
    topology::{Mode, Plan, QueueType, apply, name, parking_item},
};

impl Parked {
    /// Creates the parking queue if it is missing (AMQP `queue.declare`). An existing one is not changed. A queue younger than two seconds
    /// can lose confirmed messages when its broker is killed.
    ///
    /// # Errors
    /// [`AccessRefused`](crate::ErrorKind::AccessRefused) without permission to configure it, and those of a lost connection.
    pub async fn make(&self) -> Result<()> {
        let connection = Connection::open(self.client().addresses(), "parked").await?;
        let plan = Plan {
            items: vec![parking_item(self.queue(), QueueType::Quorum)],
        };
        let made = apply(&connection, &plan, Mode::Apply).await;
        connection.close().await;
        made.map(|_| ())
    }

    /// Parks messages with the record that is already in their headers. Each has the `exchange` and `routing_key` that it was first
    /// published with. The copies are persistent, `mandatory` and confirmed; `user_id` and `expiration` are kept in headers, and the
    /// broker's delivery count is removed. Returns one answer per message, in order. If the future is dropped, those that were not sent yet
    /// are not parked.
    ///
    /// # Errors
    /// Each message has its own: [`Unroutable`](crate::ErrorKind::Unroutable) if there is no parking queue,
    /// [`TooLarge`](crate::ErrorKind::TooLarge) for headers larger than a frame, and those of publishing. Such a message was not parked.
    pub async fn restore(
        &self,
        messages: Vec<(String, String, BasicProperties, Vec<u8>)>,
    ) -> Vec<Result<()>> {
        let copies = Copies::new(self.client(), &self.name(), fastrand::u64(..));
        let work = Arc::from(self.queue());
        let sent: Vec<_> = messages
            .into_iter()
            .map(|(exchange, key, properties, body)| {
                let (exchange, key) = (name(&exchange)?, name(&key)?);
                let record = Record::read((0, 0), &work, body, properties, exchange, key);
                copies.renew(&record.received)
            })
            .collect();
        let mut answers = Vec::with_capacity(sent.len());
        for sent in sent {
            answers.push(match sent {
                Ok(mut sent) => sent.get().await,
                Err(error) => Err(error),
            });
        }
        answers
    }
}
