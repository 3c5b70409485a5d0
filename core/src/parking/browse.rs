//! One walk through a parking queue: messages are held unacknowledged until it ends.

use std::{collections::BTreeMap, sync::Arc};

use lapin::{
    options::{BasicAckOptions, BasicGetOptions, QueueDeclareOptions},
    types::{FieldTable, ShortString},
};
use tokio::sync::oneshot;

use super::Record;
use crate::{
    Client, Error, ErrorKind, Result,
    client::{Connection, Doing, OpenChannel, ask},
    consumer::Received,
    publish::Job,
    retry::{Origin, Stamp, headers},
    telemetry::HOST,
    topology::{Mode, Plan, Status, apply, exact_parking, name, parking_queue},
};

/// A parking queue made by somebody else may have RabbitMQ's default limit of 20 deliveries, each look being one. From
/// this many on, a message is put back as a fresh copy instead.
const WORN: u32 = 15;

/// A walk through a parking queue. Ends with [`close`](Self::close); dropped, it ends as well, a moment later.
pub struct Browse {
    client: Client,
    queue: Arc<str>,
    parking: ShortString,
    connection: Connection,
    channel: OpenChannel,
    /// Tells the records of this walk from those of another.
    walk: u64,
    /// What is held, by delivery tag; those that must be put back as fresh copies with their message.
    held: BTreeMap<u64, Option<Arc<Received>>>,
    /// The queue limits deliveries, as far as we can tell.
    wears: bool,
    left: u32,
}

impl Browse {
    pub(super) async fn open(client: &Client, queue: &str) -> Result<Self> {
        client.same_process()?;
        let parking_name = parking_queue(queue);
        let parking = name(&parking_name)?;
        // A connection of its own: a walk may hold very many messages, and its end must not wait for anybody.
        let connection = Connection::open(client.address(), "parked").await?;
        let channel = connection.channel().await?;
        let passive = QueueDeclareOptions {
            passive: true,
            ..QueueDeclareOptions::default()
        };
        let looked = channel
            .lapin()
            .queue_declare(parking.clone(), passive, FieldTable::default());
        let found = ask(Doing::Looking(&parking_name), looked).await.map_err(|error| match error.kind() {
            ErrorKind::QueueNotFound => Error::new(
                ErrorKind::QueueNotFound,
                format!("there is no queue `{parking_name}`: nothing was ever parked for `{queue}`; check the queue's name and the virtual host"),
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
            channel,
            walk: fastrand::u64(..),
            held: BTreeMap::new(),
            wears,
            left: found.message_count(),
        })
    }

    /// How many messages were ready when the walk began and have not been seen yet.
    #[must_use]
    pub fn remaining(&self) -> u32 {
        self.left
    }

    /// The next parked message, until those that were there when the walk began are through.
    ///
    /// # Errors
    /// Those of a lost connection; everything held is then back in the parking queue.
    pub async fn next(&mut self) -> Result<Option<Record>> {
        if self.left == 0 {
            return Ok(None);
        }
        self.left -= 1;
        let got = self
            .channel
            .lapin()
            .basic_get(self.parking.clone(), BasicGetOptions::default());
        let Some(got) = ask(Doing::Getting(self.parking.as_str()), got).await? else {
            self.left = 0;
            return Ok(None);
        };
        let delivery = got.delivery;
        let tag = delivery.delivery_tag;
        let looks = delivery.properties.headers().as_ref().and_then(|table| {
            headers::count(table, headers::DELIVERY_COUNT)
                .ok()
                .flatten()
        });
        let record = Record::read(
            (self.walk, tag),
            &self.queue,
            delivery.data,
            delivery.properties,
            delivery.exchange,
            delivery.routing_key,
        );
        let worn = self.wears && looks.unwrap_or(0) >= WORN;
        self.held
            .insert(tag, worn.then(|| Arc::clone(&record.received)));
        Ok(Some(record))
    }

    /// Sends a message back to the tail of its work queue, its retries counted from the start and `x-retry-replays` one
    /// higher. The parked one goes after the copy is confirmed.
    ///
    /// # Errors
    /// [`ErrorKind::Unroutable`] when the work queue does not exist, and those of publishing; the message stays parked.
    /// [`ErrorKind::InvalidOption`] for a record of another walk, or one that was replayed or dropped already.
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
        let worn: Vec<_> = self
            .held
            .iter()
            .filter_map(|(tag, worn)| worn.as_ref().map(|received| (*tag, Arc::clone(received))))
            .collect();
        let mut result = Ok(());
        for (tag, received) in worn {
            let origin = Origin {
                host: HOST.clone(),
                app_version: String::new(),
            };
            let properties = stamp(&origin, &received).renewed();
            let parking = self.parking.as_str().to_owned();
            result = match self.publish(&parking, properties, &received).await {
                Ok(()) => self.settle(tag).await,
                Err(error) => Err(error),
            };
            if result.is_err() {
                break;
            }
        }
        self.connection.close().await;
        result
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
        let acked = self
            .channel
            .lapin()
            .basic_ack(tag, BasicAckOptions { multiple: false });
        ask(Doing::Settling, acked).await?;
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
