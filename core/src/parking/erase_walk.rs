//! A walk through one waiting queue that removes messages for good.
//!
//! AMQP cannot address a message in the middle of a queue: all are consumed, and the others are requeued. They keep their order and their
//! time. But a quorum queue counts each requeue, and that count may move with the message to the work queue, where it looks like a crash.
//! So the walk ends, without removing anything, at a message that was already requeued too often.

use std::{collections::BTreeSet, sync::Arc};

use super::{Parked, Record, copy_marker::DeliverySource, open_waiting_queue, source::Source};
use crate::{Error, ErrorKind, Result, connection::Connection, retry::headers, terminal_escape};

/// A walk through a waiting queue that removes messages for good; see [`Parked::erase_walk`]. The messages it has shown do not return to the
/// work queue until it ends, so keep it short.
pub struct EraseWalk {
    queue: Arc<str>,
    waiting: String,
    connection: Connection,
    source: Source,
    /// The tags of what was shown and not erased.
    held: BTreeSet<u64>,
    /// How often a message may have been requeued before.
    most: u32,
    uncounted: bool,
    /// The queue is classic, and does not count requeues.
    classic: bool,
    others: u32,
}

impl Parked {
    /// Starts a walk through a waiting queue of the same work queue (AMQP `basic.consume`); `None` if that queue does not exist. `most` is
    /// how often a message may have been requeued before, since it began to wait.
    ///
    /// # Errors
    /// - [`ErrorKind::AccessRefused`] without permission to read the queue
    /// - [`ErrorKind::Mismatch`] for an auto-delete queue, which would be deleted with its last consumer, and for a stream
    /// - [`ErrorKind::Timeout`] if the queue has no leader, or its node is away
    /// - those of a lost connection
    ///
    /// Then no message was held.
    pub async fn erase_walk(&self, waiting: &str, most: u32) -> Result<Option<EraseWalk>> {
        let entry = match open_waiting_queue::open(self.client().addresses(), waiting).await {
            Err(error) if error.kind() == ErrorKind::QueueNotFound => return Ok(None),
            entry => entry?,
        };
        let can = entry.connection.server().capabilities();
        Ok(Some(EraseWalk {
            queue: Arc::from(self.queue()),
            waiting: waiting.to_owned(),
            uncounted: can.nack_is_uncounted,
            connection: entry.connection,
            source: entry.source,
            held: BTreeSet::new(),
            most,
            classic: entry.classic,
            others: entry.others,
        }))
    }
}

impl EraseWalk {
    /// How many other consumers the waiting queue had when the walk began or when it came to its end, whichever is more. This walk does not
    /// see the messages they hold.
    #[must_use]
    pub fn others(&self) -> u32 {
        self.others
    }

    /// The next message; `None` after those that were ready when the walk began. Fewer come if some return to the work queue meanwhile. Its
    /// error and fingerprint are those of its last failure, because nobody has given it up.
    ///
    /// # Errors
    /// [`ErrorKind::StrategyRefused`] at a message that was requeued too often, and those of a lost connection. Nothing was removed then.
    pub async fn next(&mut self) -> Result<Option<Record>> {
        if !self.source.expect().await? {
            self.others = self.source.others(self.others, self.classic).await?;
            return Ok(None);
        }
        let Some(delivery) = self.source.next() else {
            return Ok(None);
        };
        self.source.has_come(DeliverySource::Elsewhere);
        self.held.insert(delivery.delivery_tag);
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
                    terminal_escape::line(&self.waiting)
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

    /// Removes a message of this walk for good (AMQP `basic.ack`).
    ///
    /// # Errors
    /// [`ErrorKind::ConnectionLost`] if the broker took back what the walk held: the message waits as before.
    pub async fn erase(&mut self, record: &Record) -> Result<()> {
        // First, because the caller may drop its future when the acknowledgement is on its way.
        self.held.remove(&record.place.1);
        self.source.settle(record.place.1).await
    }

    /// Ends the walk. The other messages are back in their places, or in the work queue if their time is over.
    ///
    /// # Errors
    /// [`ErrorKind::ConnectionLost`] if the broker took back what the walk held: the messages removed last may still be there.
    pub async fn close(mut self) -> Result<()> {
        let ended = self.source.end().await;
        let checked = self.source.check_what_was_settled().await;
        if let Ok(ahead) = &ended {
            let ahead = ahead.iter().map(|delivery| delivery.delivery_tag);
            self.held.extend(ahead);
            // RabbitMQ 4.3 counts a closed channel, but not a nack.
            if let Some(last) = self.held.last().filter(|_| self.uncounted) {
                self.source.requeue_uncounted(*last).await?;
            }
        }
        self.source.leave().await;
        self.connection.close().await;
        ended.and(checked)
    }
}

impl std::fmt::Debug for EraseWalk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EraseWalk")
            .field("waiting", &self.waiting)
            .finish_non_exhaustive()
    }
}
