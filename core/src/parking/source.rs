//! The deliveries of a walk, in the order of the queue.
//!
//! They are consumed, never fetched with `basic.get`. When a connection ends, a quorum queue takes back its messages consumer by consumer.
//! Each `basic.get` is a consumer of its own, and these are sorted by number *as text*. So one consumer holds a share of the walk; when the
//! share is used up, the next consumer gets a larger one.

use std::{
    collections::{HashMap, VecDeque},
    time::Duration,
};

use futures_util::{FutureExt, StreamExt};
use lapin::{
    message::Delivery,
    options::{
        BasicAckOptions, BasicCancelOptions, BasicConsumeOptions, BasicNackOptions, BasicQosOptions,
    },
    types::{FieldTable, ShortString},
};
use tokio::{
    task::JoinHandle,
    time::{Instant, sleep, sleep_until, timeout},
};
use tracing::warn;

use super::{
    channel_tags::ChannelTags, copy_marker::DeliverySource, prefetch_window::PrefetchWindow,
};
use crate::{
    Error, ErrorKind, Result,
    connection::{
        ANSWER, Connection, LINGER, OpenChannel, Operation, SafeCancel, ask, is_doubtful,
        leaderless, passive_declare,
    },
};

/// How long to wait for a delivery before asking the broker whether the queue is empty.
const QUIET: Duration = Duration::from_millis(100);

/// How long a queue may take to have back what was held. It takes longer if another consumer takes the messages at once, or a policy
/// delays them.
pub(super) const PUT_BACK: Duration = Duration::from_secs(1);

/// How many settlements a quorum queue may be behind. Beyond that RabbitMQ keeps further ones in the channel and drops them with it
/// ([`LINGER`]). The messages renewed last would then exist twice.
const BEHIND: u32 = 30;
/// How long to wait per settlement: a walk settles many at once.
const LINGER_EACH: Duration = Duration::from_millis(1);
/// The most that is added when the broker is also slow to confirm.
const LINGER_MORE: Duration = Duration::from_secs(10);

/// What one consumer of a walk received.
struct ConsumerShare {
    /// The first delivery tag. The tags of a channel have no gaps.
    first: u64,
    /// How many of them are unsettled.
    held: u32,
}

/// Where a walk's messages come from, and where they are settled.
pub(crate) struct Source {
    queue: ShortString,
    channel: OpenChannel,
    /// The earlier channels.
    earlier: Vec<OpenChannel>,
    tags: ChannelTags,
    /// The current consumer.
    stream: Option<lapin::Consumer>,
    /// The current consumer is being cancelled.
    stopping: bool,
    /// The next consumer is being opened. A task of its own, because the broker sends to it even if the caller has dropped its future.
    opening: Option<JoinHandle<Result<lapin::Consumer>>>,
    window: PrefetchWindow,
    /// One per consumer so far.
    shares: Vec<ConsumerShare>,
    came: u64,
    /// Deliveries that were not handed out yet.
    ahead: VecDeque<Delivery>,
    /// The stream has ended, and all its deliveries are in `ahead`.
    is_over: bool,
    /// A message arrived that was never delivered before. It stands behind everything that the queue ever took back.
    fresh: bool,
    /// How many of the messages that were ready at first are still to come.
    left: u32,
    /// Our copies at the tail of the queue.
    copies: u32,
    /// How many messages are held.
    unsettled: u32,
    /// What had to be repaired in held messages before they could be read, by delivery tag.
    mended: HashMap<u64, String>,
    /// How many were settled, and when the last one was.
    settled: (u32, Instant),
    /// The longest time that the broker took for a confirm. Settlements may take as long.
    pace: Duration,
}

impl Source {
    /// For a queue with this many messages ready.
    pub(crate) fn new(queue: ShortString, channel: OpenChannel, left: u32) -> Self {
        Self {
            queue,
            channel,
            earlier: Vec::new(),
            tags: ChannelTags::default(),
            stream: None,
            stopping: false,
            opening: None,
            window: PrefetchWindow::default(),
            shares: Vec::new(),
            came: 0,
            ahead: VecDeque::new(),
            is_over: false,
            fresh: false,
            left,
            copies: 0,
            unsettled: 0,
            mended: HashMap::new(),
            settled: (0, Instant::now()),
            pace: Duration::ZERO,
        }
    }

    /// The queue they come from.
    pub(super) fn queue(&self) -> &ShortString {
        &self.queue
    }

    /// How many messages are still expected.
    pub(crate) fn left(&self) -> u32 {
        self.left.saturating_add(self.copies)
    }

    /// Whether the walk has begun and every message so far had been delivered before.
    pub(super) fn is_among_the_seen(&self) -> bool {
        self.window.has_begun() && !self.fresh
    }

    /// Waits until the next expected delivery is first in `ahead`. `false` if the queue has no more for this walk.
    pub(crate) async fn expect(&mut self) -> Result<bool> {
        if self.left() == 0 {
            return Ok(false);
        }
        if self.ahead.is_empty() {
            match self.delivery().await? {
                Some(delivery) => self.ahead.push_front(delivery),
                None => return Ok(false),
            }
        }
        Ok(true)
    }

    /// Whether the broker must be asked for more before the next delivery can come.
    pub(super) fn asks_for_more(&mut self) -> bool {
        self.left() > 0 && !self.is_at_hand() && self.is_served()
    }

    /// Whether the broker sends nothing more until there is a next consumer.
    fn is_served(&self) -> bool {
        self.stream.is_none() || self.stopping || self.window.is_used_up()
    }

    /// The delivery that [`next`](Self::next) returns.
    pub(super) fn front(&self) -> Option<&Delivery> {
        self.ahead.front()
    }

    /// Takes the first delivery.
    pub(crate) fn next(&mut self) -> Option<Delivery> {
        let delivery = self.ahead.pop_front()?;
        self.fresh |= !delivery.redelivered;
        Some(delivery)
    }

    /// What had to be mended in a message before it could be read.
    pub(crate) fn mended(&self, tag: u64) -> Option<&str> {
        self.mended.get(&tag).map(String::as_str)
    }

    /// Whether a delivery has arrived already.
    pub(super) fn is_at_hand(&mut self) -> bool {
        if self.ahead.is_empty() {
            self.take_arrived();
        }
        !self.ahead.is_empty()
    }

    /// The deliveries that arrived and were not handed out.
    pub(super) fn at_hand(&mut self) -> impl Iterator<Item = &Delivery> {
        self.take_arrived();
        self.ahead.iter()
    }

    /// Whether some of the messages that were ready at first are still to come.
    pub(super) fn expects_originals(&self) -> bool {
        self.left > 0
    }

    /// Counts a message from this source.
    pub(crate) fn has_come(&mut self, source: DeliverySource) {
        match source {
            DeliverySource::Elsewhere => self.left = self.left.saturating_sub(1),
            DeliverySource::Renewed => self.copies = self.copies.saturating_sub(1),
            DeliverySource::Replayed => {}
        }
    }

    /// Counts a copy of ours at the tail.
    pub(super) fn copy_sent(&mut self) {
        self.copies += 1;
    }

    /// Expects nothing more; returns how many messages never came.
    pub(super) fn give_up(&mut self) -> u32 {
        std::mem::take(&mut self.left) + std::mem::take(&mut self.copies)
    }

    /// Expects nothing more; returns how many of the messages that were ready at first never came.
    pub(super) fn give_up_originals(&mut self) -> u32 {
        self.copies = 0;
        std::mem::take(&mut self.left)
    }

    async fn delivery(&mut self) -> Result<Option<Delivery>> {
        let deadline = Instant::now() + ANSWER;
        let mut looks = 0;
        loop {
            if let Some(delivery) = self.ahead.pop_front() {
                return Ok(Some(delivery));
            }
            if self.is_over {
                return Err(self.cut_short());
            }
            if self.is_served() {
                self.widen().await?;
            }
            if let Some(stream) = &mut self.stream {
                match timeout(QUIET, stream.next()).await {
                    Ok(Some(Ok(delivery))) => {
                        return Ok(Some(self.came(delivery)));
                    }
                    Ok(_) => return Err(self.cut_short()),
                    Err(_) => {}
                }
            }
            // Another consumer may have taken what was counted. Asked twice, because the first answer may overtake a delivery; everything
            // sent before the second answer has arrived by then.
            let found = passive_declare(&self.channel, self.queue.clone()).await?;
            let ready = found.message_count();
            // We are a consumer. If the queue knows of none, it has no leader now, and is not empty because of that.
            let lost = is_doubtful(&found);
            looks = if ready == 0 && !lost { looks + 1 } else { 0 };
            if looks == 2 {
                self.take_arrived();
                if self.ahead.is_empty() && !self.is_over {
                    return Ok(None);
                }
            }
            if Instant::now() >= deadline && lost {
                return Err(leaderless(&self.queue, None));
            }
            if Instant::now() >= deadline {
                return Err(Error::new(
                    ErrorKind::Timeout,
                    format!(
                        "`{}` has {ready} messages, and the broker sent none of them within {} s; does somebody else consume it?",
                        self.queue,
                        ANSWER.as_secs()
                    ),
                ));
            }
        }
    }

    /// Opens the next consumer, with a larger share. The one before keeps what it received, and receives nothing more.
    async fn widen(&mut self) -> Result<()> {
        if self.opening.is_none() {
            self.stop().await?;
            if !self.ahead.is_empty() {
                return Ok(());
            }
            let (tag, prefetch) = self.window.open(self.left());
            let (channel, queue) = (self.channel.lapin().clone(), self.queue.clone());
            self.opening = Some(tokio::spawn(consume(channel, queue, tag, prefetch)));
        }
        self.open().await
    }

    /// Waits for the consumer that is being opened.
    async fn open(&mut self) -> Result<()> {
        let Some(opening) = &mut self.opening else {
            return Ok(());
        };
        let opened = opening.await;
        self.opening = None;
        let broken = |why| Err(Error::new(ErrorKind::Closed, "the runtime ended").with_source(why));
        self.stream = Some(opened.unwrap_or_else(broken)?);
        let first = self.came + 1;
        self.shares.push(ConsumerShare { first, held: 0 });
        Ok(())
    }

    fn came(&mut self, mut delivery: Delivery) -> Delivery {
        let (channel, tag) = (self.channel.lapin().id(), delivery.delivery_tag);
        delivery.delivery_tag = self.tags.of_walk(tag);
        if let Some(mended) = self.channel.mended().take(channel, tag) {
            self.mended
                .insert(delivery.delivery_tag, mended.to_string());
        }
        self.window.came(delivery.data.len());
        self.came += 1;
        if let Some(share) = self.shares.last_mut() {
            share.held += 1;
        }
        self.unsettled += 1;
        delivery
    }

    /// Moves deliveries from the stream to `ahead`.
    fn take_arrived(&mut self) {
        while let Some(came) = self
            .stream
            .as_mut()
            .and_then(|stream| stream.next().now_or_never())
        {
            match came {
                Some(Ok(delivery)) => {
                    let delivery = self.came(delivery);
                    self.ahead.push_back(delivery);
                }
                ended => {
                    (self.stream, self.is_over) = (None, !self.stopping || ended.is_some());
                    break;
                }
            }
        }
    }

    /// Ends the current consumer. Deliveries that were on their way are then in `ahead`.
    async fn stop(&mut self) -> Result<()> {
        if !self.stopping {
            self.check()?;
        }
        if let Some(stream) = &self.stream {
            // The stream is kept until then, with what comes meanwhile: the caller may drop its future.
            self.stopping = true;
            let channel = self.channel.lapin();
            let cancel = channel.basic_cancel(stream.tag(), BasicCancelOptions::default());
            ask(Operation::Consuming(self.queue.as_str()), cancel).await?;
            self.take_arrived();
        }
        (self.stream, self.stopping) = (None, false);
        Ok(())
    }

    /// Continues on another channel, once. For each acknowledgement RabbitMQ scans all older deliveries that the channel holds: after some
    /// ten thousand, renewing a message before it is shown would take too long.
    pub(super) async fn part(&mut self, connection: &Connection) -> Result<()> {
        if self.tags.parted() > 0 {
            return Ok(());
        }
        self.take_what_is_on_its_way().await?;
        self.check()?;
        self.stop().await?;
        let channel = connection.channel().await?;
        self.earlier
            .push(std::mem::replace(&mut self.channel, channel));
        self.tags.part(self.came);
        Ok(())
    }

    /// Checks that what is held is still ours. If a consumer holds messages for longer than `consumer_timeout`, RabbitMQ 4.3 takes them
    /// back and cancels the consumer; it does not report settlements that come later.
    ///
    /// # Errors
    /// [`ErrorKind::ConnectionLost`] if the queue has them again.
    pub(super) fn check(&mut self) -> Result<()> {
        self.take_arrived();
        let is_gone = self.earlier.iter().any(|channel| !channel.is_open());
        if self.is_over || is_gone {
            return Err(self.cut_short());
        }
        Ok(())
    }

    /// Like [`check`](Self::check), after the broker has processed all earlier settlements.
    pub(crate) async fn check_what_was_settled(&mut self) -> Result<()> {
        if self.settled.0 > 0 {
            self.ready().await?;
            for channel in &self.earlier {
                passive_declare(channel, self.queue.clone()).await?;
            }
        }
        self.check()
    }

    /// Acknowledges.
    ///
    /// # Errors
    /// Those of [`check`](Self::check).
    pub(crate) async fn settle(&mut self, tag: u64) -> Result<()> {
        self.check()?;
        let options = BasicAckOptions { multiple: false };
        let (channel, of_channel) = self.tags.of_channel(tag);
        // Counted first: the caller may drop its future when the acknowledgement is on its way.
        self.window.settled(tag);
        if let Some(share) = self.shares.iter_mut().rfind(|share| share.first <= tag) {
            share.held = share.held.saturating_sub(1);
        }
        self.settled = (self.settled.0.saturating_add(1), Instant::now());
        self.unsettled = self.unsettled.saturating_sub(1);
        let channel = self.earlier.get(channel).unwrap_or(&self.channel);
        let acked = channel.lapin().basic_ack(of_channel, options);
        ask(Operation::Settling, acked).await
    }

    /// Waits until the current consumer's share is used up or the queue is empty. What is on its way to a cancelled consumer, a quorum
    /// queue takes back and counts.
    pub(super) async fn take_what_is_on_its_way(&mut self) -> Result<()> {
        self.open().await?;
        let mut cancelling = SafeCancel::begin(Instant::now(), true);
        while self.stream.is_some() && !cancelling.may_go(self.window.is_used_up(), Instant::now())
        {
            sleep(cancelling.pause()).await;
            let found = passive_declare(&self.channel, self.queue.clone()).await?;
            // We are a consumer: a queue without a leader says that it is empty, and a delivery may be on its way all the same.
            match is_doubtful(&found) {
                true => cancelling.has_timed_out(),
                false => cancelling.note_ready(found.message_count()),
            }
            let ahead = self.ahead.len();
            self.take_arrived();
            if self.ahead.len() > ahead {
                cancelling.arrived();
            }
        }
        Ok(())
    }

    /// How many messages are ready in the queue.
    pub(super) async fn ready(&self) -> Result<u32> {
        let found = passive_declare(&self.channel, self.queue.clone()).await?;
        Ok(found.message_count())
    }

    /// How many other consumers the queue has now, if that is more than `known`. A quorum queue counts a cancelled consumer as long as it
    /// holds messages, and a moment longer.
    pub(crate) async fn others(&self, known: u32, classic: bool) -> Result<u32> {
        let deadline = Instant::now() + PUT_BACK;
        let cancelled = match self.shares.split_last() {
            Some((_, before)) if !classic => before.iter().filter(|share| share.held > 0).count(),
            _ => 0,
        };
        let last = self.shares.last().is_some_and(|share| share.held > 0);
        let own = cancelled + usize::from(self.stream.is_some() || (last && !classic));
        let own = u32::try_from(own).unwrap_or(u32::MAX);
        loop {
            let found = passive_declare(&self.channel, self.queue.clone()).await?;
            let others = found.consumer_count().saturating_sub(own);
            if others <= known || Instant::now() >= deadline {
                return Ok(others.max(known));
            }
            sleep(PUT_BACK / 20).await;
        }
    }

    /// Stops consuming; returns deliveries that were not handed out.
    pub(crate) async fn end(&mut self) -> Result<VecDeque<Delivery>> {
        self.take_what_is_on_its_way().await?;
        self.check()?;
        self.stop().await?;
        Ok(std::mem::take(&mut self.ahead))
    }

    /// Requeues everything held up to delivery tag `last`, by `basic.nack`, the one way that RabbitMQ 4.3 does not count. `last` must be held
    /// itself: the broker closes the channel (406) for a tag that is settled already.
    ///
    /// # Errors
    /// Those of a lost connection: the queue then has it back, too.
    pub(crate) async fn requeue_uncounted(&self, last: u64) -> Result<()> {
        let options = BasicNackOptions {
            multiple: true,
            requeue: true,
        };
        let nacked = self.channel.lapin().basic_nack(last, options);
        ask(Operation::Settling, nacked).await
    }

    /// Requeues what is held, and does not wait until the queue has it: a message with a time to live may leave the queue at once.
    pub(crate) async fn leave(self) {
        self.linger().await;
        self.channel.close().await;
    }

    /// Waits until the queue has probably processed the settlements. AMQP has no answer to them.
    async fn linger(&self) {
        let (settled, last) = self.settled;
        if settled > BEHIND {
            let slow = (self.pace * 2).min(LINGER_MORE);
            sleep_until(last + LINGER + LINGER_EACH * settled.min(4_000) + slow).await;
        }
    }

    /// Records that something published at this moment is confirmed now.
    pub(super) fn confirmed(&mut self, since: Instant) {
        self.pace = self.pace.max(since.elapsed());
    }

    /// Requeues what is held, and waits a moment until the queue has it and no longer counts us as a consumer. Otherwise the next walk
    /// would not find it, and would count us among the `others`. After a lost connection there is nothing to wait for.
    pub(super) async fn give_back(self, connection: &Connection, others: u32) {
        self.linger().await;
        // They are requeued in this order.
        for channel in self.earlier {
            channel.close().await;
        }
        self.channel.close().await;
        let Ok(channel) = connection.channel().await else {
            return;
        };
        let deadline = Instant::now() + PUT_BACK;
        let mut short = 0;
        while let Ok(found) = passive_declare(&channel, self.queue.clone()).await {
            let is_known = found.consumer_count() > others;
            short = match found.consumer_count() {
                0 => self.unsettled.saturating_sub(found.message_count()),
                _ => 0, // its consumers have taken them
            };
            if !is_known && found.message_count() >= self.unsettled || Instant::now() >= deadline {
                break;
            }
            sleep(PUT_BACK / 100).await;
        }
        if short > 0 {
            warn!(
                queue = self.queue.as_str(),
                "{short} of {} messages that were looked at are not back in their queue yet: a policy with `delayed-retry-type` \
                 whose pattern also matches the parking queue holds them back for its delay, end its pattern for the work queue \
                 with `$`; or a policy with a limit or a time to live has taken them",
                self.unsettled
            );
        }
        channel.close().await;
    }

    /// The error after the stream ended by itself: the queue has the messages again.
    fn cut_short(&mut self) -> Error {
        self.stream = None;
        (self.left, self.copies, self.unsettled) = (0, 0, 0);
        Error::new(
            ErrorKind::ConnectionLost,
            format!(
                "the broker ended the walk through `{}`: the connection is gone, the queue was deleted, or messages were held for longer than its `consumer_timeout`; messages not yet replayed or dropped are still parked, and the last ones that were may be parked again: browse again",
                self.queue
            ),
        )
    }
}

async fn consume(
    channel: lapin::Channel,
    queue: ShortString,
    tag: String,
    prefetch: u16,
) -> Result<lapin::Consumer> {
    let doing = || Operation::Consuming(queue.as_str());
    let qos = channel.basic_qos(prefetch, BasicQosOptions::default());
    ask(doing(), qos).await?;
    let consume = channel.basic_consume(
        queue.clone(),
        ShortString::from(tag),
        BasicConsumeOptions::default(),
        FieldTable::default(),
    );
    ask(doing(), consume).await
}
