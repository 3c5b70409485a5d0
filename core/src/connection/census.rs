//! How many messages are ready in a queue, as far as the broker's word can be believed.
//!
//! A quorum queue without a leader is taken for empty: a passive declaration of it says 0 messages and 0 consumers, and no error (fact
//! 80). So that answer is believed only of other types, and of a quorum queue that can prove it: `basic.get` from an empty queue goes
//! through its leader and a majority, and leaves no trace; without them it is not answered, or refused. Where a message comes after
//! all it is given back at once. Any other answer came from a leader.

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
    ANSWER, Addresses, Connection, Doing, OpenChannel,
    kind::{Kind, kind_of},
    look, refusal,
};
use crate::{Error, ErrorKind, Result};

/// The pause before a queue is looked at again.
const PAUSE: Duration = Duration::from_millis(50);
/// The longest one before it is asked again. An election takes less than a second, and each question is a line in the broker's log.
const LONG: Duration = Duration::from_secs(1);
/// So often a queue that has proved to have a leader is looked at before it has to prove that again: the nodes hear of a new leader
/// a moment after it is one.
const LOOKS: u32 = 20;
/// So often a queue may prove to have messages while it is told to have none.
const MOST_FILLED: u32 = 2;

/// Asks for the depths of queues. What proves them has a connection of its own, made when it is needed: a broker that finds no leader
/// closes it (541).
pub(crate) struct Census {
    addresses: Arc<Addresses>,
    /// For so long it looks for a leader.
    patience: Duration,
    asking: Mutex<Option<Connection>>,
}

/// What a queue says to the question whether it is empty.
#[derive(Debug)]
enum Proof {
    Empty,
    /// It has a leader, and a message.
    Filled,
    /// It has a leader, which hands out nothing that way: a queue with a single active consumer.
    Led,
    /// Not this time.
    Leaderless(Error),
}

/// What the broker told of a queue.
pub(crate) struct Count {
    pub(crate) found: lapin::Queue,
    /// Why it could not be proved that it is empty: the user may not read it.
    pub(crate) doubt: Option<Error>,
}

impl Count {
    /// For a caller that reads the queue next: what may not be read does not count as empty.
    pub(crate) fn read(self) -> Result<lapin::Queue> {
        match self.doubt {
            None => Ok(self.found),
            Some(doubt) => Err(doubt),
        }
    }
}

impl Census {
    pub(crate) fn new(addresses: &Arc<Addresses>) -> Self {
        Self {
            addresses: Arc::clone(addresses),
            patience: ANSWER,
            asking: Mutex::default(),
        }
    }

    /// For who asks again soon, and has others to ask meanwhile.
    pub(crate) fn hasty(addresses: &Arc<Addresses>) -> Self {
        Self {
            patience: PAUSE * LOOKS,
            ..Self::new(addresses)
        }
    }

    /// Looks at one queue.
    ///
    /// # Errors
    /// As [`look`]; [`ErrorKind::Timeout`] for a quorum queue that says it is empty and has no leader to prove it.
    pub(crate) async fn once(
        addresses: &Arc<Addresses>,
        connection: &Connection,
        queue: &ShortString,
    ) -> Result<Count> {
        let census = Self::new(addresses);
        let count = census.of(connection, queue).await;
        census.close().await;
        count
    }

    /// Looks at a queue on this connection.
    ///
    /// # Errors
    /// As [`once`](Self::once).
    pub(crate) async fn of(&self, connection: &Connection, queue: &ShortString) -> Result<Count> {
        let channel = connection.channel().await?;
        let found = look(channel.lapin(), queue.clone()).await?;
        if !is_doubtful(&found) {
            channel.close().await;
            return Ok(Count { found, doubt: None });
        }
        let kind = match kind_of(connection, channel.lapin(), queue.clone()).await {
            Ok(kind) => kind,
            Err(error) if error.kind() == ErrorKind::AccessRefused => {
                let doubt = Some(error);
                return Ok(Count { found, doubt });
            }
            Err(error) => return Err(error),
        };
        if kind != Some(Kind::Quorum) {
            return Ok(Count { found, doubt: None });
        }
        let channel = connection.channel().await?;
        let found = self.proved(&channel, queue, found).await?;
        channel.close().await;
        Ok(Count { found, doubt: None })
    }

    /// What a quorum queue says once it has a leader.
    async fn proved(
        &self,
        channel: &OpenChannel,
        queue: &ShortString,
        mut found: lapin::Queue,
    ) -> Result<lapin::Queue> {
        let deadline = Instant::now() + self.patience;
        let (mut pause, mut filled) = (PAUSE, 0);
        loop {
            let why = match self.prove(queue).await? {
                // Its consumers may hold everything: who they are its leader knows by now.
                Proof::Empty => return look(channel.lapin(), queue.clone()).await,
                proof @ (Proof::Filled | Proof::Led) => {
                    for _ in 0..LOOKS {
                        found = look(channel.lapin(), queue.clone()).await?;
                        if !is_doubtful(&found) {
                            break;
                        }
                        sleep(PAUSE).await;
                    }
                    if !is_doubtful(&found) || matches!(proof, Proof::Led) {
                        break;
                    }
                    // Each question may count as a delivery of what came.
                    filled += 1;
                    if filled == MOST_FILLED {
                        return Err(unheard_of(queue));
                    }
                    None
                }
                Proof::Leaderless(why) => Some(why),
            };
            if Instant::now() >= deadline {
                return Err(leaderless(queue, why));
            }
            sleep(pause).await;
            pause = (pause * 2).min(LONG);
        }
        Ok(found)
    }

    /// Asks the leader.
    async fn prove(&self, queue: &ShortString) -> Result<Proof> {
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
        // From now on: others may have asked before.
        let proof = match timeout(self.patience, got).await {
            Ok(Ok(None)) => Ok(Proof::Empty),
            Ok(Ok(Some(message))) => {
                // The one way back that RabbitMQ 4.3 does not count; elsewhere the end of the channel is no worse.
                if uncounted {
                    let options = BasicNackOptions {
                        multiple: false,
                        requeue: true,
                    };
                    let _ = message.acker.nack(options).await;
                }
                Ok(Proof::Filled)
            }
            Ok(Err(why)) => judged(refusal(&Doing::Consuming(queue.as_str()), why)),
            Err(_) => {
                connection.cut(); // its channel waits for the leader, and would not part
                return Err(leaderless(queue, None));
            }
        };
        channel.close().await;
        // The broker hangs up where it finds no leader.
        if !matches!(proof, Ok(Proof::Leaderless(_))) {
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

/// Whether this is what a quorum queue without a leader is taken for. One that has consumers has a leader that knows of them.
pub(crate) fn is_doubtful(found: &lapin::Queue) -> bool {
    found.message_count() == 0 && found.consumer_count() == 0
}

/// What the refusal of a `basic.get` tells.
fn judged(error: Error) -> Result<Proof> {
    let said = error.to_string();
    match error.kind() {
        ErrorKind::ConnectionLost => Ok(Proof::Leaderless(error)),
        ErrorKind::Broker if said.contains("INTERNAL_ERROR") => Ok(Proof::Leaderless(error)),
        _ if said.contains("RESOURCE_LOCKED") => Ok(Proof::Led),
        _ => Err(error),
    }
}

/// It has messages, and the node that was asked does not know how many.
fn unheard_of(queue: &ShortString) -> Error {
    Error::new(
        ErrorKind::Timeout,
        format!(
            "the queue `{queue}` has messages, and the node that was asked tells of none: it has not heard of the queue's new leader yet; \
             try again"
        ),
    )
}

/// Nobody knows what is in the queue.
pub(crate) fn leaderless(queue: &ShortString, why: Option<Error>) -> Error {
    let error = Error::new(
        ErrorKind::Timeout,
        format!(
            "the queue `{queue}` has no leader, so that nobody knows what is in it: a majority of its nodes is away; nothing is lost, start \
             them, and try again"
        ),
    );
    match why {
        Some(why) => error.with_source(why),
        None => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_refusal_tells_of_a_leader() {
        let judged = |kind, said: &str| judged(Error::new(kind, said));
        assert!(matches!(
            judged(
                ErrorKind::Broker,
                "INTERNAL_ERROR - Cannot get a message from queue 'q': nodedown"
            ),
            Ok(Proof::Leaderless(_))
        ));
        assert!(matches!(
            judged(ErrorKind::ConnectionLost, "the connection was lost"),
            Ok(Proof::Leaderless(_))
        ));
        assert!(matches!(
            judged(
                ErrorKind::AccessRefused,
                "RESOURCE_LOCKED - cannot obtain access to locked queue 'q' in vhost '/'"
            ),
            Ok(Proof::Led)
        ));
        for kind in [ErrorKind::AccessRefused, ErrorKind::QueueNotFound] {
            assert_eq!(judged(kind, "no").unwrap_err().kind(), kind);
        }
    }
}
