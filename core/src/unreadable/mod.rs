//! Messages that RabbitMQ cannot deliver over AMQP 0-9-1. A publisher that speaks AMQP 1.0 can send what AMQP 0-9-1 has no type for. RabbitMQ
//! stores that, and closes the connection of each consumer that it should deliver it to. So such messages are moved, over AMQP 1.0, to a queue
//! of their own, where they are in nobody's way.

mod delivery_probe;
mod internal_errors;
mod message;
mod set_aside;
mod suspects;

pub use self::message::UnreadableMessage;
use self::set_aside::{MOST_BYTES, QueueReader};
#[cfg(test)]
pub(crate) use self::{
    internal_errors::{Evidence, LEFT_TO_OTHERS, Step, SuspectQueue},
    set_aside::Moved,
};
pub(crate) use self::{
    internal_errors::{InternalErrors, OneByOneProgress},
    set_aside::{ScanRange, set_aside, set_aside_counted},
    suspects::Trial,
};
use crate::{
    Client, Error, ErrorKind, Result,
    amqp10::Message,
    connection::{Connection, is_auto_delete, passive_declare},
    topology::{name, parking_queue, unreadable_queue, work_queue_of},
};

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

impl Client {
    /// The messages of the work queue `queue` that RabbitMQ cannot deliver over AMQP 0-9-1, in `<queue>.unreadable`. Nothing is sent to the
    /// broker yet.
    #[must_use]
    pub fn unreadable(&self, queue: impl Into<String>) -> Unreadable {
        Unreadable::new(self.clone(), queue.into())
    }
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
    /// A message is removed from `from` when its copy is confirmed, and none is copied before its new queue is a safe place, which takes two
    /// seconds.
    ///
    /// Returns why each message that was moved cannot be delivered.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidOption`](crate::ErrorKind::InvalidOption) for a queue for such messages,
    /// [`QueueNotFound`](crate::ErrorKind::QueueNotFound) without the queue `from`, [`AccessRefused`](crate::ErrorKind::AccessRefused),
    /// [`Mismatch`](crate::ErrorKind::Mismatch) for an auto-delete queue that nobody consumes, which the look would delete,
    /// [`Broker`](crate::ErrorKind::Broker) if the broker speaks no AMQP 1.0 or stores no copy, [`Timeout`](crate::ErrorKind::Timeout), and
    /// those of a connection. Then some messages may have been moved, one may be in both queues, and all others are in `from`.
    pub async fn take_from(&self, from: &str, most: u32) -> Result<Vec<String>> {
        check_source(from)?;
        let connection = self.connection().await?;
        let taken = async {
            check_stays(&connection, from).await?;
            self.take_over(&connection, from, most).await
        };
        let taken = taken.await;
        connection.close().await;
        taken
    }

    /// Like [`take_from`](Self::take_from), and then for messages of a quorum queue in which nothing is seen that RabbitMQ cannot deliver: it shows its
    /// own counts in place of a publisher's annotations `x-delivery-count` and `x-acquired-count`. Of the first `most` messages, those
    /// for which connections ended are asked for one after the other, over AMQP 0-9-1 (`basic.get`) on a connection of their own, those first for
    /// which most did. Those are moved for which RabbitMQ closes the connection and says that they were delivered to it. On RabbitMQ before 4.3 these
    /// are eight, because a message that is tried for nothing has three deliveries more; on 4.3, and in the parking queue, they are up to 1,000.
    /// Those that were tried lose their places.
    ///
    /// # Errors
    /// Those of [`take_from`](Self::take_from), and why not all could be asked for. Then some may have been moved.
    pub async fn try_each_from(&self, from: &str, most: u32) -> Result<Vec<String>> {
        check_source(from)?;
        let connection = self.connection().await?;
        let taken = async {
            check_stays(&connection, from).await?;
            let mut causes = self.take_over(&connection, from, most).await?;
            causes.extend(self.try_each(&connection, from, most).await?);
            Ok(causes)
        };
        let taken = taken.await;
        connection.close().await;
        taken
    }

    /// The first `most` messages of [`name`](Self::name), at most 64 MiB of them. They stay there.
    ///
    /// # Errors
    /// [`ErrorKind::QueueNotFound`](crate::ErrorKind::QueueNotFound) if none was ever moved, and those of [`take_from`](Self::take_from).
    pub async fn list(&self, most: u32) -> Result<Vec<UnreadableMessage>> {
        let (mut all, mut size) = (Vec::new(), 0);
        let each = |message: UnreadableMessage| {
            size += message.size();
            if size <= MOST_BYTES || all.is_empty() {
                all.push(message);
            }
            false
        };
        self.walk(most, each).await?;
        Ok(all)
    }

    /// Removes the messages with these ids for good, one for each. Returns how many it removed.
    ///
    /// # Errors
    /// Those of [`list`](Self::list). Some may have been removed.
    pub async fn remove(&self, ids: &[String]) -> Result<usize> {
        let mut left = ids.to_vec();
        let each = |message: UnreadableMessage| {
            let place = left.iter().position(|id| *id == message.id);
            place.map(|place| left.swap_remove(place)).is_some()
        };
        self.walk(u32::MAX, each).await
    }

    async fn take_over(
        &self,
        connection: &Connection,
        from: &str,
        most: u32,
    ) -> Result<Vec<String>> {
        let (client, mut causes) = (&self.client, Vec::new());
        loop {
            let left = most.saturating_sub(u32::try_from(causes.len()).unwrap_or(most));
            let reach = ScanRange::Near(left);
            let (mut moved, scanned) =
                set_aside(client, connection, &self.queue, from, reach, true).await;
            let has_moved = !moved.causes.is_empty();
            let ended_early = moved.ended_early.take();
            let goes_on = ended_early.is_some();
            let error = scanned.err().or(moved.refused.take());
            let error = error.or(ended_early.filter(|_| !has_moved));
            if let Some(error) = error {
                moved.log(&self.queue, from);
                return Err(error);
            }
            causes.extend(moved.causes);
            if !goes_on {
                return Ok(causes);
            }
        }
    }

    async fn try_each(
        &self,
        connection: &Connection,
        from: &str,
        most: u32,
    ) -> Result<Vec<String>> {
        let is_free = connection.server().capabilities().nack_is_uncounted;
        let trial = if is_free || from == parking_queue(&self.queue) {
            Trial::FREE
        } else {
            Trial::ASKED_FOR
        };
        let queues = (self.queue.as_str(), from);
        let (mut moved, scanned) =
            set_aside_counted(&self.client, connection, queues, (most, trial), true).await;
        moved.log(&self.queue, from);
        let refused = moved.refused.take().or(moved.ended_early.take());
        let refused = refused.or(moved.untried.take());
        scanned.and(refused.map_or(Ok(()), Err))?;
        Ok(moved.causes)
    }

    async fn connection(&self) -> Result<Connection> {
        self.client.same_process()?;
        Connection::open(self.client.addresses(), "unreadable").await
    }

    /// Passes each message on, and removes those for which `each` says so.
    async fn walk(
        &self,
        most: u32,
        mut each: impl FnMut(UnreadableMessage) -> bool,
    ) -> Result<usize> {
        let (connection, aside) = (self.connection().await?, self.name());
        let walk = async {
            check_stays(&connection, &aside).await?;
            let mut reading =
                QueueReader::begin(&self.client, &connection, &aside, ScanRange::Near(most))
                    .await?;
            let mut removed = 0;
            loop {
                let mut meant = Vec::new();
                let goes_on = reading
                    .next(|number, payload| {
                        let message = Message::read(payload);
                        let message = message.map(|message| UnreadableMessage::of(&message));
                        if message.is_some_and(&mut each) {
                            meant.push(number);
                        }
                    })
                    .await?;
                for number in &meant {
                    reading.remove(*number).await?;
                }
                removed += meant.len();
                if !goes_on {
                    break;
                }
            }
            reading.end().await?;
            Ok(removed)
        };
        let walked = walk.await;
        connection.close().await;
        walked
    }
}

/// Checks that the look is not the last reader of an auto-delete queue, which RabbitMQ would delete.
///
/// # Errors
/// [`ErrorKind::Mismatch`] if it would be, [`ErrorKind::QueueNotFound`], and those of a lost connection.
async fn check_stays(connection: &Connection, queue: &str) -> Result<()> {
    let wire = name(queue)?;
    if !is_auto_delete(connection, &wire).await? {
        return Ok(());
    }
    let channel = connection.channel().await?;
    let found = passive_declare(&channel, wire).await;
    channel.close().await;
    if found?.consumer_count() > 0 {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::Mismatch,
        format!(
            "`{queue}` is an auto-delete queue that nobody consumes: RabbitMQ deletes it, with everything in it, as soon as its last reader \
             leaves, and a look is a reader; nothing was read from it: start a consumer of it first"
        ),
    ))
}

/// What was moved already would be moved to its own end, and no longer tell where it was found first.
fn check_source(from: &str) -> Result<()> {
    let work = work_queue_of(from);
    if work.is_some_and(|work| unreadable_queue(work) == from) {
        let why = format!(
            "`{from}` is a queue for messages that were moved already: name the queue in which they are in the way"
        );
        return Err(Error::new(ErrorKind::InvalidOption, why));
    }
    Ok(())
}
