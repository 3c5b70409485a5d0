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

/// So many connections in a row may end because of a message that was found, or that may be anywhere. RabbitMQ counts each as a delivery of
/// the message, and drops it after the 20th by default.
const MOST_DEATHS: u32 = 5;
/// So many may end while nothing is found in the queue. Consumers of one client share connections: the one whose queue has the message stops
/// before the others, which then go on.
const MOST_DEATHS_WITHOUT_A_FIND: u32 = MOST_DEATHS + 1;
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

/// How many looks there are because somebody else has moved messages that this consumer could not move, or has made room for them.
const MOST_CHANGED: u32 = 2;

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
    /// Why the last look failed, if it did.
    failed: Option<String>,
    /// Whether it ended at a message that cannot be delivered over AMQP 1.0. Farther looks would end there as well.
    is_hidden: bool,
    /// Whether it found messages that could not be moved.
    is_refused: bool,
    /// Whether it saw every message that it was to see, and all were in order.
    is_clean: bool,
    /// Whether the client's other consumers know that this one has found a reason.
    has_told: bool,
    /// Whether the broker refused to store copies when it was asked last.
    may_not_move: bool,
    /// The fewest messages that were seen in the queue, and how often that made another look worth while.
    fewest: Option<u32>,
    shrunk: u32,
    /// How many messages were in the queue for what was moved, and how often a change made another look worth while.
    set_aside: Option<u32>,
    changed: u32,
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

    /// Whether somebody, an operator perhaps, has moved messages or made room for them.
    fn has_changed(&mut self, set_aside: u32) -> bool {
        let before = self.set_aside.replace(set_aside);
        let changed =
            before.is_some_and(|before| before != set_aside) && self.changed < MOST_CHANGED;
        self.changed += u32::from(changed);
        changed
    }

    /// Whether the broker stores copies, which it had refused.
    fn may_move_now(&mut self, refusal: Option<&Error>) -> bool {
        let could_not = std::mem::replace(&mut self.may_not_move, refusal.is_some());
        could_not && refusal.is_none()
    }
}

/// How often the consumers of a client have found out why their connections were lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Reasons {
    /// They have moved messages out of the way.
    pub(crate) moved: u64,
    /// One has stopped in front of a message that it could not move.
    pub(crate) stopped: u64,
}

/// What is known before a consumer tries again. None of it costs a delivery.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    /// How many messages are ready in its queue, and in the queue for what is moved.
    pub(crate) ready: Option<u32>,
    pub(crate) set_aside: Option<u32>,
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
        let has_moved = reasons.moved != self.reasons.moved;
        if lived >= FORGIVEN || has_moved || self.is_explained(reasons) {
            (self.deaths, self.deaths_after_others) = (0, 0);
        }
        let after_others = singly.is_unfinished && singly.has_taken;
        self.goes_on = by_error && (has_moved || after_others);
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
            let aside = unreadable_queue(queue).into();
            let aside = ready(client, connection, &aside).await;
            seen.set_aside = Some(aside.unwrap_or(0));
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
        reasons.stopped != self.reasons.stopped && self.tries().is_clean
    }

    /// Whether it stops because of a message that it found, and has told nobody.
    fn has_to_tell(&self) -> bool {
        let mut tries = self.tries();
        let has_found = tries.is_refused || tries.is_hidden;
        has_found && !std::mem::replace(&mut tries.has_told, true)
    }

    /// Whether the last look found messages that could not be moved. Before it reads them again, a consumer finds out whether they can be.
    pub(crate) fn is_refused(&self) -> bool {
        self.tries().is_refused
    }

    /// What to do now.
    ///
    /// # Errors
    /// Why the consumer must not consume now.
    pub(crate) fn step(&self, suspected: Suspected<'_>, seen: Seen) -> Result<Step> {
        let ready = seen.ready;
        let mut tries = self.tries();
        tries.number = tries.number.saturating_add(1);
        let has_shrunk = ready.is_some_and(|ready| tries.has_shrunk(ready));
        let has_changed = seen.set_aside.is_some_and(|count| tries.has_changed(count));
        let may_move_now = tries.may_move_now(seen.refusal.as_ref());
        // It is gone, whoever took it, or it is in another queue.
        if tries.number > 1 && (ready == Some(0) || seen.is_explained) {
            return Ok(Step::Consume);
        }
        // Nobody counts the deliveries of a classic queue. Elsewhere a refusal ends the session before the messages are released.
        let releases = suspected.is_free && !tries.is_hidden && seen.refusal.is_none();
        let is_free = suspected.is_classic || releases;
        let is_worth_while = has_shrunk || has_changed || may_move_now || is_free;
        if let Some(refusal) = seen.refusal
            && !is_worth_while
        {
            drop(tries);
            return self
                .looked(suspected, refused(refusal))
                .map(|_| Step::Consume);
        }
        if tries.reads() || is_worth_while {
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
            tries.is_clean = false;
            let had_failed = tries.failed.is_some();
            let failed = match &looked {
                Ok(moved) => {
                    // A look at single messages does not see what is behind them.
                    tries.is_hidden |= moved.ended_early.is_some();
                    tries.is_refused = moved.refused.is_some();
                    let failed = moved.refused.as_ref().or(moved.ended_early.as_ref());
                    tries.is_clean = failed.is_none() && !tries.is_hidden;
                    failed
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
            }) => {
                let to = unreadable_queue(queue);
                let advice = match error.kind() {
                    ErrorKind::AccessRefused => format!(
                        "move them to `{to}` with `retryrmq unreadable take {queue}`, as a user who may configure and write that queue"
                    ),
                    _ => format!(
                        "see to it that `{to}` stores messages (`retryrmq unreadable ls {queue}` shows those in it), and move them there with \
                         `retryrmq unreadable take {queue}`"
                    ),
                };
                format!(
                    "`{queue}` has messages that it cannot deliver over AMQP 0-9-1, and they cannot be moved ({error}); {advice}"
                )
            }
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
        let deliveries = later + 2 * MOST_DEATHS_WITHOUT_A_FIND - 1;
        assert!(deliveries < 20, "{deliveries}");
        // Where it may not move what it found, one connection and one look come before these.
        let refused = 1 + 1 + MOST_SHRUNK + MOST_CHANGED;
        assert!(3 * refused < 20, "of three consumers: {refused}");
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
        let step = suspicion.step(SUSPECTED, Seen::default()).unwrap();
        assert!(matches!(step, Step::Look(Reach::Near(_))));
        assert_eq!(suspicion.looked(SUSPECTED, Ok(hidden())).unwrap(), NEAR);
        for _ in 0..MOST_DEATHS_AFTER_OTHERS {
            suspicion.lost(true, SHORT, Reasons::default(), singly(true));
            // What was sent along with others would count as delivered each time.
            let step = suspicion.step(SUSPECTED, Seen::default()).unwrap();
            assert!(matches!(step, Step::Look(Reach::Singly(_))));
            assert_eq!(suspicion.looked(SUSPECTED, Ok(hidden())).unwrap(), NEAR);
        }
        for death in 2..=MOST_DEATHS {
            suspicion.lost(true, SHORT, Reasons::default(), singly(false));
            let looked = suspicion.looked(SUSPECTED, Ok(hidden()));
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
            let error = Error::new(ErrorKind::AccessRefused, "no");
            assert!(!consumes(&suspicion, refused(error)));
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
        let may_not = || Some(Error::new(ErrorKind::AccessRefused, "no"));
        let (mut innocent, mut guilty) = (Suspicion::default(), Suspicion::default());
        for death in 1..=MOST_DEATHS {
            for one in [&mut innocent, &mut guilty] {
                one.lost(true, SHORT, found(0), Singly::default());
                one.step(SUSPECTED, Seen::default()).unwrap();
            }
            assert_eq!(innocent.looked(SUSPECTED, moved(0)).unwrap(), 0);
            let hidden = Moved {
                ended_early: may_not(),
                ..Moved::default()
            };
            let is_stopped = guilty.looked(SUSPECTED, Ok(hidden)).is_err();
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
        let step = suspicion.step(SUSPECTED, seen(false)).unwrap();
        assert!(matches!(step, Step::Look(_)));
        assert!(suspicion.looked(SUSPECTED, moved(0)).is_err());
        let step = suspicion.step(SUSPECTED, seen(true)).unwrap();
        assert!(matches!(step, Step::Consume));
    }

    /// A consumer that stopped because it may not move what it found.
    fn stopped() -> Suspicion {
        let mut suspicion = Suspicion::default();
        lost(&mut suspicion, true, SHORT, 0);
        suspicion.step(SUSPECTED, Seen::default()).unwrap();
        let error = Error::new(ErrorKind::AccessRefused, "no");
        assert!(suspicion.looked(SUSPECTED, refused(error)).is_err());
        suspicion
    }

    fn seen(may_move: bool, ready: u32, set_aside: u32) -> Seen {
        Seen {
            ready: Some(ready),
            set_aside: Some(set_aside),
            refusal: (!may_move).then(|| Error::new(ErrorKind::AccessRefused, "no")),
            is_explained: false,
        }
    }

    #[test]
    fn a_consumer_that_may_not_move_messages_reads_them_again_when_somebody_has_moved_some() {
        let suspicion = stopped();
        // Others publish meanwhile.
        for ready in 5..50 {
            assert!(suspicion.step(SUSPECTED, seen(false, ready, 0)).is_err());
        }
        let step = suspicion.step(SUSPECTED, seen(false, 60, 1)).unwrap();
        assert!(matches!(step, Step::Look(_)));
        assert_eq!(suspicion.looked(SUSPECTED, moved(0)).unwrap(), 0);
    }

    #[test]
    fn it_reads_them_once_when_it_may_move_them() {
        let suspicion = stopped();
        for _ in 0..50 {
            assert!(suspicion.step(SUSPECTED, seen(false, 5, 0)).is_err());
        }
        let step = suspicion.step(SUSPECTED, seen(true, 5, 0)).unwrap();
        assert!(matches!(step, Step::Look(_)));
        let full = Error::new(ErrorKind::Broker, "it is full");
        let error = suspicion.looked(SUSPECTED, refused(full)).unwrap_err();
        assert!(error.to_string().contains("stores messages"), "{error}");
        for _ in 0..50 {
            assert!(suspicion.step(SUSPECTED, seen(true, 5, 0)).is_err());
        }
        // Room was made.
        let step = suspicion.step(SUSPECTED, seen(true, 5, 7)).unwrap();
        assert!(matches!(step, Step::Look(_)));
    }

    #[test]
    fn a_look_that_costs_nothing_is_repeated() {
        let suspicion = stopped();
        let quorum = Suspected {
            is_free: true,
            ..SUSPECTED
        };
        let classic = Suspected {
            is_classic: true,
            ..quorum
        };
        for (suspected, may_move) in [(quorum, true), (classic, true), (classic, false)] {
            for _ in 0..50 {
                let step = suspicion.step(suspected, seen(may_move, 5, 0)).unwrap();
                assert!(matches!(step, Step::Look(_)));
            }
        }
        for _ in 0..50 {
            assert!(suspicion.step(quorum, seen(false, 5, 0)).is_err());
        }
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
