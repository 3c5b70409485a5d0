//! RabbitMQ closes a connection with an internal error (541) when it cannot deliver a message over AMQP 0-9-1. Decides when a consumer looks
//! for that message, and when it stops consuming: each closed connection counts as a delivery, and the broker drops a message after too many.

mod tries;

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use lapin::types::ShortString;
use tokio::time::{Instant, sleep};
use tracing::debug;

use self::tries::{ConsumeTries, LastScan, forbids, is_one_more};
use super::{
    set_aside::{
        FEW, Moved, ScanRange, can_set_aside, set_aside, set_aside_counted, set_aside_next,
    },
    suspects::Trial,
};
use crate::{
    Client, Error, ErrorKind, Event, QueueType, Result,
    amqp10::CHECK_INTERVAL,
    client::Reasons,
    connection::{
        Connection, ProbedQueueType, QueueCount, ReadyCounter, is_leaderless, passive_declare,
    },
    mutants::{self, Mutant},
    topology::{ReturnDelays, name, unreadable_queue},
};

/// The most connections in a row that may end because of a message that was found, or that may be anywhere. RabbitMQ counts each as a delivery
/// of the message, and drops it after the 20th by default.
const MOST_CLOSED: u32 = 5;
/// The same while nothing is found in the queue. Consumers of one client share connections: the one whose queue has the message usually
/// stops before the others, which then go on.
const MOST_CLOSED_WITHOUT_A_FIND: u32 = MOST_CLOSED + 1;
/// How often messages are tried one at a time in such a row, where that counts as deliveries.
const MOST_TRIALS: u32 = 2;
/// How many more connections may end after messages that were taken one at a time, and handled. Each has another reason: a quorum queue returns
/// a message behind all that it returned before.
const MOST_CLOSED_AFTER_OTHERS: u32 = 12;
/// A connection that lives for so long after another did not end because of the same message.
const FORGIVEN: Duration = Duration::from_secs(60);

/// The same for a connection that took messages one at a time at first.
const LONG: Duration = Duration::from_secs(3_600);

/// How long a consumer waits at most for messages that their queue gives back later, and how much longer than the delay.
const LONGEST_RETURN: Duration = Duration::from_secs(60);
const RETURNED: Duration = Duration::from_millis(200);

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

/// How long a consumer that found nothing leaves to others, before it consumes again. Of many consumers each loses its connection to the same
/// message, and while one of them has it, the others do not see it.
pub(crate) const LEFT_TO_OTHERS: Duration = Duration::from_secs(2);
/// It leaves them up to so much more, by chance. If all came back at the same time, each would cost the message another delivery.
const SPREAD: Duration = Duration::from_secs(6);

/// How long to wait for a leader before it is asked for again.
const LEADERLESS: Duration = Duration::from_secs(5);

/// The fewest messages that are looked at, and how many where that costs nothing.
const NEAR: u32 = 64;
const FAR: u32 = 1_000;

/// The connections of a consumer that the broker closed with an error of its own.
#[derive(Clone, Debug, Default)]
pub(crate) struct InternalErrors {
    closed: u32,
    closed_after_others: u32,
    /// When the last connection was lost.
    lost_at: Option<Instant>,
    /// Whether the broker closed the last connection that was lost.
    is_by_error: bool,
    /// Whether the broker closed it for a reason that it gave.
    is_foreseen: bool,
    /// Whether the last connection that was lost brought the queue forward.
    goes_on: bool,
    /// What the client's consumers had found out by then.
    reasons: Reasons,
    /// What was tried since then.
    tries: Arc<Mutex<ConsumeTries>>,
}

/// How far a session came with the messages that it was to take one at a time.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct OneByOneProgress {
    /// Whether it was to take any so.
    pub(crate) began: bool,
    /// Whether it would have taken the next one so as well.
    pub(crate) is_unfinished: bool,
    /// Whether it has taken one so.
    pub(crate) has_taken: bool,
}

/// What is known before a consumer tries again. None of it costs a delivery.
#[derive(Debug, Default)]
pub(crate) struct Evidence {
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
pub(crate) struct SuspectQueue<'a> {
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
    Look(ScanRange),
}

impl InternalErrors {
    /// A connection was lost that lived for so long. `by_error`: the broker closed it with an error of its own. `reasons`: what any consumer
    /// of the client has found out. They share the connection.
    pub(crate) fn lost(
        &mut self,
        by_error: bool,
        lived: Duration,
        reasons: Reasons,
        one_by_one: OneByOneProgress,
    ) {
        let is_explained = self.tries().has_moved || self.is_explained(reasons);
        // The connection before had this reason, whatever those had that were lost earlier.
        let was_leaderless = self.is_by_error && self.tries().is_leaderless;
        self.closed = self.closed.saturating_sub(u32::from(was_leaderless));
        self.is_foreseen = false;
        if !by_error {
            // Another reason must not make it stop for those before.
            self.closed = self.closed.min(MOST_CLOSED - 1);
        }
        // Messages that are taken one at a time may take as long until it is the turn of the same one again.
        let is_of_the_same = by_error && one_by_one.began && !self.tries().is_hidden;
        let is_forgiven = lived >= if is_of_the_same { LONG } else { FORGIVEN };
        if is_forgiven || is_explained {
            (self.closed, self.closed_after_others) = (0, 0);
        }
        let after_others =
            one_by_one.is_unfinished && one_by_one.has_taken && self.tries().is_hidden;
        self.goes_on = by_error && (is_explained || after_others);
        self.reasons = reasons;
        self.is_by_error = by_error;
        self.lost_at = Some(Instant::now());
        if by_error {
            if after_others && self.closed_after_others < MOST_CLOSED_AFTER_OTHERS {
                self.closed_after_others += 1;
                self.closed = self.closed.max(1);
            } else {
                self.closed = self.closed.saturating_add(1);
            }
        }
        let is_hidden = one_by_one.is_unfinished && self.tries().is_hidden;
        let (trials, untried) = if is_forgiven || is_explained {
            (0, None)
        } else {
            let tries = self.tries();
            (tries.trials, tries.untried.clone())
        };
        self.tries = Arc::new(Mutex::new(ConsumeTries {
            is_hidden,
            trials,
            untried,
            ..ConsumeTries::default()
        }));
    }

    /// The broker has closed the last connection for a reason that it gave: it could not consume from a queue, for example.
    pub(crate) fn note_foreseen(&mut self) {
        self.is_foreseen = true;
    }

    /// The next session could not begin.
    pub(crate) fn failed(&mut self) {
        self.goes_on = false;
    }

    /// Whether to look before the next connection consumes.
    pub(crate) fn should_scan(&self) -> bool {
        self.closed > 0 && !mutants::has(Mutant::DoesNotLook)
    }

    /// Whether to count the queue's messages before the next connection consumes.
    pub(crate) fn should_count(&self) -> bool {
        self.should_scan() || self.is_foreseen
    }

    /// How many messages are ready, if that can be found out.
    ///
    /// # Errors
    /// [`ErrorKind::Timeout`] while a quorum queue has no leader: whoever consumes it loses the connection, with the client's other consumers.
    pub(crate) async fn ready(
        &self,
        client: &Client,
        connection: &Connection,
        queue: &ShortString,
        kind: Option<QueueType>,
    ) -> Result<Option<u32>> {
        let is_leaderless = self.tries().is_leaderless;
        if is_leaderless {
            sleep(LEADERLESS).await;
        }
        let kind = kind.map(|kind| match kind {
            QueueType::Classic => ProbedQueueType::Classic,
            QueueType::Quorum => ProbedQueueType::Quorum,
        });
        let counter = ReadyCounter::sparing(client.addresses());
        let count = counter.of_type(connection, queue, kind).await;
        counter.close().await;
        match count.and_then(QueueCount::read) {
            Err(error) if error.kind() == ErrorKind::Timeout => {
                self.tries().is_leaderless |= self::is_leaderless(&error);
                Err(error)
            }
            count => Ok(count.ok().map(|found| found.message_count())),
        }
    }

    /// Waits until the messages of the last connection are ready again, if their queue delays them so long: a look would not see them, and when they
    /// come back together, the same one would take the others' connection again.
    pub(crate) async fn wait_for_returns(&self, client: &Client, delays: Option<ReturnDelays>) {
        if let (Some(delays), Some(lost_at)) = (delays, self.lost_at)
            && self.is_by_error
        {
            let delay = delays.after(self.closed).min(LONGEST_RETURN);
            self.is_explained_until(client, lost_at + delay + RETURNED)
                .await;
        }
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
    pub(crate) fn one_by_one(&self, prefetch: u16) -> u32 {
        let tries = self.tries();
        if tries.is_hidden || tries.is_unknown {
            near(prefetch)
        } else {
            0
        }
    }

    /// How many messages to look at. The message was among those that the broker sent.
    fn scan_depth(&self, prefetch: u16, is_free: bool) -> u32 {
        let near = near(prefetch);
        if is_free {
            near.max(FAR)
        } else {
            near * self.closed.min(MOST_CLOSED).pow(2)
        }
    }

    /// Looks for messages that close the connection, moves them, and tells of it. Waits for none when the consumer `is_ending`. Returns how many
    /// messages the consumer should take one at a time: those that no look can pass are handled so, until what closes the connection is the first.
    ///
    /// # Errors
    /// Why the consumer must not consume now.
    pub(crate) async fn scan(
        &self,
        client: &Client,
        connection: &Connection,
        (queue, kind, prefetch, ready): (&ShortString, Option<QueueType>, u16, Option<u32>),
        declares: bool,
        is_ending: impl Fn() -> bool,
        send_event: impl Fn(Event),
    ) -> Result<u32> {
        let mut seen = Evidence {
            ready,
            is_explained: self.is_explained(client.reasons()),
            ..Evidence::default()
        };
        let queue = queue.as_str();
        let is_classic = kind == Some(QueueType::Classic);
        let suspect = SuspectQueue {
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
        let scanned = match self.step(suspect, seen) {
            Ok(Step::Consume) => return Ok(self.one_by_one(prefetch)),
            Ok(Step::Look(reach)) => {
                let report = |(moved, scanned): (Moved, Result<()>)| {
                    moved.log(queue, queue);
                    if let Some(event) = moved.event(queue) {
                        send_event(event);
                    }
                    if let Err(error) = &scanned {
                        debug!(queue, %error, "messages that cannot be delivered over AMQP 0-9-1 cannot be looked for");
                    }
                    self.tries().has_moved |= !moved.causes.is_empty();
                    self.scanned(suspect, scanned.map(|()| moved))
                };
                let search = || set_aside(client, connection, queue, queue, reach, declares);
                let mut scanned = report(search().await);
                let until = Instant::now() + LEFT_TO_OTHERS + SPREAD.mul_f64(fastrand::f64());
                if scanned.is_ok()
                    && self.has_found_nothing()
                    && self.waits_in_queue(suspect)
                    && let Ok(_permit) = client.unreadable_waits().try_acquire()
                {
                    let goes_on = || {
                        let is_over = Instant::now() >= until || is_ending();
                        !is_over && !self.is_explained(client.reasons())
                    };
                    let (moved, awaited) =
                        set_aside_next(client, connection, queue, declares, goes_on).await;
                    if awaited.is_err() {
                        // It may have found one.
                        scanned = report(search().await);
                    } else if !moved.found_nothing() {
                        scanned = report((moved, awaited));
                    }
                }
                if scanned.is_ok() && self.has_found_nothing() {
                    // Of many consumers each loses its connection to the same message, and one of them may move it.
                    if self.is_explained_until(client, until).await {
                        return Ok(self.one_by_one(prefetch));
                    }
                    if suspect.is_free {
                        scanned = report(search().await);
                    }
                    if scanned.is_ok()
                        && let Some(trial) = self.next_trial(suspect)
                    {
                        let queues = (queue, queue);
                        let tried =
                            set_aside_counted(client, connection, queues, trial, declares).await;
                        scanned = report(tried);
                    }
                }
                scanned
            }
            Err(error) => Err(error),
        };
        if scanned.is_err() && self.has_warning() {
            client.has_stopped();
        }
        scanned
    }

    /// Among how many messages some are tried one at a time now, and how they are chosen.
    fn next_trial(&self, suspect: SuspectQueue<'_>) -> Option<(u32, Trial)> {
        // Where a look is free, so is a try.
        let (is_time, trial) = if suspect.is_free {
            (self.closed >= 2, Trial::FREE)
        } else {
            let is_last = self.closed == MOST_CLOSED;
            let is_worth_it = self.tries().suspects.are_few(is_last);
            (is_worth_it && self.closed >= 2, Trial::COSTLY)
        };
        let is_unknown = is_time && self.is_by_error && self.has_found_nothing();
        let is_tried = is_unknown
            && !suspect.is_classic
            && (suspect.is_free || is_one_more(&mut self.tries().trials, MOST_TRIALS));
        let most = self.scan_depth(suspect.prefetch, suspect.is_free);
        is_tried.then_some((most, trial))
    }

    /// Whether the last look saw everything that it was to see, and none has moved anything.
    fn has_found_nothing(&self) -> bool {
        let tries = self.tries();
        matches!(tries.last, LastScan::Clean) && !tries.has_moved
    }

    /// Whether a consumer waits in its queue for the message, before it consumes again. On its way from one consumer to the next, no look sees it.
    /// Where others are ready, it would hold those instead. Nobody counts the deliveries of a classic queue.
    fn waits_in_queue(&self, suspect: SuspectQueue<'_>) -> bool {
        !suspect.is_classic && self.tries().suspects.are_none()
    }

    /// Waits until then, or until another consumer of the client has found a reason. Returns whether one has.
    async fn is_explained_until(&self, client: &Client, until: Instant) -> bool {
        loop {
            if self.is_explained(client.reasons()) {
                return true;
            }
            if Instant::now() >= until {
                return false;
            }
            sleep(CHECK_INTERVAL).await;
        }
    }

    /// Whether another consumer of the client has found a reason since the connection was lost, and this one has none.
    fn is_explained(&self, reasons: Reasons) -> bool {
        reasons != self.reasons && matches!(self.tries().last, LastScan::Clean)
    }

    /// Whether it stops because of a message that it found. It tells so once.
    fn has_warning(&self) -> bool {
        let mut tries = self.tries();
        let has_found = tries.is_hidden || matches!(tries.last, LastScan::Refused(..));
        has_found && !std::mem::replace(&mut tries.has_told, true)
    }

    /// Whether the last look found messages that could not be moved. Before it reads them again, a consumer finds out whether they can be.
    pub(crate) fn is_refused(&self) -> bool {
        matches!(self.tries().last, LastScan::Refused(..))
    }

    /// What to do now.
    ///
    /// # Errors
    /// Why the consumer must not consume now.
    pub(crate) fn step(&self, suspect: SuspectQueue<'_>, seen: Evidence) -> Result<Step> {
        let mut tries = self.tries();
        tries.number = tries.number.saturating_add(1);
        let is_shorter = tries.note_ready(seen.ready);
        let has_changed =
            tries.note_set_aside(seen.aside) | tries.note_refusal(seen.refusal.as_ref());
        // It is gone, whoever took it, or it is in another queue.
        if tries.number > 1 && (tries.empty >= EMPTY || seen.is_explained) {
            tries.is_unknown = false;
            return Ok(Step::Consume);
        }
        let last = tries.last.clone();
        // Nobody counts the deliveries of a classic queue. Elsewhere an error ends the session before the messages are released.
        let releases = !tries.is_hidden && seen.refusal.is_none();
        let is_free = match &last {
            _ if suspect.is_classic => true,
            LastScan::Failed(_) => false,
            // It has released all that it saw.
            LastScan::Partial => suspect.is_free,
            _ => suspect.is_free && releases,
        };
        let is_worth_while = match &last {
            LastScan::None => true,
            LastScan::Clean => false,
            LastScan::Refused(..) if is_free => {
                tries.is_missing || is_shorter || has_changed || tries.number.is_multiple_of(SELDOM)
            }
            LastScan::Refused(..) => {
                tries.is_missing && is_one_more(&mut tries.missing, MOST_MISSING)
                    || is_shorter && is_one_more(&mut tries.shrunk, MOST_SHRUNK)
                    || has_changed && is_one_more(&mut tries.changed, MOST_CHANGED)
            }
            // Meanwhile others do not see what it looks at.
            LastScan::Partial if is_free => {
                tries.number <= MOST_LOOKS || is_shorter || tries.number.is_multiple_of(SELDOM)
            }
            LastScan::Partial | LastScan::Failed(_) => {
                is_free
                    || tries.reads()
                    || is_shorter && is_one_more(&mut tries.shrunk, MOST_SHRUNK)
            }
        };
        if is_worth_while {
            // Whoever moves what is found changes their number.
            tries.aside = None;
            return Ok(Step::Look(self.reach(suspect, &tries, seen.ready)));
        }
        drop(tries);
        let queue = suspect.queue;
        let failed = match last {
            // Nothing but another try shows whether the message is still there.
            LastScan::Clean if is_shorter && self.closed == MOST_CLOSED_WITHOUT_A_FIND => {
                return Ok(Step::Consume);
            }
            LastScan::None | LastScan::Clean | LastScan::Partial => Ok(Moved::default()),
            LastScan::Refused(kind, why) => {
                let why = seen.refusal.unwrap_or_else(|| Error::new(kind, why));
                Ok(unmoved(why))
            }
            LastScan::Failed(why) => {
                let why = format!(
                    "{why}; each look at it may count as a delivery, so `{queue}` is read again after growing pauses, and no more after \
                     {MOST_LOOKS} tries: then start the consumer again, or empty the queue"
                );
                Err(Error::new(ErrorKind::Broker, why))
            }
        };
        self.after(suspect, failed).map(|()| Step::Consume)
    }

    fn reach(
        &self,
        suspect: SuspectQueue<'_>,
        tries: &ConsumeTries,
        ready: Option<u32>,
    ) -> ScanRange {
        if tries.is_hidden {
            // What is looked at goes behind the others, and so does what costs a connection: the same number each time could miss it for ever.
            // Where there are fewer, each would be looked at again.
            let turn = self.closed + self.closed_after_others;
            // A consumer that stopped has few deliveries left.
            let most = if tries.number == 1 { 1 + turn % FEW } else { 1 };
            let ready = ready.unwrap_or(1).max(1);
            // What a look returns, the next one meets first: it has to go farther, or the message behind would be met by sessions only.
            let farther = turn.saturating_add(tries.number);
            let in_order = if suspect.is_free {
                near(suspect.prefetch).saturating_mul(farther)
            } else {
                most
            };
            ScanRange::Singly {
                in_order: in_order.min(ready),
                blocked: most.min(ready),
            }
        } else {
            ScanRange::Near(self.scan_depth(suspect.prefetch, suspect.is_free))
        }
    }

    /// How many messages to take one at a time after this look.
    ///
    /// # Errors
    /// Why the consumer must not consume now.
    pub(crate) fn scanned(&self, suspect: SuspectQueue<'_>, scanned: Result<Moved>) -> Result<u32> {
        let (is_passed, is_gone) = {
            let mut tries = self.tries();
            let last = match &scanned {
                Ok(moved) => {
                    tries.has_moved |= !moved.causes.is_empty();
                    tries.suspects = moved.suspects;
                    if let Some(why) = &moved.untried {
                        tries.untried = Some(why.to_string());
                    }
                    tries.is_hidden |= moved.ended_early.is_some();
                    match (&moved.refused, &moved.ended_early) {
                        (Some(why), _) => {
                            tries.was_forbidden = forbids(why);
                            LastScan::Refused(why.kind(), why.to_string())
                        }
                        (None, Some(why)) => LastScan::Failed(why.to_string()),
                        (None, None) if tries.is_hidden => LastScan::Partial,
                        (None, None) => LastScan::Clean,
                    }
                }
                Err(error) => LastScan::Failed(error.to_string()),
            };
            let is_clean = matches!(last, LastScan::Clean | LastScan::Partial);
            let has_moved = scanned.as_ref().is_ok_and(|moved| !moved.causes.is_empty());
            if let LastScan::Refused(kind, why) = tries.last.clone()
                && is_clean
                && !has_moved
                && !std::mem::replace(&mut tries.is_missing, true)
            {
                let refused = Error::new(kind, why);
                drop(tries);
                return self.after(suspect, Ok(unmoved(refused))).map(|()| 0);
            }
            tries.is_missing = false;
            let before = std::mem::replace(&mut tries.last, last);
            // Whatever was in the way is not the first any more.
            let is_gone = is_clean && matches!(before, LastScan::Refused(..) | LastScan::Failed(_));
            // Taken alone, it is counted more often than the others, and tried first where not all can be tried.
            tries.is_unknown = self.closed >= 2 && !has_moved && !suspect.is_free;
            let is_passed = scanned.is_ok() && !tries.is_hidden && !tries.is_unknown;
            (is_passed, is_gone)
        };
        if !is_gone {
            self.after(suspect, scanned)?;
        }
        Ok(if is_passed { 0 } else { near(suspect.prefetch) })
    }

    fn tries(&self) -> MutexGuard<'_, ConsumeTries> {
        self.tries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether it may consume after this look.
    ///
    /// # Errors
    /// Why it does not, and what to do.
    fn after(&self, suspect: SuspectQueue<'_>, scanned: Result<Moved>) -> Result<()> {
        let queue = suspect.queue;
        let why = match scanned {
            _ if mutants::has(Mutant::NeverStops) => return Ok(()),
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
                        "move them to `{to}` with `retryrmq unreadable take {queue}`, as a user who may configure and read that queue, and write to the default exchange"
                    ),
                };
                format!(
                    "`{queue}` has messages that it cannot deliver over AMQP 0-9-1, and they cannot be moved ({error}); {advice}"
                )
            }
            Ok(moved) if !moved.causes.is_empty() => return Ok(()),
            // A first one may have had another reason.
            _ if self.closed < 2 => return Ok(()),
            Ok(moved) => match moved.ended_early {
                // What stands in the way may be handled meanwhile: a session begins with one message.
                Some(_) if self.closed < MOST_CLOSED => return Ok(()),
                Some(error) => error.to_string(),
                None if self.closed < MOST_CLOSED_WITHOUT_A_FIND => return Ok(()),
                None => {
                    let untried = self.tries().untried.clone();
                    let untried = untried.map(|why| format!(" ({why})"));
                    format!(
                        "no message was found in `{queue}` that it cannot deliver over AMQP 0-9-1{}; read the broker's log, take the message out \
                         (`retryrmq unreadable take {queue} --try-each` asks for one after the other), and start the consumer again",
                        untried.unwrap_or_default()
                    )
                }
            },
            Err(error) if error.is_transient() && self.closed < MOST_CLOSED => return Ok(()),
            Err(error) => format!(
                "whether `{queue}` has a message that it cannot deliver over AMQP 0-9-1 was not found out ({error}); `retryrmq unreadable take \
                 {queue}` looks for such messages, as a user who may read `{queue}`"
            ),
        };
        let connections = match self.closed + self.closed_after_others {
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

/// How many messages of this queue were moved and are still there, if that can be found out. Each look at a missing queue costs its connection
/// the number of a channel, so that must not be the one that consumes.
async fn aside(client: &Client, queue: &str) -> Option<u32> {
    let unreadable = name(&unreadable_queue(queue)).ok()?;
    let channel = client.probe_connection().channel().await.ok()?;
    let scanned = passive_declare(&channel, unreadable).await;
    channel.close().await;
    match scanned {
        Ok(found) => Some(found.message_count()),
        Err(error) if error.kind() == ErrorKind::QueueNotFound => Some(0),
        Err(_) => None,
    }
}

#[cfg(test)]
mod tests;
