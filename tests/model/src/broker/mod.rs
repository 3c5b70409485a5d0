//! The broker: one value that takes methods and gives frames.

mod consuming;
mod dead_letters;
mod events;
mod operator;
mod publishing;
mod queues;
mod settling;

use crate::connection::{Channel, Connection, Unsettled};
use crate::event_queue::{Event, EventQueue};
use crate::frame::{Delivery, Refusal};
use crate::nondeterminism::{Delay, Nondeterminism, UnknownOutcome};
use crate::queue::{ConsumerKey, Context, Effect, Holder, Queue, QueueId};
use crate::settings::Policy;
use crate::{ConnectionId, Frame, MessageId, Method, Name, Profile};
use lapin::BasicProperties;
use lapin::types::AMQPValue;
use std::collections::BTreeMap;
use std::time::Duration;

pub use operator::QueueView;

/// A model of one RabbitMQ node. See the [crate](crate) for the picture.
#[derive(Debug)]
pub struct Broker {
    profile: Profile,
    nondeterminism: Box<dyn Nondeterminism + Send>,
    now: Duration,
    running: bool,
    alarm: bool,
    connections: Vec<Option<Connection>>,
    queues: Vec<Option<Queue>>,
    names: BTreeMap<Name, QueueId>,
    exchanges: BTreeMap<Name, Exchange>,
    /// By the pattern of the queues' names.
    policies: BTreeMap<Name, Policy>,
    operator_policies: BTreeMap<Name, Policy>,
    event_queue: EventQueue,
    effects: Vec<Effect>,
    next_channel_key: u64,
    next_consumer: u64,
    next_message: u64,
}

/// A direct or a fanout exchange.
#[derive(Debug)]
struct Exchange {
    fanout: bool,
    bindings: Vec<(Name, QueueId)>,
}

/// What comes of a method: nothing to add, or a refusal that costs the channel or the connection.
pub(crate) enum MethodRefused {
    Channel(Refusal),
    Connection(Refusal),
}

impl Broker {
    /// A broker that has just started, at time zero, without a queue.
    pub fn new(profile: Profile, nondeterminism: impl Nondeterminism + Send + 'static) -> Self {
        Broker {
            profile,
            nondeterminism: Box::new(nondeterminism),
            now: Duration::ZERO,
            running: true,
            alarm: false,
            connections: Vec::new(),
            queues: Vec::new(),
            names: BTreeMap::new(),
            exchanges: BTreeMap::new(),
            policies: BTreeMap::new(),
            operator_policies: BTreeMap::new(),
            event_queue: EventQueue::default(),
            effects: Vec::new(),
            next_channel_key: 0,
            next_consumer: 0,
            next_message: 0,
        }
    }

    /// The version and the settings.
    pub fn profile(&self) -> &Profile {
        &self.profile
    }

    /// The time since it was made.
    pub fn now(&self) -> Duration {
        self.now
    }

    /// Opens a connection. `None` while the broker is down.
    pub fn connect(&mut self) -> Option<ConnectionId> {
        self.connect_as(Connection::default())
    }

    /// Opens a connection that speaks the same methods, and is given what only clients of AMQP 1.0 can get. An `x-` header without a value
    /// costs it the connection.
    pub fn connect_amqp10(&mut self) -> Option<ConnectionId> {
        self.connect_as(Connection {
            amqp10: true,
            ..Connection::default()
        })
    }

    fn connect_as(&mut self, connection: Connection) -> Option<ConnectionId> {
        if !self.running {
            return None;
        }
        let id = ConnectionId(u32::try_from(self.connections.len()).unwrap_or(u32::MAX));
        self.connections.push(Some(connection));
        Some(id)
    }

    /// Whether the broker still knows the connection. One that it has closed may have frames to receive all the same.
    pub fn is_open(&self, connection: ConnectionId) -> bool {
        self.connection(connection)
            .is_some_and(|connection| !connection.closed)
    }

    /// The broker reads a method from a connection, and does at once all that takes no time. Methods on a connection or
    /// a channel that is not open are ignored, as are those of a client that has not read yet that it was closed.
    pub fn send(&mut self, connection: ConnectionId, channel: u16, method: Method) {
        if !self.running {
            return;
        }
        match self.connection_mut(connection) {
            Some(known) if known.closed => return,
            Some(known) if known.blocked => {
                known.unread.push_back((channel, method));
                return;
            }
            Some(_) => {}
            None => return,
        }
        self.execute(connection, channel, method);
        self.happen(self.now);
    }

    /// The next frame that the broker has sent on a connection, with its channel. Channel 0 is the connection itself.
    pub fn receive(&mut self, connection: ConnectionId) -> Option<(u16, Frame)> {
        self.connection_mut(connection)?.outbound.pop_front()
    }

    /// How many frames there are to receive.
    pub fn outbound(&self, connection: ConnectionId) -> usize {
        self.connection(connection)
            .map_or(0, |connection| connection.outbound.len())
    }

    /// The network lost the connection, and the broker notices now. What was not received is lost, what its channels
    /// held is given back.
    pub fn cut(&mut self, connection: ConnectionId) {
        self.end_connection(connection);
        if let Some(slot) = self.connections.get_mut(connection.0 as usize) {
            *slot = None;
        }
        self.happen(self.now);
    }

    /// When something happens next by itself; `None` when nothing will.
    pub fn next_event_at(&self) -> Option<Duration> {
        self.event_queue.next_at()
    }

    /// Lets time pass until then, and all happen that is due by then. Time never goes back.
    pub fn advance(&mut self, to: Duration) {
        self.happen(to);
        self.now = self.now.max(to);
    }

    fn execute(&mut self, connection: ConnectionId, channel: u16, method: Method) {
        match method {
            Method::OpenChannel => return self.open_channel(connection, channel),
            Method::CloseConnection => {
                self.end_connection(connection);
                self.push(connection, 0, Frame::ConnectionClosed);
                return;
            }
            _ if self.channel(connection, channel).is_none() => return,
            Method::CloseChannel => {
                self.end_channel(connection, channel);
                self.push(connection, channel, Frame::ChannelClosed);
                return;
            }
            _ => {}
        }
        let done = self.execute_on_channel(connection, channel, method);
        match done {
            Ok(()) => {}
            Err(MethodRefused::Channel(refusal)) => {
                self.end_channel(connection, channel);
                self.push(connection, channel, Frame::CloseChannel(refusal));
            }
            Err(MethodRefused::Connection(refusal)) => {
                self.end_connection(connection);
                self.push(connection, 0, Frame::CloseConnection(refusal));
            }
        }
        self.apply();
    }

    fn execute_on_channel(
        &mut self,
        connection: ConnectionId,
        channel: u16,
        method: Method,
    ) -> Result<(), MethodRefused> {
        match method {
            Method::Qos { prefetch } => {
                if let Some(channel) = self.channel_mut(connection, channel) {
                    channel.prefetch = prefetch;
                }
                self.push(connection, channel, Frame::QosOk);
            }
            Method::SelectConfirms => {
                if let Some(channel) = self.channel_mut(connection, channel) {
                    channel.publishes.get_or_insert(0);
                }
                self.push(connection, channel, Frame::ConfirmsSelected);
            }
            Method::Consume(consume) => self.consume(connection, channel, &consume)?,
            Method::Cancel { tag } => self.cancel(connection, channel, &tag),
            Method::Get { queue, no_ack } => self.get(connection, channel, &queue, no_ack)?,
            Method::Ack { tag, multiple } => self.ack(connection, channel, tag, multiple)?,
            Method::Nack {
                tag,
                multiple,
                requeue,
            } => self.nack(connection, channel, tag, multiple, requeue)?,
            Method::Reject { tag, requeue } => self.reject(connection, channel, tag, requeue)?,
            Method::Recover => self.recover(connection, channel),
            Method::Publish(publish) => self.publish(connection, channel, *publish)?,
            Method::Declare(declare) => self.declare(connection, channel, *declare)?,
            Method::Delete { queue } => self.delete(connection, channel, &queue)?,
            Method::Purge { queue } => self.purge(connection, channel, &queue)?,
            Method::Bind {
                queue,
                exchange,
                key,
            } => self.bind(connection, channel, &queue, &exchange, &key)?,
            Method::OpenChannel | Method::CloseChannel | Method::CloseConnection => {}
        }
        Ok(())
    }

    fn open_channel(&mut self, connection: ConnectionId, channel: u16) {
        if let Some(text) = self.is_one_channel_too_many(connection) {
            self.end_connection(connection);
            let refusal = Refusal { code: 530, text };
            return self.push(connection, 0, Frame::CloseConnection(refusal));
        }
        let key = self.next_channel_key;
        self.next_channel_key += 1;
        if let Some(known) = self.connection_mut(connection) {
            known.channels.entry(channel).or_insert(Channel::new(key));
        }
        self.push(connection, channel, Frame::ChannelOpened);
    }

    fn is_one_channel_too_many(&self, connection: ConnectionId) -> Option<String> {
        let own = self.connection(connection)?.channels.len();
        if let Some(most) = self.profile.channel_max
            && own >= usize::from(most)
        {
            return Some(format!(
                "NOT_ALLOWED - number of channels opened ({own}) has reached the negotiated channel_max ({most})"
            ));
        }
        let most = self.profile.max_channels?;
        let all = self.connections.iter().flatten();
        let all: usize = all.map(|connection| connection.channels.len()).sum();
        (all >= most).then(|| {
            format!(
                "NOT_ALLOWED - number of channels opened for user '{}' has reached the maximum allowed user limit of ({most})",
                self.profile.user
            )
        })
    }

    /// The channel is gone, and what it held goes back. Queues that live as long as their consumers go.
    fn end_channel(&mut self, connection: ConnectionId, channel: u16) {
        let Some(known) = self.connection_mut(connection) else {
            return;
        };
        let Some(ended) = known.channels.remove(&channel) else {
            return;
        };
        for queue in ended.queues {
            self.with_queue(queue, |queue, context| {
                queue.close_channel(context, ended.key);
            });
            self.delete_if_abandoned(queue);
        }
        self.apply();
    }

    fn end_connection(&mut self, connection: ConnectionId) {
        let Some(known) = self.connection_mut(connection) else {
            return;
        };
        known.closed = true;
        known.unread.clear();
        let channels: Vec<u16> = known.channels.keys().copied().collect();
        if channels.len() > 1 && !self.nondeterminism.happens(UnknownOutcome::Bounced) {
            self.retire_consumers(connection);
        }
        for channel in channels {
            self.end_channel(connection, channel);
        }
        let owned = |queue: &&Queue| queue.exclusive == Some(connection);
        let exclusive: Vec<QueueId> = (self.queues.iter().flatten())
            .filter(owned)
            .map(|queue| queue.id)
            .collect();
        for queue in exclusive {
            self.remove_queue(queue);
        }
    }

    /// No channel of the connection gets anything more.
    fn retire_consumers(&mut self, connection: ConnectionId) {
        let Some(known) = self.connection(connection) else {
            return;
        };
        let channels = known.channels.values();
        let pairs: Vec<(u64, QueueId)> = channels
            .flat_map(|channel| channel.queues.iter().map(|queue| (channel.key, *queue)))
            .collect();
        for (key, queue) in pairs {
            if let Some(Some(queue)) = self.queues.get_mut(queue.0 as usize) {
                queue.retire_channel(key);
            }
        }
    }

    /// Lets a queue do something, and sees to it that it is woken for what is due later.
    fn with_queue<T>(
        &mut self,
        id: QueueId,
        act: impl FnOnce(&mut Queue, &mut Context<'_>) -> T,
    ) -> Option<T> {
        let queue = self.queues.get_mut(id.0 as usize)?.as_mut()?;
        let mut context = Context {
            profile: &self.profile,
            now: self.now,
            effects: &mut self.effects,
        };
        let result = act(queue, &mut context);
        if let Some(due) = queue.next_due(self.profile.version)
            && queue.alarm.is_none_or(|alarm| due < alarm)
        {
            queue.alarm = Some(due);
            let at = due.max(self.now) + self.nondeterminism.delay(Delay::Timer);
            self.event_queue.add(at, Event::Look { queue: id });
        }
        Some(result)
    }

    /// Does what queues want done.
    fn apply(&mut self) {
        while !self.effects.is_empty() {
            let mut effects = std::mem::take(&mut self.effects);
            for effect in effects.drain(..) {
                self.apply_one(effect);
            }
            if self.effects.is_empty() {
                self.effects = effects; // its room is used again
            }
        }
    }

    fn apply_one(&mut self, effect: Effect) {
        match effect {
            Effect::Deliver {
                queue,
                to,
                consumer,
                handout,
                message,
                redelivered,
                delivery_count,
                acquired,
            } => {
                let delivery = Delivery {
                    tag: 0,
                    consumer: to.tag.clone(),
                    redelivered,
                    exchange: message.exchange.clone(),
                    routing_key: message.routing_keys[0].clone(),
                    properties: message.outgoing(delivery_count, acquired),
                    body: message.body.clone(),
                    unreadable: message.unreadable,
                    message: message.id,
                };
                self.deliver(&to, (queue, consumer, handout), delivery);
            }
            Effect::Bury {
                queue,
                message,
                reason,
                delivery_count,
            } => self.bury(queue, &message, reason, delivery_count),
            Effect::Carry { queue } => self.carry(queue),
            Effect::End { to } => self.end_consumer(&to),
        }
    }

    fn deliver(
        &mut self,
        to: &Holder,
        (queue, consumer, handout): (QueueId, ConsumerKey, u64),
        mut delivery: Delivery,
    ) {
        let now = self.now;
        let speaks_amqp10 = (self.connection(to.connection)).is_some_and(|known| known.amqp10);
        let Some(channel) = self.channel_mut(to.connection, to.channel) else {
            return;
        };
        let obstructs = if speaks_amqp10 {
            has_annotation_without_value(&delivery.properties)
        } else {
            delivery.unreadable
        };
        if obstructs {
            return self.break_down(to.connection);
        }
        delivery.tag = channel.next_tag;
        channel.next_tag += 1;
        if !to.no_ack {
            channel.unsettled.push_back(Unsettled {
                tag: delivery.tag,
                queue,
                consumer,
                consumer_tag: to.tag.clone(),
                handout,
                since: now,
            });
            self.be_patient(to.connection, to.channel, queue);
        }
        let frame = if to.get {
            delivery.consumer = Name::from("");
            Frame::Got(Box::new(delivery))
        } else {
            Frame::Deliver(Box::new(delivery))
        };
        self.push(to.connection, to.channel, frame);
    }

    /// A channel was to send what it has no type for. Its connection is closed, and what that held goes back.
    fn break_down(&mut self, connection: ConnectionId) {
        self.end_connection(connection);
        let refusal = Refusal {
            code: 541,
            text: "INTERNAL_ERROR".into(),
        };
        self.push(connection, 0, Frame::CloseConnection(refusal));
    }

    fn push(&mut self, connection: ConnectionId, channel: u16, frame: Frame) {
        if let Some(known) = self.connection_mut(connection) {
            known.outbound.push_back((channel, frame));
        }
    }

    fn connection(&self, id: ConnectionId) -> Option<&Connection> {
        self.connections.get(id.0 as usize)?.as_ref()
    }

    fn connection_mut(&mut self, id: ConnectionId) -> Option<&mut Connection> {
        self.connections.get_mut(id.0 as usize)?.as_mut()
    }

    fn channel(&self, connection: ConnectionId, channel: u16) -> Option<&Channel> {
        self.connection(connection)?.channels.get(&channel)
    }

    fn channel_mut(&mut self, connection: ConnectionId, channel: u16) -> Option<&mut Channel> {
        self.connection_mut(connection)?.channels.get_mut(&channel)
    }

    fn queue(&self, id: QueueId) -> Option<&Queue> {
        self.queues.get(id.0 as usize)?.as_ref()
    }

    fn named(&self, name: &str) -> Option<&Queue> {
        self.queue(*self.names.get(name)?)
    }

    fn new_message(&mut self) -> MessageId {
        self.next_message += 1;
        MessageId(self.next_message)
    }

    fn refusal(code: u16, text: String) -> MethodRefused {
        MethodRefused::Channel(Refusal { code, text })
    }

    fn no_queue(&self, queue: &str) -> MethodRefused {
        let vhost = &self.profile.vhost;
        Self::refusal(
            404,
            format!("NOT_FOUND - no queue '{queue}' in vhost '{vhost}'"),
        )
    }
}

/// Whether a header becomes an annotation without a value, which AMQP 1.0 does not allow.
fn has_annotation_without_value(properties: &BasicProperties) -> bool {
    let headers = properties
        .headers()
        .iter()
        .flat_map(|headers| headers.inner());
    let mut annotations = headers.filter(|(name, _)| name.as_str().starts_with("x-"));
    annotations.any(|(_, value)| *value == AMQPValue::Void)
}
