//! A program on the model. It decides what a step means: which delivery tag is settled, which channel is opened.

use crate::layout::Layout;
use crate::observation::{Answer, ChannelObservation, Observation, Seen};
use crate::program::{CHANNELS, Forgery, How, Step};
use retryrmq_model::lapin::BasicProperties;
use retryrmq_model::lapin::types::{AMQPValue, FieldArray, FieldTable};
use retryrmq_model::{
    Broker, ConnectionId, Consume, Declare, Delivery, Frame, Method, Name, Profile, Prompt, Publish,
};
use std::collections::BTreeMap;
use std::time::Duration;

/// Longer than all that waits in a program, and shorter than the patience of a dead-letter worker and with a consumer.
const QUIET: Duration = Duration::from_secs(1);
const PUBLISHER: u16 = 9;

/// What a step amounts to, for a real client to do as well.
#[derive(Clone, Debug)]
#[allow(clippy::large_enum_variant)] // there is one at a time
pub(crate) enum Action {
    Publish {
        queue: String,
        body: String,
        properties: BasicProperties,
    },
    PublishUnreadable {
        queue: String,
        body: String,
    },
    Outlast,
    OpenChannel {
        channel: usize,
        life: usize,
    },
    Consume {
        channel: usize,
        queue: String,
        tag: String,
        prefetch: u16,
        no_ack: bool,
    },
    Cancel {
        channel: usize,
        tag: String,
    },
    Get {
        channel: usize,
        queue: String,
    },
    Settle {
        channel: usize,
        tag: u64,
        multiple: bool,
        how: How,
    },
    Recover {
        channel: usize,
    },
    CloseChannel {
        channel: usize,
    },
    CloseConnection {
        connection: usize,
    },
    Purge {
        queue: String,
    },
    Delete {
        queue: String,
    },
    Declare {
        declare: Declare,
    },
}

/// The model with the clients of a program.
pub(crate) struct Modelled {
    broker: Broker,
    publisher: ConnectionId,
    connections: [Option<ConnectionId>; 2],
    channels: [Option<ChannelLife>; CHANNELS],
    lives: usize,
    bodies: u32,
    tags: u32,
    names: [String; 2],
    declarations: [Declare; 2],
    seen: BTreeMap<usize, ChannelObservation>,
}

#[derive(Default)]
struct ChannelLife {
    number: usize,
    connection: usize,
    consumers: Vec<String>,
    no_ack: Vec<String>,
    unsettled: Vec<u64>,
}

impl Modelled {
    pub(crate) fn new(profile: Profile, layout: &Layout, names: [String; 2]) -> Self {
        let mut broker = Broker::new(profile, Prompt);
        let [user, operator] = layout.policies.clone();
        broker.set_policy(&names[0], Some(user));
        let set = broker.set_operator_policy(&names[0], Some(operator));
        set.expect("operators may");
        let publisher = broker.connect().expect("it runs");
        broker.send(publisher, PUBLISHER, Method::OpenChannel);
        broker.send(publisher, PUBLISHER, Method::SelectConfirms);
        let declarations = layout.declarations(&names[0], &names[1]);
        for declare in &declarations {
            broker.make_queue(declare).expect("it can be declared");
        }
        while broker.receive(publisher).is_some() {}
        Modelled {
            broker,
            publisher,
            connections: [None, None],
            channels: [None, None, None, None],
            lives: 0,
            bodies: 0,
            tags: 0,
            names,
            declarations,
            seen: BTreeMap::new(),
        }
    }

    pub(crate) fn declarations(&self) -> &[Declare; 2] {
        &self.declarations
    }

    /// Does a step and says what it was; nothing when it makes no sense now.
    pub(crate) fn step(&mut self, step: Step) -> Vec<(Action, Answer)> {
        let mut done = Vec::new();
        if let Step::Consume { channel, .. } | Step::Get { channel } = step {
            if !self.exists(channel) {
                return done;
            }
            if self.channels[channel].is_none() {
                done.push((self.open(channel), Answer::Nothing));
            }
        }
        let Some(action) = self.action(step) else {
            return done;
        };
        let answer = self.act(&action);
        let time = match (&action, self.broker.profile().consumer_timeout) {
            (Action::Outlast, Some(timeout)) => timeout + QUIET,
            _ => QUIET,
        };
        self.broker.advance(self.broker.now() + time);
        let answer = self.look(&action, answer);
        done.push((action, answer));
        done
    }

    /// What clients have seen by now.
    pub(crate) fn observation(&self) -> Observation {
        let depth = |name: &String| {
            let view = self.broker.queue_view(name)?;
            u32::try_from(view.ready).ok()
        };
        Observation {
            channels: self.seen.clone(),
            depths: [depth(&self.names[0]), depth(&self.names[1])],
        }
    }

    fn queue_of(&self, channel: usize) -> usize {
        usize::from(channel == CHANNELS - 1)
    }

    fn exists(&self, channel: usize) -> bool {
        let name = &self.names[self.queue_of(channel)];
        self.broker.queue_view(name).is_some()
    }

    fn open(&mut self, channel: usize) -> Action {
        let connection = usize::from(channel >= 2);
        let id = match self.connections[connection] {
            Some(id) => id,
            None => self.broker.connect().expect("it runs"),
        };
        self.connections[connection] = Some(id);
        self.lives += 1;
        self.channels[channel] = Some(ChannelLife {
            number: self.lives,
            connection,
            ..ChannelLife::default()
        });
        self.seen.insert(self.lives, ChannelObservation::default());
        self.broker.send(id, number(channel), Method::OpenChannel);
        Action::OpenChannel {
            channel,
            life: self.lives,
        }
    }

    fn action(&mut self, step: Step) -> Option<Action> {
        Some(match step {
            Step::Publish {
                to_next,
                expires,
                forged,
            } => {
                self.bodies += 1;
                Action::Publish {
                    queue: self.names[usize::from(to_next)].clone(),
                    body: self.bodies.to_string(),
                    properties: properties(expires, forged, &self.names),
                }
            }
            Step::PublishUnreadable { to_next } => {
                self.bodies += 1;
                Action::PublishUnreadable {
                    queue: self.existing(usize::from(to_next))?,
                    body: self.bodies.to_string(),
                }
            }
            Step::Outlast => Action::Outlast,
            Step::Consume {
                channel,
                prefetch,
                no_ack,
            } => {
                self.tags += 1;
                // Tags do not sort in the order in which they are made.
                let tag = format!("{}-{}", (self.tags * 7) % 10, self.tags);
                Action::Consume {
                    channel,
                    queue: self.names[self.queue_of(channel)].clone(),
                    tag,
                    prefetch,
                    no_ack,
                }
            }
            Step::Cancel { channel } => Action::Cancel {
                channel,
                tag: self.channels[channel].as_ref()?.consumers.first()?.clone(),
            },
            Step::Get { channel } => Action::Get {
                channel,
                queue: self.names[self.queue_of(channel)].clone(),
            },
            Step::Settle {
                channel,
                which,
                multiple,
                how,
            } => {
                let unsettled = &self.channels[channel].as_ref()?.unsettled;
                let tag = *unsettled.get(which.checked_rem(unsettled.len())?)?;
                let multiple = multiple && !matches!(how, How::Reject { .. });
                Action::Settle {
                    channel,
                    tag,
                    multiple,
                    how,
                }
            }
            Step::SettleUnknown { channel } => {
                self.channels[channel].as_ref()?;
                Action::Settle {
                    channel,
                    tag: 1000,
                    multiple: false,
                    how: How::Ack,
                }
            }
            Step::Recover { channel } => {
                self.channels[channel].as_ref()?;
                Action::Recover { channel }
            }
            Step::CloseChannel { channel } => {
                self.channels[channel].as_ref()?;
                Action::CloseChannel { channel }
            }
            Step::CloseConnection { connection } => {
                self.connections[connection]?;
                // What one channel of it gives back may or may not pass through another that is about to go.
                let open = self.channels.iter().flatten();
                if open.filter(|life| life.connection == connection).count() > 1 {
                    return None;
                }
                Action::CloseConnection { connection }
            }
            Step::Purge => Action::Purge {
                queue: self.existing(0)?,
            },
            Step::Delete { next } => Action::Delete {
                queue: self.existing(usize::from(next))?,
            },
            Step::Declare { next } => Action::Declare {
                declare: self.declarations[usize::from(next)].clone(),
            },
        })
    }

    fn existing(&self, queue: usize) -> Option<String> {
        let name = &self.names[queue];
        self.broker.queue_view(name).map(|_| name.clone())
    }

    fn act(&mut self, action: &Action) -> Answer {
        match action {
            Action::Publish {
                queue,
                body,
                properties,
            } => {
                let publish = Publish::to_queue(queue, body.as_bytes()).with(properties.clone());
                self.broker.send(
                    self.publisher,
                    PUBLISHER,
                    Method::Publish(Box::new(publish)),
                );
            }
            Action::PublishUnreadable { queue, body } => {
                let publish = Publish::to_queue(queue, body.as_bytes()).unreadable();
                let publish = Method::Publish(Box::new(publish));
                self.broker.send(self.publisher, PUBLISHER, publish);
            }
            Action::OpenChannel { .. } | Action::Outlast => {}
            Action::Consume {
                channel,
                queue,
                tag,
                prefetch,
                no_ack,
            } => {
                let prefetch = *prefetch;
                self.send(*channel, Method::Qos { prefetch });
                if let Some(life) = &mut self.channels[*channel] {
                    life.consumers.push(tag.clone());
                    if *no_ack {
                        life.no_ack.push(tag.clone());
                    }
                }
                let mut consume = Consume::new(queue, tag);
                consume.no_ack = *no_ack;
                self.send(*channel, Method::Consume(consume));
            }
            Action::Cancel { channel, tag } => {
                let tag = Name::from(tag.as_str());
                self.send(*channel, Method::Cancel { tag });
            }
            Action::Get { channel, queue } => {
                let queue = Name::from(queue.as_str());
                let no_ack = false;
                self.send(*channel, Method::Get { queue, no_ack });
            }
            Action::Settle {
                channel,
                tag,
                multiple,
                how,
            } => self.settle(*channel, *tag, *multiple, *how),
            Action::Recover { channel } => {
                self.send(*channel, Method::Recover);
                if let Some(life) = &mut self.channels[*channel] {
                    life.unsettled.clear();
                }
            }
            Action::CloseChannel { channel } => {
                self.send(*channel, Method::CloseChannel);
                if let Some(life) = self.channels[*channel].take() {
                    self.seen.entry(life.number).or_default().left = true;
                }
            }
            Action::CloseConnection { connection } => {
                if let Some(id) = self.connections[*connection].take() {
                    self.broker.cut(id);
                }
                for channel in &mut self.channels {
                    if let Some(life) = channel.take_if(|life| life.connection == *connection) {
                        self.seen.entry(life.number).or_default().left = true;
                    }
                }
            }
            Action::Purge { queue } => {
                let purged = self.broker.purge_queue(queue);
                return Answer::Purged(u32::try_from(purged).unwrap_or(u32::MAX));
            }
            Action::Delete { queue } => {
                self.broker.delete_queue(queue);
            }
            Action::Declare { declare } => {
                self.broker.make_queue(declare).expect("it can be declared");
            }
        }
        Answer::Nothing
    }

    fn settle(&mut self, channel: usize, tag: u64, multiple: bool, how: How) {
        if let Some(life) = &mut self.channels[channel] {
            life.unsettled
                .retain(|other| !(*other == tag || (multiple && *other < tag)));
        }
        let method = match how {
            How::Ack => Method::Ack { tag, multiple },
            How::Nack { requeue } => Method::Nack {
                tag,
                multiple,
                requeue,
            },
            How::Reject { requeue } => Method::Reject { tag, requeue },
        };
        self.send(channel, method);
    }

    fn send(&mut self, channel: usize, method: Method) {
        let life = self.channels[channel].as_ref().expect("it is open");
        let connection = self.connections[life.connection].expect("it is open");
        self.broker.send(connection, number(channel), method);
    }

    /// Reads what the broker has sent.
    fn look(&mut self, action: &Action, mut answer: Answer) -> Answer {
        while let Some((_, frame)) = self.broker.receive(self.publisher) {
            answer = match frame {
                Frame::Return(_) => Answer::Returned,
                Frame::Confirm { stored, .. } if answer == Answer::Nothing => {
                    if stored {
                        Answer::Stored
                    } else {
                        Answer::Refused
                    }
                }
                _ => answer,
            };
        }
        for (place, connection) in self.connections.into_iter().enumerate() {
            while let Some((channel, frame)) =
                connection.and_then(|connection| self.broker.receive(connection))
            {
                match usize::from(channel).checked_sub(1) {
                    Some(channel) => self.see(channel, frame),
                    None => self.see_the_end(place, &frame),
                }
            }
        }
        if let Action::Cancel { channel, tag } = action
            && let Some(life) = &mut self.channels[*channel]
        {
            life.consumers.retain(|other| other != tag);
        }
        answer
    }

    /// Whether the broker has closed a connection.
    fn see_the_end(&mut self, connection: usize, frame: &Frame) {
        if !matches!(frame, Frame::CloseConnection(_)) {
            return;
        }
        self.connections[connection] = None;
        for channel in &mut self.channels {
            if let Some(life) = channel.take_if(|life| life.connection == connection) {
                self.seen.entry(life.number).or_default().closed = true;
            }
        }
    }

    fn see(&mut self, channel: usize, frame: Frame) {
        let Some(life) = &mut self.channels[channel] else {
            return;
        };
        let observation = self.seen.entry(life.number).or_default();
        match frame {
            Frame::Deliver(delivery) | Frame::Got(delivery) => {
                if !life.no_ack.iter().any(|tag| **tag == *delivery.consumer) {
                    life.unsettled.push(delivery.tag);
                }
                observation.deliveries.insert(delivery.tag, seen(&delivery));
            }
            Frame::Cancel { tag } | Frame::CancelOk { tag } => {
                life.consumers.retain(|other| **other != *tag);
                observation.ended.insert(tag.to_string());
            }
            Frame::CloseChannel(_) => {
                observation.closed = true;
                self.channels[channel] = None;
            }
            _ => {}
        }
    }
}

fn number(channel: usize) -> u16 {
    u16::try_from(channel + 1).expect("few channels")
}

fn seen(delivery: &Delivery) -> Seen {
    Seen {
        consumer: delivery.consumer.to_string(),
        redelivered: delivery.redelivered,
        exchange: delivery.exchange.to_string(),
        routing_key: delivery.routing_key.to_string(),
        body: String::from_utf8_lossy(&delivery.body).into(),
        properties: (*delivery.properties).clone(),
    }
    .timeless()
}

fn properties(expires: bool, forged: Forgery, names: &[String; 2]) -> BasicProperties {
    let mut headers = FieldTable::default();
    let text = |text: &str| AMQPValue::LongString(text.into());
    headers.insert("kept".into(), text("as it is"));
    match forged {
        Forgery::None => {}
        Forgery::Counts => {
            for name in ["x-delivery-count", "x-acquired-count"] {
                headers.insert(name.into(), AMQPValue::LongLongInt(77));
            }
        }
        Forgery::DeathsAsText => {
            headers.insert("x-death".into(), text("of old age"));
        }
        Forgery::Deaths => {
            let death = |queue: &str, reason: &str| {
                let mut death = FieldTable::default();
                death.insert("queue".into(), text(queue));
                death.insert("reason".into(), text(reason));
                death.insert("exchange".into(), text(""));
                death.insert("count".into(), AMQPValue::LongLongInt(41));
                let keys = FieldArray::from(vec![text(queue)]);
                death.insert("routing-keys".into(), AMQPValue::FieldArray(keys));
                AMQPValue::FieldTable(death)
            };
            let deaths = vec![death(&names[1], "expired"), death(&names[0], "rejected")];
            headers.insert(
                "x-death".into(),
                AMQPValue::FieldArray(FieldArray::from(deaths)),
            );
        }
    }
    let properties = BasicProperties::default()
        .with_headers(headers)
        .with_delivery_mode(2);
    if expires {
        properties.with_expiration("60".into())
    } else {
        properties
    }
}
