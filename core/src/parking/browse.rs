//! One walk through a parking queue: messages are held unacknowledged until it ends.
//!
//! What a quorum queue takes back it puts *behind* what it took back earlier, and before what nobody was sent yet. So a
//! walk that ends early would go behind the rest of what an earlier, longer walk had seen. Before its end it therefore takes
//! all of that as well.
//!
//! Taking back is counted, and whoever limits that count, be it by a policy that a client cannot see, has messages dropped
//! that were only looked at. [`Wear`] says when a message is put back as a fresh copy instead.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
};

use lapin::message::Delivery;
use tokio::time::Instant;
use tracing::warn;

use super::{
    Record, Resend,
    copies::Copies,
    held::Held,
    supply::Supply,
    wear::{Move, Wear},
};
use crate::{
    Client, Error, ErrorKind, Result,
    connection::{Census, Connection, Count},
    topology::{Inspection, check_parking, inspect_parking, name},
    visible,
};

/// A walk through a parking queue. Ends with [`close`](Self::close); dropped, it ends as well, a moment later, but a quorum
/// queue may then have what was looked at behind what an earlier walk had looked at.
///
/// What was looked at is held until then, and no other walk sees it. A broker's patience with that is 30 minutes
/// (`consumer_timeout`); after it the messages are back in their places, and the walk is over.
pub struct Browse {
    pub(super) queue: Arc<str>,
    pub(super) parking: String,
    pub(super) connection: Connection,
    pub(super) copies: Copies,
    /// Tells the records of this walk from those of another.
    pub(super) walk: u64,
    pub(super) supply: Supply,
    pub(super) held: Held,
    /// The queues that were replayed to, and when the first copy was there.
    pub(super) targets: HashMap<String, Instant>,
    /// What could not be put back as a fresh copy, and is shown next.
    pub(super) unrenewed: VecDeque<Record>,
    pub(super) wear: Wear,
    /// It is known to be a classic queue.
    classic: bool,
    pub(super) begun: bool,
    pub(super) others: u32,
    pub(super) missed: u32,
    pub(super) warning: Option<String>,
}

impl Browse {
    /// Of what is parked for `queue` in `parking`; of a dead-letter queue of somebody else's, where both are the same.
    pub(super) async fn open(client: &Client, queue: &str, parking: &str) -> Result<Self> {
        client.same_process()?;
        let parking = parking.to_owned();
        let wire_name = name(&parking)?;
        // A connection of its own: a walk may hold very many messages, and its end must not wait for anybody.
        let connection = Connection::open(client.addresses(), "parked").await?;
        let channel = connection.channel().await?;
        let found = Census::once(client.addresses(), &connection, &wire_name)
            .await
            .and_then(Count::read)
            .map_err(|error| absent(error, queue, &parking))?;
        // Before anything consumes: an auto-delete queue goes with its last consumer, and a look's end would be that.
        check_parking(&connection, &parking).await?;
        let Inspection { classic, warning } = inspect_parking(&connection, queue, &parking).await;
        let (walk, total) = (fastrand::u64(..), found.message_count());
        let copies = Copies::new(client, &parking, walk);
        let wear = Wear::of(classic, total);
        if total > 0 && wear.counts() {
            // Without that right a look cannot undo what it costs, and must not begin.
            copies.may_publish().await.map_err(|error| match error.kind() {
                ErrorKind::AccessRefused => Error::new(
                    ErrorKind::AccessRefused,
                    format!("to look at `{parking}` takes more than the right to read it: each look is a delivery, RabbitMQ drops what was delivered too often, and so messages have to be put back as fresh copies; {error}"),
                )
                .with_source(error),
                _ => error,
            })?;
        }
        Ok(Self {
            queue: Arc::from(queue),
            parking,
            connection,
            copies,
            walk,
            supply: Supply::new(wire_name, channel, total),
            held: Held::default(),
            targets: HashMap::new(),
            unrenewed: VecDeque::new(),
            wear,
            classic,
            begun: false,
            others: found.consumer_count(),
            missed: 0,
            warning,
        })
    }

    /// How many messages were ready when the walk began and have not been seen yet.
    #[must_use]
    pub fn remaining(&self) -> u32 {
        self.supply.left()
    }

    /// How many others were taking messages out of the parking queue when the walk began or, if that is more, when it had come to
    /// its end, other walks among them. What they hold this walk does not see; how many messages that are a broker does not tell.
    #[must_use]
    pub fn others(&self) -> u32 {
        self.others
    }

    /// How many messages were ready when the walk began, and were taken by others before they came.
    #[must_use]
    pub fn missed(&self) -> u32 {
        self.missed
    }

    /// What is wrong with the parking queue, as far as a client can see: a queue made by somebody else may drop what is
    /// parked. Policies cannot be seen.
    #[must_use]
    pub fn warning(&self) -> Option<&str> {
        self.warning.as_deref()
    }

    /// The next parked message, until those that were there when the walk began are through. Fewer come where somebody
    /// else takes some meanwhile. What this walk has replayed, and what is parked again, does not come again.
    ///
    /// # Errors
    /// Those of a lost connection; everything held is then back in the parking queue. [`ErrorKind::Timeout`] when the
    /// broker says that there are messages, and sends none. Those of publishing, where a message has to be put back as a
    /// fresh copy before anything else; it is still parked then. While the broker takes no copies because it is short of memory
    /// or disk, nothing more is held, and this waits.
    pub async fn next(&mut self) -> Result<Option<Record>> {
        self.begin().await?;
        loop {
            if let Some(record) = self.unrenewed.pop_front() {
                return Ok(Some(record));
            }
            if self.wear.counts() && self.held.is_full() {
                let parted = self.supply.part(&self.connection).await;
                self.unless_over(parted)?;
            }
            if !self.expect().await? {
                break;
            }
            let Some(next) = self.supply.front() else {
                break;
            };
            let source = self.copies.source(next);
            self.wear.holds(self.held.is_full());
            let next_move = self
                .wear
                .next_move(next, source, self.supply.expects_originals());
            let obstacle = self.obstacle(next);
            if next_move == Move::Renew && obstacle.is_none() {
                self.rotate(u32::MAX, |wear, next| wear.at_once(next))
                    .await?;
                continue;
            }
            let Some(delivery) = self.supply.next() else {
                break;
            };
            self.supply.has_come(source);
            if next_move == Move::PassOver {
                self.pass_over(delivery);
                continue;
            }
            let tag = delivery.delivery_tag;
            let stale = self.wear.at_the_end(&delivery);
            let record = self.record(delivery);
            let renewable = (stale && obstacle.is_none()).then(|| Arc::clone(&record.received));
            if self.wear.counts()
                && let Some(why) = obstacle
            {
                warn!(
                    queue = self.parking,
                    message_id = record.received.message_id(),
                    mark = record.mark,
                    "this message cannot be put back as a fresh copy, because {why}: each look at it spends a delivery, and a \
                     delivery limit may take it; replay or drop it"
                );
            }
            self.held.insert(tag, renewable);
            return Ok(Some(record));
        }
        self.missed += self.supply.give_up();
        let others = self.supply.others(self.others, self.classic).await;
        self.others = self.unless_over(others)?;
        Ok(None)
    }

    /// Whether there is a next message, which then stands in front.
    pub(super) async fn expect(&mut self) -> Result<bool> {
        // What is held while nothing can be published goes back counted when the walk is interrupted.
        if self.wear.counts() && self.supply.asks_for_more() {
            self.copies.may_publish().await?;
        }
        let next = self.supply.expect().await;
        self.unless_over(next)
    }

    /// Forgets what is held when the walk was cut short: the queue has everything again.
    pub(super) fn unless_over<T>(&mut self, done: Result<T>) -> Result<T> {
        if matches!(&done, Err(error) if error.kind() == ErrorKind::ConnectionLost) {
            self.held.clear();
            self.unrenewed.clear();
        }
        done
    }

    /// Why a message cannot be put back as a fresh copy that has all of it, if so.
    pub(super) fn obstacle(&self, delivery: &Delivery) -> Option<String> {
        if let Some(mended) = self.supply.mended(delivery.delivery_tag) {
            return Some(format!(
                "a copy, a replayed one as well, has it only as it could be read ({mended})"
            ));
        }
        let is_renewable = self.copies.is_renewable(delivery);
        (!is_renewable).then(|| "its headers fill a whole frame".to_owned())
    }

    pub(super) fn record(&self, delivery: Delivery) -> Record {
        let mended = self.supply.mended(delivery.delivery_tag);
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
        if *self.queue == *self.parking {
            record.comes_from_elsewhere();
        }
        record
    }

    /// Sends a message back to the tail of its work queue, its retries counted from the start and `x-retry-replays` one
    /// higher. The parked one goes after the copy is confirmed, in a queue that has been known for two seconds: the first replay to
    /// a queue takes as long, because a younger one forgets what it confirmed when its broker is killed. What the broker dead-lettered out of another queue goes to
    /// that one: see [`Record::home`].
    ///
    /// # Errors
    /// [`ErrorKind::Unroutable`] when the work queue does not exist, and those of publishing; the message stays parked.
    /// [`ErrorKind::InvalidOption`] for a record of another walk, or one that was replayed or dropped already.
    /// [`ErrorKind::ConnectionLost`] when the broker took back what the walk holds: the message is still parked, and may be in
    /// both places. Given up before it is done (the future dropped), it may be so as well.
    pub async fn replay(&mut self, record: &Record) -> Result<()> {
        self.replay_to(record, &record.home).await
    }

    /// As [`replay`](Self::replay), to a queue of your choice.
    ///
    /// # Errors
    /// As [`replay`](Self::replay); and [`ErrorKind::InvalidOption`] for a queue in which messages wait or are parked, and for
    /// [`INTAKE_QUEUE`](crate::INTAKE_QUEUE): the record of the parking would be gone, and nobody would handle the message.
    pub async fn replay_to(&mut self, record: &Record, queue: &str) -> Result<()> {
        let tag = self.tag(record)?;
        let sent = self.send(&[Resend::of(record).to(queue)]).await;
        sent.into_iter().collect::<Result<()>>()?;
        self.settle(tag).await.map_err(|error| {
            let message = format!(
                "{error}; one message was replayed to `{}` before that was known: it is parked as well",
                visible::line(queue)
            );
            Error::new(error.kind(), message).with_source(error)
        })
    }

    /// Its name before it was that of every language.
    #[doc(hidden)]
    pub async fn discard(&mut self, record: &Record) -> Result<()> {
        self.drop(record).await
    }

    /// Drops a message for good.
    ///
    /// # Errors
    /// As [`replay`](Self::replay), without those of publishing.
    pub async fn drop(&mut self, record: &Record) -> Result<()> {
        let tag = self.tag(record)?;
        self.settle(tag).await
    }

    /// Ends the walk: what was neither replayed nor dropped is back in its place.
    ///
    /// # Errors
    /// Those of publishing, when a message had been looked at before and must be put back as a fresh copy. It is
    /// still parked then.
    pub async fn close(mut self) -> Result<()> {
        let is_holding = self.held.len() > 0;
        if let Err(error) = self.rejoin().await
            && is_holding
        {
            warn!(queue = self.parking, %error, "what was looked at may come behind other parked messages now");
        }
        let mut result = self.refresh().await;
        if result.is_ok() {
            result = self.supply.check_what_was_settled().await;
        }
        let Self {
            supply,
            connection,
            others,
            ..
        } = self;
        supply.give_back(&connection, others).await;
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
        let settled = self.supply.settle(tag).await;
        self.unless_over(settled)?;
        self.held.remove(tag);
        Ok(())
    }
}

/// Why there is nothing to walk through, in words for whoever gave the name.
fn absent(error: Error, queue: &str, parking: &str) -> Error {
    if error.kind() != ErrorKind::QueueNotFound {
        return error;
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
