//! One walk through a waiting queue: what is looked at is held until it ends.

use std::{
    collections::BTreeSet,
    sync::Arc,
    time::{Duration, SystemTime},
};

use lapin::{BasicProperties, types::ShortString};
use tokio::{
    sync::oneshot,
    time::{Instant, sleep_until},
};

use super::{Rung, Waiter, Waiting};
use crate::{
    Client, Error, ErrorKind, Result,
    connection::Connection,
    parking::{Source, Supply, suited},
    publish::Job,
    retry::{Origin, Stamp},
    topology::{SAFE_AGE, name, parking_queue},
    visible,
};

/// A walk through a waiting queue. Ends with [`close`](Self::close); dropped, what it holds goes back as well.
///
/// What is held does not come back to the work queue; when it goes back in here its time goes on as if nothing had happened, and what is
/// due then leaves at once. The order stays. What it costs: where waiting and work queue are quorum queues on RabbitMQ 4.0 to
/// 4.2, or where a look is cut short on 4.3, the message carries a count of 1 for each look, as if a consumer had crashed with it: see
/// [`Waiter::looks`]. Elsewhere a look leaves no trace.
pub struct Look {
    client: Client,
    queue: Arc<str>,
    rung: Rung,
    connection: Connection,
    supply: Supply,
    held: BTreeSet<u64>,
    walk: u64,
    /// Since when the queues are known that copies go to.
    since: Option<Instant>,
    uncounted: bool,
    /// Whether looks are counted, and the count comes along.
    counted: bool,
    skipped: u32,
    classic: bool,
    others: u32,
}

/// Where messages go.
#[derive(Clone, Copy)]
enum Deed {
    Flush,
    Cancel,
}

impl Waiting {
    /// Begins to look at what is in a waiting queue.
    ///
    /// # Errors
    /// [`ErrorKind::QueueNotFound`] where it is gone, [`ErrorKind::AccessRefused`] without the right to read it,
    /// [`ErrorKind::Mismatch`] for an auto-delete queue, which goes with its last reader, and for a stream; and those of a lost
    /// connection. Nothing is held then.
    pub async fn look(&self, rung: &Rung) -> Result<Look> {
        self.client.same_process()?;
        let entry = suited::open(self.client.addresses(), &rung.name).await?;
        let can = entry.connection.server().capabilities();
        Ok(Look {
            client: self.client.clone(),
            queue: Arc::from(self.queue.as_str()),
            rung: rung.clone(),
            held: BTreeSet::new(),
            walk: fastrand::u64(..),
            since: None,
            uncounted: can.nack_is_uncounted,
            counted: can.counts_hold_rounds && !entry.classic,
            skipped: 0,
            classic: entry.classic,
            others: entry.others,
            connection: entry.connection,
            supply: entry.supply,
        })
    }
}

impl Look {
    /// How many messages were ready when the walk began and have not been seen yet.
    #[must_use]
    pub fn remaining(&self) -> u32 {
        self.supply.left()
    }

    /// How many others were looking at the waiting queue when the look began or, if that is more, when it had come to its end. What they
    /// hold this look does not see.
    #[must_use]
    pub fn others(&self) -> u32 {
        self.others
    }

    /// The next message, until as many have come as were ready at first. Fewer come where some come back by themselves meanwhile.
    ///
    /// # Errors
    /// Those of a lost connection; everything held is then back in the queue.
    pub async fn next(&mut self) -> Result<Option<Waiter>> {
        loop {
            let expected = self.supply.expect().await;
            if !expected.map_err(|error| self.cut(error))? {
                let others = self.supply.others(self.others, self.classic).await;
                self.others = others.map_err(|error| self.cut(error))?;
                return Ok(None);
            }
            let Some(delivery) = self.supply.next() else {
                return Ok(None);
            };
            self.supply.has_come(Source::Elsewhere);
            self.held.insert(delivery.delivery_tag);
            if self.supply.mended(delivery.delivery_tag).is_some() {
                self.skipped += 1;
                continue;
            }
            let mut waiter = Waiter::read(&self.queue, self.rung.delay, self.walk, delivery);
            if !self.counted {
                waiter.looks = 0;
            }
            return Ok(Some(waiter));
        }
    }

    /// How many messages were passed over because they have names that are not UTF-8: no whole copy can be made of them. They come back
    /// by themselves.
    #[must_use]
    pub fn skipped(&self) -> u32 {
        self.skipped
    }

    /// Brings messages back now: a copy of each goes to the tail of the work queue, with its count and its history, and when it is
    /// confirmed the one that waits is acknowledged. One outcome each, in their order. The first takes two seconds, because a
    /// younger queue forgets what it confirmed when its broker is killed.
    ///
    /// # Errors
    /// [`ErrorKind::QueueNotFound`] and [`ErrorKind::Unroutable`] where the work queue is missing, [`ErrorKind::TooLarge`] for headers of
    /// which no whole copy can be made, and those of publishing: the message waits as before.
    /// [`ErrorKind::ConnectionLost`]: it waits as before, and may be in the work queue as well. The same after a kill.
    pub async fn flush(&mut self, waiters: &[Waiter]) -> Vec<Result<()>> {
        self.send(waiters, Deed::Flush).await
    }

    /// Takes messages out: a copy of each is parked as `requested`, with its record, and when it is confirmed the one that waits is
    /// acknowledged. Nothing is destroyed; `parked replay` brings it back, `parked drop` ends it.
    ///
    /// # Errors
    /// As [`flush`](Self::flush), the parking queue being made where it is missing.
    pub async fn cancel(&mut self, waiters: &[Waiter]) -> Vec<Result<()>> {
        self.send(waiters, Deed::Cancel).await
    }

    /// Ends the walk: what was not moved is back in its place, or in its work queue where it is due.
    ///
    /// # Errors
    /// [`ErrorKind::ConnectionLost`] when the broker took back what was held before: what was moved last may be there twice.
    pub async fn close(mut self) -> Result<()> {
        let ahead = self.supply.end().await;
        let mut checked = self.supply.check_what_was_settled().await;
        match ahead {
            Ok(ahead) => {
                self.held
                    .extend(ahead.iter().map(|delivery| delivery.delivery_tag));
                // RabbitMQ 4.3 counts the end of a channel, and no nack.
                if let Some(last) = self.held.last().copied().filter(|_| self.uncounted) {
                    self.supply.give_back_uncounted(last).await?;
                }
            }
            Err(error) => checked = checked.and(Err(error)),
        }
        let checked = checked.map_err(|error| self.cut(error));
        self.supply.leave().await;
        self.connection.close().await;
        checked
    }

    async fn send(&mut self, waiters: &[Waiter], deed: Deed) -> Vec<Result<()>> {
        let to = match deed {
            Deed::Flush => self.queue.to_string(),
            Deed::Cancel => parking_queue(&self.queue),
        };
        let to = to.as_str();
        if let Err(error) = self.ensure(to).await {
            return waiters.iter().map(|_| Err(error.duplicate())).collect();
        }
        let origin = Origin::default();
        let sent: Vec<_> = waiters
            .iter()
            .map(|waiter| {
                if !self.held.contains(&waiter.tag) {
                    return Err(Error::new(
                        ErrorKind::InvalidOption,
                        "this message was moved already, or belongs to another walk",
                    ));
                }
                let received = &waiter.received;
                let stamp = Stamp {
                    origin: &origin,
                    properties: &received.properties,
                    exchange: received.exchange(),
                    routing_key: received.routing_key(),
                    state: &received.state,
                    now: now(),
                    budget: self.client.header_room(),
                };
                let properties = match deed {
                    Deed::Flush => stamp.released(),
                    Deed::Cancel => stamp.cancelled(),
                };
                let properties = properties.map_err(|lost| cut_headers(&lost))?;
                publish(&self.client, to, properties, waiter)
            })
            .collect();
        let mut results = Vec::with_capacity(sent.len());
        for (waiter, sent) in waiters.iter().zip(sent) {
            let result = match sent {
                Ok(sent) => self.settle(waiter.tag, sent).await,
                Err(error) => Err(error),
            };
            results.push(result);
        }
        results
    }

    async fn settle(&mut self, tag: u64, sent: oneshot::Receiver<Result<()>>) -> Result<()> {
        sent.await
            .unwrap_or_else(|_| Err(Error::new(ErrorKind::Closed, "the client was closed")))?;
        if let Some(since) = self.since {
            sleep_until(since + SAFE_AGE).await;
        }
        self.supply
            .settle(tag)
            .await
            .map_err(|error| self.cut(error))?;
        self.held.remove(&tag);
        Ok(())
    }

    /// Makes sure that the queue is there that copies go to.
    async fn ensure(&mut self, to: &str) -> Result<()> {
        let waits = self.client.waits(&self.queue);
        waits.ensure(to).await?;
        self.since.get_or_insert_with(Instant::now);
        Ok(())
    }

    /// The broker took back what was held.
    fn cut(&self, error: Error) -> Error {
        if error.kind() != ErrorKind::ConnectionLost {
            return error;
        }
        let message = format!(
            "the broker ended the look at `{}`: the connection is gone, the queue was deleted, or messages were held for longer than its \
             `consumer_timeout`; what was not moved waits as before, and what was moved last may come twice",
            visible::line(&self.rung.name)
        );
        Error::new(ErrorKind::ConnectionLost, message).with_source(error)
    }
}

impl std::fmt::Debug for Look {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Look")
            .field("rung", &self.rung)
            .field("held", &self.held.len())
            .finish_non_exhaustive()
    }
}

fn now() -> u64 {
    SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .map_or(0, |since: Duration| since.as_secs())
}

fn publish(
    client: &Client,
    to: &str,
    properties: BasicProperties,
    waiter: &Waiter,
) -> Result<oneshot::Receiver<Result<()>>> {
    let (done, answer) = oneshot::channel();
    client.publisher().submit(Job {
        exchange: ShortString::default(),
        routing_key: name(to)?,
        properties,
        body: Arc::clone(&waiter.received) as _,
        mandatory: true,
        done: Box::new(move |result| {
            let _ = done.send(result);
        }),
    });
    Ok(answer)
}

fn cut_headers(lost: &[String]) -> Error {
    let names: Vec<_> = lost
        .iter()
        .take(5)
        .map(|name| format!("`{}`", visible::line(name)))
        .collect();
    Error::new(
        ErrorKind::TooLarge,
        format!(
            "the headers of a message take more than a copy has room for: it would be without {}. It waits as before, and comes back by itself",
            names.join(", ")
        ),
    )
}
