//! How many messages are ready in a queue, as far as the broker's answer can be believed.
//!
//! A passive declaration of a quorum queue without a leader answers 0 messages and 0 consumers, and no error (fact 80). So that answer is
//! believed only for other types, and for a quorum queue that proves it. The proof is `basic.get`: from an empty queue it needs the leader
//! and a majority, and leaves no trace; without them it is not answered, or refused. If it returns a message, that is requeued at once. Any
//! other answer came from a leader.

use std::{sync::Arc, time::Duration};

use lapin::{
    options::{BasicGetOptions, BasicNackOptions},
    types::ShortString,
};
use tokio::{
    sync::Mutex,
    time::{Instant, sleep, timeout},
};

use super::{
    ANSWER, Addresses, Connection, OpenChannel, Operation, is_crash, passive_declare,
    queue_type_probe::{ProbedQueueType, kind_of},
    refusal,
};
use crate::{Error, ErrorKind, Result, doubling_pause::DoublingPause};

/// The pause before a queue is looked at again.
const PAUSE: Duration = Duration::from_millis(50);
/// The longest pause before a queue is asked again. An election takes less than a second, and each question is a line in the broker's log.
const LONG: Duration = Duration::from_secs(1);
/// How often a queue that has proved its leader is looked at before it must prove it again: other nodes hear of a new leader a moment
/// later.
const LOOKS: u32 = 20;
/// What an error says of a queue without a leader.
const NO_LEADER: &str = " has no leader: ";
/// How often a queue may prove to have messages while a look says that it has none.
const MOST_FILLED: u32 = 2;

/// Counts the messages of queues. Proofs use a connection of their own, made when it is needed: a broker that finds no leader closes it
/// (541).
pub(crate) struct ReadyCounter {
    addresses: Arc<Addresses>,
    /// How long it waits for an answer.
    time_limit: Duration,
    /// How long it asks again and again for a leader.
    leader_timeout: Duration,
    asking: Mutex<Option<Connection>>,
}

/// The answer to whether a queue is empty.
#[derive(Debug)]
enum EmptyProof {
    Empty,
    /// It has a leader, and a message.
    Filled,
    /// It has a leader, which delivers nothing this way: a queue with a single active consumer.
    Led,
    /// No leader was found this time.
    Leaderless(Error),
}

/// What the broker said about a queue.
pub(crate) struct QueueCount {
    pub(crate) found: lapin::Queue,
    /// Why it could not be proved to be empty: the user may not read it.
    pub(crate) doubt: Option<Error>,
}

impl QueueCount {
    /// For a caller that reads the queue next: a queue that may not be read does not count as empty.
    pub(crate) fn read(self) -> Result<lapin::Queue> {
        match self.doubt {
            None => Ok(self.found),
            Some(doubt) => Err(doubt),
        }
    }
}

impl ReadyCounter {
    pub(crate) fn new(addresses: &Arc<Addresses>) -> Self {
        Self {
            addresses: Arc::clone(addresses),
            time_limit: ANSWER,
            leader_timeout: ANSWER,
            asking: Mutex::default(),
        }
    }

    /// For a caller that asks again soon, and has other queues to ask meanwhile.
    pub(crate) fn hasty(addresses: &Arc<Addresses>) -> Self {
        Self {
            time_limit: PAUSE * LOOKS,
            leader_timeout: PAUSE * LOOKS,
            ..Self::new(addresses)
        }
    }

    /// For a caller that comes again as long as there is no leader. Each question to a queue without one costs a connection.
    pub(crate) fn sparing(addresses: &Arc<Addresses>) -> Self {
        Self {
            leader_timeout: PAUSE * LOOKS,
            ..Self::new(addresses)
        }
    }

    /// Looks at one queue.
    ///
    /// # Errors
    /// Those of [`passive_declare`]. [`ErrorKind::Timeout`] for a quorum queue that says it is empty and has no leader to prove it.
    pub(crate) async fn once(
        addresses: &Arc<Addresses>,
        connection: &Connection,
        queue: &ShortString,
    ) -> Result<QueueCount> {
        let counter = Self::new(addresses);
        let count = counter.of(connection, queue).await;
        counter.close().await;
        count
    }

    /// Looks at a queue on this connection.
    ///
    /// # Errors
    /// Those of [`once`](Self::once).
    pub(crate) async fn of(
        &self,
        connection: &Connection,
        queue: &ShortString,
    ) -> Result<QueueCount> {
        self.of_type(connection, queue, None).await
    }

    /// The same where the type of the queue is known. Asking for it uses up the number of a channel.
    ///
    /// # Errors
    /// Those of [`once`](Self::once).
    pub(crate) async fn of_type(
        &self,
        connection: &Connection,
        queue: &ShortString,
        known: Option<ProbedQueueType>,
    ) -> Result<QueueCount> {
        let mut channel = connection.channel().await?;
        let found = passive_declare(&channel, queue.clone()).await?;
        if !is_doubtful(&found) {
            channel.close().await;
            return Ok(QueueCount { found, doubt: None });
        }
        let kind = match known {
            Some(kind) => Some(kind),
            None => match kind_of(connection, channel.lapin(), queue.clone()).await {
                Ok(kind) => kind,
                Err(error) if error.kind() == ErrorKind::AccessRefused => {
                    let doubt = Some(error);
                    return Ok(QueueCount { found, doubt });
                }
                Err(error) => return Err(error),
            },
        };
        if kind != Some(ProbedQueueType::Quorum) {
            return Ok(QueueCount { found, doubt: None });
        }
        if known.is_none() {
            channel = connection.channel().await?;
        }
        let found = self.proved(&channel, queue, found).await?;
        channel.close().await;
        Ok(QueueCount { found, doubt: None })
    }

    /// The answer of a quorum queue once it has a leader.
    async fn proved(
        &self,
        channel: &OpenChannel,
        queue: &ShortString,
        mut found: lapin::Queue,
    ) -> Result<lapin::Queue> {
        let deadline = Instant::now() + self.leader_timeout;
        let (mut pause, mut filled) = (DoublingPause::new(PAUSE, LONG), 0);
        loop {
            let why = match self.prove(queue).await? {
                // Its consumers may hold everything; its leader knows by now who they are.
                EmptyProof::Empty => return passive_declare(channel, queue.clone()).await,
                proof @ (EmptyProof::Filled | EmptyProof::Led) => {
                    for _ in 0..LOOKS {
                        found = passive_declare(channel, queue.clone()).await?;
                        if !is_doubtful(&found) {
                            break;
                        }
                        sleep(PAUSE).await;
                    }
                    if !is_doubtful(&found) || matches!(proof, EmptyProof::Led) {
                        break;
                    }
                    // Each question may count as a delivery of that message.
                    filled += 1;
                    if filled == MOST_FILLED {
                        return Err(unheard_of(queue));
                    }
                    None
                }
                EmptyProof::Leaderless(why) => {
                    // Or it has a message by now that cannot be delivered, and each question counts as a delivery of that.
                    if let Ok(seen) = passive_declare(channel, queue.clone()).await
                        && !is_doubtful(&seen)
                    {
                        found = seen;
                        break;
                    }
                    Some(why)
                }
            };
            if Instant::now() >= deadline {
                return Err(leaderless(queue, why));
            }
            sleep(pause.next_pause()).await;
        }
        Ok(found)
    }

    /// Asks the leader.
    async fn prove(&self, queue: &ShortString) -> Result<EmptyProof> {
        let mut asking = self.asking.lock().await;
        let connection = match asking.take().filter(Connection::is_open) {
            Some(connection) => connection,
            None => Connection::open(&self.addresses, "depths").await?,
        };
        let uncounted = connection.server().capabilities().nack_is_uncounted;
        let channel = connection.channel().await?;
        let got = channel
            .lapin()
            .basic_get(queue.clone(), BasicGetOptions::default());
        // The time counts from now: others may have asked before.
        let proof = match timeout(self.time_limit, got).await {
            Ok(Ok(None)) => Ok(EmptyProof::Empty),
            Ok(Ok(Some(message))) => {
                // RabbitMQ 4.3 does not count this return. Elsewhere, closing the channel is no worse.
                if uncounted {
                    let options = BasicNackOptions {
                        multiple: false,
                        requeue: true,
                    };
                    let _ = message.acker.nack(options).await;
                }
                Ok(EmptyProof::Filled)
            }
            Ok(Err(why)) => empty_proof(refusal(&Operation::Consuming(queue.as_str()), why)),
            Err(_) => {
                connection.cut(); // its channel waits for the leader, and could not be closed
                return Err(leaderless(queue, None));
            }
        };
        channel.close().await;
        // The broker hangs up if it finds no leader.
        if !matches!(proof, Ok(EmptyProof::Leaderless(_))) {
            *asking = Some(connection);
        }
        proof
    }

    /// Hangs up.
    pub(crate) async fn close(self) {
        if let Some(connection) = self.asking.into_inner() {
            connection.close().await;
        }
    }
}

/// Whether this is also the answer for a quorum queue without a leader. A queue with consumers has a leader that knows them.
pub(crate) fn is_doubtful(found: &lapin::Queue) -> bool {
    found.message_count() == 0 && found.consumer_count() == 0
}

/// What a refused `basic.get` means.
fn empty_proof(error: Error) -> Result<EmptyProof> {
    let said = error.to_string();
    match error.kind() {
        ErrorKind::ConnectionLost => Ok(EmptyProof::Leaderless(error)),
        // Of a message that cannot be delivered. Each question counts as a delivery of it.
        _ if is_crash(&error) => Ok(EmptyProof::Filled),
        ErrorKind::Broker if said.contains("INTERNAL_ERROR") => Ok(EmptyProof::Leaderless(error)),
        _ if said.contains("RESOURCE_LOCKED") => Ok(EmptyProof::Led),
        _ => Err(error),
    }
}

/// It has messages, and the node that was asked does not know how many.
fn unheard_of(queue: &ShortString) -> Error {
    Error::new(
        ErrorKind::Timeout,
        format!(
            "the queue `{queue}` has messages, but the node that was asked does not see them yet; try again"
        ),
    )
}

/// The error if nobody knows what is in the queue.
pub(crate) fn leaderless(queue: &ShortString, why: Option<Error>) -> Error {
    let error = Error::new(
        ErrorKind::Timeout,
        format!(
            "the queue `{queue}`{NO_LEADER}most of its nodes are down; nothing is lost, start them and try again"
        ),
    );
    match why {
        Some(why) => error.with_source(why),
        None => error,
    }
}

/// Whether this error says that a queue has no leader.
pub(crate) fn is_leaderless(error: &Error) -> bool {
    error.kind() == ErrorKind::Timeout && error.to_string().contains(NO_LEADER)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_that_is_not_seen_yet_is_not_without_a_leader() {
        let queue = ShortString::from("q");
        assert!(is_leaderless(&leaderless(&queue, None)));
        assert!(!is_leaderless(&unheard_of(&queue)));
    }

    #[test]
    fn what_a_refusal_tells_of_a_leader() {
        let empty_proof = |kind, said: &str| empty_proof(Error::new(kind, said));
        assert!(matches!(
            empty_proof(
                ErrorKind::Broker,
                "INTERNAL_ERROR - Cannot get a message from queue 'q': nodedown"
            ),
            Ok(EmptyProof::Leaderless(_))
        ));
        assert!(matches!(
            empty_proof(ErrorKind::ConnectionLost, "the connection was lost"),
            Ok(EmptyProof::Leaderless(_))
        ));
        assert!(matches!(
            empty_proof(
                ErrorKind::AccessRefused,
                "RESOURCE_LOCKED - cannot obtain access to locked queue 'q' in vhost '/'"
            ),
            Ok(EmptyProof::Led)
        ));
        for kind in [ErrorKind::AccessRefused, ErrorKind::QueueNotFound] {
            assert_eq!(empty_proof(kind, "no").unwrap_err().kind(), kind);
        }
    }
}
