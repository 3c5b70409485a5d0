//! Which waiting queues exist, how many messages are in them, and which are no longer needed.

use std::{collections::BTreeSet, time::Duration};

use futures_util::{StreamExt, TryStreamExt, stream};
use lapin::options::QueueDeleteOptions;
use tokio::time::sleep;

use super::Waiting;
use crate::{
    Error, ErrorKind, MAX_DELAY, MILLISECOND, Policy, Result,
    connection::{Connection, Operation, ProbedQueueType, QueueCount, ReadyCounter, ask, kind_of},
    parking::open_waiting_queue,
    retry::delay_step,
    topology::{SAFE_AGE, age_marker, clock_queue, name, waiting_queue},
};

/// How many queues are asked for at a time.
const AT_A_TIME: usize = 16;
/// The most channels that asking for one queue takes.
const CHANNELS: usize = 5;

/// A waiting queue, and what is in it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct WaitingQueue {
    /// The queue's name.
    pub name: String,
    /// How long messages wait in it at most. A message's own `expiration` may be shorter.
    pub delay: Duration,
    /// How many messages are ready in it. Messages that somebody looks at are not counted, and neither are those that could not be
    /// dead-lettered yet because the work queue is missing.
    pub messages: u32,
    /// How many consumers it has. Only looks consume a waiting queue.
    pub consumers: u32,
}

/// What happened to a waiting queue that looked unused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DeleteResult {
    /// It was deleted, and was empty.
    Deleted,
    /// It was deleted while this many messages arrived in the last moment. They are lost, unless their publishers still have them.
    DeletedWith(u32),
    /// It was kept: it has messages, or somebody looks at it.
    InUse,
    /// It was kept: it is not a classic queue, and AMQP does not tell whether it is empty. Messages that it could not dead-letter, because
    /// the work queue is missing or full, do not count as ready.
    Uncertain,
    /// It was kept: the work queue has consumers, and a message they publish while the queue is deleted would be lost.
    Consumed,
}

impl Waiting {
    /// The waiting queues that exist, shortest delay first. AMQP cannot list queues, so each name is asked for (`queue.declare`, passive):
    /// the delays of `policies`, of the default policy, and of the delay steps for delays that handlers and publishers choose. Queues of other
    /// policies are not found. The messages are not touched. The broker logs a line for each queue that does not exist.
    ///
    /// The broker reports a quorum queue without a leader as empty. So a queue that looks empty is checked, if the user may read it.
    ///
    /// # Errors
    /// [`ErrorKind::Timeout`] if a majority of a queue's nodes is away, or the node of a classic queue; [`ErrorKind::AccessRefused`]
    /// without any permission on the queues; [`ErrorKind::TooLarge`] for a name longer than 255 bytes; and those of a lost connection.
    pub async fn queues(
        &self,
        policies: impl IntoIterator<Item = Policy>,
    ) -> Result<Vec<WaitingQueue>> {
        self.client.same_process()?;
        let delays: Vec<_> = delays(policies).into_iter().collect();
        let counter = ReadyCounter::new(self.client.addresses());
        let queues = self.count_queues(&counter, &delays).await;
        counter.close().await;
        queues
    }

    /// Asks for the queues of these delays, on as many connections as it takes: each missing queue uses up a channel number for good.
    async fn count_queues(
        &self,
        counter: &ReadyCounter,
        delays: &[Duration],
    ) -> Result<Vec<WaitingQueue>> {
        let (mut queues, mut left) = (Vec::new(), delays);
        while !left.is_empty() {
            let connection = Connection::open(self.client.addresses(), "waiting").await?;
            let most = (connection.channels() / CHANNELS).max(1);
            let (these, others) = left.split_at(most.min(left.len()));
            let answers = stream::iter(these.to_vec())
                .map(|delay| count_waiting_queue(counter, &connection, &self.queue, delay))
                .buffered(AT_A_TIME)
                .try_filter_map(|waiting_queue| async {
                    Ok(waiting_queue.map(|(waiting_queue, _)| waiting_queue))
                });
            let found: Result<Vec<_>> = answers.try_collect().await;
            connection.close().await;
            queues.extend(found?);
            left = others;
        }
        Ok(queues)
    }

    /// Deletes a waiting queue that is no longer needed (AMQP `queue.delete`). It is kept while it has messages, while somebody looks at
    /// it, or while the work queue has consumers. All of that is checked twice, three seconds apart.
    ///
    /// Consumers matter because RabbitMQ confirms a message even if its queue is deleted at the same moment, and the message is lost. Not
    /// even `if-empty` and `if-unused` prevent that (quorum queues refuse these flags; classic queues are deleted with them). So nobody may
    /// publish into the queue meanwhile: no consumer of the work queue may start, and nobody may publish with a delay. A consumer that
    /// starts later creates the queue again.
    ///
    /// `seen_empty` says that the queue is known to be empty, for example from `rabbitmqctl list_queues name messages`. Without it only
    /// classic queues are deleted: a quorum queue may hold messages that it could not dead-letter, and no client can see them.
    ///
    /// # Errors
    /// [`ErrorKind::Timeout`] if a quorum queue cannot be checked because a majority of its nodes is away. [`ErrorKind::AccessRefused`]
    /// without permission to configure the queue, or to read one that looks empty. Those of a lost connection.
    pub async fn delete_unused(
        &self,
        waiting_queue: &WaitingQueue,
        seen_empty: bool,
    ) -> Result<DeleteResult> {
        self.client.same_process()?;
        let connection = Connection::open(self.client.addresses(), "waiting").await?;
        let counter = ReadyCounter::new(self.client.addresses());
        let result = self
            .delete_unused_on(&counter, &connection, waiting_queue, seen_empty)
            .await;
        if matches!(
            result,
            Ok(DeleteResult::Deleted | DeleteResult::DeletedWith(_))
        ) {
            // Their exchanges stay when the queues are gone. Who may not delete them leaves them to the next consumer's look.
            for unmarked in [waiting_queue.name.clone(), clock_queue(&self.queue)] {
                let _ = age_marker::is_marked(&connection, &unmarked).await;
            }
        }
        counter.close().await;
        connection.close().await;
        result
    }

    async fn delete_unused_on(
        &self,
        counter: &ReadyCounter,
        connection: &Connection,
        waiting_queue: &WaitingQueue,
        seen_empty: bool,
    ) -> Result<DeleteResult> {
        let is_classic = is_classic(connection, &waiting_queue.name).await?;
        if !is_classic && !seen_empty {
            return Ok(DeleteResult::Uncertain);
        }
        for is_last in [false, true] {
            // The work queue last: from here until the deletion a consumer could start.
            let Some((found, doubt)) =
                count_waiting_queue(counter, connection, &self.queue, waiting_queue.delay).await?
            else {
                return Ok(DeleteResult::Deleted);
            };
            // A queue that may not be empty is not deleted.
            if let Some(doubt) = doubt {
                return Err(doubt);
            }
            if found.messages > 0 || found.consumers > 0 {
                return Ok(DeleteResult::InUse);
            }
            if self.consumers(counter, connection).await? > 0 {
                return Ok(DeleteResult::Consumed);
            }
            if !is_last {
                // By then, everything that a consumer published before it went away has arrived.
                sleep(SAFE_AGE + Duration::from_secs(1)).await;
            }
        }
        let options = QueueDeleteOptions {
            if_unused: is_classic,
            if_empty: is_classic,
            ..QueueDeleteOptions::default()
        };
        let channel = connection.channel().await?;
        let deleted = channel
            .lapin()
            .queue_delete(name(&waiting_queue.name)?, options);
        match ask(Operation::Declaring(&waiting_queue.name), deleted).await {
            Ok(0) => Ok(DeleteResult::Deleted),
            Ok(lost) => Ok(DeleteResult::DeletedWith(lost)),
            Err(error) if is_in_use(&error.to_string()) => Ok(DeleteResult::InUse),
            Err(error) => Err(error),
        }
    }

    /// How many consumers the work queue has; 0 if it is gone.
    async fn consumers(&self, counter: &ReadyCounter, connection: &Connection) -> Result<u32> {
        match counter.of(connection, &name(&self.queue)?).await {
            Ok(count) => Ok(count.read()?.consumer_count()),
            Err(error) if error.kind() == ErrorKind::QueueNotFound => Ok(0),
            Err(error) => Err(error),
        }
    }
}

fn is_in_use(said: &str) -> bool {
    said.contains("not empty") || said.contains("in use")
}

/// Every delay that has a waiting queue, or may have one.
fn delays(policies: impl IntoIterator<Item = Policy>) -> BTreeSet<Duration> {
    let mut delays: BTreeSet<Duration> = policies
        .into_iter()
        .chain([Policy::default()])
        .flat_map(|policy| policy.delays())
        .collect();
    let mut delay = MILLISECOND;
    while delay < MAX_DELAY {
        let waiting_queue = delay_step(delay);
        delays.insert(waiting_queue);
        delay = waiting_queue + MILLISECOND;
    }
    delays
}

/// A waiting queue, if it exists, and why it could not be shown to be empty.
async fn count_waiting_queue(
    counter: &ReadyCounter,
    connection: &Connection,
    queue: &str,
    delay: Duration,
) -> Result<Option<(WaitingQueue, Option<Error>)>> {
    let waiting_queue = waiting_queue(queue, delay);
    match open_waiting_queue::count(counter, connection, &name(&waiting_queue)?).await {
        Ok(QueueCount { found, doubt }) => {
            let waiting_queue = WaitingQueue {
                name: waiting_queue,
                delay,
                messages: found.message_count(),
                consumers: found.consumer_count(),
            };
            Ok(Some((waiting_queue, doubt)))
        }
        Err(error) if error.kind() == ErrorKind::QueueNotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Whether a queue is a classic one. If that is unknown, it is assumed not to be.
async fn is_classic(connection: &Connection, queue: &str) -> Result<bool> {
    let channel = connection.channel().await?;
    match kind_of(connection, channel.lapin(), name(queue)?).await {
        Err(error) if error.is_transient() => Err(error),
        answer => Ok(matches!(answer, Ok(Some(ProbedQueueType::Classic)))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SECOND;

    #[test]
    fn the_delay_steps_and_every_policy_are_asked_for() {
        let all = delays(["list(7s, 1m)".parse().unwrap()]);
        for wanted in [
            SECOND,
            64 * SECOND,
            7 * SECOND,
            60 * SECOND,
            125 * MILLISECOND,
        ] {
            assert!(all.contains(&wanted), "{wanted:?}");
        }
        assert!(all.len() < 120, "{}", all.len());
        assert!(all.last().is_some_and(|last| *last >= MAX_DELAY));
    }
}
