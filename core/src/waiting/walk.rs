//! One walk through a waiting queue. It holds the messages it shows until it ends.

use std::{
    collections::BTreeSet,
    sync::Arc,
    time::{Duration, SystemTime},
};

use tokio::time::{Instant, sleep_until};

use super::{Waiting, WaitingMessage, WaitingQueue};
use crate::{
    Client, Error, ErrorKind, Result,
    connection::Connection,
    parking::{CopyConfirm, DeliverySource, Source, open_waiting_queue, publish},
    retry::{CopyHeaders, Origin, waiting_headers_cut},
    terminal_escape,
    topology::parking_queue,
};

/// A walk through a waiting queue. [`Waiting::walk_queue`] starts it; [`close`](Self::close) ends it, and so does dropping it.
///
/// The messages it has shown do not return to the work queue until it ends. Then they are back in the waiting queue, in order and with
/// their times unchanged; those that are due leave at once.
///
/// A look has a cost where the waiting and the work queue are quorum queues. On RabbitMQ 4.0 to 4.2, and on 4.3 if the look is interrupted,
/// the message then has one more in its delivery count, as if a consumer had crashed with it: see [`WaitingMessage::looks`]. Elsewhere a look
/// leaves no trace.
pub struct WaitingWalk {
    client: Client,
    queue: Arc<str>,
    waiting_queue: WaitingQueue,
    connection: Connection,
    source: Source,
    held: BTreeSet<u64>,
    walk: u64,
    uncounted: bool,
    /// Whether looks are counted, and the count moves on with the message.
    counted: bool,
    skipped: u32,
    classic: bool,
    others: u32,
}

/// Where messages are moved.
#[derive(Clone, Copy)]
enum MoveKind {
    Flush,
    Cancel,
}

impl Waiting {
    /// Starts a walk through a waiting queue (AMQP `basic.consume`).
    ///
    /// # Errors
    /// - [`ErrorKind::QueueNotFound`] if the queue is gone
    /// - [`ErrorKind::AccessRefused`] without permission to read it
    /// - [`ErrorKind::Mismatch`] for an auto-delete queue, which would be deleted with its last consumer, and for a stream
    /// - those of a lost connection
    ///
    /// Then no message was held.
    pub async fn walk_queue(&self, waiting_queue: &WaitingQueue) -> Result<WaitingWalk> {
        self.client.same_process()?;
        let entry = open_waiting_queue::open(self.client.addresses(), &waiting_queue.name).await?;
        let can = entry.connection.server().capabilities();
        Ok(WaitingWalk {
            client: self.client.clone(),
            queue: Arc::from(self.queue.as_str()),
            waiting_queue: waiting_queue.clone(),
            held: BTreeSet::new(),
            walk: fastrand::u64(..),
            uncounted: can.nack_is_uncounted,
            counted: can.counts_hold_rounds && !entry.classic,
            skipped: 0,
            classic: entry.classic,
            others: entry.others,
            connection: entry.connection,
            source: entry.source,
        })
    }
}

impl WaitingWalk {
    /// How many messages were ready when the walk began and were not shown yet.
    #[must_use]
    pub fn remaining(&self) -> u32 {
        self.source.left()
    }

    /// How many other consumers the waiting queue had when the look began or when it came to its end, whichever is more. This look does not
    /// see the messages they hold.
    #[must_use]
    pub fn others(&self) -> u32 {
        self.others
    }

    /// The next message; `None` after those that were ready when the walk began. Fewer come if some return to the work queue meanwhile.
    ///
    /// # Errors
    /// Those of a lost connection: everything held is back in the queue.
    pub async fn next(&mut self) -> Result<Option<WaitingMessage>> {
        loop {
            let expected = self.source.expect().await;
            if !expected.map_err(|error| self.cut(error))? {
                let others = self.source.others(self.others, self.classic).await;
                self.others = others.map_err(|error| self.cut(error))?;
                return Ok(None);
            }
            let Some(delivery) = self.source.next() else {
                return Ok(None);
            };
            self.source.has_come(DeliverySource::Elsewhere);
            self.held.insert(delivery.delivery_tag);
            if self.source.mended(delivery.delivery_tag).is_some() {
                self.skipped += 1;
                continue;
            }
            let mut waiting_message =
                WaitingMessage::read(&self.queue, self.waiting_queue.delay, self.walk, delivery);
            if !self.counted {
                waiting_message.looks = 0;
            }
            return Ok(Some(waiting_message));
        }
    }

    /// How many messages were skipped because they have names that are not UTF-8, so that no complete copy can be made. They return to the
    /// work queue when they are due.
    #[must_use]
    pub fn skipped(&self) -> u32 {
        self.skipped
    }

    /// Brings messages back now. A copy of each goes to the tail of the work queue, with its count and history; after the confirm, the
    /// waiting one is acknowledged. Returns one result per message, in order. Takes two seconds unless this client has known the queue for so
    /// long, because a younger queue can lose confirmed messages when its broker crashes.
    ///
    /// # Errors
    /// [`ErrorKind::QueueNotFound`] or [`ErrorKind::Unroutable`] if the work queue is missing, [`ErrorKind::TooLarge`] for headers that do
    /// not fit a complete copy, and those of publishing: the message waits as before. [`ErrorKind::ConnectionLost`]: the message waits as
    /// before, and may also be in the work queue. The same is true if the process is killed, or the future dropped.
    pub async fn flush(&mut self, waiting_messages: &[WaitingMessage]) -> Vec<Result<()>> {
        self.send(waiting_messages, MoveKind::Flush).await
    }

    /// Parks messages that wait. A copy of each is parked as `requested`, with its record; after the confirm, the waiting one is
    /// acknowledged. Nothing is lost: `parked replay` brings the message back, `parked drop` drops it. Returns one result per message, in
    /// order.
    ///
    /// # Errors
    /// Those of [`flush`](Self::flush). The parking queue is created if it is missing. If it was deleted after this client had used it, the
    /// first call finds that out: [`ErrorKind::Unroutable`], and the message waits as before.
    pub async fn cancel(&mut self, waiting_messages: &[WaitingMessage]) -> Vec<Result<()>> {
        self.send(waiting_messages, MoveKind::Cancel).await
    }

    /// Ends the walk. Messages that were not moved are back in their places, or in the work queue if they are due.
    ///
    /// # Errors
    /// [`ErrorKind::ConnectionLost`] if the broker took back what was held: the messages moved last may exist twice.
    pub async fn close(mut self) -> Result<()> {
        let ahead = self.source.end().await;
        let mut checked = self.source.check_what_was_settled().await;
        match ahead {
            Ok(ahead) => {
                self.held
                    .extend(ahead.iter().map(|delivery| delivery.delivery_tag));
                // RabbitMQ 4.3 counts a closed channel, but not a nack.
                if let Some(last) = self.held.last().copied().filter(|_| self.uncounted) {
                    self.source.requeue_uncounted(last).await?;
                }
            }
            Err(error) => checked = checked.and(Err(error)),
        }
        let checked = checked.map_err(|error| self.cut(error));
        self.source.leave().await;
        self.connection.close().await;
        checked
    }

    async fn send(
        &mut self,
        waiting_messages: &[WaitingMessage],
        move_kind: MoveKind,
    ) -> Vec<Result<()>> {
        let to = match move_kind {
            MoveKind::Flush => self.queue.to_string(),
            MoveKind::Cancel => parking_queue(&self.queue),
        };
        let to = to.as_str();
        let waits = self.client.waits(&self.queue);
        let safe = match waits.ensure(to).await {
            Ok(safe) => safe,
            Err(error) => {
                return waiting_messages
                    .iter()
                    .map(|_| Err(error.duplicate()))
                    .collect();
            }
        };
        let origin = Origin::default();
        let sent: Vec<_> = waiting_messages
            .iter()
            .map(|waiting_message| {
                if !self.held.contains(&waiting_message.tag) {
                    return Err(Error::new(
                        ErrorKind::InvalidOption,
                        "this message was moved already, or belongs to another walk",
                    ));
                }
                let received = &waiting_message.received;
                let stamp = CopyHeaders {
                    origin: &origin,
                    properties: &received.properties,
                    exchange: received.exchange(),
                    routing_key: received.routing_key(),
                    state: &received.state,
                    now: now(),
                    budget: self.client.header_room(),
                };
                let properties = match move_kind {
                    MoveKind::Flush => stamp.released(),
                    MoveKind::Cancel => stamp.cancelled(),
                };
                let properties = properties.map_err(|lost| waiting_headers_cut(&lost))?;
                publish(&self.client, to, properties, Arc::clone(received) as _)
            })
            .collect();
        let mut results = Vec::with_capacity(sent.len());
        for (waiting_message, sent) in waiting_messages.iter().zip(sent) {
            let result = match sent {
                Ok(sent) => self.settle(waiting_message.tag, sent, safe).await,
                Err(error) => Err(error),
            };
            if matches!(&result, Err(error) if error.kind() == ErrorKind::Unroutable) {
                waits.forget(to);
            }
            results.push(result);
        }
        results
    }

    /// Acknowledges a message when its copy is confirmed, and `safe` because its queue is old enough.
    async fn settle(&mut self, tag: u64, mut sent: CopyConfirm, safe: Instant) -> Result<()> {
        sent.get().await?;
        sleep_until(safe).await;
        // First, because the caller may drop its future when the acknowledgement is on its way.
        self.held.remove(&tag);
        let settled = self.source.settle(tag).await;
        settled.map_err(|error| self.cut(error))
    }

    /// The error after the broker took back what was held.
    fn cut(&self, error: Error) -> Error {
        if error.kind() != ErrorKind::ConnectionLost {
            return error;
        }
        let message = format!(
            "the broker ended the look at `{}`: the connection is gone, the queue was deleted, or messages were held for longer than its \
             `consumer_timeout`; messages not yet moved still wait, and the last ones that were may be delivered twice",
            terminal_escape::line(&self.waiting_queue.name)
        );
        Error::new(ErrorKind::ConnectionLost, message).with_source(error)
    }
}

impl std::fmt::Debug for WaitingWalk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WaitingWalk")
            .field("waiting_queue", &self.waiting_queue)
            .field("held", &self.held.len())
            .finish_non_exhaustive()
    }
}

fn now() -> u64 {
    SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .map_or(0, |since: Duration| since.as_secs())
}
