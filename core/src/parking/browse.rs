//! One walk through a parking queue: messages are held unacknowledged until it ends.
//!
//! What a quorum queue takes back it puts *behind* what it took back earlier, and before what nobody was sent yet. So a
//! walk that ends early would go behind the rest of what an earlier, longer walk had seen. Before its end it therefore takes
//! all of that as well.

use std::{collections::BTreeMap, sync::Arc};

use lapin::{
    message::Delivery,
    options::QueueDeclareOptions,
    types::{FieldTable, ShortString},
};
use tokio::sync::oneshot;
use tracing::warn;

use super::{Record, supply::Supply};
use crate::{
    Client, Error, ErrorKind, Result,
    client::{Connection, Doing, ask},
    consumer::Received,
    publish::Job,
    retry::{Origin, Stamp, headers},
    telemetry::HOST,
    topology::{Mode, Plan, Status, apply, exact_parking, name, parking_queue},
};

/// A parking queue made by somebody else may have RabbitMQ's default limit of 20 deliveries, each look being one. From
/// this many on, a message is put back as a fresh copy instead.
const WORN: u32 = 15;

/// How far a walk that ends early goes on, for the order's sake alone.
const FARTHEST: u32 = 100_000;

/// A walk through a parking queue. Ends with [`close`](Self::close); dropped, it ends as well, a moment later, but a quorum
/// queue may then have what was looked at behind what an earlier walk had looked at.
///
/// What was looked at is held until then, and no other walk sees it. A broker's patience with that is 30 minutes
/// (`consumer_timeout`); after it the messages are back in their places, and the walk is over.
pub struct Browse {
    client: Client,
    queue: Arc<str>,
    parking: String,
    connection: Connection,
    /// Tells the records of this walk from those of another.
    walk: u64,
    supply: Supply,
    /// What was handed out and is held, by delivery tag; those that must be put back as fresh copies with their message.
    held: BTreeMap<u64, Option<Arc<Received>>>,
    /// The queue limits deliveries, as far as we can tell.
    wears: bool,
}

impl Browse {
    pub(super) async fn open(client: &Client, queue: &str) -> Result<Self> {
        client.same_process()?;
        let parking = parking_queue(queue);
        let wire_name = name(&parking)?;
        // A connection of its own: a walk may hold very many messages, and its end must not wait for anybody.
        let connection = Connection::open(client.address(), "parked").await?;
        let channel = connection.channel().await?;
        let passive = QueueDeclareOptions {
            passive: true,
            ..QueueDeclareOptions::default()
        };
        let looked =
            channel
                .lapin()
                .queue_declare(wire_name.clone(), passive, FieldTable::default());
        let found = ask(Doing::Looking(&parking), looked).await.map_err(|error| match error.kind() {
            ErrorKind::QueueNotFound if let Some(work) = queue.strip_suffix(".parked") => Error::new(
                ErrorKind::QueueNotFound,
                format!("there is no queue `{parking}`: give the work queue's name, `{work}`"),
            )
            .with_source(error),
            ErrorKind::QueueNotFound => Error::new(
                ErrorKind::QueueNotFound,
                format!("there is no queue `{parking}`: nothing was ever parked for `{queue}`; check the queue's name and the virtual host"),
            )
            .with_source(error),
            _ => error,
        })?;
        let own = Plan {
            items: vec![exact_parking(queue, client.options().queue_type)],
        };
        let wears = !apply(&connection, &own, Mode::Compare)
            .await
            .is_ok_and(|findings| {
                findings
                    .iter()
                    .all(|finding| finding.status == Status::Present)
            });
        Ok(Self {
            client: client.clone(),
            queue: Arc::from(queue),
            parking,
            connection,
            walk: fastrand::u64(..),
            supply: Supply::new(wire_name, channel, found.message_count()),
            held: BTreeMap::new(),
            wears,
        })
    }

    /// How many messages were ready when the walk began and have not been seen yet.
    #[must_use]
    pub fn remaining(&self) -> u32 {
        self.supply.left()
    }

    /// The next parked message, until those that were there when the walk began are through. Fewer come where somebody
    /// else takes some meanwhile.
    ///
    /// # Errors
    /// Those of a lost connection; everything held is then back in the parking queue. [`ErrorKind::Timeout`] when the
    /// broker says that there are messages, and sends none.
    pub async fn next(&mut self) -> Result<Option<Record>> {
        let Some(delivery) = self.arrival().await? else {
            return Ok(None);
        };
        let (tag, worn) = (delivery.delivery_tag, self.is_worn(&delivery));
        let record = self.record(delivery);
        self.held
            .insert(tag, worn.then(|| Arc::clone(&record.received)));
        Ok(Some(record))
    }

    async fn arrival(&mut self) -> Result<Option<Delivery>> {
        let next = self.supply.next().await;
        if matches!(&next, Err(error) if error.kind() == ErrorKind::ConnectionLost) {
            self.held.clear(); // the queue has everything again
        }
        next
    }

    fn is_worn(&self, delivery: &Delivery) -> bool {
        let looks = delivery.properties.headers().as_ref().and_then(|table| {
            headers::count(table, headers::DELIVERY_COUNT)
                .ok()
                .flatten()
        });
        self.wears && looks.unwrap_or(0) >= WORN
    }

    fn record(&self, delivery: Delivery) -> Record {
        Record::read(
            (self.walk, delivery.delivery_tag),
            &self.queue,
            delivery.data,
            delivery.properties,
            delivery.exchange,
            delivery.routing_key,
        )
    }

    /// Sends a message back to the tail of its work queue, its retries counted from the start and `x-retry-replays` one
    /// higher. The parked one goes after the copy is confirmed.
    ///
    /// # Errors
    /// [`ErrorKind::Unroutable`] when the work queue does not exist, and those of publishing; the message stays parked.
    /// [`ErrorKind::InvalidOption`] for a record of another walk, or one that was replayed or dropped already. Given up before it is
    /// done (the future dropped), the message may be in both places.
    pub async fn replay(&mut self, record: &Record) -> Result<()> {
        let tag = self.tag(record)?;
        let origin = Origin::default();
        let properties = stamp(&origin, &record.received).replay();
        self.publish(&self.queue.clone(), properties, &record.received)
            .await?;
        self.settle(tag).await
    }

    /// Drops a message for good.
    ///
    /// # Errors
    /// As [`replay`](Self::replay), without those of publishing.
    pub async fn discard(&mut self, record: &Record) -> Result<()> {
        let tag = self.tag(record)?;
        self.settle(tag).await
    }

    /// Ends the walk: what was neither replayed nor dropped is back in its place.
    ///
    /// # Errors
    /// Those of publishing, when a message had been looked at so often that it must be put back as a fresh copy. It is
    /// still parked then.
    pub async fn close(mut self) -> Result<()> {
        if let Err(error) = self.rejoin().await {
            warn!(queue = self.parking, %error, "what was looked at may come behind other parked messages now");
        }
        let result = self.refresh().await;
        self.connection.close().await;
        result
    }

    /// Takes everything that was looked at before, so that all of it goes back together and in order.
    async fn rejoin(&mut self) -> Result<()> {
        let mut farther = 0;
        while self.supply.is_among_the_seen() && farther < FARTHEST {
            let Some(delivery) = self.arrival().await? else {
                break;
            };
            self.pass_over(delivery);
            farther += 1;
        }
        Ok(())
    }

    /// Holds what nobody asked for.
    fn pass_over(&mut self, delivery: Delivery) {
        if self.is_worn(&delivery) {
            let record = self.record(delivery);
            self.held.insert(record.place.1, Some(record.received));
        }
    }

    /// Puts what was looked at too often back as fresh copies, also what came and nobody asked for.
    async fn refresh(&mut self) -> Result<()> {
        if self.wears {
            for delivery in self.supply.end().await? {
                self.pass_over(delivery);
            }
        }
        let worn: Vec<_> = self
            .held
            .iter()
            .filter_map(|(tag, worn)| worn.as_ref().map(|received| (*tag, Arc::clone(received))))
            .collect();
        for (tag, received) in worn {
            let origin = Origin {
                host: HOST.clone(),
                app_version: String::new(),
            };
            let properties = stamp(&origin, &received).renewed();
            self.publish(&self.parking, properties, &received).await?;
            self.settle(tag).await?;
        }
        Ok(())
    }

    fn tag(&self, record: &Record) -> Result<u64> {
        let (walk, tag) = record.place;
        if walk == self.walk && self.held.contains_key(&tag) {
            return Ok(tag);
        }
        Err(Error::new(
            ErrorKind::InvalidOption,
            "this message was settled already, or belongs to another walk through the parking queue",
        ))
    }

    async fn settle(&mut self, tag: u64) -> Result<()> {
        self.supply.settle(tag).await?;
        self.held.remove(&tag);
        Ok(())
    }

    async fn publish(
        &self,
        to: &str,
        properties: lapin::BasicProperties,
        received: &Arc<Received>,
    ) -> Result<()> {
        let (done, answer) = oneshot::channel();
        self.client.publisher().submit(Job {
            exchange: ShortString::default(),
            routing_key: name(to)?,
            properties,
            body: Arc::clone(received) as _,
            mandatory: true,
            done: Box::new(move |result| {
                let _ = done.send(result);
            }),
        });
        answer
            .await
            .unwrap_or_else(|_| Err(Error::new(ErrorKind::Closed, "the client was closed")))
    }
}

fn stamp<'a>(origin: &'a Origin, received: &'a Received) -> Stamp<'a> {
    Stamp {
        origin,
        properties: &received.properties,
        exchange: received.exchange(),
        routing_key: received.routing_key(),
        state: &received.state,
        now: 0,
    }
}

impl std::fmt::Debug for Browse {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Browse")
            .field("queue", &self.queue)
            .field("held", &self.held.len())
            .finish_non_exhaustive()
    }
}
