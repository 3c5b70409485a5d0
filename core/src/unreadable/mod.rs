//! Messages that RabbitMQ cannot deliver over AMQP 0-9-1. A publisher that speaks AMQP 1.0 can send what AMQP 0-9-1 has no type for. RabbitMQ
//! stores that, and closes the connection of each consumer that it should deliver it to. So such messages are moved, over AMQP 1.0, to a queue
//! of their own, where they are in nobody's way.

mod message;
mod moving;
mod suspicion;

use tokio::time::timeout;

pub use self::message::UnreadableMessage;
use self::moving::{LONGEST, failure, late, read};
pub(crate) use self::{moving::set_aside, suspicion::Suspicion};
use crate::{Client, Result, amqp10::Message, connection::Connection, topology::unreadable_queue};

/// The messages of one work queue that RabbitMQ cannot deliver over AMQP 0-9-1, in `<queue>.unreadable`.
/// [`Client::unreadable`](crate::Client::unreadable) makes it.
///
/// Consumers, and walks through parked messages, move them there by themselves. This needs RabbitMQ 4.0 or later, which serves AMQP 1.0 on the
/// same port.
#[derive(Clone, Debug)]
pub struct Unreadable {
    client: Client,
    queue: String,
}

impl Unreadable {
    pub(crate) fn new(client: Client, queue: String) -> Self {
        Self { client, queue }
    }

    /// The name of the queue: `<queue>.unreadable`.
    #[must_use]
    pub fn name(&self) -> String {
        unreadable_queue(&self.queue)
    }

    /// Looks at the first `most` messages of the queue `from`, and moves those that RabbitMQ cannot deliver over AMQP 0-9-1 to
    /// [`name`](Self::name), which it creates. All others stay in their places; on RabbitMQ before 4.3, the look counts as a delivery of each.
    /// A message is removed from `from` when its copy is confirmed and the queue of the copy is a safe place, which takes two seconds.
    ///
    /// Returns why each message that was moved cannot be delivered.
    ///
    /// # Errors
    /// [`ErrorKind::QueueNotFound`](crate::ErrorKind::QueueNotFound) without the queue `from`, [`AccessRefused`](crate::ErrorKind::AccessRefused),
    /// [`Broker`](crate::ErrorKind::Broker) if the broker speaks no AMQP 1.0, [`Timeout`](crate::ErrorKind::Timeout), and those of a
    /// connection. Then each message is in `from`, and may be in the other queue as well.
    pub async fn take_from(&self, from: &str, most: u32) -> Result<Vec<String>> {
        let connection = self.connection().await?;
        let moved = set_aside(&self.client, &connection, &self.queue, from, most, true).await;
        connection.close().await;
        Ok(moved?.causes)
    }

    /// The first `most` messages of [`name`](Self::name), at most 64 MiB of them. They stay there.
    ///
    /// # Errors
    /// [`ErrorKind::QueueNotFound`](crate::ErrorKind::QueueNotFound) if none was ever moved, and those of [`take_from`](Self::take_from).
    pub async fn list(&self, most: u32) -> Result<Vec<UnreadableMessage>> {
        let mut all = Vec::new();
        let each = |_, message: UnreadableMessage| {
            all.push(message);
            None
        };
        self.walk(most, true, each).await?;
        Ok(all)
    }

    /// Removes the messages with these ids for good. Returns how many it removed.
    ///
    /// # Errors
    /// Those of [`list`](Self::list). Some may have been removed.
    pub async fn remove(&self, ids: &[String]) -> Result<usize> {
        let each = |number, message: UnreadableMessage| ids.contains(&message.id).then_some(number);
        self.walk(u32::MAX, false, each).await
    }

    async fn connection(&self) -> Result<Connection> {
        self.client.same_process()?;
        Connection::open(self.client.addresses(), "unreadable").await
    }

    /// Passes each message on, and removes those for which `each` returns their number. `shows`: they are kept in memory.
    async fn walk(
        &self,
        most: u32,
        shows: bool,
        mut each: impl FnMut(u32, UnreadableMessage) -> Option<u32>,
    ) -> Result<usize> {
        let (connection, name) = (self.connection().await?, self.name());
        let walk = async {
            let mut session = connection.amqp10(self.client.addresses()).await?;
            let mut meant = Vec::new();
            read(&mut session, &name, most, |number, payload| {
                let size = payload.len();
                let message = Message::read(payload).map(|message| UnreadableMessage::of(&message));
                let is_shown = message.is_some();
                meant.extend(message.and_then(|message| each(number, message)));
                if is_shown && shows { size } else { 0 }
            })
            .await?;
            let said = |why| failure(&name, &why);
            for number in &meant {
                session.accept(*number).await.map_err(said)?;
            }
            session.close().await.map_err(said)?;
            Ok(meant.len())
        };
        let walked = timeout(LONGEST, walk).await;
        connection.close().await;
        walked.unwrap_or_else(|_| Err(late(&name)))
    }
}
