//! When a consumer looks for a message that closes its connections, and when it stops.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use lapin::types::ShortString;
use tracing::debug;

use super::moving::{FEW, Moved, Reach, can_set_aside, set_aside};
use crate::{
    Client, Error, ErrorKind, Event, QueueType, Result,
    connection::{Census, Connection, Count},
    consumer::{
        Singly,
        flaws::{self, Flaw},
    },
    topology::unreadable_queue,
};

/// So many connections in a row may end without a reason that was found. RabbitMQ counts each as a delivery of the message, and drops it after
/// the 20th by default.
const MOST_DEATHS: u32 = 5;
/// So many more connections may end after messages that were taken one at a time, and handled. Each has another reason: a quorum queue returns
/// a message behind all that it returned before.
const MOST_DEATHS_AFTER_OTHERS: u32 = 12;
/// A connection that lives for so long after another did not end because of the same message.
const FORGIVEN: Duration = Duration::from_secs(60);

/// Between connections that bring the queue forward.
const SHORTEST_PAUSE: Duration = Duration::from_millis(100);

/// The last try to consume again before which a consumer that stopped reads its queue. A look may count as a delivery of what it reads, and
/// the looks and the connections before must not use up a delivery limit together.
const MOST_LOOKS: u32 = 8;

/// How many looks there are because the queue became shorter.
const MOST_SHRUNK: u32 = 1;

/// The fewest messages that are looked at, and how many where that costs nothing.
const NEAR: u32 = 64;
const FAR: u32 = 1_000;

/// The connections of a consumer that the broker closed with an error of its own.
#[derive(Clone, Debug, Default)]
pub(crate) struct Suspicion {
    deaths: u32,
    deaths_after_others: u32,
    /// Whether the last connection that was lost brought the queue forward.
    goes_on: bool,
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
    is_hidden: bool,
    /// Whether it found messages that could not be moved.
    is_refused: bool,
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

/// The queue that is looked at.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Suspected<'a> {
    pub(crate) queue: &'a str,
    pub(crate) is_classic: bool,
    /// Whether a look counts as no delivery of what it only reads.
    pub(crate) is_free: bool,
    pub(crate) prefetch: u16,
}

/// What to do before a session consumes.
#[derive(Debug)]
pub(crate) enum Step {
    Consume,
    Look(Reach),
}

impl Suspicion {
    /// A connection was lost that lived for so long. `by_error`: the broker closed it with an error of its own. `moves`: how often messages
    /// were moved by any consumer of the client. They share the connection, and one of them found the reason.
    pub(crate) fn lost(&mut self, by_error: bool, lived: Duration, moves: u64, singly: Singly) {
        if lived >= FORGIVEN || moves != self.moves {
            (self.deaths, self.deaths_after_others) = (0, 0);
        }
        let after_others = singly.is_unfinished && singly.has_taken;
        self.goes_on = by_error && (moves != self.moves || after_others);
        self.moves = moves;
        if by_error {
            if after_others && self.deaths_after_others < MOST_DEATHS_AFTER_OTHERS {
                self.deaths_after_others += 1;
                self.deaths = self.deaths.max(1);
            } else {
                self.deaths = self.deaths.saturating_add(1);
            }
        }
        let is_hidden = singly.is_unfinished && self.tries().is_hidden;
        self.tries = Arc::new(Mutex::new(Tries {
            is_hidden,
            ..Tries::default()
        }));
    }

    /// The next session could not begin.
    pub(crate) fn failed(&mut self) {
        self.goes_on = false;
    }

    /// Whether to look before the next connection consumes.
    pub(crate) fn looks(&self) -> bool {
        self.deaths > 0 && !flaws::has(Flaw::DoesNotLook)
    }

    /// How long to wait before the next connection consumes. Sessions that end soon are followed by growing pauses, and here each of them had
    /// another reason.
    pub(crate) fn pause(&self, pause: Duration) -> Duration {
        if self.goes_on {
            pause.min(SHORTEST_PAUSE)
        } else {
            pause
        }
    }

    /// How many messages to take one at a time in a session that needs no look: there may still be one that no look can pass.
    pub(crate) fn singly(&self, prefetch: u16) -> u32 {
        if self.tries().is_hidden {
            near(prefetch)
        } else {
            0
        }
    }

    /// How many messages to look at. The message was among those that the broker sent.
    fn looks_at(&self, prefetch: u16, is_free: bool) -> u32 {
        let near = near(prefetch);
        if is_free {
            near.max(FAR)
        } else {
            near * self.deaths.min(MOST_DEATHS).pow(2)
        }
    }

    /// Looks for messages that close the connection, moves them, and tells of it. Returns how many messages the consumer should take one at a
    /// time: those that no look can pass are handled so, until what closes the connection is the first.
    ///
    /// # Errors
    /// Why the consumer must not consume now.
    pub(crate) async fn look(
        &self,
        client: &Client,
        connection: &Connection,
        (queue, kind, prefetch): (&ShortString, Option<QueueType>, u16),
        declares: bool,
        tell: impl FnOnce(Event),
    ) -> Result<u32> {
        let ready = ready(client, connection, queue).await;
        let queue = queue.as_str();
        let is_classic = kind == Some(QueueType::Classic);
        let suspected = Suspected {
            queue,
            is_classic,
            is_free: is_classic || connection.server().capabilities().nack_is_uncounted,
            prefetch,
        };
        // This costs no delivery, as another look would.
        if self.is_refused()
            && ready != Some(0)
            && let Err(error) = can_set_aside(client, connection, queue, declares).await
        {
            return self.looked(suspected, refused(error));
        }
        let Step::Look(reach) = self.step(suspected, ready)? else {
            return Ok(self.singly(prefetch));
        };
        let (moved, looked) = set_aside(client, connection, queue, queue, reach, declares).await;
        moved.tell(queue, queue);
        if let Some(event) = moved.event(queue) {
            tell(event);
        }
        let looked = looked.map(|()| moved);
        if let Err(error) = &looked {
            debug!(queue, %error, "messages that cannot be delivered over AMQP 0-9-1 cannot be looked for");
        }
        self.looked(suspected, looked)
    }

    /// Whether the last look found messages that could not be moved. Before it reads them again, a consumer finds out whether they can be.
    pub(crate) fn is_refused(&self) -> bool {
        self.tries().is_refused
    }

    /// What to do now, with so many messages that are ready.
    ///
    /// # Errors
    /// Why the consumer must not consume now.
    pub(crate) fn step(&self, suspected: Suspected<'_>, ready: Option<u32>) -> Result<Step> {
        let mut tries = self.tries();
        tries.number = tries.number.saturating_add(1);
        let has_shrunk = ready.is_some_and(|ready| tries.has_shrunk(ready));
        // It is gone, whoever took it.
        if tries.number > 1 && ready == Some(0) {
            return Ok(Step::Consume);
        }
        // Nobody counts the deliveries of a classic queue.
        if tries.reads() || has_shrunk || suspected.is_classic {
            return Ok(Step::Look(if tries.is_hidden {
                // What is looked at goes behind the others, and so does what costs a connection: the same number each time could miss it for
                // ever. Where there are fewer, each would be looked at again.
                let turn = self.deaths + self.deaths_after_others;
                // A consumer that stopped has few deliveries left.
                let most = if tries.number == 1 { 1 + turn % FEW } else { 1 };
                Reach::Singly(most.min(ready.unwrap_or(1).max(1)))
            } else {
                Reach::Near(self.looks_at(suspected.prefetch, suspected.is_free))
            }));
        }
        let last = tries.failed.as_ref().map(|failed| {
            let why = format!(
                "{failed}; each look at it may count as a delivery, so `{}` is read again after growing pauses, and no more after \
                 {MOST_LOOKS} tries: then start the consumer again, or empty the queue",
                suspected.queue
            );
            Error::new(ErrorKind::Broker, why)
        });
        let is_refused = tries.is_refused;
        drop(tries);
        let last = match last {
            None => Ok(Moved::default()),
            Some(error) if is_refused => refused(error),
            Some(error) => Err(error),
        };
        self.after(suspected, last).map(|()| Step::Consume)
    }

    /// How many messages to take one at a time after this look.
    ///
    /// # Errors
    /// Why the consumer must not consume now.
    pub(crate) fn looked(&self, suspected: Suspected<'_>, looked: Result<Moved>) -> Result<u32> {
        let (is_passed, is_gone) = {
            let mut tries = self.tries();
            let had_failed = tries.failed.is_some();
            let failed = match &looked {
                Ok(moved) => {
                    // A look at single messages does not see what is behind them.
                    tries.is_hidden |= moved.ended_early.is_some();
                    tries.is_refused = moved.refused.is_some();
                    moved.refused.as_ref().or(moved.ended_early.as_ref())
                }
                Err(error) => Some(error),
            };
            tries.failed = failed.map(Error::to_string);
            // Whatever was in the way is not the first any more.
            let is_gone = had_failed && tries.failed.is_none();
            (looked.is_ok() && !tries.is_hidden, is_gone)
        };
        if !is_gone {
            self.after(suspected, looked)?;
        }
        Ok(if is_passed {
            0
        } else {
            near(suspected.prefetch)
        })
    }

    fn tries(&self) -> MutexGuard<'_, Tries> {
        self.tries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether it may consume after this look.
    ///
    /// # Errors
    /// Why it does not, and what to do.
    fn after(&self, suspected: Suspected<'_>, looked: Result<Moved>) -> Result<()> {
        let queue = suspected.queue;
        let why = match looked {
            _ if flaws::has(Flaw::NeverStops) => return Ok(()),
            Ok(moved) if !moved.causes.is_empty() => return Ok(()),
            Ok(Moved {
                refused: Some(error),
                ..
            }) => format!(
                "`{queue}` has messages that it cannot deliver over AMQP 0-9-1, and they cannot be moved ({error}); move them to `{}` with \
                 `retryrmq unreadable take {queue}`, as a user who may configure and write that queue",
                unreadable_queue(queue)
            ),
            // A first one may have had another reason.
            _ if self.deaths < 2 => return Ok(()),
            Ok(moved) => match moved.ended_early {
                // What stands in the way may be handled meanwhile: a session begins with one message.
                _ if self.deaths < MOST_DEATHS => return Ok(()),
                Some(error) => error.to_string(),
                None => format!(
                    "no message was found in `{queue}` that it cannot deliver over AMQP 0-9-1; read the broker's log, take the message out, and \
                     start the consumer again"
                ),
            },
            Err(error) if error.is_transient() && self.deaths < MOST_DEATHS => return Ok(()),
            Err(error) => format!(
                "whether `{queue}` has a message that it cannot deliver over AMQP 0-9-1 was not found out ({error}); `retryrmq unreadable take \
                 {queue}` looks for such messages, as a user who may read `{queue}`"
            ),
        };
        let connections = match self.deaths + self.deaths_after_others {
            1 => "a connection".to_owned(),
            several => format!("{several} connections"),
        };
        Err(Error::new(
            ErrorKind::Broker,
            format!(
                "not consuming: RabbitMQ closed {connections} of this consumer with an error of its own, and after more of them it may drop a \
                 message. {why}"
            ),
        ))
    }
}

/// What a look comes to that finds messages which cannot be moved.
pub(crate) fn refused(why: Error) -> Result<Moved> {
    Ok(Moved {
        refused: Some(why),
        ..Moved::default()
    })
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
            ..Moved::default()
        })
    }

    fn unseen() -> Result<Moved> {
        Err(Error::new(ErrorKind::AccessRefused, "no"))
    }

    const SUSPECTED: Suspected<'_> = Suspected {
        queue: "orders",
        is_classic: false,
        is_free: false,
        prefetch: 10,
    };

    fn consumes(suspicion: &Suspicion, looked: Result<Moved>) -> bool {
        suspicion.after(SUSPECTED, looked).is_ok()
    }

    fn lost(suspicion: &mut Suspicion, by_error: bool, lived: Duration, moves: u64) {
        suspicion.lost(by_error, lived, moves, Singly::default());
    }

    const SHORT: Duration = Duration::from_secs(1);

    #[test]
    fn an_end_for_another_reason_is_no_suspicion() {
        let mut suspicion = Suspicion::default();
        lost(&mut suspicion, false, SHORT, 0);
        assert!(!suspicion.looks());
        lost(&mut suspicion, true, SHORT, 0);
        assert!(suspicion.looks());
        lost(&mut suspicion, false, FORGIVEN, 0);
        assert!(!suspicion.looks());
        lost(&mut suspicion, true, FORGIVEN, 0);
        lost(&mut suspicion, false, SHORT, 1);
        assert!(!suspicion.looks());
        // What another consumer's queue caused counts against nobody.
        for moves in 1..100 {
            lost(&mut suspicion, true, SHORT, moves);
            assert!(consumes(&suspicion, moved(0)));
        }
    }

    #[test]
    fn it_looks_farther_each_time_unless_a_look_is_free() {
        let mut suspicion = Suspicion::default();
        let mut looked_at = Vec::new();
        for _ in 0..3 {
            lost(&mut suspicion, true, SHORT, 0);
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
        let later = u32::try_from(looks.count()).unwrap() + MOST_SHRUNK;
        let deliveries = later + 2 * MOST_DEATHS - 1;
        assert!(deliveries < 20, "{deliveries}");
        // Of one that no look can pass, and that is the only one that was returned. The look before it stops is one of the later ones.
        let alone: u32 = (2..=MOST_DEATHS).map(|deaths| 1 + 1 + deaths % FEW).sum();
        let deliveries = (1 + 1 + FEW) + alone + later - 1;
        assert!(deliveries <= 20, "{deliveries}");
    }

    #[test]
    fn it_waits_again_when_a_session_cannot_begin() {
        let long = Duration::from_secs(5);
        let mut suspicion = Suspicion::default();
        lost(&mut suspicion, true, SHORT, 1);
        assert_eq!(suspicion.pause(long), SHORTEST_PAUSE);
        suspicion.failed();
        assert_eq!(suspicion.pause(long), long);
    }

    #[test]
    fn single_messages_that_were_handled_in_between_are_another_reason() {
        let mut suspicion = Suspicion::default();
        let singly = |has_taken| Singly {
            is_unfinished: true,
            has_taken,
        };
        let hidden = || Moved {
            ended_early: Some(Error::new(ErrorKind::Broker, "hidden")),
            ..Moved::default()
        };
        lost(&mut suspicion, true, SHORT, 0);
        let step = suspicion.step(SUSPECTED, None).unwrap();
        assert!(matches!(step, Step::Look(Reach::Near(_))));
        assert_eq!(suspicion.looked(SUSPECTED, Ok(hidden())).unwrap(), NEAR);
        for _ in 0..MOST_DEATHS_AFTER_OTHERS {
            suspicion.lost(true, SHORT, 0, singly(true));
            // What was sent along with others would count as delivered each time.
            let step = suspicion.step(SUSPECTED, None).unwrap();
            assert!(matches!(step, Step::Look(Reach::Singly(_))));
            assert_eq!(suspicion.looked(SUSPECTED, Ok(hidden())).unwrap(), NEAR);
        }
        for death in 2..=MOST_DEATHS {
            suspicion.lost(true, SHORT, 0, singly(false));
            let looked = suspicion.looked(SUSPECTED, Ok(hidden()));
            assert_eq!(looked.is_ok(), death < MOST_DEATHS);
        }
        suspicion.lost(true, SHORT, 0, Singly::default());
        let step = suspicion.step(SUSPECTED, None).unwrap();
        assert!(matches!(step, Step::Look(Reach::Near(_))));
    }

    #[test]
    fn it_stops_before_a_delivery_limit_and_goes_on_when_something_was_moved() {
        let mut suspicion = Suspicion::default();
        for death in 1..=MOST_DEATHS {
            lost(&mut suspicion, true, SHORT, 0);
            assert_eq!(consumes(&suspicion, moved(0)), death < MOST_DEATHS);
            assert_eq!(consumes(&suspicion, unseen()), death < 2);
            let error = Error::new(ErrorKind::AccessRefused, "no");
            assert!(!consumes(&suspicion, refused(error)));
            assert!(consumes(&suspicion, moved(1)));
        }
        let error = suspicion.after(SUSPECTED, unseen()).err().unwrap();
        assert!(
            error
                .to_string()
                .contains("retryrmq unreadable take orders")
        );
    }

    #[test]
    fn a_queue_that_becomes_shorter_is_read_once_more() {
        let mut tries = Tries::default();
        let seen = [4, 4, 9, 3, 3, 4, 2, 2, 1, 0, 5];
        let shrunk = seen.map(|ready| tries.has_shrunk(ready));
        let read: Vec<_> = (0..seen.len()).filter(|at| shrunk[*at]).collect();
        assert_eq!(read, [3]);
    }
}
