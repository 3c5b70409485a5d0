//! One channel of a consumer, from subscription to loss: intake, tags and acknowledgements.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use futures_util::{FutureExt, StreamExt};
use lapin::{
    message::Delivery as Arrival,
    options::{
        BasicAckOptions, BasicCancelOptions, BasicConsumeOptions, BasicNackOptions,
        BasicQosOptions, BasicRejectOptions,
    },
    types::{FieldTable, ShortString},
};
use tokio::time::{Instant, sleep_until};

use super::acks::AckWindow;
use crate::{
    Result,
    client::{Begun, Connection, Doing, OpenChannel, ask, put_off},
};

/// How long a channel stays open after the last settlement. While a quorum queue is some 30 settlements behind, RabbitMQ
/// keeps further ones in the channel, and drops them with it: what was handled last would run again after every restart.
const LINGER: Duration = Duration::from_millis(250);

/// As many acknowledgements may be queued and not written before the next message is looked at.
const UNWRITTEN: usize = 64;

/// How a queue hands out a message that is given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Return {
    /// Back into the queue, counted: `basic.reject`, because RabbitMQ 4.3 does not count a `basic.nack`.
    Requeue,
    /// Back into the queue from a consumer that stops, no handler having begun with it: `basic.nack`, which RabbitMQ 4.3 does
    /// not count. Other queues mark it; from where that would matter, a copy goes back instead.
    Unstarted,
    /// To the queue's dead-letter route, or dropped where it has none: `basic.reject`.
    Reject,
    /// To the queue's dead-letter route, uncounted: `basic.nack`.
    DeadLetter,
}

/// What comes out of a consumer's stream.
pub(super) enum Next {
    Arrived(Box<Arrival>),
    /// The channel or the connection is gone.
    Lost,
    /// The broker cancelled the consumer: its queue was deleted or moved.
    Cancelled,
}

/// An open channel with at most one running consumer on it.
pub(super) struct Session {
    /// Tells the deliveries of this session from those of an earlier one.
    pub(super) id: u64,
    queue: ShortString,
    connection: Arc<Connection>,
    channel: OpenChannel,
    stream: Option<lapin::Consumer>,
    acks: AckWindow,
    /// Acknowledgements on their way to the socket.
    unwritten: VecDeque<Begun<'static, lapin::Result<()>>>,
    /// When the last settlement was sent.
    settled: Option<Instant>,
}

impl Session {
    /// Opens a channel; nothing is consumed yet.
    pub(super) async fn open(
        connection: Arc<Connection>,
        queue: ShortString,
        id: u64,
    ) -> Result<Self> {
        let channel = connection.channel().await?;
        Ok(Self {
            id,
            queue,
            connection,
            channel,
            stream: None,
            acks: AckWindow::new(1),
            unwritten: VecDeque::new(),
            settled: None,
        })
    }

    pub(super) fn is_open(&self) -> bool {
        self.channel.is_open() && self.connection.is_open()
    }

    pub(super) fn is_consuming(&self) -> bool {
        self.stream.is_some()
    }

    /// What was mended in a delivery, if anything was.
    pub(super) fn mended(&self, tag: u64) -> Option<String> {
        self.channel
            .mended()
            .take(self.channel.lapin().id(), tag)
            .map(|mended| mended.to_string())
    }

    /// Starts consuming with this prefetch. AMQP applies a prefetch to consumers that start after it, so to change it
    /// is to [`stop`](Self::stop) and start again.
    pub(super) async fn start(&mut self, prefetch: u16) -> Result<()> {
        let channel = self.channel.lapin();
        let name = self.queue.as_str();
        ask(
            Doing::Consuming(name),
            channel.basic_qos(prefetch, BasicQosOptions::default()),
        )
        .await?;
        let consume = channel.basic_consume(
            self.queue.clone(),
            ShortString::default(),
            BasicConsumeOptions::default(),
            FieldTable::default(),
        );
        self.stream = Some(ask(Doing::Consuming(name), consume).await?);
        self.acks.set_prefetch(prefetch);
        Ok(())
    }

    /// Stops consuming; returns what had arrived in the meantime. It is still unacknowledged, and this session's.
    pub(super) async fn stop(&mut self) -> Result<Vec<Arrival>> {
        let Some(mut stream) = self.stream.take() else {
            return Ok(Vec::new());
        };
        let cancel = self
            .channel
            .lapin()
            .basic_cancel(stream.tag(), BasicCancelOptions::default());
        ask(Doing::Consuming(self.queue.as_str()), cancel).await?;
        let mut arrived = Vec::new();
        while let Some(Some(Ok(arrival))) = stream.next().now_or_never() {
            arrived.push(arrival);
        }
        Ok(arrived)
    }

    /// Waits for the next delivery, or for ever when nothing is consumed.
    pub(super) async fn next(&mut self) -> Next {
        let Some(stream) = &mut self.stream else {
            self.connection.gone().await;
            return Next::Lost;
        };
        let next = put_off(stream.next()).await;
        self.judge(next)
    }

    /// The next delivery, if it is there already.
    pub(super) fn next_now(&mut self) -> Option<Next> {
        let next = self.stream.as_mut()?.next().now_or_never()?;
        Some(self.judge(next))
    }

    fn judge(&mut self, next: Option<lapin::Result<Arrival>>) -> Next {
        match next {
            Some(Ok(arrival)) => Next::Arrived(Box::new(arrival)),
            ended => {
                self.stream = None; // polled again it would pend for ever
                if ended.is_none() && self.is_open() {
                    Next::Cancelled
                } else {
                    Next::Lost
                }
            }
        }
    }

    pub(super) fn delivered(&mut self, tag: u64) {
        self.acks.delivered(tag);
    }

    /// The message is to be acknowledged, with the next flush.
    pub(super) fn ack(&mut self, tag: u64) {
        self.acks.settle(tag, Instant::now());
    }

    /// When there will be something to flush.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.acks.deadline()
    }

    /// Sends the acknowledgements that are due; with `all`, every one, and waits until they are written.
    pub(super) async fn flush(&mut self, all: bool) -> Result<()> {
        for ack in self.acks.flush(Instant::now(), all) {
            let options = BasicAckOptions {
                multiple: ack.multiple,
            };
            self.settled = Some(Instant::now());
            let channel = self.channel.lapin().clone();
            let sent = Begun::new(async move { channel.basic_ack(ack.tag, options).await });
            self.unwritten.push_back(sent);
        }
        while let Some(oldest) = self.unwritten.front_mut() {
            if !oldest.is_done() && !all && self.unwritten.len() <= UNWRITTEN {
                break;
            }
            if let Some(oldest) = self.unwritten.pop_front() {
                ask(Doing::Settling, oldest.answer()).await?;
            }
        }
        Ok(())
    }

    /// Gives a message back. Does nothing when the tag is settled already.
    pub(super) async fn give_back(&mut self, tag: u64, how: Return) -> Result<()> {
        if !self.acks.reject(tag) {
            return Ok(());
        }
        self.settled = Some(Instant::now());
        let channel = self.channel.lapin();
        match how {
            Return::Requeue => {
                ask(
                    Doing::Settling,
                    channel.basic_reject(tag, BasicRejectOptions { requeue: true }),
                )
                .await
            }
            Return::Reject => {
                ask(
                    Doing::Settling,
                    channel.basic_reject(tag, BasicRejectOptions { requeue: false }),
                )
                .await
            }
            Return::Unstarted => {
                ask(
                    Doing::Settling,
                    channel.basic_nack(
                        tag,
                        BasicNackOptions {
                            multiple: false,
                            requeue: true,
                        },
                    ),
                )
                .await
            }
            Return::DeadLetter => {
                ask(
                    Doing::Settling,
                    channel.basic_nack(
                        tag,
                        BasicNackOptions {
                            multiple: false,
                            requeue: false,
                        },
                    ),
                )
                .await
            }
        }
    }

    /// Closes the channel; what is unacknowledged goes back to the queue.
    pub(super) async fn close(self) {
        if let Some(settled) = self.settled.filter(|_| self.is_open()) {
            sleep_until(settled + LINGER).await;
        }
        self.channel.close().await;
    }
}
