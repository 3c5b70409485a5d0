//! When a consumer looks for a message that closes its connections, and when it stops.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use lapin::types::ShortString;
use tracing::debug;

use super::moving::{self, Moved, set_aside};
use crate::{
    Client, Error, ErrorKind, QueueType, Result,
    connection::{Census, Connection, Count},
    consumer::flaws::{self, Flaw},
    topology::unreadable_queue,
};

/// So many connections in a row may end without a reason that was found. RabbitMQ counts each as a delivery of the message, and drops it after
/// the 20th by default.
const MOST_DEATHS: u32 = 5;
/// A connection that lives for so long after another did not end because of the same message.
const FORGIVEN: Duration = Duration::from_secs(60);

/// The last try to consume again before which a consumer that stopped reads its queue. A look may count as a delivery of what it reads, and
/// the looks and the connections before must not use up a delivery limit together.
const MOST_LOOKS: u32 = 32;

/// How many looks there are because the queue became shorter.
const MOST_SHRUNK: u32 = 3;

/// The connections of a consumer that the broker closed with an error of its own.
#[derive(Clone, Debug, Default)]
pub(crate) struct Suspicion {
    deaths: u32,
    /// How often the client had moved messages then.
    moves: u64,
    /// What was tried since then.
    tries: Arc<Mutex<Tries>>,
}

/// Tries to consume again after a connection was lost.
#[derive(Debug, Default)]
struct Tries {
    number: u32,
    /// Why the last look failed, if it did.
    failed: Option<String>,
    /// Whether it ended at a message that cannot be delivered over AMQP 1.0. Farther looks would end there as well.
    is_blocked: bool,
    /// The fewest messages that were seen in the queue, and how often that made another look worth while.
    fewest: Option<u32>,
    shrunk: u32,
}

impl Tries {
    /// Whether to read the queue: for the first, the second, the fourth and so on. Pauses grow, and then it has to be started again.
    fn reads(&self) -> bool {
        self.number.is_power_of_two() && self.number <= MOST_LOOKS
    }

    /// Whether the queue has become shorter: then the message may be gone, whoever took it.
    fn has_shrunk(&mut self, ready: u32) -> bool {
        let before = self.fewest.replace(ready.min(self.fewest.unwrap_or(ready)));
        let shrunk = before.is_some_and(|before| ready < before) && self.shrunk < MOST_SHRUNK;
        self.shrunk += u32::from(shrunk);
        shrunk
    }
}

/// The fewest messages that are looked at, and how many where that costs nothing.
const NEAR: u32 = 64;
const FAR: u32 = 1_000;

impl Suspicion {
    /// A connection was lost that lived for so long. `by_error`: the broker closed it with an error of its own. `moves`: how often messages
    /// were moved by any consumer of the client. They share the connection, and one of them found the reason.
    pub(crate) fn lost(&mut self, by_error: bool, lived: Duration, moves: u64) {
        if lived >= FORGIVEN || moves != self.moves {
            self.deaths = 0;
        }
        self.moves = moves;
        if by_error {
            self.deaths = self.deaths.saturating_add(1);
        }
        self.tries = Arc::default();
    }

    /// Whether to look before the next connection consumes.
    pub(crate) fn looks(&self) -> bool {
        self.deaths > 0 && !flaws::has(Flaw::DoesNotLook)
    }

    /// How many messages to look at, for a consumer with this prefetch. The message was among those that the broker sent. `is_free`: a look
    /// counts as no delivery of the others.
    pub(crate) fn looks_at(&self, prefetch: u16, is_free: bool) -> u32 {
        let near = near(prefetch);
        if is_free {
            near.max(FAR)
        } else {
            near * self.deaths.min(MOST_DEATHS).pow(2)
        }
    }

    /// Looks for messages that close the connection, and moves them. Returns how many messages the consumer should take one at a time: those
    /// that no look can pass are handled so, until what closes the connection is the first.
    ///
    /// # Errors
    /// Why the consumer must not consume now.
    pub(crate) async fn look(
        &self,
        client: &Client,
        connection: &Connection,
        (queue, kind, prefetch): (&ShortString, Option<QueueType>, u16),
        declares: bool,
    ) -> Result<u32> {
        let ready = ready(client, connection, queue).await;
        let is_classic = kind == Some(QueueType::Classic);
        let (is_first, reads, is_blocked) = {
            let mut tries = self.tries();
            tries.number = tries.number.saturating_add(1);
            let has_shrunk = ready.is_some_and(|ready| tries.has_shrunk(ready));
            // Nobody counts the deliveries of a classic queue.
            let reads = tries.reads() || has_shrunk || is_classic;
            (tries.number == 1, reads, tries.is_blocked)
        };
        // It is gone, whoever took it.
        if !is_first && ready == Some(0) {
            return Ok(0);
        }
        let queue = queue.as_str();
        // It counts on every broker if it ends with an error.
        if !reads {
            return self
                .after(queue, self.not_read(queue), is_classic)
                .map(|()| 0);
        }
        let is_free = is_classic || connection.server().capabilities().nack_is_uncounted;
        let most = if is_blocked && !is_classic {
            1
        } else {
            self.looks_at(prefetch, is_free)
        };
        let looked = set_aside(client, connection, queue, queue, most, declares).await;
        match &looked {
            Ok(moved) => moved.tell(queue, queue),
            Err(error) => {
                debug!(queue, %error, "messages that cannot be delivered over AMQP 0-9-1 cannot be looked for");
            }
        }
        let is_passed = {
            let failed = looked.as_ref().err();
            let mut tries = self.tries();
            tries.is_blocked = failed.is_some_and(moving::is_blocked);
            tries.failed = failed.map(Error::to_string);
            !tries.is_blocked && looked.as_ref().is_ok_and(|moved| !moved.is_partial)
        };
        self.after(queue, looked, is_classic)?;
        Ok(if is_passed { 0 } else { near(prefetch) })
    }

    fn tries(&self) -> MutexGuard<'_, Tries> {
        self.tries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the last look came to, for a try without one.
    fn not_read(&self, queue: &str) -> Result<Moved> {
        let Some(failed) = &self.tries().failed else {
            return Ok(Moved::default());
        };
        Err(Error::new(
            ErrorKind::Broker,
            format!(
                "{failed}; each look at it may count as a delivery, so `{queue}` is read again after growing pauses, and no more after \
                 {MOST_LOOKS} tries: then start the consumer again, or empty the queue"
            ),
        ))
    }

    /// Whether it may consume after this look.
    ///
    /// # Errors
    /// Why it does not, and what to do.
    pub(crate) fn after(&self, queue: &str, looked: Result<Moved>, is_classic: bool) -> Result<()> {
        let why = match looked {
            _ if flaws::has(Flaw::NeverStops) => return Ok(()),
            Ok(moved) if !moved.causes.is_empty() => return Ok(()),
            // A first one may have had another reason.
            _ if self.deaths < 2 => return Ok(()),
            Ok(_) if self.deaths < MOST_DEATHS => return Ok(()),
            Ok(_) => format!(
                "no message was found in `{queue}` that it cannot deliver over AMQP 0-9-1; read the broker's log, take the message out, and \
                 start the consumer again"
            ),
            Err(error) if error.is_transient() && self.deaths < MOST_DEATHS => return Ok(()),
            // What stands in the way may be handled meanwhile: a session begins with one message.
            Err(error) if moving::is_blocked(&error) && is_classic && self.deaths < MOST_DEATHS => {
                return Ok(());
            }
            Err(error) if moving::is_blocked(&error) => error.to_string(),
            Err(error) => format!(
                "whether `{queue}` has a message that it cannot deliver over AMQP 0-9-1 was not found out ({error}); move such messages to \
                 `{}` with `retryrmq unreadable take {queue}`, as a user who may configure and write that queue",
                unreadable_queue(queue)
            ),
        };
        Err(Error::new(
            ErrorKind::Broker,
            format!(
                "not consuming: RabbitMQ closed {} connections of this consumer with an error of its own, and after more of them it may drop a \
                 message. {why}",
                self.deaths
            ),
        ))
    }
}

/// How many messages a connection can have been lost to, and some more.
fn near(prefetch: u16) -> u32 {
    (2 * u32::from(prefetch)).max(NEAR)
}

/// How many messages are ready, if that can be found out.
async fn ready(client: &Client, connection: &Connection, queue: &ShortString) -> Option<u32> {
    let count = Census::once(client.addresses(), connection, queue).await;
    let found = count.and_then(Count::read).ok()?;
    Some(found.message_count())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moved(count: usize) -> Result<Moved> {
        Ok(Moved {
            causes: vec!["why".to_owned(); count],
            is_partial: false,
        })
    }

    fn refused() -> Result<Moved> {
        Err(Error::new(ErrorKind::AccessRefused, "no"))
    }

    fn consumes(suspicion: &Suspicion, looked: Result<Moved>) -> bool {
        suspicion.after("orders", looked, false).is_ok()
    }

    const SHORT: Duration = Duration::from_secs(1);

    #[test]
    fn an_end_for_another_reason_is_no_suspicion() {
        let mut suspicion = Suspicion::default();
        suspicion.lost(false, SHORT, 0);
        assert!(!suspicion.looks());
        suspicion.lost(true, SHORT, 0);
        assert!(suspicion.looks());
        suspicion.lost(false, FORGIVEN, 0);
        assert!(!suspicion.looks());
        suspicion.lost(true, FORGIVEN, 0);
        suspicion.lost(false, SHORT, 1);
        assert!(!suspicion.looks());
        // What another consumer's queue caused counts against nobody.
        for moves in 1..100 {
            suspicion.lost(true, SHORT, moves);
            assert!(consumes(&suspicion, moved(0)));
        }
    }

    #[test]
    fn it_looks_farther_each_time_unless_a_look_is_free() {
        let mut suspicion = Suspicion::default();
        let mut looked_at = Vec::new();
        for _ in 0..3 {
            suspicion.lost(true, SHORT, 0);
            assert_eq!(suspicion.looks_at(10, true), FAR);
            looked_at.push(suspicion.looks_at(100, false));
        }
        assert_eq!(looked_at, [200, 800, 1_800]);
        assert_eq!(suspicion.looks_at(u16::MAX, true), 2 * u32::from(u16::MAX));
    }

    #[test]
    fn it_reads_a_queue_less_than_a_delivery_limit_allows() {
        let tries = (1..10_000).map(|number| Tries {
            number,
            ..Tries::default()
        });
        let looks = tries.filter(Tries::reads);
        // Each connection before was a delivery, and each but the last was followed by one look.
        let deliveries = u32::try_from(looks.count()).unwrap() + MOST_SHRUNK + 2 * MOST_DEATHS - 1;
        assert!(deliveries < 20, "{deliveries}");
    }

    #[test]
    fn it_stops_before_a_delivery_limit_and_goes_on_when_something_was_moved() {
        let mut suspicion = Suspicion::default();
        for death in 1..=MOST_DEATHS {
            suspicion.lost(true, SHORT, 0);
            assert_eq!(consumes(&suspicion, moved(0)), death < MOST_DEATHS);
            assert_eq!(consumes(&suspicion, refused()), death < 2);
            assert!(consumes(&suspicion, moved(1)));
        }
        let error = suspicion.after("orders", refused(), false).err().unwrap();
        assert!(
            error
                .to_string()
                .contains("retryrmq unreadable take orders")
        );
    }

    #[test]
    fn a_queue_that_becomes_shorter_is_read_a_few_times_more() {
        let mut tries = Tries::default();
        let seen = [4, 4, 9, 3, 3, 4, 2, 2, 1, 0, 5];
        let shrunk = seen.map(|ready| tries.has_shrunk(ready));
        let read: Vec<_> = (0..seen.len()).filter(|at| shrunk[*at]).collect();
        assert_eq!(read, [3, 6, 8]);
    }
}
