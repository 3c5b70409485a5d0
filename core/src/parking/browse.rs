//! One walk through a parking queue. It holds the messages unacknowledged until it ends.
//!
//! A quorum queue puts requeued messages *behind* those that were requeued earlier, and before those that were never delivered. So the
//! messages of a short walk would end up behind the rest of what an earlier, longer walk had seen. Before it ends, a walk therefore takes
//! all of those too.
//!
//! Requeues are counted. If that count is limited, even by a policy that no client can see, messages that were only looked at are dropped.
//! [`DeliveryLimit`] decides when a message is replaced by a fresh copy instead.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
};

use lapin::message::Delivery;
use tokio::time::Instant;
use tracing::warn;

use super::{
    Parked, Record, Resend,
    copies::Copies,
    delivery_limit::{DeliveryLimit, WalkMove},
    held::HeldMessages,
    republish::{RepublishBatch, Sent},
    source::Source,
};
use crate::{
    Client, Error, ErrorKind, Result,
    connection::{Connection, QueueCount, ReadyCounter, is_crash, is_internal_error},
    terminal_escape,
    topology::{Inspection, check_parking, inspect_parking, name, unreadable_queue},
    unreadable::{ScanRange, Trial, set_aside, set_aside_counted},
};

/// Whether the walk is over because the connection is.
fn is_lost(error: &Error) -> bool {
    error.kind() == ErrorKind::ConnectionLost || is_internal_error(error)
}

/// A walk through a parking queue. [`Parked::browse`](crate::Parked::browse) starts it, [`close`](Self::close) ends it.
///
/// It holds each message it has shown, unacknowledged, until it ends; no other walk sees them meanwhile. RabbitMQ allows that for 30
/// minutes by default (`consumer_timeout`). After that the messages are back in their places and the walk is over.
///
/// If it is dropped without `close`, the messages are requeued as well, a moment later. A quorum queue may then put them behind those that
/// an earlier walk had seen.
pub struct Browse {
    client: Client,
    parked: Parked,
    pub(super) queue: Arc<str>,
    pub(super) parking: String,
    pub(super) connection: Connection,
    pub(super) copies: Copies,
    /// Distinguishes the records of this walk from those of others.
    pub(super) walk: u64,
    pub(super) source: Source,
    pub(super) held: HeldMessages,
    /// The queues that messages were replayed to, and when the first copy arrived there.
    pub(super) targets: HashMap<String, Instant>,
    /// Messages that could not be replaced by a fresh copy; they are shown next.
    pub(super) unrenewed: VecDeque<Record>,
    /// What is being renewed. Kept here, because the caller may drop its future at any time.
    pub(super) rotation: Option<RepublishBatch>,
    /// The copies whose confirms are awaited, and the originals of those are still held.
    pub(super) sent: VecDeque<Sent>,
    pub(super) delivery_limit: DeliveryLimit,
    /// The queue is known to be a classic queue.
    classic: bool,
    pub(super) has_started: bool,
    /// Whether a message was shown.
    shown: bool,
    pub(super) others: u32,
    pub(super) missed: u32,
    pub(super) warning: Option<String>,
}

impl Browse {
    pub(super) async fn open(parked: &Parked) -> Result<Self> {
        let (client, queue, parking) = (parked.client(), parked.queue(), parked.name());
        client.same_process()?;
        let wire_name = name(&parking)?;
        // A connection of its own: a walk may hold very many messages, and nothing else may have to wait for its end.
        let connection = Connection::open(client.addresses(), "parked").await?;
        let channel = connection.channel().await?;
        let found = ReadyCounter::once(client.addresses(), &connection, &wire_name)
            .await
            .and_then(QueueCount::read)
            .map_err(|error| absent(error, parked))?;
        // Checked before anything consumes: an auto-delete queue is deleted with its last consumer.
        check_parking(&connection, &parking).await?;
        let Inspection { classic, warning } = inspect_parking(&connection, queue, &parking).await;
        let (walk, total) = (fastrand::u64(..), found.message_count());
        let copies = Copies::new(client, &parking, walk);
        // A copy would have the whole time to live before it, and what was dropped has to go in the end.
        let delivery_limit = DeliveryLimit::of(classic || parked.is_of_dropped(), total);
        if total > 0 && delivery_limit.counts() {
            // Without this permission a walk cannot undo what it costs, so it must not begin.
            copies.may_publish().await.map_err(|error| match error.kind() {
                ErrorKind::AccessRefused => Error::new(
                    ErrorKind::AccessRefused,
                    format!("browsing `{parking}` needs write permission too, because messages are put back as fresh copies so that they do not reach the delivery limit; {error}"),
                )
                .with_source(error),
                _ => error,
            })?;
        }
        Ok(Self {
            client: client.clone(),
            parked: parked.clone(),
            queue: Arc::from(queue),
            parking,
            connection,
            copies,
            walk,
            source: Source::new(wire_name, channel, total),
            held: HeldMessages::default(),
            targets: HashMap::new(),
            unrenewed: VecDeque::new(),
            rotation: None,
            sent: VecDeque::new(),
            delivery_limit,
            classic,
            has_started: false,
            shown: false,
            others: found.consumer_count(),
            missed: 0,
            // A time to live is what this queue is for.
            warning: warning.filter(|_| !parked.is_of_dropped()),
        })
    }

    /// How many messages were ready when the walk began and were not shown yet.
    #[must_use]
    pub fn remaining(&self) -> u32 {
        self.source.left()
    }

    /// How many other consumers the queue had when the walk began or when it came to its end, whichever is more. Other walks are among
    /// them. This walk does not see the messages they hold, and the broker does not tell how many those are.
    #[must_use]
    pub fn others(&self) -> u32 {
        self.others
    }

    /// How many messages were ready when the walk began, and were taken by others before it came to them.
    #[must_use]
    pub fn missed(&self) -> u32 {
        self.missed
    }

    /// What is wrong with the parking queue, as far as a client can see; `None` if nothing is. A queue that somebody else declared may drop
    /// parked messages. Policies cannot be seen.
    #[must_use]
    pub fn warning(&self) -> Option<&str> {
        self.warning.as_deref()
    }

    /// The next parked message; `None` after those that were ready when the walk began. Fewer come if others take some meanwhile. A message
    /// that this walk replayed, and that was parked again, is not shown again.
    ///
    /// Waits, and holds no further messages, during a memory or disk alarm of the broker. Its future may be dropped, as by a timeout: the
    /// next call goes on where it was.
    ///
    /// # Errors
    /// Those of a lost connection: everything held is back in the parking queue. [`ErrorKind::Timeout`] if the broker says that there are
    /// messages and delivers none. Those of publishing, if a message must be replaced by a fresh copy first: it is still parked.
    ///
    /// Messages that RabbitMQ cannot deliver over AMQP 0-9-1 are [moved away](crate::Unreadable::take_from) when the walk meets the first
    /// one. If it has shown others before, the error says so: walk again.
    pub async fn next(&mut self) -> Result<Option<Record>> {
        let mut next = self.advance().await;
        if let Err(lost) = &next
            && is_crash(lost)
            && self.has_moved_the_unreadable().await
        {
            if self.shown {
                return next.map_err(|lost| {
                    lost.saying(format!(
                        "`{}` had messages that RabbitMQ cannot deliver over AMQP 0-9-1; they are in `{}` now, and everything that this walk \
                         showed is back in its place: walk again",
                        self.parking,
                        unreadable_queue(&self.queue)
                    ))
                });
            }
            *self = Self::open(&self.parked.clone()).await?;
            next = self.advance().await;
        }
        self.shown |= matches!(next, Ok(Some(_)));
        next
    }

    /// Whether messages were the reason that the connection was lost.
    async fn has_moved_the_unreadable(&self) -> bool {
        let capabilities = self.connection.server().capabilities();
        if !capabilities.serves_amqp10 {
            return false;
        }
        let (client, connection) = (&self.client, &self.connection);
        let looking = set_aside(
            client,
            connection,
            &self.queue,
            &self.parking,
            ScanRange::Near(u32::MAX),
            true,
        );
        let (mut moved, mut looked) = looking.await;
        if looked.is_ok() && moved.found_nothing() {
            let queues = (&*self.queue, &*self.parking);
            let most = (u32::MAX, Trial::FREE);
            (moved, looked) = set_aside_counted(client, connection, queues, most, true).await;
        }
        moved.log(&self.queue, &self.parking);
        if !moved.causes.is_empty() {
            return true;
        }
        let error = match looked {
            Ok(()) => moved.refused.or(moved.ended_early).or(moved.untried),
            Err(error) => Some(error),
        };
        if let Some(error) = error {
            warn!(queue = self.parking, %error, "whether a message closed the connection was not found out");
        }
        false
    }

    async fn advance(&mut self) -> Result<Option<Record>> {
        self.begin().await?;
        self.turn().await?;
        loop {
            if let Some(record) = self.unrenewed.pop_front() {
                return Ok(Some(record));
            }
            if self.delivery_limit.counts() && self.held.is_full() {
                let parted = self.source.part(&self.connection).await;
                self.unless_over(parted)?;
            }
            if !self.expect().await? {
                break;
            }
            let Some(next) = self.source.front() else {
                break;
            };
            let source = self.copies.source(next);
            self.delivery_limit.holds(self.held.is_full());
            let next_move =
                self.delivery_limit
                    .next_move(next, source, self.source.expects_originals());
            let obstacle = self.obstacle(next);
            if next_move == WalkMove::Renew && obstacle.is_none() {
                self.rotate(u32::MAX, |delivery_limit, next| {
                    delivery_limit.at_once(next)
                })
                .await?;
                continue;
            }
            let Some(delivery) = self.source.next() else {
                break;
            };
            self.source.has_come(source);
            if next_move == WalkMove::PassOver {
                self.pass_over(delivery);
                continue;
            }
            let tag = delivery.delivery_tag;
            let stale = self.delivery_limit.at_the_end(&delivery);
            let record = self.record(delivery);
            let renewable = (stale && obstacle.is_none()).then(|| Arc::clone(&record.received));
            if self.delivery_limit.counts()
                && let Some(why) = obstacle
            {
                warn!(
                    queue = self.parking,
                    message_id = record.received.message_id(),
                    mark = record.mark,
                    "this message cannot be put back as a fresh copy, because {why}: each look at it spends a delivery, and a \
                     delivery limit may take it; take it out of the queue"
                );
            }
            self.held.insert(tag, renewable);
            return Ok(Some(record));
        }
        self.missed += self.source.give_up();
        let others = self.source.others(self.others, self.classic).await;
        self.others = self.unless_over(others)?;
        Ok(None)
    }

    /// Whether there is a next message. It is then the first of the queue.
    pub(super) async fn expect(&mut self) -> Result<bool> {
        // While nothing can be published, messages held would be requeued, and counted, if the walk is interrupted.
        if self.delivery_limit.counts() && self.source.asks_for_more() {
            self.copies.may_publish().await?;
        }
        let next = self.source.expect().await;
        self.unless_over(next)
    }

    /// Forgets what is held if the walk was interrupted: the queue has everything again.
    pub(super) fn unless_over<T>(&mut self, done: Result<T>) -> Result<T> {
        if matches!(&done, Err(error) if is_lost(error)) {
            self.held.clear();
            self.unrenewed.clear();
            (self.rotation, self.sent) = (None, VecDeque::new());
        }
        done
    }

    /// Why a message cannot be replaced by a complete fresh copy; `None` if it can.
    pub(super) fn obstacle(&self, delivery: &Delivery) -> Option<String> {
        if let Some(mended) = self.source.mended(delivery.delivery_tag) {
            return Some(format!(
                "a copy would have it only as it could be read ({mended})"
            ));
        }
        let is_renewable = self.copies.is_renewable(delivery);
        (!is_renewable).then(|| "its headers fill a whole frame".to_owned())
    }

    pub(super) fn record(&self, delivery: Delivery) -> Record {
        let mended = self.source.mended(delivery.delivery_tag);
        let mut record = Record::read(
            (self.walk, delivery.delivery_tag),
            &self.queue,
            delivery.data,
            delivery.properties,
            delivery.exchange,
            delivery.routing_key,
        );
        if let (Some(mended), Some(received)) = (mended, Arc::get_mut(&mut record.received)) {
            received.mended = Some(mended.to_owned());
        }
        if self.is_foreign() {
            record.comes_from_elsewhere();
        }
        record
    }

    pub(super) fn is_foreign(&self) -> bool {
        self.parked.is_foreign()
    }

    /// Replays a message: publishes a copy to the tail of its work queue and, when that is confirmed, acknowledges the parked one. The
    /// copy's retries count from the start, and its `x-retry-replays` is one higher. A message that the broker dead-lettered from another
    /// queue goes to that queue; see [`Record::home`].
    ///
    /// The first replay to a queue takes two seconds: a queue that was created just now can lose confirmed messages when its broker
    /// crashes.
    ///
    /// # Errors
    /// - [`ErrorKind::Unroutable`] if the work queue does not exist, and those of publishing: the message stays parked
    /// - [`ErrorKind::InvalidOption`] for a record of another walk, or one that was replayed or dropped already, or one that could not be
    ///   [read as it is](crate::Message::mended)
    /// - [`ErrorKind::ConnectionLost`] if the connection was lost: the message is still parked, and may also be in the work queue
    ///
    /// The latter can also happen if the future is dropped before it is done.
    pub async fn replay(&mut self, record: &Record) -> Result<()> {
        self.replay_to(record, &record.home).await
    }

    /// Like [`replay`](Self::replay), to a queue of your choice.
    ///
    /// # Errors
    /// Those of [`replay`](Self::replay). [`ErrorKind::InvalidOption`] for a waiting or parking queue, and for
    /// [`INTAKE_QUEUE`](crate::INTAKE_QUEUE) and other queues of the service: the record of the parking would be lost, and nobody would
    /// handle the message.
    pub async fn replay_to(&mut self, record: &Record, queue: &str) -> Result<()> {
        let tag = self.tag(record)?;
        let sent = self.send(&[Resend::of(record).to(queue)]).await;
        sent.into_iter().collect::<Result<()>>()?;
        self.settle(tag).await.map_err(|error| {
            let message = format!(
                "{error}; one message was replayed to `{}` before that was known: it is parked as well",
                terminal_escape::line(queue)
            );
            Error::new(error.kind(), message).with_source(error)
        })
    }

    /// The older name of [`drop`](Self::drop), which every language uses now.
    #[doc(hidden)]
    pub async fn discard(&mut self, record: &Record) -> Result<()> {
        self.drop(record).await
    }

    /// Drops a message for good (AMQP `basic.ack`).
    ///
    /// # Errors
    /// - [`ErrorKind::InvalidOption`] for a record of another walk, or one that was already replayed or dropped
    /// - [`ErrorKind::ConnectionLost`]: the message may still be parked
    pub async fn drop(&mut self, record: &Record) -> Result<()> {
        let tag = self.tag(record)?;
        self.settle(tag).await
    }

    /// Ends the walk. Messages that were neither replayed nor dropped are back in their places. If the future is dropped, this is as if the
    /// process was killed: what is being replaced by a fresh copy may be parked twice.
    ///
    /// # Errors
    /// Those of publishing, if a message was looked at before and must be replaced by a fresh copy. It is still parked.
    pub async fn close(mut self) -> Result<()> {
        let is_holding = self.held.len() > 0;
        if let Err(error) = self.rejoin().await
            && is_holding
        {
            warn!(queue = self.parking, %error, "what was looked at may come behind other parked messages now");
        }
        let mut result = self.refresh().await;
        if result.is_ok() {
            result = self.source.check_what_was_settled().await;
        }
        let Self {
            source,
            connection,
            others,
            ..
        } = self;
        source.give_back(&connection, others).await;
        connection.close().await;
        result
    }

    pub(super) fn tag(&self, record: &Record) -> Result<u64> {
        let (walk, tag) = record.place;
        if walk == self.walk && self.held.contains(tag) {
            return Ok(tag);
        }
        Err(Error::new(
            ErrorKind::InvalidOption,
            "this message was settled already, or belongs to another walk through the parking queue",
        ))
    }

    pub(super) async fn settle(&mut self, tag: u64) -> Result<()> {
        // First, because the caller may drop its future when the acknowledgement is on its way.
        self.held.remove(tag);
        let settled = self.source.settle(tag).await;
        self.unless_over(settled)
    }
}

/// Says why there is nothing to walk through, for the user who gave the name.
fn absent(error: Error, parked: &Parked) -> Error {
    if error.kind() != ErrorKind::QueueNotFound {
        return error;
    }
    let (queue, parking) = (parked.queue(), parked.name());
    if parked.is_of_dropped() {
        let message = format!(
            "there is no queue `{parking}`: nothing that was dropped from `{}` is kept",
            parked.parking()
        );
        return Error::new(ErrorKind::QueueNotFound, message).with_source(error);
    }
    if queue == parking {
        let message = format!("there is no queue `{parking}`: check its name and the virtual host");
        return Error::new(ErrorKind::QueueNotFound, message).with_source(error);
    }
    let message = match queue.strip_suffix(".parked") {
        Some(work) => {
            format!("there is no queue `{parking}`: give the work queue's name, `{work}`")
        }
        None => format!(
            "there is no queue `{parking}`: nothing was ever parked for `{queue}`; check the queue's name and the virtual host"
        ),
    };
    Error::new(ErrorKind::QueueNotFound, message).with_source(error)
}

impl std::fmt::Debug for Browse {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Browse")
            .field("queue", &self.queue)
            .field("held", &self.held.len())
            .finish_non_exhaustive()
    }
}
