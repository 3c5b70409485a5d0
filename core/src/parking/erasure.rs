//! A walk through one waiting queue that takes messages out for good.
//!
//! AMQP has no way to one message in the middle of a queue: all are consumed, and all but those are given back. They keep their
//! order and their time. But a quorum queue counts what it takes back, and that count may come along to the work queue, where it
//! looks like a crash of its consumer. So a message that was given back too often already ends the walk before anything is done.

use std::sync::Arc;

use super::{Parked, Record, marks::Source, suited, supply::Supply};
use crate::{Error, ErrorKind, Result, connection::Connection, retry::headers, visible};

/// A walk through a waiting queue, see [`Parked::erasure`]. What is looked at does not come back to the work queue meanwhile, so it
/// should be short.
pub struct Erasure {
    queue: Arc<str>,
    waiting: String,
    connection: Connection,
    supply: Supply,
    last: u64,
    /// How often a message may have been given back.
    most: u32,
    uncounted: bool,
    /// It does not count that.
    classic: bool,
    others: u32,
}

impl Parked {
    /// Begins to look through a waiting queue of the same work queue; `None` where there is none. `most`: how often a message may
    /// have been given back since it waits.
    ///
    /// # Errors
    /// [`ErrorKind::AccessRefused`] without the right to read it, [`ErrorKind::Mismatch`] for an auto-delete queue, which goes with its
    /// last reader, and for a stream; [`ErrorKind::Timeout`] where it has no leader, or its node is away,
    /// and those of a lost connection. Nothing is held then.
    pub async fn erasure(&self, waiting: &str, most: u32) -> Result<Option<Erasure>> {
        let entry = match suited::open(self.client().addresses(), waiting).await {
            Err(error) if error.kind() == ErrorKind::QueueNotFound => return Ok(None),
            entry => entry?,
        };
        let can = entry.connection.server().capabilities();
        Ok(Some(Erasure {
            queue: Arc::from(self.queue()),
            waiting: waiting.to_owned(),
            uncounted: can.nack_is_uncounted,
            connection: entry.connection,
            supply: entry.supply,
            last: 0,
            most,
            classic: entry.classic,
            others: entry.others,
        }))
    }
}

impl Erasure {
    /// How many others were taking messages out of the waiting queue when the walk began or, if that is more, when it had come to its
    /// end. What they hold this walk does not see.
    #[must_use]
    pub fn others(&self) -> u32 {
        self.others
    }

    /// The next message, until as many have come as were ready at first. Fewer come where some come back by themselves meanwhile. Its
    /// error and fingerprint are those of its last failure: nobody has given it up.
    ///
    /// # Errors
    /// [`ErrorKind::StrategyRefused`] at a message that was given back too often already, and those of a lost connection.
    pub async fn next(&mut self) -> Result<Option<Record>> {
        if !self.supply.expect().await? {
            self.others = self.supply.others(self.others, self.classic).await?;
            return Ok(None);
        }
        let Some(delivery) = self.supply.next() else {
            return Ok(None);
        };
        self.supply.has_come(Source::Elsewhere);
        self.last = delivery.delivery_tag;
        let table = delivery.properties.headers().as_ref();
        let count = table.filter(|_| delivery.redelivered).and_then(|table| {
            headers::count(table, headers::DELIVERY_COUNT)
                .ok()
                .flatten()
        });
        let count = count.unwrap_or(0);
        if !self.classic && count >= self.most {
            return Err(Error::new(
                ErrorKind::StrategyRefused,
                format!(
                    "a message in `{}` was given back {count} times since it waits, and its consumer would take one more for a crash: try again when it has come back to its queue",
                    visible::line(&self.waiting)
                ),
            ));
        }
        let mut record = Record::read(
            (0, delivery.delivery_tag),
            &self.queue,
            delivery.data,
            delivery.properties,
            delivery.exchange,
            delivery.routing_key,
        );
        record.waits();
        Ok(Some(record))
    }

    /// Takes a message of this walk out, for good.
    ///
    /// # Errors
    /// [`ErrorKind::ConnectionLost`] when the broker has taken back what was held: it waits as before.
    pub async fn erase(&mut self, record: &Record) -> Result<()> {
        self.supply.settle(record.place.1).await
    }

    /// Ends the walk: all others are in their places again, or in the work queue where their time is over.
    ///
    /// # Errors
    /// [`ErrorKind::ConnectionLost`] when the broker has taken back what was held before: what was erased last may still be there.
    pub async fn close(mut self) -> Result<()> {
        let ended = self.supply.end().await;
        let checked = self.supply.check_what_was_settled().await;
        if let Ok(ahead) = &ended {
            let ahead = ahead.iter().map(|delivery| delivery.delivery_tag);
            let last = ahead.fold(self.last, u64::max);
            // RabbitMQ 4.3 counts the end of a channel, and no nack.
            if self.uncounted && last > 0 {
                self.supply.give_back_uncounted(last).await?;
            }
        }
        self.supply.leave().await;
        self.connection.close().await;
        ended.and(checked)
    }
}

impl std::fmt::Debug for Erasure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Erasure")
            .field("waiting", &self.waiting)
            .finish_non_exhaustive()
    }
}
