//! One walk through a parking queue: messages are held unacknowledged until it ends.
//!
//! They come by consuming, never by `basic.get`: what a quorum queue takes back at the end of a connection it takes back
//! consumer by consumer, and each `basic.get` is a consumer of its own, sorted by its number *as text*. So one consumer
//! holds its share of the walk, and when that is used up the next one gets a larger share.
//!
//! And what a quorum queue takes back it puts *behind* what it took back earlier, and before what nobody was sent yet. So a
//! walk that ends early would go behind the rest of what an earlier, longer walk had seen. Before its end it therefore takes
//! all of that as well.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use futures_util::{FutureExt, StreamExt};
use lapin::{
    message::Delivery,
    options::{
        BasicAckOptions, BasicCancelOptions, BasicConsumeOptions, BasicQosOptions,
        QueueDeclareOptions,
    },
    types::{FieldTable, ShortString},
};
use tokio::{
    sync::oneshot,
    time::{Instant, timeout},
};

use tracing::warn;

use super::{Record, window::Window};
use crate::{
    Client, Error, ErrorKind, Result,
    client::{ANSWER, Connection, Doing, OpenChannel, ask},
    consumer::Received,
    publish::Job,
    retry::{Origin, Stamp, headers},
    telemetry::HOST,
    topology::{Mode, Plan, Status, apply, exact_parking, name, parking_queue},
};

/// A parking queue made by somebody else may have RabbitMQ's default limit of 20 deliveries, each look being one. From
/// this many on, a message is put back as a fresh copy instead.
const WORN: u32 = 15;

/// How long nothing may come before the broker is asked whether there is anything left.
const QUIET: Duration = Duration::from_millis(100);

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
    parking: ShortString,
    connection: Connection,
    channel: OpenChannel,
    /// Tells the records of this walk from those of another.
    walk: u64,
    /// The consumer whose share is being walked through.
    stream: Option<lapin::Consumer>,
    window: Window,
    /// What came and was not asked for yet.
    ahead: VecDeque<Delivery>,
    /// What was handed out and is held, by delivery tag; those that must be put back as fresh copies with their message.
    held: BTreeMap<u64, Option<Arc<Received>>>,
    /// The queue limits deliveries, as far as we can tell.
    wears: bool,
    /// Something came that nobody had been sent before: it stands behind everything that the queue ever took back.
    fresh: bool,
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
            ErrorKind::QueueNotFound if let Some(work) = queue.strip_suffix(".parked") => Error::new(
                ErrorKind::QueueNotFound,
                format!("there is no queue `{parking_name}`: give the work queue's name, `{work}`"),
            )
            .with_source(error),
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
            stream: None,
            window: Window::default(),
            ahead: VecDeque::new(),
            held: BTreeMap::new(),
            wears,
            fresh: false,
            left: found.message_count(),
        })
    }

    /// How many messages were ready when the walk began and have not been seen yet.
    #[must_use]
    pub fn remaining(&self) -> u32 {
        self.left
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

    /// The next delivery; `None` when the queue has nothing more for us.
    async fn arrival(&mut self) -> Result<Option<Delivery>> {
        if self.left == 0 {
            return Ok(None);
        }
        let arrived = self.delivery().await?;
        match &arrived {
            Some(delivery) => {
                self.left -= 1;
                self.fresh |= !delivery.redelivered;
            }
            None => self.left = 0,
        }
        Ok(arrived)
    }

    async fn delivery(&mut self) -> Result<Option<Delivery>> {
        let deadline = Instant::now() + ANSWER;
        let mut looks = 0;
        loop {
            if let Some(delivery) = self.ahead.pop_front() {
                return Ok(Some(delivery));
            }
            if self.stream.is_none() || self.window.is_used_up() {
                self.widen().await?;
            }
            if let Some(stream) = &mut self.stream {
                match timeout(QUIET, stream.next()).await {
                    Ok(Some(Ok(delivery))) => {
                        self.window.came(delivery.data.len());
                        return Ok(Some(delivery));
                    }
                    Ok(_) => return Err(self.cut_short()),
                    Err(_) => {}
                }
            }
            // Somebody else may have taken what was counted. Twice, because in a cluster the answer may overtake a
            // delivery.
            let ready = self.ready().await?;
            looks = if ready == 0 { looks + 1 } else { 0 };
            if looks == 2 {
                return Ok(None);
            }
            if Instant::now() >= deadline {
                return Err(Error::new(
                    ErrorKind::Timeout,
                    format!(
                        "`{}` has {ready} messages, and the broker sent none of them within {} s; does somebody else consume it?",
                        self.parking,
                        ANSWER.as_secs()
                    ),
                ));
            }
        }
    }

    /// The next consumer, with a larger share. The one before keeps what it was sent, and gets nothing more.
    async fn widen(&mut self) -> Result<()> {
        self.stop().await?;
        if !self.ahead.is_empty() {
            return Ok(());
        }
        let (tag, prefetch) = self.window.open(self.left);
        let channel = self.channel.lapin();
        let doing = || Doing::Consuming(self.parking.as_str());
        ask(
            doing(),
            channel.basic_qos(prefetch, BasicQosOptions::default()),
        )
        .await?;
        let consume = channel.basic_consume(
            self.parking.clone(),
            ShortString::from(tag),
            BasicConsumeOptions::default(),
            FieldTable::default(),
        );
        self.stream = Some(ask(doing(), consume).await?);
        Ok(())
    }

    /// Ends the present consumer; what was on its way to it is ahead of us then.
    async fn stop(&mut self) -> Result<()> {
        let Some(mut stream) = self.stream.take() else {
            return Ok(());
        };
        let cancel = self
            .channel
            .lapin()
            .basic_cancel(stream.tag(), BasicCancelOptions::default());
        ask(Doing::Consuming(self.parking.as_str()), cancel).await?;
        while let Some(Some(Ok(delivery))) = stream.next().now_or_never() {
            self.window.came(delivery.data.len());
            self.ahead.push_back(delivery);
        }
        Ok(())
    }

    /// How many messages wait in the queue for a consumer.
    async fn ready(&self) -> Result<u32> {
        let passive = QueueDeclareOptions {
            passive: true,
            ..QueueDeclareOptions::default()
        };
        let looked = self.channel.lapin().queue_declare(
            self.parking.clone(),
            passive,
            FieldTable::default(),
        );
        Ok(ask(Doing::Looking(self.parking.as_str()), looked)
            .await?
            .message_count())
    }

    /// The stream ended, and not because of us: the messages are the queue's again.
    fn cut_short(&mut self) -> Error {
        self.stream = None;
        self.left = 0;
        self.held.clear();
        Error::new(
            ErrorKind::ConnectionLost,
            format!(
                "the broker ended the walk through `{}`: the connection is gone, the queue was deleted, or messages were held for longer than its `consumer_timeout`; what was not settled is parked as before",
                self.parking
            ),
        )
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
        if let Err(error) = self.rejoin().await {
            warn!(queue = self.parking.as_str(), %error, "what was looked at may come behind other parked messages now");
        }
        let result = self.refresh().await;
        self.connection.close().await;
        result
    }

    /// Takes everything that was looked at before, so that all of it goes back together and in order.
    async fn rejoin(&mut self) -> Result<()> {
        let mut farther = 0;
        while self.window.has_begun() && !self.fresh && farther < FARTHEST {
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
            self.stop().await?;
            while let Some(delivery) = self.ahead.pop_front() {
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
            let parking = self.parking.as_str().to_owned();
            self.publish(&parking, properties, &received).await?;
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
        let acked = self
            .channel
            .lapin()
            .basic_ack(tag, BasicAckOptions { multiple: false });
        ask(Doing::Settling, acked).await?;
        self.held.remove(&tag);
        self.window.settled(tag);
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
