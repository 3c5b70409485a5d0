//! Which waiting queues there are, how many messages are in them, and what nobody needs any more.

use std::{collections::BTreeSet, time::Duration};

use futures_util::{StreamExt, TryStreamExt, stream};
use lapin::options::QueueDeleteOptions;
use tokio::time::sleep;

use super::Waiting;
use crate::{
    Error, ErrorKind, MAX_DELAY, MILLISECOND, Policy, Result,
    connection::{Census, Connection, Count, Doing, Kind, ask, kind_of},
    parking::suited,
    retry::rung,
    topology::{SAFE_AGE, name, waiting_queue},
};

/// Queues that are asked for at a time.
const AT_A_TIME: usize = 16;
/// Channels that it takes to ask for one, at most.
const CHANNELS: usize = 5;

/// A waiting queue and what is in it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Rung {
    /// The queue's name.
    pub name: String,
    /// How long messages wait in it, at most: a message's own `expiration` may be shorter.
    pub delay: Duration,
    /// How many messages are ready in it. What somebody looks at, and what could not be dead-lettered yet because the work queue is
    /// missing, is not among them.
    pub messages: u32,
    /// How many consumers it has. Only somebody who looks consumes a waiting queue.
    pub consumers: u32,
}

/// What became of a waiting queue that nobody seemed to need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Swept {
    /// It is deleted, and nothing was in it.
    Deleted,
    /// It is deleted, and this many messages came into it in the last moment: they are lost, unless their publishers still have
    /// them.
    DeletedWith(u32),
    /// It is still there: messages are in it, or somebody looks at it.
    InUse,
    /// It is still there: it is not a classic queue, and AMQP does not tell whether it is empty. What it could not dead-letter
    /// because the work queue was missing or full is not counted as ready.
    Uncertain,
    /// It is still there: the work queue has consumers, and whatever they publish while the queue is deleted would be lost.
    Consumed,
}

impl Waiting {
    /// The waiting queues that exist, shortest delay first: of these policies, of the default policy, and of the ladder for delays that
    /// handlers and publishers choose. AMQP cannot list queues, so each is asked for by name (`queue.declare`, passive), which
    /// disturbs nothing; those of other policies are not found. For each that does not exist the broker writes a line into its log.
    ///
    /// A quorum queue without a leader is taken for empty by the broker. So a queue that says it is empty has to prove it, where
    /// the user may read it.
    ///
    /// # Errors
    /// [`ErrorKind::Timeout`] where it cannot, because a majority of its nodes is away, or where the node of a classic queue is;
    /// [`ErrorKind::AccessRefused`] without any permission on the queues, [`ErrorKind::TooLarge`] for a name that is too long, and
    /// those of a lost connection.
    pub async fn rungs(&self, policies: impl IntoIterator<Item = Policy>) -> Result<Vec<Rung>> {
        self.client.same_process()?;
        let delays: Vec<_> = delays(policies).into_iter().collect();
        let census = Census::new(self.client.addresses());
        let rungs = self.rungs_of(&census, &delays).await;
        census.close().await;
        rungs
    }

    /// Asks for the queues of these delays, on as many connections as that takes: each that is missing costs one a channel for good.
    async fn rungs_of(&self, census: &Census, delays: &[Duration]) -> Result<Vec<Rung>> {
        let (mut rungs, mut left) = (Vec::new(), delays);
        while !left.is_empty() {
            let connection = Connection::open(self.client.addresses(), "waiting").await?;
            let most = (connection.channels() / CHANNELS).max(1);
            let (these, others) = left.split_at(most.min(left.len()));
            let answers = stream::iter(these.to_vec())
                .map(|delay| rung_of(census, &connection, &self.queue, delay))
                .buffered(AT_A_TIME)
                .try_filter_map(|rung| async { Ok(rung.map(|(rung, _)| rung)) });
            let found: Result<Vec<_>> = answers.try_collect().await;
            connection.close().await;
            rungs.extend(found?);
            left = others;
        }
        Ok(rungs)
    }

    /// Deletes a waiting queue that nobody needs: not while anything is in it, while anybody looks at it, or while the work queue has
    /// consumers. All of that is looked at twice, three seconds apart.
    ///
    /// Why consumers matter: RabbitMQ confirms a message whose queue is deleted at the same moment, and the message is gone, also where
    /// the queue is deleted with `if-empty` and `if-unused`. (Quorum queues refuse these flags altogether; classic ones are deleted
    /// with them.) So nobody may publish into the queue meanwhile: no consumer of the work queue may begin, and nobody may publish with a
    /// delay. A consumer that begins later makes the queue again.
    ///
    /// `seen_empty` says that somebody who can see it has seen that nothing is in the queue (`rabbitmqctl list_queues name messages`). Without it
    /// only classic queues are deleted: a quorum queue holds what it could not dead-letter, and no client is told.
    ///
    /// # Errors
    /// [`ErrorKind::Timeout`] where a quorum queue cannot prove that it is empty, because a majority of its nodes is away.
    /// [`ErrorKind::AccessRefused`] without the permission to configure the queue, or to read one that says it is empty, and those of a lost connection.
    pub async fn sweep(&self, rung: &Rung, seen_empty: bool) -> Result<Swept> {
        self.client.same_process()?;
        let connection = Connection::open(self.client.addresses(), "waiting").await?;
        let census = Census::new(self.client.addresses());
        let swept = self.sweep_on(&census, &connection, rung, seen_empty).await;
        census.close().await;
        connection.close().await;
        swept
    }

    async fn sweep_on(
        &self,
        census: &Census,
        connection: &Connection,
        rung: &Rung,
        seen_empty: bool,
    ) -> Result<Swept> {
        let is_classic = is_classic(connection, &rung.name).await?;
        if !is_classic && !seen_empty {
            return Ok(Swept::Uncertain);
        }
        for is_last in [false, true] {
            // The work queue last: from here on to the deletion is the moment in which a consumer could begin.
            let Some((found, doubt)) = rung_of(census, connection, &self.queue, rung.delay).await?
            else {
                return Ok(Swept::Deleted);
            };
            // What is not proved to be empty is not deleted.
            if let Some(doubt) = doubt {
                return Err(doubt);
            }
            if found.messages > 0 || found.consumers > 0 {
                return Ok(Swept::InUse);
            }
            if self.consumers(census, connection).await? > 0 {
                return Ok(Swept::Consumed);
            }
            if !is_last {
                // What a consumer published before it went away is there by then.
                sleep(SAFE_AGE + Duration::from_secs(1)).await;
            }
        }
        let options = QueueDeleteOptions {
            if_unused: is_classic,
            if_empty: is_classic,
            ..QueueDeleteOptions::default()
        };
        let channel = connection.channel().await?;
        let deleted = channel.lapin().queue_delete(name(&rung.name)?, options);
        match ask(Doing::Declaring(&rung.name), deleted).await {
            Ok(0) => Ok(Swept::Deleted),
            Ok(lost) => Ok(Swept::DeletedWith(lost)),
            Err(error) if is_in_use(&error.to_string()) => Ok(Swept::InUse),
            Err(error) => Err(error),
        }
    }

    /// How many consumers the work queue has; none where it is gone.
    async fn consumers(&self, census: &Census, connection: &Connection) -> Result<u32> {
        match census.of(connection, &name(&self.queue)?).await {
            Ok(count) => Ok(count.read()?.consumer_count()),
            Err(error) if error.kind() == ErrorKind::QueueNotFound => Ok(0),
            Err(error) => Err(error),
        }
    }
}

fn is_in_use(said: &str) -> bool {
    said.contains("not empty") || said.contains("in use")
}

/// Every delay that has a queue, or may have one.
fn delays(policies: impl IntoIterator<Item = Policy>) -> BTreeSet<Duration> {
    let mut delays: BTreeSet<Duration> = policies
        .into_iter()
        .chain([Policy::default()])
        .flat_map(|policy| policy.delays())
        .collect();
    let mut delay = MILLISECOND;
    while delay < MAX_DELAY {
        let rung = rung(delay);
        delays.insert(rung);
        delay = rung + MILLISECOND;
    }
    delays
}

/// A waiting queue, if there is one, and why it could not be proved to be empty.
async fn rung_of(
    census: &Census,
    connection: &Connection,
    queue: &str,
    delay: Duration,
) -> Result<Option<(Rung, Option<Error>)>> {
    let rung = waiting_queue(queue, delay);
    match suited::count(census, connection, &name(&rung)?).await {
        Ok(Count { found, doubt }) => {
            let rung = Rung {
                name: rung,
                delay,
                messages: found.message_count(),
                consumers: found.consumer_count(),
            };
            Ok(Some((rung, doubt)))
        }
        Err(error) if error.kind() == ErrorKind::QueueNotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Whether a queue is a classic one. Where that is not known the queue is taken for the other kind.
async fn is_classic(connection: &Connection, queue: &str) -> Result<bool> {
    let channel = connection.channel().await?;
    match kind_of(connection, channel.lapin(), name(queue)?).await {
        Err(error) if error.is_transient() => Err(error),
        answer => Ok(matches!(answer, Ok(Some(Kind::Classic)))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SECOND;

    #[test]
    fn the_ladder_and_every_policy_are_asked_for() {
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
