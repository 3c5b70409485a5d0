//! One channel of a consumer on lapin, from opening to loss: consumers, deliveries and settlements.

use std::{
    collections::VecDeque,
    future::poll_fn,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use futures_util::{FutureExt, StreamExt, stream::FuturesUnordered};
use lapin::{
    message::Delivery,
    options::{
        BasicAckOptions, BasicCancelOptions, BasicConsumeOptions, BasicNackOptions,
        BasicQosOptions, BasicRejectOptions,
    },
    protocol::AMQPErrorKind,
    types::{AMQPValue, FieldTable, ShortString},
};
use tokio::time::{Instant, sleep, sleep_until};

use super::{
    super::engine::{IncomingDelivery, Return},
    prefetch_slots::PrefetchSlots,
};
use crate::{
    Error, ErrorKind, Result,
    connection::{
        Connection, LINGER, OpenChannel, Operation, StartedCall, ask, closed_by_broker, is_crash,
        is_internal_error, is_one_consumer_too_many, passive_declare_checked, put_off, refusal,
    },
};

/// The most settlements that may be queued and unwritten before the next message is looked at.
const UNWRITTEN: usize = 64;

/// What happens on a channel.
pub(super) enum ChannelEvent {
    Arrived(u64, Box<IncomingDelivery>),
    Consuming(u64),
    Cancelled(u64),
    CancelledByBroker(u64),
    Synced(u64),
    /// The channel or the connection is gone.
    Lost(Option<Error>),
}

/// The answer to a question about a consumer.
enum Answer {
    Consuming(u64, u16, Result<lapin::Consumer>),
    /// How many messages are ready in the queue; needed before a consumer is cancelled.
    Looked(u64, Result<u32>),
    Cancelled(u64, Result<()>),
    /// Everything written before has been read.
    Synced(u64, Result<()>),
}

type Question = Pin<Box<dyn Future<Output = Answer> + Send>>;

/// A consumer on the channel.
struct ChannelConsumer {
    consumer: u64,
    stream: lapin::Consumer,
    slots: PrefetchSlots,
    /// Whether we have cancelled it, so that its end is expected.
    cancelled: bool,
}

impl ChannelConsumer {
    /// Whether it is cancelled as soon as nothing is on its way to it.
    fn is_cancelling(&self) -> bool {
        self.slots.is_cancelling() && !self.cancelled
    }
}

/// What becomes of a message on this channel.
enum Settlement {
    Ack {
        tag: u64,
        multiple: bool,
    },
    Back {
        tag: u64,
        how: Return,
    },
    /// Not a settlement, but postponed like those before it.
    Sync(u64),
}

/// An open channel.
pub(super) struct Channel {
    pub(super) session: u64,
    queue: ShortString,
    /// The priority of its consumers.
    priority: Option<i32>,
    connection: Arc<Connection>,
    channel: OpenChannel,
    served: Vec<ChannelConsumer>,
    questions: FuturesUnordered<Question>,
    gone: Pin<Box<dyn Future<Output = ()> + Send>>,
    /// Events that came together with another one.
    backlog: VecDeque<ChannelEvent>,
    /// Settlements that wait until a consumer is cancelled.
    put_off: Vec<Settlement>,
    /// Settlements on their way to the socket.
    unwritten: VecDeque<StartedCall<'static, lapin::Result<()>>>,
    /// The oldest of them, if it is awaited.
    awaited: Option<Pin<Box<dyn Future<Output = Result<()>> + Send>>>,
    /// When the last settlement was sent.
    settled: Option<Instant>,
}

impl Channel {
    /// Opens a channel; nothing is consumed yet.
    pub(super) async fn open(
        connection: Arc<Connection>,
        queue: ShortString,
        priority: Option<i32>,
        session: u64,
    ) -> Result<Self> {
        let channel = connection.channel().await.inspect_err(|error| {
            // A broker that does not open a channel has stopped reading. It may still send heartbeats, and another host may be better.
            if error.kind() == ErrorKind::Timeout && !connection.is_blocked() {
                connection.cut();
            }
        })?;
        let gone = {
            let connection = Arc::clone(&connection);
            Box::pin(async move { connection.gone().await })
        };
        Ok(Self {
            session,
            queue,
            priority,
            connection,
            channel,
            served: Vec::new(),
            questions: FuturesUnordered::new(),
            gone,
            backlog: VecDeque::new(),
            put_off: Vec::new(),
            unwritten: VecDeque::new(),
            awaited: None,
            settled: None,
        })
    }

    fn is_open(&self) -> bool {
        self.channel.is_open() && self.connection.is_open()
    }

    /// Consumes with a prefetch of its own (AMQP `basic.qos` applies to the consumers that start after it).
    pub(super) fn consume(&mut self, consumer: u64, prefetch: u16) {
        let (channel, queue) = (self.channel.lapin().clone(), self.queue.clone());
        let mut arguments = FieldTable::default();
        if let Some(priority) = self.priority {
            arguments.insert("x-priority".into(), AMQPValue::LongInt(priority));
        }
        self.questions.push(Box::pin(async move {
            let consuming = async {
                let doing = || Operation::Consuming(queue.as_str());
                ask(
                    doing(),
                    channel.basic_qos(prefetch, BasicQosOptions::default()),
                )
                .await?;
                let consume = channel.basic_consume(
                    queue.clone(),
                    ShortString::default(),
                    BasicConsumeOptions::default(),
                    arguments,
                );
                ask(doing(), consume).await
            };
            Answer::Consuming(consumer, prefetch, consuming.await)
        }));
    }

    /// Cancels a consumer as soon as nothing is on its way to it.
    pub(super) fn cancel(&mut self, consumer: u64) {
        let Some(served) = self.served(consumer) else {
            self.backlog.push_back(ChannelEvent::Cancelled(consumer));
            return;
        };
        served.slots.part(Instant::now());
        self.part(consumer);
    }

    fn served(&mut self, consumer: u64) -> Option<&mut ChannelConsumer> {
        let mut served = self.served.iter_mut();
        served.find(|served| served.consumer == consumer)
    }

    /// Cancels a consumer that is to go, or looks again whether it may.
    fn part(&mut self, consumer: u64) {
        let (channel, queue) = (self.channel.lapin().clone(), self.queue.clone());
        let Some(served) = self.served(consumer) else {
            return;
        };
        if !served.is_cancelling() {
            return;
        }
        if !served.slots.may_go(Instant::now()) {
            let pause = served.slots.pause();
            self.questions.push(Box::pin(async move {
                if !pause.is_zero() {
                    sleep(pause).await;
                }
                let looked = passive_declare_checked(&channel, queue).await;
                Answer::Looked(consumer, looked.map(|queue| queue.message_count()))
            }));
            return;
        }
        served.cancelled = true;
        let tag = served.stream.tag();
        // It is written before the postponed settlements, which would make places free again.
        let cancel = StartedCall::new(async move {
            channel
                .basic_cancel(tag, BasicCancelOptions::default())
                .await
        });
        self.questions.push(Box::pin(async move {
            let cancelled = ask(Operation::Consuming(queue.as_str()), cancel.answer()).await;
            Answer::Cancelled(consumer, cancelled)
        }));
        self.settle_deferred();
    }

    /// Waits for whatever happens next.
    pub(super) async fn next(&mut self) -> ChannelEvent {
        put_off(poll_fn(|cx| self.poll_next(cx))).await
    }

    /// The next event, if there is one now.
    pub(super) fn next_now(&mut self) -> Option<ChannelEvent> {
        self.next().now_or_never()
    }

    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<ChannelEvent> {
        if let Some(channel_event) = self.backlog.pop_front() {
            return Poll::Ready(channel_event);
        }
        let mut at = 0;
        while let Some(served) = self.served.get_mut(at) {
            match served.stream.poll_next_unpin(cx) {
                Poll::Pending => at += 1,
                Poll::Ready(next) => {
                    if let Some(channel_event) = self.consumer_polled(at, next) {
                        return Poll::Ready(channel_event);
                    }
                }
            }
        }
        while let Poll::Ready(Some(answer)) = self.questions.poll_next_unpin(cx) {
            if let Some(channel_event) = self.answered(answer) {
                return Poll::Ready(channel_event);
            }
        }
        if self.gone.as_mut().poll(cx).is_ready() {
            self.gone = Box::pin(std::future::pending());
            return Poll::Ready(ChannelEvent::Lost(None));
        }
        Poll::Pending
    }

    fn consumer_polled(
        &mut self,
        at: usize,
        next: Option<lapin::Result<Delivery>>,
    ) -> Option<ChannelEvent> {
        if let Some(Ok(delivery)) = next {
            let consumer = self.served[at].consumer;
            self.served[at].slots.arrived(delivery.delivery_tag);
            return Some(ChannelEvent::Arrived(consumer, self.arrival(delivery)));
        }
        // Polled again, it would pend forever.
        let ChannelConsumer {
            consumer,
            cancelled,
            ..
        } = self.served.remove(at);
        if next.is_some() || !self.is_open() {
            let why = next.and_then(lapin::Result::err);
            Some(ChannelEvent::Lost(why.and_then(|why| self.reason(why))))
        } else if cancelled {
            None
        } else {
            Some(ChannelEvent::CancelledByBroker(consumer))
        }
    }

    /// Why the broker closed the channel, such as a `consumer_timeout`. Whoever keeps the connection reports its end, but for what
    /// this consumer has caused: one consumer too many, or a message that cannot be delivered.
    fn reason(&self, why: lapin::Error) -> Option<Error> {
        let is_of_channel = matches!(
            why.kind(),
            lapin::ErrorKind::ProtocolError(said) if matches!(said.kind(), AMQPErrorKind::Soft(_))
        );
        // Consumers of other queues share the connection.
        let named = format!("'{}'", self.queue);
        let names_ours = why.to_string().contains(&named);
        let why = refusal(&Operation::Consuming(self.queue.as_str()), why);
        if is_of_channel || is_one_consumer_too_many(&why) || is_crash(&why) {
            return Some(why);
        }
        is_internal_error(&why).then(|| {
            if names_ours {
                why
            } else {
                closed_by_broker(why)
            }
        })
    }

    fn answered(&mut self, answer: Answer) -> Option<ChannelEvent> {
        match answer {
            Answer::Consuming(consumer, prefetch, Ok(stream)) => {
                self.served.push(ChannelConsumer {
                    consumer,
                    stream,
                    slots: PrefetchSlots::new(prefetch),
                    cancelled: false,
                });
                Some(ChannelEvent::Consuming(consumer))
            }
            Answer::Looked(consumer, Ok(ready)) => {
                if let Some(served) = self.served(consumer) {
                    served.slots.note_ready(ready);
                }
                self.part(consumer);
                None
            }
            Answer::Cancelled(consumer, Ok(())) => {
                // Everything that the broker sent before its answer is in the stream already.
                let at = self
                    .served
                    .iter()
                    .position(|served| served.consumer == consumer);
                if let Some(at) = at {
                    let mut stream = self.served.remove(at).stream;
                    while let Some(Some(Ok(delivery))) = stream.next().now_or_never() {
                        let arrival = self.arrival(delivery);
                        self.backlog
                            .push_back(ChannelEvent::Arrived(consumer, arrival));
                    }
                }
                self.backlog.push_back(ChannelEvent::Cancelled(consumer));
                self.backlog.pop_front()
            }
            Answer::Synced(number, Ok(())) => Some(ChannelEvent::Synced(number)),
            Answer::Consuming(_, _, Err(why))
            | Answer::Synced(_, Err(why))
            | Answer::Looked(_, Err(why))
            | Answer::Cancelled(_, Err(why)) => Some(ChannelEvent::Lost(Some(why))),
        }
    }

    fn arrival(&self, delivery: Delivery) -> Box<IncomingDelivery> {
        let tag = delivery.delivery_tag;
        let mended = self.channel.mended().take(self.channel.lapin().id(), tag);
        Box::new(IncomingDelivery {
            tag,
            redelivered: delivery.redelivered,
            exchange: delivery.exchange,
            routing_key: delivery.routing_key,
            properties: delivery.properties,
            body: delivery.data,
            mended: mended.map(|mended| mended.to_string()),
        })
    }

    pub(super) fn ack(&mut self, tag: u64, multiple: bool) {
        self.settle_or_defer(Settlement::Ack { tag, multiple });
    }

    pub(super) fn give_back(&mut self, tag: u64, how: Return) {
        self.settle_or_defer(Settlement::Back { tag, how });
    }

    /// Asks something that the broker answers after it has read everything sent before: it reads a channel's methods in order.
    pub(super) fn sync(&mut self, number: u64) {
        self.settle_or_defer(Settlement::Sync(number));
    }

    fn settle_or_defer(&mut self, settlement: Settlement) {
        if self.served.iter().any(ChannelConsumer::is_cancelling) {
            self.put_off.push(settlement);
        } else {
            self.settle(settlement);
        }
    }

    /// At the end nothing is waited for. A consumer that stayed would get messages that nobody takes.
    fn cancel_at_once(&mut self) {
        for served in &mut self.served {
            if !std::mem::replace(&mut served.cancelled, true) {
                let (channel, tag) = (self.channel.lapin().clone(), served.stream.tag());
                let nowait = BasicCancelOptions { nowait: true };
                drop(StartedCall::new(async move {
                    channel.basic_cancel(tag, nowait).await
                }));
            }
        }
        self.settle_deferred();
    }

    fn settle_deferred(&mut self) {
        for settlement in std::mem::take(&mut self.put_off) {
            self.settle_or_defer(settlement);
        }
    }

    fn settle(&mut self, settlement: Settlement) {
        let channel = self.channel.lapin().clone();
        match settlement {
            Settlement::Sync(number) => {
                let queue = self.queue.clone();
                // Begun now, and so sent after the settlements.
                let look =
                    StartedCall::new(async move { passive_declare_checked(&channel, queue).await });
                self.questions.push(Box::pin(async move {
                    Answer::Synced(number, look.answer().await.map(|_| ()))
                }));
            }
            Settlement::Ack { tag, multiple } => {
                let options = BasicAckOptions { multiple };
                self.send(tag, multiple, async move {
                    channel.basic_ack(tag, options).await
                });
            }
            Settlement::Back { tag, how } => {
                let requeue = matches!(how, Return::Requeue | Return::Unstarted);
                self.send(tag, false, async move {
                    match how {
                        Return::Requeue | Return::Reject => {
                            let options = BasicRejectOptions { requeue };
                            channel.basic_reject(tag, options).await
                        }
                        Return::Unstarted | Return::DeadLetter => {
                            let options = BasicNackOptions {
                                multiple: false,
                                requeue,
                            };
                            channel.basic_nack(tag, options).await
                        }
                    }
                });
            }
        }
    }

    fn send(
        &mut self,
        tag: u64,
        multiple: bool,
        settlement: impl Future<Output = lapin::Result<()>> + Send + 'static,
    ) {
        for served in &mut self.served {
            served.slots.settled(tag, multiple);
        }
        self.settled = Some(Instant::now());
        self.unwritten.push_back(StartedCall::new(settlement));
    }

    /// Drives the settlements on their way, and waits while there are too many. With `all`, until all are written. If it is dropped
    /// halfway, the next call continues the wait.
    pub(super) async fn write(&mut self, all: bool) -> Result<()> {
        if all {
            self.cancel_at_once();
        }
        loop {
            if let Some(awaited) = &mut self.awaited {
                let written = awaited.await;
                self.awaited = None;
                written?;
            }
            let Some(oldest) = self.unwritten.front_mut() else {
                return Ok(());
            };
            let done = oldest.is_done();
            if !done && !all && self.unwritten.len() <= UNWRITTEN {
                return Ok(());
            }
            if let Some(oldest) = self.unwritten.pop_front() {
                let answer = ask(Operation::Settling, oldest.answer());
                if done {
                    answer.await?;
                } else {
                    self.awaited = Some(Box::pin(answer));
                }
            }
        }
    }

    /// Closes the channel. Unacknowledged messages are requeued.
    pub(super) async fn close(self) {
        if let Some(settled) = self.settled.filter(|_| self.is_open()) {
            sleep_until(settled + LINGER).await;
        }
        self.channel.close().await;
    }
}
