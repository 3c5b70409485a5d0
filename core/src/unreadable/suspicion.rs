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
    connection::{Census, Connection, Count, look},
    consumer::{
        Singly,
        flaws::{self, Flaw},
    },
    topology::unreadable_queue,
};

/// So many connections in a row may end because of a message that was found, or that may be anywhere. RabbitMQ counts each as a delivery of
/// the message, and drops it after the 20th by default.
const MOST_DEATHS: u32 = 5;
/// So many may end while nothing is found in the queue. Consumers of one client share connections: the one whose queue has the message usually
/// stops before the others, which then go on.
const MOST_DEATHS_WITHOUT_A_FIND: u32 = MOST_DEATHS + 1;
/// So many more connections may end after messages that were taken one at a time, and handled. Each has another reason: a quorum queue returns
/// a message behind all that it returned before.
const MOST_DEATHS_AFTER_OTHERS: u32 = 12;
/// A connection that lives for so long after another did not end because of the same message.
const FORGIVEN: Duration = Duration::from_secs(60);

/// Between connections that bring the queue forward.
const SHORTEST_PAUSE: Duration = Duration::from_millis(100);

/// The last try to consume again before which a consumer that stopped reads its queue, if it did not see what closes its connections. A look may
/// count as a delivery of what it reads, and the looks and the connections before must not use up a delivery limit together.
const MOST_LOOKS: u32 = 8;

/// How many looks there are because the queue became shorter. This limit and the next one hold where looks count as deliveries.
const MOST_SHRUNK: u32 = 1;

/// How many looks there are because the one before did not see what could not be moved.
const MOST_MISSING: u32 = 1;

/// How many looks there are because somebody else has moved messages that this consumer could not move, or because it can move them now.
const MOST_CHANGED: u32 = 2;

/// Messages that cannot be moved are read again at each of so many tries, where that costs nothing. Meanwhile another consumer does not see
/// them, and might take them for gone.
const SELDOM: u32 = 12;

/// How many tries in a row must find the queue empty: somebody may be looking at its messages.
const EMPTY: u32 = 2;

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
    /// What the client's consumers had found out by then.
    reasons: Reasons,
    /// What was tried since then.
    tries: Arc<Mutex<Tries>>,
}

/// Tries to consume again after a connection was lost.
#[derive(Debug, Default)]
struct Tries {
    number: u32,
    last: Last,
    /// Whether a look ended at a message that cannot be delivered over AMQP 1.0. Farther looks would end there as well.
    is_hidden: bool,
    /// Whether messages were moved.
    has_moved: bool,
    /// Whether the client's other consumers know that this one has found a reason.
    has_told: bool,
    /// Whether the broker refused to store copies when it was asked last, as long as nobody changes permissions or queues.
    was_forbidden: bool,
    /// How many messages were ready, in how many tries there were none, and how often the queue became shorter.
    ready: Option<u32>,
    empty: u32,
    shrunk: u32,
    /// Whether the last look did not see what could not be moved, and how often another one followed. Another consumer may have held it.
    is_missing: bool,
    missing: u32,
    /// How many messages were in the queue for what was moved, and how often there was reason to look because of that.
    aside: Option<u32>,
    changed: u32,
}

/// What the last look came to.
#[derive(Clone, Debug, Default)]
enum Last {
    #[default]
    None,
    /// It saw every message that it was to see. It has moved those that cannot be delivered, or there was none.
    Clean,
    /// It saw single messages, which are in order. It does not know what is behind them.
    Partial,
    /// It found messages that could not be moved.
    Refused(ErrorKind, String),
    /// It ended at a message that cannot be delivered over AMQP 1.0, or failed.
    Failed(String),
}

impl Tries {
    /// Whether to read the queue: for the first, the second, the fourth and so on. Pauses grow, and then it has to be started again.
    fn reads(&self) -> bool {
        self.number.is_power_of_two() && self.number <= MOST_LOOKS
    }

    /// Takes note of how many messages are ready. Returns whether they are fewer than before: then the message may be gone, whoever took it.
    fn note_ready(&mut self, ready: Option<u32>) -> bool {
        let Some(ready) = ready else { return false };
        self.empty = if ready == 0 { self.empty + 1 } else { 0 };
        self.ready
            .replace(ready)
            .is_some_and(|before| ready < before)
    }

    /// Takes note of how many messages were moved by anybody. Returns whether somebody, an operator perhaps, has moved some or made room.
    fn note_aside(&mut self, aside: Option<u32>) -> bool {
        let Some(aside) = aside else { return false };
        self.aside
            .replace(aside)
            .is_some_and(|before| before != aside)
    }

    /// Takes note of why the broker would store no copies. Returns whether it does now what it had forbidden.
    fn note_refusal(&mut self, refusal: Option<&Error>) -> bool {
        let Some(refusal) = refusal else {
            return std::mem::take(&mut self.was_forbidden);
        };
        self.was_forbidden |= forbids(refusal);
        false
    }
}

/// Whether an error lasts until somebody changes permissions or queues.
fn forbids(error: &Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::AccessRefused | ErrorKind::QueueNotFound | ErrorKind::Mismatch
    )
}

/// Counts one more of something that may happen so often.
fn is_one_more(count: &mut u32, most: u32) -> bool {
    let is_allowed = *count < most;
    *count += u32::from(is_allowed);
    is_allowed
}

/// How often the consumers of a client have found out why their connections were lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Reasons {
    /// How often messages were moved out of the way.
    pub(crate) moved: u64,
    /// How often one stopped in front of a message that it could not move.
    pub(crate) stopped: u64,
}

/// What is known before a consumer tries again. None of it costs a delivery.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    /// How many messages are ready in its queue, and in the queue for what is moved.
    pub(crate) ready: Option<u32>,
    pub(crate) aside: Option<u32>,
    /// Why the broker would store no copies, if it was asked.
    pub(crate) refusal: Option<Error>,
    /// Whether another consumer of the client has found the reason.
    pub(crate) is_explained: bool,
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
    /// A connection was lost that lived for so long. `by_error`: the broker closed it with an error of its own. `reasons`: what any consumer
    /// of the client has found out. They share the connection.
    pub(crate) fn lost(
        &mut self,
        by_error: bool,
        lived: Duration,
        reasons: Reasons,
        singly: Singly,
    ) {
        let is_explained = self.tries().has_moved || self.is_explained(reasons);
        if !by_error {
            // Another reason must not make it stop for those before.
            self.deaths = self.deaths.min(MOST_DEATHS - 1);
        }
        if lived >= FORGIVEN || is_explained {
            (self.deaths, self.deaths_after_others) = (0, 0);
        }
        let after_others = singly.is_unfinished && singly.has_taken;
        self.goes_on = by_error && (is_explained || after_others);
        self.reasons = reasons;
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
        let mut seen = Seen {
            ready: ready(client, connection, queue).await,
            is_explained: self.is_explained(client.reasons()),
            ..Seen::default()
        };
        let queue = queue.as_str();
        let is_classic = kind == Some(QueueType::Classic);
        let suspected = Suspected {
            queue,
            is_classic,
            is_free: is_classic || connection.server().capabilities().nack_is_uncounted,
            prefetch,
        };
        if self.is_refused() && seen.ready != Some(0) {
            let asked = can_set_aside(client, connection, queue, declares).await;
            seen.refusal = asked.err();
            seen.aside = aside(client, queue).await;
        }
        let looked = match self.step(suspected, seen) {
            Ok(Step::Consume) => return Ok(self.singly(prefetch)),
            Ok(Step::Look(reach)) => {
                let (moved, looked) =
                    set_aside(client, connection, queue, queue, reach, declares).await;
                moved.tell(queue, queue);
                if let Some(event) = moved.event(queue) {
                    tell(event);
                }
                if let Err(error) = &looked {
                    debug!(queue, %error, "messages that cannot be delivered over AMQP 0-9-1 cannot be looked for");
                }
                self.tries().has_moved |= !moved.causes.is_empty();
                self.looked(suspected, looked.map(|()| moved))
            }
            Err(error) => Err(error),
        };
        if looked.is_err() && self.has_to_tell() {
            client.has_stopped();
        }
        looked
    }

    /// Whether another consumer of the client has found a reason since the connection was lost, and this one has none.
    fn is_explained(&self, reasons: Reasons) -> bool {
        reasons != self.reasons && matches!(self.tries().last, Last::Clean)
    }

    /// Whether it stops because of a message that it found. It tells so once.
    fn has_to_tell(&self) -> bool {
        let mut tries = self.tries();
        let has_found = tries.is_hidden || matches!(tries.last, Last::Refused(..));
        has_found && !std::mem::replace(&mut tries.has_told, true)
    }

    /// Whether the last look found messages that could not be moved. Before it reads them again, a consumer finds out whether they can be.
    pub(crate) fn is_refused(&self) -> bool {
        matches!(self.tries().last, Last::Refused(..))
    }

    /// What to do now.
    ///
    /// # Errors
    /// Why the consumer must not consume now.
    pub(crate) fn step(&self, suspected: Suspected<'_>, seen: Seen) -> Result<Step> {
        let mut tries = self.tries();
        tries.number = tries.number.saturating_add(1);
        let is_shorter = tries.note_ready(seen.ready);
        let has_changed = tries.note_aside(seen.aside) | tries.note_refusal(seen.refusal.as_ref());
        // It is gone, whoever took it, or it is in another queue.
        if tries.number > 1 && (tries.empty >= EMPTY || seen.is_explained) {
            return Ok(Step::Consume);
        }
        let last = tries.last.clone();
        // Nobody counts the deliveries of a classic queue. Elsewhere an error ends the session before the messages are released.
        let releases = !tries.is_hidden && seen.refusal.is_none();
        let is_free = match &last {
            _ if suspected.is_classic => true,
            Last::Failed(_) => false,
            // It has released all that it saw.
            Last::Partial => suspected.is_free,
            _ => suspected.is_free && releases,
        };
        let is_worth_while = match &last {
            Last::None => true,
            Last::Clean => false,
            Last::Refused(..) if is_free => {
                tries.is_missing || is_shorter || has_changed || tries.number.is_multiple_of(SELDOM)
            }
            Last::Refused(..) => {
                tries.is_missing && is_one_more(&mut tries.missing, MOST_MISSING)
                    || is_shorter && is_one_more(&mut tries.shrunk, MOST_SHRUNK)
                    || has_changed && is_one_more(&mut tries.changed, MOST_CHANGED)
            }
            // Meanwhile others do not see what it looks at.
            Last::Partial if is_free => {
                tries.number <= MOST_LOOKS || is_shorter || tries.number.is_multiple_of(SELDOM)
            }
            Last::Partial | Last::Failed(_) => {
                is_free
                    || tries.reads()
                    || is_shorter && is_one_more(&mut tries.shrunk, MOST_SHRUNK)
            }
        };
        if is_worth_while {
            // Whoever moves what is found changes their number.
            tries.aside = None;
            return Ok(Step::Look(self.reach(suspected, &tries, seen.ready)));
        }
        drop(tries);
        let queue = suspected.queue;
        let failed = match last {
            // Nothing but another try shows whether the message is still there.
            Last::Clean if is_shorter && self.deaths == MOST_DEATHS_WITHOUT_A_FIND => {
                return Ok(Step::Consume);
            }
            Last::None | Last::Clean | Last::Partial => Ok(Moved::default()),
            Last::Refused(kind, why) => {
                let why = seen.refusal.unwrap_or_else(|| Error::new(kind, why));
                Ok(unmoved(why))
            }
            Last::Failed(why) => {
                let why = format!(
                    "{why}; each look at it may count as a delivery, so `{queue}` is read again after growing pauses, and no more after \
                     {MOST_LOOKS} tries: then start the consumer again, or empty the queue"
                );
                Err(Error::new(ErrorKind::Broker, why))
            }
        };
        self.after(suspected, failed).map(|()| Step::Consume)
    }

    fn reach(&self, suspected: Suspected<'_>, tries: &Tries, ready: Option<u32>) -> Reach {
        if tries.is_hidden {
            // What is looked at goes behind the others, and so does what costs a connection: the same number each time could miss it for ever.
            // Where there are fewer, each would be looked at again.
            let turn = self.deaths + self.deaths_after_others;
            // A consumer that stopped has few deliveries left.
            let most = if tries.number == 1 { 1 + turn % FEW } else { 1 };
            let ready = ready.unwrap_or(1).max(1);
            // What a look returns, the next one meets first: it has to go farther, or the message behind would be met by sessions only.
            let farther = turn.saturating_add(tries.number);
            let in_order = if suspected.is_free {
                near(suspected.prefetch).saturating_mul(farther)
            } else {
                most
            };
            Reach::Singly {
                in_order: in_order.min(ready),
                blocked: most.min(ready),
            }
        } else {
            Reach::Near(self.looks_at(suspected.prefetch, suspected.is_free))
        }
    }

    /// How many messages to take one at a time after this look.
    ///
    /// # Errors
    /// Why the consumer must not consume now.
    pub(crate) fn looked(&self, suspected: Suspected<'_>, looked: Result<Moved>) -> Result<u32> {
        let (is_passed, is_gone) = {
            let mut tries = self.tries();
            let last = match &looked {
                Ok(moved) => {
                    tries.has_moved |= !moved.causes.is_empty();
                    tries.is_hidden |= moved.ended_early.is_some();
                    match (&moved.refused, &moved.ended_early) {
                        (Some(why), _) => {
                            tries.was_forbidden = forbids(why);
                            Last::Refused(why.kind(), why.to_string())
                        }
                        (None, Some(why)) => Last::Failed(why.to_string()),
                        (None, None) if tries.is_hidden => Last::Partial,
                        (None, None) => Last::Clean,
                    }
                }
                Err(error) => Last::Failed(error.to_string()),
            };
            let is_clean = matches!(last, Last::Clean | Last::Partial);
            let has_moved = looked.as_ref().is_ok_and(|moved| !moved.causes.is_empty());
            if let Last::Refused(kind, why) = tries.last.clone()
                && is_clean
                && !has_moved
                && !std::mem::replace(&mut tries.is_missing, true)
            {
                let refused = Error::new(kind, why);
                drop(tries);
                return self.after(suspected, Ok(unmoved(refused))).map(|()| 0);
            }
            tries.is_missing = false;
            let before = std::mem::replace(&mut tries.last, last);
            // Whatever was in the way is not the first any more.
            let is_gone = is_clean && matches!(before, Last::Refused(..) | Last::Failed(_));
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
            Ok(Moved {
                refused: Some(error),
                ..
            }) => {
                let to = unreadable_queue(queue);
                // Without another kind, it is the broker that did not store a copy.
                let advice = match error.kind() {
                    ErrorKind::Broker => format!(
                        "see to it that `{to}` stores messages (`retryrmq unreadable ls {queue}` shows those in it), and move them there with \
                         `retryrmq unreadable take {queue}`"
                    ),
                    _ => format!(
                        "move them to `{to}` with `retryrmq unreadable take {queue}`, as a user who may configure and write that queue"
                    ),
                };
                format!(
                    "`{queue}` has messages that it cannot deliver over AMQP 0-9-1, and they cannot be moved ({error}); {advice}"
                )
            }
            Ok(moved) if !moved.causes.is_empty() => return Ok(()),
            // A first one may have had another reason.
            _ if self.deaths < 2 => return Ok(()),
            Ok(moved) => match moved.ended_early {
                // What stands in the way may be handled meanwhile: a session begins with one message.
                Some(_) if self.deaths < MOST_DEATHS => return Ok(()),
                Some(error) => error.to_string(),
                None if self.deaths < MOST_DEATHS_WITHOUT_A_FIND => return Ok(()),
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
fn unmoved(why: Error) -> Moved {
    Moved {
        refused: Some(why),
        ..Moved::default()
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

/// How many messages of this queue were moved and are still there, if that can be found out. Each look at a missing queue costs its connection
/// the number of a channel, so that must not be the one that consumes.
async fn aside(client: &Client, queue: &str) -> Option<u32> {
    let channel = client.looks().channel().await.ok()?;
    let looked = look(channel.lapin(), unreadable_queue(queue).into()).await;
    channel.close().await;
    match looked {
        Ok(found) => Some(found.message_count()),
        Err(error) if error.kind() == ErrorKind::QueueNotFound => Some(0),
        Err(_) => None,
    }
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

    fn refused(kind: ErrorKind) -> Result<Moved> {
        Ok(Moved {
            refused: Some(Error::new(kind, "no")),
            ..Moved::default()
        })
    }

    fn hidden() -> Result<Moved> {
        Ok(Moved {
            ended_early: Some(Error::new(ErrorKind::Broker, "hidden")),
            ..Moved::default()
        })
    }

    fn consumes(suspicion: &Suspicion, looked: Result<Moved>) -> bool {
        suspicion.after(SUSPECTED, looked).is_ok()
    }

    fn lost(suspicion: &mut Suspicion, by_error: bool, lived: Duration, moves: u64) {
        let reasons = Reasons {
            moved: moves,
            stopped: 0,
        };
        suspicion.lost(by_error, lived, reasons, Singly::default());
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
        suspicion.looked(SUSPECTED, moved(0)).unwrap();
        lost(&mut suspicion, false, SHORT, 1);
        assert!(!suspicion.looks());
        // What another consumer's queue caused counts against nobody whose own queue is in order.
        for moves in 1..100 {
            lost(&mut suspicion, true, SHORT, moves);
            suspicion.looked(SUSPECTED, moved(0)).unwrap();
        }
        for moves in 101..100 + u64::from(MOST_DEATHS) {
            assert!(suspicion.looked(SUSPECTED, hidden()).is_ok());
            lost(&mut suspicion, true, SHORT, moves);
        }
        assert!(suspicion.looked(SUSPECTED, hidden()).is_err());
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

    /// How often what closes the connections is delivered at most: lost connections, and looks that come to this, for ever. Whatever may make
    /// a consumer look again happens all the time.
    fn deliveries(kind: Option<ErrorKind>, look: impl Fn() -> Result<Moved>) -> u32 {
        let mut suspicion = Suspicion::default();
        let mut deliveries = 0;
        'lost: loop {
            deliveries += 1;
            let singly = Singly {
                is_unfinished: suspicion.tries().is_hidden,
                has_taken: false,
            };
            suspicion.lost(true, SHORT, Reasons::default(), singly);
            for number in 1..1_000_u32 {
                let seen = Seen {
                    ready: Some(10_000 - number),
                    aside: Some(number),
                    refusal: kind
                        .filter(|_| suspicion.is_refused() && number.is_multiple_of(2))
                        .map(|kind| Error::new(kind, "no")),
                    is_explained: false,
                };
                match suspicion.step(SUSPECTED, seen) {
                    Ok(Step::Consume) => continue 'lost,
                    // One that ended early is followed by looks at single messages.
                    Ok(Step::Look(Reach::Near(_))) if suspicion.tries().number == 1 => {
                        deliveries += 1;
                        let looked = look();
                        let is_hidden = looked
                            .as_ref()
                            .is_ok_and(|moved| moved.ended_early.is_some());
                        deliveries += if is_hidden { FEW } else { 0 };
                        if suspicion.looked(SUSPECTED, looked).is_ok() {
                            continue 'lost;
                        }
                    }
                    Ok(Step::Look(reach)) => {
                        deliveries += match reach {
                            Reach::Singly { blocked, .. } => blocked,
                            Reach::Near(_) => 1,
                        };
                        if suspicion.looked(SUSPECTED, look()).is_ok() {
                            continue 'lost;
                        }
                    }
                    Err(_) => {}
                }
            }
            return deliveries;
        }
    }

    #[test]
    fn it_reads_a_queue_less_than_a_delivery_limit_allows() {
        let nothing = deliveries(None, || moved(0));
        assert_eq!(nothing, 2 * (MOST_DEATHS_WITHOUT_A_FIND + 1));
        assert!(nothing < 20);
        let unseen = deliveries(None, unseen);
        assert!(unseen < 20, "{unseen}");
        // Three consumers of a queue stop in front of what they found.
        for kind in [
            ErrorKind::Broker,
            ErrorKind::AccessRefused,
            ErrorKind::Mismatch,
        ] {
            let refused = deliveries(Some(kind), || refused(kind));
            assert_eq!(refused, 1 + 1 + MOST_SHRUNK + MOST_CHANGED);
            // One more follows a look that does not see the message, which is no delivery of it.
            assert!(3 * (refused + MOST_MISSING) < 20);
        }
        // Where no look can pass, and the message is the only one that was returned.
        let hidden = deliveries(None, hidden);
        assert!(hidden <= 20, "{hidden}");
    }

    #[test]
    fn single_messages_are_looked_at_farther_each_time_where_that_costs_nothing() {
        let free = Suspected {
            is_free: true,
            ..SUSPECTED
        };
        let mut suspicion = Suspicion::default();
        let mut before = 0;
        let mut goes_farther = |suspicion: &Suspicion| {
            let seen = Seen {
                ready: Some(10_000),
                ..Seen::default()
            };
            match suspicion.step(free, seen) {
                Ok(Step::Look(Reach::Singly { in_order, .. })) => {
                    assert!(in_order > before);
                    before = in_order;
                }
                other => panic!("{other:?}"),
            }
        };
        lost(&mut suspicion, true, SHORT, 0);
        suspicion.looked(free, hidden()).unwrap();
        for has_taken in [true, false, true, false, false, false, false] {
            let singly = Singly {
                is_unfinished: true,
                has_taken,
            };
            suspicion.lost(true, SHORT, Reasons::default(), singly);
            goes_farther(&suspicion);
            let _ = suspicion.looked(free, moved(0));
        }
        // It has stopped.
        for _ in 1..MOST_LOOKS {
            goes_farther(&suspicion);
            let _ = suspicion.looked(free, moved(0));
        }
        let seldom = (0..10 * SELDOM).filter(|_| suspicion.step(free, Seen::default()).is_ok());
        assert_eq!(seldom.count(), 10);
    }

    #[test]
    fn it_waits_again_when_a_session_cannot_begin() {
        let long = Duration::from_secs(5);
        let mut suspicion = Suspicion::default();
        lost(&mut suspicion, true, SHORT, 0);
        assert_eq!(suspicion.pause(long), long);
        suspicion.looked(SUSPECTED, moved(1)).unwrap();
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
        lost(&mut suspicion, true, SHORT, 0);
        let step = suspicion.step(SUSPECTED, Seen::default()).unwrap();
        assert!(matches!(step, Step::Look(Reach::Near(_))));
        assert_eq!(suspicion.looked(SUSPECTED, hidden()).unwrap(), NEAR);
        for _ in 0..MOST_DEATHS_AFTER_OTHERS {
            suspicion.lost(true, SHORT, Reasons::default(), singly(true));
            // What was sent along with others would count as delivered each time.
            let step = suspicion.step(SUSPECTED, Seen::default()).unwrap();
            assert!(matches!(step, Step::Look(Reach::Singly { .. })));
            assert_eq!(suspicion.looked(SUSPECTED, hidden()).unwrap(), NEAR);
        }
        for death in 2..=MOST_DEATHS {
            suspicion.lost(true, SHORT, Reasons::default(), singly(false));
            let looked = suspicion.looked(SUSPECTED, hidden());
            assert_eq!(looked.is_ok(), death < MOST_DEATHS);
        }
        suspicion.lost(true, SHORT, Reasons::default(), Singly::default());
        let step = suspicion.step(SUSPECTED, Seen::default()).unwrap();
        assert!(matches!(step, Step::Look(Reach::Near(_))));
    }

    #[test]
    fn it_stops_before_a_delivery_limit_and_goes_on_when_something_was_moved() {
        let mut suspicion = Suspicion::default();
        for death in 1..=MOST_DEATHS {
            lost(&mut suspicion, true, SHORT, 0);
            assert!(consumes(&suspicion, moved(0)));
            assert_eq!(consumes(&suspicion, unseen()), death < 2);
            assert!(!consumes(&suspicion, refused(ErrorKind::AccessRefused)));
            assert!(consumes(&suspicion, moved(1)));
        }
        lost(&mut suspicion, true, SHORT, 0);
        assert!(!consumes(&suspicion, moved(0)));
        let error = suspicion.after(SUSPECTED, unseen()).err().unwrap();
        assert!(
            error
                .to_string()
                .contains("retryrmq unreadable take orders")
        );
    }

    fn found(stopped: u64) -> Reasons {
        Reasons { moved: 0, stopped }
    }

    #[test]
    fn a_consumer_goes_on_when_the_message_is_in_the_queue_of_another_one_that_stopped() {
        let (mut innocent, mut guilty) = (Suspicion::default(), Suspicion::default());
        for death in 1..=MOST_DEATHS {
            for one in [&mut innocent, &mut guilty] {
                one.lost(true, SHORT, found(0), Singly::default());
                one.step(SUSPECTED, Seen::default()).unwrap();
            }
            assert_eq!(innocent.looked(SUSPECTED, moved(0)).unwrap(), 0);
            let is_stopped = guilty.looked(SUSPECTED, hidden()).is_err();
            assert_eq!(is_stopped, death == MOST_DEATHS);
        }
        assert!(guilty.has_to_tell() && !guilty.has_to_tell());
        assert!(!guilty.is_explained(found(1)));
        assert!(innocent.is_explained(found(1)) && !innocent.is_explained(found(0)));
        // All connections that were lost before had this reason.
        innocent.lost(true, SHORT, found(1), Singly::default());
        assert_eq!(innocent.deaths, 1);
    }

    #[test]
    fn a_consumer_that_stopped_goes_on_when_another_one_has_found_the_reason() {
        let mut suspicion = Suspicion::default();
        for death in 1..=MOST_DEATHS_WITHOUT_A_FIND {
            lost(&mut suspicion, true, SHORT, 0);
            suspicion.step(SUSPECTED, Seen::default()).unwrap();
            let is_stopped = suspicion.looked(SUSPECTED, moved(0)).is_err();
            assert_eq!(is_stopped, death == MOST_DEATHS_WITHOUT_A_FIND);
        }
        assert!(!suspicion.has_to_tell());
        let seen = |is_explained| Seen {
            is_explained,
            ..Seen::default()
        };
        assert!(suspicion.step(SUSPECTED, seen(false)).is_err());
        let step = suspicion.step(SUSPECTED, seen(true)).unwrap();
        assert!(matches!(step, Step::Consume));
        let reasons = [
            found(1),
            Reasons {
                moved: 1,
                ..found(0)
            },
        ];
        assert!(reasons.into_iter().all(|one| suspicion.is_explained(one)));
        assert!(!suspicion.is_explained(found(0)));
    }

    #[test]
    fn a_consumer_that_found_nothing_consumes_once_more_when_its_queue_is_shorter() {
        let mut suspicion = Suspicion::default();
        let ready = |ready| Seen {
            ready: Some(ready),
            ..Seen::default()
        };
        for _ in 0..MOST_DEATHS_WITHOUT_A_FIND {
            lost(&mut suspicion, true, SHORT, 0);
            let _ = suspicion.looked(SUSPECTED, moved(0));
        }
        for longer in [7, 7, 9] {
            assert!(suspicion.step(SUSPECTED, ready(longer)).is_err());
        }
        let step = suspicion.step(SUSPECTED, ready(8)).unwrap();
        assert!(matches!(step, Step::Consume));
        lost(&mut suspicion, true, SHORT, 0);
        assert!(suspicion.looked(SUSPECTED, moved(0)).is_err());
        assert!(suspicion.step(SUSPECTED, ready(7)).is_err());
        assert!(suspicion.step(SUSPECTED, ready(0)).is_err());
        // Somebody may have been looking at the message.
        let step = suspicion.step(SUSPECTED, ready(0)).unwrap();
        assert!(matches!(step, Step::Consume));
    }

    /// A consumer that stopped because it could not move what it found.
    fn stopped(suspected: Suspected<'_>, kind: ErrorKind) -> Suspicion {
        let mut suspicion = Suspicion::default();
        lost(&mut suspicion, true, SHORT, 0);
        suspicion.step(suspected, Seen::default()).unwrap();
        assert!(suspicion.looked(suspected, refused(kind)).is_err());
        suspicion
    }

    fn seen(refusal: Option<ErrorKind>, ready: u32, aside: u32) -> Seen {
        Seen {
            ready: Some(ready),
            aside: Some(aside),
            refusal: refusal.map(|kind| Error::new(kind, "no")),
            is_explained: false,
        }
    }

    const FORBIDDEN: Option<ErrorKind> = Some(ErrorKind::AccessRefused);

    #[test]
    fn a_consumer_that_may_not_move_messages_reads_them_again_when_somebody_has_moved_some() {
        let suspicion = stopped(SUSPECTED, ErrorKind::AccessRefused);
        // Others publish meanwhile, and the count of what was moved may be unknown.
        for ready in 5..50 {
            let unknown = Seen {
                aside: None,
                ..seen(FORBIDDEN, ready, 0)
            };
            assert!(suspicion.step(SUSPECTED, unknown).is_err());
            assert!(
                suspicion
                    .step(SUSPECTED, seen(FORBIDDEN, ready, 0))
                    .is_err()
            );
        }
        let step = suspicion.step(SUSPECTED, seen(FORBIDDEN, 60, 1)).unwrap();
        assert!(matches!(step, Step::Look(_)));
        // Another consumer may have held them.
        assert!(suspicion.looked(SUSPECTED, moved(0)).is_err());
        let step = suspicion.step(SUSPECTED, seen(FORBIDDEN, 60, 1)).unwrap();
        assert!(matches!(step, Step::Look(_)));
        assert_eq!(suspicion.looked(SUSPECTED, moved(0)).unwrap(), 0);
    }

    #[test]
    fn another_reason_does_not_make_it_stop_for_those_before() {
        let mut suspicion = Suspicion::default();
        for _ in 0..MOST_DEATHS_WITHOUT_A_FIND {
            lost(&mut suspicion, true, SHORT, 0);
            let _ = suspicion.looked(SUSPECTED, moved(0));
        }
        lost(&mut suspicion, false, SHORT, 0);
        assert_eq!(suspicion.looked(SUSPECTED, moved(0)).unwrap(), 0);
    }

    #[test]
    fn it_reads_them_once_when_it_may_move_them() {
        let suspicion = stopped(SUSPECTED, ErrorKind::AccessRefused);
        // An error that passes says nothing about permissions.
        for _ in 0..50 {
            for refusal in [FORBIDDEN, Some(ErrorKind::Timeout)] {
                assert!(suspicion.step(SUSPECTED, seen(refusal, 5, 0)).is_err());
            }
        }
        let step = suspicion.step(SUSPECTED, seen(None, 5, 0)).unwrap();
        assert!(matches!(step, Step::Look(_)));
        let error = suspicion
            .looked(SUSPECTED, refused(ErrorKind::Broker))
            .unwrap_err();
        assert!(error.to_string().contains("stores messages"), "{error}");
        for _ in 0..50 {
            for refusal in [None, Some(ErrorKind::Timeout)] {
                assert!(suspicion.step(SUSPECTED, seen(refusal, 5, 0)).is_err());
            }
        }
        // Room was made.
        let step = suspicion.step(SUSPECTED, seen(None, 5, 7)).unwrap();
        assert!(matches!(step, Step::Look(_)));
    }

    #[test]
    fn a_look_that_costs_nothing_is_repeated_seldom() {
        let quorum = Suspected {
            is_free: true,
            ..SUSPECTED
        };
        let classic = Suspected {
            is_classic: true,
            ..quorum
        };
        for (suspected, refusal, looks) in [
            (quorum, None, 10),
            (classic, None, 10),
            (classic, FORBIDDEN, 10),
            (quorum, FORBIDDEN, 0),
            (SUSPECTED, None, 0),
        ] {
            let suspicion = stopped(suspected, ErrorKind::Broker);
            let looked =
                (1..10 * SELDOM).filter(|_| suspicion.step(suspected, seen(refusal, 5, 0)).is_ok());
            assert_eq!(looked.count(), looks, "{suspected:?} {refusal:?}");
        }
        // One that failed has released nothing.
        let mut suspicion = Suspicion::default();
        for _ in 0..MOST_DEATHS {
            lost(&mut suspicion, true, SHORT, 0);
        }
        assert!(suspicion.looked(quorum, unseen()).is_err());
        let looks = (1..100).filter(|_| suspicion.step(quorum, seen(None, 5, 0)).is_ok());
        assert_eq!(looks.count(), 4);
    }

    #[test]
    fn what_was_moved_in_part_is_in_the_way_still() {
        let mut suspicion = Suspicion::default();
        lost(&mut suspicion, true, SHORT, 0);
        let some = Moved {
            refused: Some(Error::new(ErrorKind::Broker, "full")),
            ..moved(2).unwrap()
        };
        assert!(suspicion.looked(SUSPECTED, Ok(some)).is_err());
        // Its connection was lost for a reason that it found.
        lost(&mut suspicion, true, SHORT, 0);
        assert_eq!(suspicion.deaths, 1);
    }
}
