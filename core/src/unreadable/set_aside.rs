//! Moves what AMQP 0-9-1 cannot carry from a queue to the queue for such messages.

use std::{
    fmt,
    time::{Duration, SystemTime},
};

use tokio::time::{Instant, sleep, timeout};
use tracing::{debug, warn};

use super::{
    delivery_probe::{Delivery, DeliveryProbe},
    suspects::{Choice, Suspect, Suspects, Trial, hash},
};
use crate::{
    Client, Error, ErrorKind, Event, Plan, Result,
    amqp10::{Delivery as Delivery10, Failure, Found, Link, Message},
    connection::{Connection, Session10},
    topology::{
        SAFE_AGE,
        age_marker::{self, MarkerAge},
        unreadable, unreadable_queue,
    },
};

/// How many messages the broker sends at a time, once it is known that they are small, and before.
const BATCH: u32 = 64;
const FIRST_BATCH: u32 = 4;
/// The most bytes of messages that are kept at a time.
pub(super) const MOST_BYTES: usize = 64 * 1024 * 1024;
/// How long a batch may take, or the copy of a message.
const LONGEST: Duration = Duration::from_secs(60);
/// How long a connection that has ended may take to give its messages back.
const GIVEN_BACK: Duration = Duration::from_secs(5);
/// How many other messages may come before one that was given back.
const MOST_OTHERS: u32 = 16;
/// How long tries may take. Meanwhile no other consumer sees what is held.
const LONGEST_TRIES: Duration = Duration::from_secs(20);
/// How long a look at one message after the other may take.
const LONGEST_SINGLY: Duration = Duration::from_secs(10);

/// What a look found and moved.
#[derive(Debug, Default)]
pub(crate) struct Moved {
    /// Why each of them cannot be delivered.
    pub(crate) causes: Vec<String>,
    /// Why there was no look at the rest: a message there cannot be delivered over AMQP 1.0.
    pub(crate) ended_early: Option<Error>,
    /// Why some that were found are still there.
    pub(crate) refused: Option<Error>,
    /// Why some were not tried that may be the ones.
    pub(crate) untried: Option<Error>,
    /// Of the messages that were seen and cannot be told from others, those whose connections ended most often.
    pub(crate) suspects: Suspects,
}

/// How far to look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ScanRange {
    /// At the first so many messages.
    Near(u32),
    /// At one message after the other, until so many were in order or could not be delivered over AMQP 1.0, and at as many more after each that
    /// is moved. What is sent along with one that cannot be delivered would count as delivered for nothing.
    Singly { in_order: u32, blocked: u32 },
}

impl ScanRange {
    fn most(self) -> u32 {
        match self {
            Self::Near(most) => most,
            Self::Singly { .. } => u32::MAX,
        }
    }

    /// How many messages the broker sends at a time, of which the largest has so many bytes. As many may have to be kept.
    fn batch(self, largest: usize) -> u32 {
        let fit = u32::try_from(MOST_BYTES / largest.max(1)).unwrap_or(BATCH);
        match self {
            Self::Near(_) if largest == 0 => FIRST_BATCH,
            Self::Near(_) => fit.clamp(1, BATCH),
            Self::Singly { .. } => 1,
        }
    }
}

/// Why a message is moved that ended the connection which asked for it, although nothing in it is seen that would.
const HIDDEN: &str = "RabbitMQ closed the connection that asked for it, and nothing that is seen in it explains that: its annotation \
                      `x-delivery-count` or `x-acquired-count` may be of a type that AMQP 0-9-1 does not have, and RabbitMQ shows its own count \
                      instead";

/// How many other messages a consumer holds at most that waits for one to come back to the queue.
const MOST_HELD: u32 = 16;

/// How many messages end a look at single ones at most. A quorum queue returns each of them behind the others, so the first one may be any.
pub(super) const FEW: u32 = 2;

impl Moved {
    /// Whether it saw everything, and nothing that cannot be delivered.
    pub(crate) fn found_nothing(&self) -> bool {
        self.causes.is_empty() && self.ended_early.is_none() && self.refused.is_none()
    }

    /// Logs what was moved from the queue `from`, a queue of the family of `work`.
    pub(crate) fn log(&self, work: &str, from: &str) {
        if let Some(cause) = self.causes.first() {
            warn!(
                queue = from,
                to = unreadable_queue(work),
                count = self.causes.len(),
                cause,
                "messages that RabbitMQ cannot deliver over AMQP 0-9-1 were moved out of the way: it closed the connection for each; `retryrmq \
                 unreadable ls {work}` shows them, and their publishers should send other types"
            );
        }
    }

    /// The event for it, if a consumer of `work` moved some.
    pub(crate) fn event(&self, work: &str) -> Option<Event> {
        let cause = self.causes.first()?;
        Some(Event::UnreadableMoved {
            queue: work.to_owned(),
            to: unreadable_queue(work),
            count: u32::try_from(self.causes.len()).unwrap_or(u32::MAX),
            cause: cause.clone(),
        })
    }
}

/// Does something with a queue, for so long.
///
/// # Errors
/// Those of [`failure`], and that it took too long.
async fn in_time<T>(queue: &str, done: impl Future<Output = Result<T, Failure>>) -> Result<T> {
    match timeout(LONGEST, done).await {
        Ok(done) => done.map_err(|why| failure(queue, &why)),
        Err(_) => Err(late(queue)),
    }
}

/// The same for a delivery, which the broker may be unable to make.
async fn delivered<T>(queue: &str, done: impl Future<Output = Result<T, Failure>>) -> Result<T> {
    match timeout(LONGEST, done).await {
        Ok(Err(Failure::Refused(said))) if said.starts_with("amqp:internal-error") => {
            Err(blocked(queue))
        }
        Ok(done) => done.map_err(|why| failure(queue, &why)),
        Err(_) => Err(late(queue)),
    }
}

/// Opens a session that is about this queue.
///
/// # Errors
/// Those of connecting, and that it took too long.
async fn open(client: &Client, connection: &Connection, queue: &str) -> Result<Session10> {
    let opened = timeout(LONGEST, connection.amqp10(client.addresses()));
    opened.await.unwrap_or_else(|_| Err(late(queue)))
}

/// Messages of a queue, as many as are wanted, in their order. They are held until [`end`](Self::end).
pub(super) struct QueueReader<'a> {
    session: Session10,
    link: Link,
    queue: &'a str,
    left: u32,
    reach: ScanRange,
    /// The bytes of the largest message that came.
    largest: usize,
    /// The numbers of the first and the last one that came.
    held: Option<(u32, u32)>,
}

impl<'a> QueueReader<'a> {
    /// Begins to read a queue.
    ///
    /// # Errors
    /// Those of connecting, and of [`in_time`].
    pub(super) async fn begin(
        client: &Client,
        connection: &Connection,
        queue: &'a str,
        reach: ScanRange,
    ) -> Result<Self> {
        let mut session = open(client, connection, queue).await?;
        let link = in_time(queue, session.read_from(queue)).await?;
        Ok(Self {
            session,
            link,
            queue,
            left: reach.most(),
            reach,
            largest: 0,
            held: None,
        })
    }

    /// Passes some more messages on; whether there may be others.
    ///
    /// # Errors
    /// Those of [`delivered`].
    pub(super) async fn next(&mut self, each: impl FnMut(u32, Vec<u8>)) -> Result<bool> {
        let asked = self.reach.batch(self.largest).min(self.left);
        let came = self.take(asked, each).await?;
        self.left -= came;
        Ok(came == asked && self.left > 0)
    }

    /// Passes on what is ready now, so many messages at most. Returns how many came.
    ///
    /// # Errors
    /// Those of [`delivered`].
    async fn take(&mut self, most: u32, mut each: impl FnMut(u32, Vec<u8>)) -> Result<u32> {
        let (held, largest) = (&mut self.held, &mut self.largest);
        let read = self.session.drain(self.link, most, |delivery| {
            keep(held, largest, &delivery);
            each(delivery.number, delivery.payload);
        });
        delivered(self.queue, read).await
    }

    /// Waits for the next message, as long as it goes on. Returns whether one came.
    ///
    /// # Errors
    /// Those of [`delivered`].
    async fn wait(
        &mut self,
        goes_on: impl Fn() -> bool,
        mut each: impl FnMut(u32, Vec<u8>),
    ) -> Result<bool> {
        if self.left == 0 {
            return Ok(false);
        }
        let (held, largest) = (&mut self.held, &mut self.largest);
        let read = self.session.wait(self.link, goes_on, |delivery| {
            keep(held, largest, &delivery);
            each(delivery.number, delivery.payload);
        });
        let came = delivered(self.queue, read).await?;
        self.left -= came;
        Ok(came > 0)
    }

    /// Gives a message back, and reads on later.
    ///
    /// # Errors
    /// Those of [`in_time`].
    async fn release(&mut self, number: u32) -> Result<()> {
        let released = async {
            self.session.release(number, number).await?;
            self.session.sync(self.link).await
        };
        in_time(self.queue, released).await
    }

    /// Takes the message with this content, and for which so many connections ended, after it was given back on another connection. That may take a
    /// moment, in which others may come.
    ///
    /// # Errors
    /// Those of [`delivered`].
    async fn take_back(&mut self, content: u64, died: u64) -> Result<Option<(u32, Message)>> {
        let until = Instant::now() + GIVEN_BACK;
        let mut others = 0;
        loop {
            let mut taken = None;
            let take = |number, payload| {
                let message = Message::read(payload);
                let message = message
                    .filter(|message| hash(message.content()) == content && message.died() == died);
                taken = message.map(|message| (number, message));
            };
            let came = self.take(1, take).await?;
            others += came;
            if taken.is_some() || others > MOST_OTHERS || Instant::now() >= until {
                return Ok(taken);
            }
            if taken.is_none() {
                sleep(GIVEN_BACK / 200).await;
            }
        }
    }

    /// Removes a message for good.
    ///
    /// # Errors
    /// Those of [`in_time`].
    pub(super) async fn remove(&mut self, number: u32) -> Result<()> {
        in_time(self.queue, self.session.accept(number)).await
    }

    /// Gives all others back.
    ///
    /// # Errors
    /// Those of [`in_time`].
    pub(super) async fn end(mut self) -> Result<()> {
        let settled = async {
            if let Some((first, last)) = self.held {
                self.session.release(first, last).await?;
                self.session.sync(self.link).await?;
            }
            self.session.close().await
        };
        in_time(self.queue, settled).await
    }
}

/// Takes note of a message that came and is held.
fn keep(held: &mut Option<(u32, u32)>, largest: &mut usize, delivery: &Delivery10) {
    let number = delivery.number;
    *held = Some((held.map_or(number, |(first, _)| first), number));
    *largest = delivery.payload.len().max(*largest);
}

/// Moves each message of the queue `from`, within reach, that RabbitMQ cannot deliver over AMQP 0-9-1. `declares`: the queue for them may be
/// created. What was moved comes with the error that ended the look, if one did.
///
/// # Errors
/// Those of connecting, and of [`failure`]. Nothing is lost: an original is removed when its copy is safe.
pub(crate) async fn set_aside(
    client: &Client,
    connection: &Connection,
    work: &str,
    from: &str,
    reach: ScanRange,
    declares: bool,
) -> (Moved, Result<()>) {
    let mut mover = Mover::new(client, connection, work, declares);
    let mut scanned = mover.scan(from, reach).await;
    if scanned.as_ref().err().is_some_and(is_blocked) {
        mover.moved.ended_early = scanned.err();
        // What closes the connections may be the very first message.
        scanned = match reach {
            ScanRange::Near(most) if mover.moved.causes.is_empty() => {
                let few = most.min(FEW);
                let one_by_one = ScanRange::Singly {
                    in_order: few,
                    blocked: few,
                };
                mover.scan(from, one_by_one).await
            }
            _ => Ok(()),
        };
    }
    mover.end(scanned)
}

/// Waits in an empty queue, as one of its consumers, for a message that RabbitMQ cannot deliver over AMQP 0-9-1, and moves it. Such a message goes from
/// one consumer to the next as it ends the connection of each. Ends with the first one, after some others, or when it does not go on.
///
/// # Errors
/// Those of [`set_aside`].
pub(crate) async fn set_aside_next(
    client: &Client,
    connection: &Connection,
    work: &str,
    declares: bool,
    goes_on: impl Fn() -> bool,
) -> (Moved, Result<()>) {
    let mut mover = Mover::new(client, connection, work, declares);
    let scanned = match mover.wait_for_one(work, goes_on).await {
        // Nobody looked for what AMQP 1.0 cannot carry, and AMQP 0-9-1 may carry it.
        Err(error) if is_blocked(&error) => Ok(()),
        scanned => scanned,
    };
    mover.end(scanned)
}

/// Moves the messages among the first `most` that end the connection which asks for them over AMQP 0-9-1, although nothing in them is seen that
/// would. A quorum queue shows its counts instead of annotations of the publisher that have the same names, and RabbitMQ may be unable to convert
/// those. But it also tells how often connections ended that a message was delivered to. Those for which that happened most often are asked for
/// alone, as `trial` says, on a connection of their own. One that is delivered is given back; on RabbitMQ before 4.3 that costs it up to three
/// deliveries. One is moved if the connection ended, and the broker says that it was delivered to that one.
///
/// # Errors
/// Those of [`set_aside`].
pub(crate) async fn set_aside_counted(
    client: &Client,
    connection: &Connection,
    (work, from): (&str, &str),
    (most, trial): (u32, Trial),
    declares: bool,
) -> (Moved, Result<()>) {
    let mut mover = Mover::new(client, connection, work, declares);
    let scanned = mover.scan_for_suspects(from, most, trial).await;
    mover.end(scanned)
}

/// Whether copies can be put into the queue for such messages, which reads no message.
///
/// # Errors
/// Why they cannot.
pub(super) async fn can_set_aside(
    client: &Client,
    connection: &Connection,
    work: &str,
    declares: bool,
) -> Result<()> {
    let to = unreadable_queue(work);
    declare(client, work, declares).await?;
    let mut session = open(client, connection, &to).await?;
    in_time(&to, session.publish_to(&to)).await?;
    in_time(&to, session.close()).await
}

async fn declare(client: &Client, work: &str, declares: bool) -> Result<()> {
    if declares {
        let item = unreadable(work, client.options().queue_type);
        client.apply_plan(&Plan::new([item])).await?;
    }
    Ok(())
}

/// A message that cannot be delivered.
struct UndeliverableMessage {
    number: u32,
    message: Message,
    cause: String,
}

struct Mover<'a> {
    client: &'a Client,
    connection: &'a Connection,
    work: &'a str,
    to: String,
    declares: bool,
    leaves_out_odd_numbers: bool,
    /// The link to the queue for such messages.
    link: Option<Link>,
    /// Whether that queue is old.
    is_safe: bool,
    /// Of the messages that were looked at one after the other since the last one that was moved, how many were in order, and how many could
    /// not be delivered.
    in_order: u32,
    blocked: u32,
    moved: Moved,
}

impl<'a> Mover<'a> {
    fn new(client: &'a Client, connection: &'a Connection, work: &'a str, declares: bool) -> Self {
        Self {
            client,
            connection,
            work,
            to: unreadable_queue(work),
            declares,
            leaves_out_odd_numbers: connection.server().capabilities().leaves_out_odd_numbers,
            link: None,
            is_safe: false,
            in_order: 0,
            blocked: 0,
            moved: Moved::default(),
        }
    }

    /// What it has moved, with the error that ended it for another reason than a message.
    fn end(mut self, scanned: Result<()>) -> (Moved, Result<()>) {
        if !self.moved.causes.is_empty() {
            self.client.has_moved();
        }
        match scanned {
            Err(error) if is_blocked(&error) => {
                self.moved.ended_early.get_or_insert(error);
                (self.moved, Ok(()))
            }
            scanned => (self.moved, scanned),
        }
    }

    async fn wait_for_one(&mut self, from: &str, goes_on: impl Fn() -> bool) -> Result<()> {
        let reach = ScanRange::Near(MOST_HELD);
        let mut reading = QueueReader::begin(self.client, self.connection, from, reach).await?;
        loop {
            let mut found = Vec::new();
            let came = reading
                .wait(&goes_on, |number, payload| {
                    if let Some(message) = Message::read(payload) {
                        found.extend(self.obstructed(number, message));
                    }
                })
                .await?;
            let is_found = !found.is_empty();
            if let Err(error) = self.move_these(&mut reading, from, found).await {
                return self.not_moved(reading, error).await;
            }
            if is_found || !came {
                return reading.end().await;
            }
        }
    }

    async fn scan_for_suspects(&mut self, from: &str, most: u32, trial: Trial) -> Result<()> {
        self.link = None;
        let reach = ScanRange::Near(most);
        let mut reading = QueueReader::begin(self.client, self.connection, from, reach).await?;
        let mut choice = Choice::new(trial);
        loop {
            let goes_on = reading
                .next(|number, payload| {
                    if let Some(message) = Message::read(payload) {
                        choice.add(number, &message);
                    }
                })
                .await?;
            if !goes_on {
                break;
            }
        }
        let (suspects, left_out) = choice.made();
        let tried = self.try_each(&mut reading, from, suspects).await;
        if left_out > 0 && self.moved.causes.is_empty() {
            self.moved
                .untried
                .get_or_insert(left_out_of(from, left_out));
        }
        match tried {
            Ok(()) => reading.end().await,
            Err(error) => self.not_moved(reading, error).await,
        }
    }

    /// Asks for each of these messages while all others are held, so that it is the first one, and moves those that cannot be delivered.
    async fn try_each(
        &mut self,
        reading: &mut QueueReader<'_>,
        from: &str,
        suspects: Vec<Suspect>,
    ) -> Result<()> {
        let (until, mut probe) = (Instant::now() + LONGEST_TRIES, None);
        let all = suspects.len();
        let mut moved_died = 0;
        for (number, one) in suspects.into_iter().enumerate() {
            // Where tries count as deliveries, the others are innocent.
            if one.is_costly && one.died < moved_died {
                break;
            }
            let asked = match probe.take() {
                Some(asked) => asked,
                None => match DeliveryProbe::open(self.client).await {
                    Ok(opened) => opened,
                    Err(error) => {
                        self.moved.untried = Some(error);
                        break;
                    }
                },
            };
            if Instant::now() >= until {
                self.moved.untried = Some(too_many(from, number, all));
                probe = Some(asked);
                break;
            }
            reading.release(one.number).await?;
            let (goes_on, died) = match asked.get(from).await {
                Ok(Delivery::Impossible) => (None, one.died + 1),
                Ok(Delivery::Made) => (Some(asked), one.died),
                Ok(Delivery::None) => {
                    self.moved.untried = Some(held_by_another(from));
                    probe = Some(asked);
                    continue;
                }
                Err(error) => {
                    asked.close().await;
                    self.moved.untried = Some(error);
                    return Ok(());
                }
            };
            let is_moved = goes_on.is_none();
            probe = goes_on;
            let Some((number, message)) = reading.take_back(one.content, died).await? else {
                // It was another message that was asked for, so nothing is known of this one.
                self.moved.untried = Some(not_alone(from));
                break;
            };
            if is_moved {
                moved_died = one.died;
                let cause = HIDDEN.to_owned();
                let found = vec![UndeliverableMessage {
                    number,
                    message,
                    cause,
                }];
                self.move_these(reading, from, found).await?;
            }
        }
        if let Some(probe) = probe {
            probe.close().await;
        }
        Ok(())
    }

    async fn scan(&mut self, from: &str, reach: ScanRange) -> Result<()> {
        (self.in_order, self.blocked) = (0, 0);
        loop {
            let before = self.moved.causes.len();
            let has_left_some = match self.scan_once(from, reach).await {
                Err(error) if is_blocked(&error) && self.may_pass_it(reach) => {
                    self.moved.ended_early = Some(error);
                    continue;
                }
                scanned => scanned?,
            };
            if !has_left_some || self.moved.causes.len() == before {
                return Ok(());
            }
        }
    }

    /// A message has ended the look. Whether to look at the next one.
    fn may_pass_it(&mut self, reach: ScanRange) -> bool {
        self.blocked += 1;
        matches!(reach, ScanRange::Singly { blocked, .. } if self.blocked < blocked)
    }

    /// Whether it has left some that it found.
    async fn scan_once(&mut self, from: &str, reach: ScanRange) -> Result<bool> {
        self.link = None;
        let mut reading = QueueReader::begin(self.client, self.connection, from, reach).await?;
        let began = Instant::now();
        let mut has_left_some = false;
        loop {
            let (mut found, mut kept) = (Vec::new(), 0);
            let mut goes_on = reading
                .next(|number, payload| {
                    let size = payload.len();
                    let Some(message) = Message::read(payload) else {
                        return;
                    };
                    if let Some(one) = self.obstructed(number, message) {
                        // What is too much for now is found again.
                        if kept > 0 && kept + size > MOST_BYTES {
                            has_left_some = true;
                        } else {
                            kept += size;
                            found.push(one);
                        }
                    }
                })
                .await?;
            if let ScanRange::Singly { in_order, .. } = reach {
                if found.is_empty() {
                    self.in_order += 1;
                    goes_on &= self.in_order < in_order && began.elapsed() < LONGEST_SINGLY;
                } else {
                    (self.in_order, self.blocked) = (0, 0);
                }
            }
            if let Err(error) = self.move_these(&mut reading, from, found).await {
                return self.not_moved(reading, error).await.map(|()| false);
            }
            if !goes_on {
                break;
            }
        }
        reading.end().await?;
        Ok(has_left_some)
    }

    fn obstructed(&mut self, number: u32, message: Message) -> Option<UndeliverableMessage> {
        let Some(cause) = message.obstacle(self.leaves_out_odd_numbers) else {
            self.moved.suspects.add(message.died());
            return None;
        };
        Some(UndeliverableMessage {
            number,
            message,
            cause,
        })
    }

    /// Ends a look that could not move what it found.
    ///
    /// # Errors
    /// Those after which another look may move it.
    async fn not_moved(&mut self, reading: QueueReader<'_>, error: Error) -> Result<()> {
        // The session may have ended with that.
        let _ = reading.end().await;
        if error.is_transient() {
            return Err(error);
        }
        self.moved.refused = Some(error);
        Ok(())
    }

    /// Each is removed as soon as its copy is stored, so that an error later on doubles none.
    async fn move_these(
        &mut self,
        reading: &mut QueueReader<'_>,
        from: &str,
        found: Vec<UndeliverableMessage>,
    ) -> Result<()> {
        for one in found {
            let link = self.link(reading).await?;
            let now = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
            let found = Found {
                queue: from,
                at: i64::try_from(now.as_millis()).unwrap_or(i64::MAX),
                cause: &one.cause,
            };
            let copy = one.message.set_aside(&found, reading.session.largest());
            let stored = in_time(&self.to, reading.session.publish(link, &copy)).await?;
            if stored {
                reading.remove(one.number).await?;
                self.moved.causes.push(one.cause);
            } else {
                let why = format!(
                    "the broker did not store a copy in `{}`; is it full?",
                    self.to
                );
                self.moved.refused = Some(Error::new(ErrorKind::Broker, why));
            }
        }
        Ok(())
    }

    /// The link to the queue for them, when that is a safe place.
    async fn link(&mut self, reading: &mut QueueReader<'_>) -> Result<Link> {
        if let Some(link) = self.link {
            return Ok(link);
        }
        if !self.is_safe {
            declare(self.client, self.work, self.declares).await?;
        }
        let is_marked = if self.is_safe || !self.declares {
            None
        } else {
            let age = age_marker::age(self.connection, self.work, &self.to).await;
            age.ok().map(|age| age == MarkerAge::Old)
        };
        let link = in_time(&self.to, reading.session.publish_to(&self.to)).await?;
        if !std::mem::replace(&mut self.is_safe, true) && is_marked != Some(true) {
            // A queue that was created just now loses confirmed messages if its broker is killed.
            sleep(SAFE_AGE).await;
            if is_marked == Some(false)
                && let Err(error) = age_marker::mark(self.connection, &self.to).await
            {
                debug!(queue = self.to, %error, "the queue for messages that cannot be delivered was not marked as old");
            }
        }
        self.link = Some(link);
        Ok(link)
    }
}

fn too_many(queue: &str, tried: usize, all: usize) -> Error {
    let seconds = LONGEST_TRIES.as_secs();
    Error::new(
        ErrorKind::Timeout,
        format!(
            "{tried} of {all} messages of `{queue}` were asked for one by one within {seconds} seconds: try again for the others"
        ),
    )
}

fn left_out_of(queue: &str, count: usize) -> Error {
    Error::new(
        ErrorKind::Broker,
        format!(
            "{count} messages of `{queue}` were not asked for one by one: they were delivered so often that RabbitMQ may drop them, or are too many at a \
             time. Give the queue a dead-letter route, and try again"
        ),
    )
}

fn held_by_another(queue: &str) -> Error {
    Error::new(
        ErrorKind::Broker,
        format!(
            "messages of `{queue}` could not be asked for one by one, because a consumer took them: stop it, and try again"
        ),
    )
}

fn not_alone(queue: &str) -> Error {
    Error::new(
        ErrorKind::Timeout,
        format!(
            "messages of `{queue}` could not be asked for one by one: somebody else did so at the same time, or the queue returns them later \
             (`delayed-retry-type`) or behind the others (a delivery limit of -1)"
        ),
    )
}

fn late(queue: &str) -> Error {
    Error::new(
        ErrorKind::Timeout,
        format!("`{queue}` was not read over AMQP 1.0 in time"),
    )
}

/// The broker ended a session because it cannot deliver a message over AMQP 1.0.
#[derive(Debug)]
struct Blocked;

impl fmt::Display for Blocked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the broker cannot deliver the message over AMQP 1.0")
    }
}

impl std::error::Error for Blocked {}

/// Whether a look ended at a message that the broker cannot deliver over AMQP 1.0.
fn is_blocked(error: &Error) -> bool {
    use std::error::Error as _;
    error
        .source()
        .is_some_and(<dyn std::error::Error>::is::<Blocked>)
}

/// The error for a session that the broker ended because it cannot deliver a message.
fn blocked(queue: &str) -> Error {
    let message = format!(
        "RabbitMQ cannot deliver one of the first messages of `{queue}` over AMQP 1.0, so what is behind it cannot be looked for. Consume what \
         AMQP 0-9-1 can carry with a prefetch of 1; if that cannot carry it either, remove it with a policy, as \"Messages that AMQP 0-9-1 \
         cannot carry\" in the reference of limits describes"
    );
    Error::new(ErrorKind::Broker, message).with_source(Blocked)
}

/// The error for the end of a session.
fn failure(queue: &str, why: &Failure) -> Error {
    let said = why.to_string();
    let kind = match why {
        Failure::Io(_) => ErrorKind::ConnectionLost,
        Failure::Refused(said) if said.starts_with("amqp:not-found") => ErrorKind::QueueNotFound,
        Failure::Refused(said) if said.starts_with("amqp:unauthorized") => ErrorKind::AccessRefused,
        Failure::Refused(_) | Failure::Garbled(_) => ErrorKind::Broker,
    };
    Error::new(
        kind,
        format!("`{queue}` cannot be used over AMQP 1.0: {said}"),
    )
}
