//! The deliveries of a walk, in the order of the queue.
//!
//! They come by consuming, never by `basic.get`: what a quorum queue takes back at the end of a connection it takes back
//! consumer by consumer, and each `basic.get` is a consumer of its own, sorted by its number *as text*. So one consumer
//! holds its share of the walk, and when that is used up the next one gets a larger share.

use std::{collections::VecDeque, time::Duration};

use futures_util::{FutureExt, StreamExt};
use lapin::{
    message::Delivery,
    options::{
        BasicAckOptions, BasicCancelOptions, BasicConsumeOptions, BasicQosOptions,
        QueueDeclareOptions,
    },
    types::{FieldTable, ShortString},
};
use tokio::time::{Instant, timeout};

use super::window::Window;
use crate::{
    Error, ErrorKind, Result,
    client::{ANSWER, Doing, OpenChannel, ask},
};

/// How long nothing may come before the broker is asked whether there is anything left.
const QUIET: Duration = Duration::from_millis(100);

/// Where a walk's messages come from, and where they are settled.
pub(super) struct Supply {
    queue: ShortString,
    channel: OpenChannel,
    /// The consumer whose share is being walked through.
    stream: Option<lapin::Consumer>,
    window: Window,
    /// What came and was not asked for yet.
    ahead: VecDeque<Delivery>,
    /// Something came that nobody had been sent before: it stands behind everything that the queue ever took back.
    fresh: bool,
    left: u32,
}

impl Supply {
    /// Of a queue in which so many messages are ready.
    pub(super) fn new(queue: ShortString, channel: OpenChannel, left: u32) -> Self {
        Self {
            queue,
            channel,
            stream: None,
            window: Window::default(),
            ahead: VecDeque::new(),
            fresh: false,
            left,
        }
    }

    /// How many messages are still expected.
    pub(super) fn left(&self) -> u32 {
        self.left
    }

    /// Whether the walk has begun, and all that came so far had been sent to somebody before.
    pub(super) fn is_among_the_seen(&self) -> bool {
        self.window.has_begun() && !self.fresh
    }

    /// The next delivery, until those that were there at first are through; `None` when the queue has nothing more for us.
    pub(super) async fn next(&mut self) -> Result<Option<Delivery>> {
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
                        self.queue,
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
        let doing = || Doing::Consuming(self.queue.as_str());
        ask(
            doing(),
            channel.basic_qos(prefetch, BasicQosOptions::default()),
        )
        .await?;
        let consume = channel.basic_consume(
            self.queue.clone(),
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
        ask(Doing::Consuming(self.queue.as_str()), cancel).await?;
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
        let looked =
            self.channel
                .lapin()
                .queue_declare(self.queue.clone(), passive, FieldTable::default());
        Ok(ask(Doing::Looking(self.queue.as_str()), looked)
            .await?
            .message_count())
    }

    /// Acknowledges.
    pub(super) async fn settle(&mut self, tag: u64) -> Result<()> {
        let options = BasicAckOptions { multiple: false };
        let acked = self.channel.lapin().basic_ack(tag, options);
        ask(Doing::Settling, acked).await?;
        self.window.settled(tag);
        Ok(())
    }

    /// Nothing more comes; returns what came and nobody asked for.
    pub(super) async fn end(&mut self) -> Result<VecDeque<Delivery>> {
        self.stop().await?;
        Ok(std::mem::take(&mut self.ahead))
    }

    /// The stream ended, and not because of us: the messages are the queue's again.
    fn cut_short(&mut self) -> Error {
        self.stream = None;
        self.left = 0;
        Error::new(
            ErrorKind::ConnectionLost,
            format!(
                "the broker ended the walk through `{}`: the connection is gone, the queue was deleted, or messages were held for longer than its `consumer_timeout`; what was not settled is parked as before",
                self.queue
            ),
        )
    }
}
