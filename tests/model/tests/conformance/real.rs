//! A program on a real broker.

use crate::modelled::Action;
use crate::observation::{Answer, ChannelObservation, Observation, Seen};
use crate::program::{CHANNELS, How};
use futures_util::StreamExt;
use retryrmq_harness::lapin::message::Delivery;
use retryrmq_harness::lapin::options::{
    BasicAckOptions, BasicCancelOptions, BasicConsumeOptions, BasicGetOptions, BasicNackOptions,
    BasicPublishOptions, BasicQosOptions, BasicRecoverOptions, BasicRejectOptions,
    ConfirmSelectOptions, QueueDeclareOptions, QueueDeleteOptions, QueuePurgeOptions,
};
use retryrmq_harness::lapin::types::FieldTable;
use retryrmq_harness::lapin::{
    Channel, Connection, ConnectionProperties, Consumer, Error, ErrorKind,
};
use retryrmq_harness::{Amqp10, Message10, Value10, Vhost};
use retryrmq_model::{Declare, Policy};
use serde_json::json;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::time::{sleep, timeout};

/// How long a broker may take to answer.
const DEADLINE: Duration = Duration::from_secs(30);

/// Connections, which outlive a program.
pub(crate) struct Clients {
    vhost: Arc<Vhost>,
    house: Connection,
    connections: [Option<Connection>; 2],
}

impl Clients {
    /// Connects.
    pub(crate) async fn new(vhost: Arc<Vhost>) -> Self {
        let house = connect(&vhost).await;
        Clients {
            vhost,
            house,
            connections: [None, None],
        }
    }
}

/// The channels of a program: a publisher, two that look, and its own.
pub(crate) struct Real {
    clients: Clients,
    publisher: Channel,
    watchers: [Channel; 2],
    channels: [Option<(usize, Channel)>; CHANNELS],
    names: [String; 2],
    seen: Arc<Mutex<BTreeMap<usize, ChannelObservation>>>,
    /// A channel whose consumer nobody could ask what it had got.
    blind: Option<usize>,
}

impl Real {
    /// Opens a publisher and the watchers.
    pub(crate) async fn new(clients: Clients, names: [String; 2]) -> Self {
        let publisher = open(&clients.house).await;
        soon(publisher.confirm_select(ConfirmSelectOptions::default()))
            .await
            .expect("publishes are confirmed");
        let watchers = [open(&clients.house).await, open(&clients.house).await];
        Real {
            clients,
            publisher,
            watchers,
            channels: [const { None }; CHANNELS],
            names,
            seen: Arc::default(),
            blind: None,
        }
    }

    /// Sets the policies of a program, and declares its queues.
    pub(crate) async fn prepare(&mut self, declarations: &[Declare; 2], policies: &[Policy; 2]) {
        for (kind, policy) in ["policies", "operator-policies"].into_iter().zip(policies) {
            self.set_policy(kind, policy).await;
        }
        for declare in declarations {
            self.declare(declare).await;
        }
    }

    async fn set_policy(&self, kind: &str, policy: &Policy) {
        let mut definition = serde_json::Map::new();
        if let Some(length) = policy.max_length {
            definition.insert("max-length".into(), json!(length));
        }
        if let Some(limit) = policy.delivery_limit {
            definition.insert("delivery-limit".into(), json!(limit));
        }
        if let Some(reject) = policy.reject_publish {
            let overflow = if reject {
                "reject-publish"
            } else {
                "drop-head"
            };
            definition.insert("overflow".into(), json!(overflow));
        }
        if let Some(time) = policy.message_ttl {
            let milliseconds = u64::try_from(time.as_millis()).expect("a short time");
            definition.insert("message-ttl".into(), json!(milliseconds));
        }
        if let Some(retry) = &policy.delayed_retry_type {
            definition.insert("delayed-retry-type".into(), json!(retry));
        }
        if definition.is_empty() {
            return;
        }
        let (vhost, name) = (&self.clients.vhost, &self.names[0]);
        let rules = json!({ "pattern": format!("^{name}$"), "apply-to": "queues", "definition": definition });
        let path = format!("{kind}/{}/{name}", vhost.name());
        let management = vhost.broker().management();
        management
            .put(path, rules)
            .await
            .expect("the policy is set");
    }

    /// Takes everything away but the connections.
    pub(crate) async fn clean_up(mut self) -> Clients {
        for name in &self.names {
            let delete =
                (self.publisher).queue_delete(name.as_str().into(), QueueDeleteOptions::default());
            soon(delete).await.expect("it is deleted");
        }
        for slot in &mut self.channels {
            if let Some((_, channel)) = slot.take() {
                close(&channel).await;
            }
        }
        for channel in self.watchers.iter().chain([&self.publisher]) {
            close(channel).await;
        }
        self.clients
    }

    /// Does what the model did.
    pub(crate) async fn act(&mut self, action: &Action) -> Answer {
        match action {
            Action::Publish {
                queue,
                body,
                properties,
            } => {
                let options = BasicPublishOptions {
                    mandatory: true,
                    ..Default::default()
                };
                let publish = self.publisher.basic_publish(
                    "".into(),
                    queue.as_str().into(),
                    options,
                    body.as_bytes(),
                    properties.clone(),
                );
                let confirm = soon(publish).await.expect("it is sent");
                let confirm = soon(confirm).await.expect("it is confirmed");
                let stored = confirm.is_ack();
                return match confirm.take_message() {
                    Some(_) => Answer::Returned,
                    None if stored => Answer::Stored,
                    None => Answer::Refused,
                };
            }
            Action::PublishUnreadable { queue, body } => {
                return self.publish_unreadable(queue, body).await;
            }
            Action::Outlast => self.outlast().await,
            Action::OpenChannel { channel, life } => self.open(*channel, *life).await,
            Action::Consume {
                channel,
                queue,
                tag,
                prefetch,
                no_ack,
            } => self.consume(*channel, queue, tag, *prefetch, *no_ack).await,
            Action::Cancel { channel, tag } => {
                let tag = tag.as_str().into();
                let cancel = self
                    .channel(*channel)
                    .basic_cancel(tag, BasicCancelOptions::default());
                soon(cancel).await.expect("it is cancelled");
            }
            Action::Get { channel, queue } => self.get(*channel, queue).await,
            Action::Settle {
                channel,
                tag,
                multiple,
                how,
            } => self.settle(*channel, *tag, *multiple, *how).await,
            Action::Recover { channel } => {
                let recover = BasicRecoverOptions { requeue: true };
                soon(self.channel(*channel).basic_recover(recover))
                    .await
                    .expect("it is recovered");
            }
            Action::CloseChannel { channel } => {
                if let Some((life, channel)) = self.channels[*channel].take() {
                    self.stop_watching(life);
                    close(&channel).await;
                }
            }
            Action::CloseConnection { connection } => self.close_connection(*connection).await,
            Action::Purge { queue } => {
                let purge = self
                    .publisher
                    .queue_purge(queue.as_str().into(), QueuePurgeOptions::default());
                return Answer::Purged(soon(purge).await.expect("it is purged"));
            }
            Action::Delete { queue } => {
                let delete = self
                    .publisher
                    .queue_delete(queue.as_str().into(), QueueDeleteOptions::default());
                soon(delete).await.expect("it is deleted");
            }
            Action::Declare { declare } => self.declare(declare).await,
        }
        Answer::Nothing
    }

    /// Takes the model's word for what nobody could see.
    pub(crate) fn believe(&mut self, model: &Observation) {
        if let Some(life) = self.blind.take()
            && let Some(observation) = model.channels.get(&life)
        {
            let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
            seen.entry(life).or_default().deliveries = observation.deliveries.clone();
        }
    }

    /// What clients have seen by now.
    pub(crate) async fn observation(&mut self) -> Observation {
        for slot in &mut self.channels {
            if let Some((life, channel)) = slot
                && !channel.status().connected()
            {
                let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
                seen.entry(*life).or_default().closed = true;
                *slot = None;
            }
        }
        let [first, second] = &mut self.watchers;
        let house = &self.clients.house;
        let (first, second) = tokio::join!(
            depth(house, first, &self.names[0]),
            depth(house, second, &self.names[1])
        );
        let depths = [first, second];
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        Observation {
            channels: seen.clone(),
            depths,
        }
    }

    /// A UUID has no counterpart in AMQP 0-9-1 (94).
    async fn publish_unreadable(&self, queue: &str, body: &str) -> Answer {
        let mut amqp10 = soon(Amqp10::connect(&self.clients.vhost)).await;
        let uuid = Value10::Uuid([7; 16]);
        let message = Message10::new(body).application(Value10::string("name"), uuid);
        let address = format!("/queues/{queue}");
        match soon(amqp10.try_publish(&address, &message)).await {
            Ok(()) => Answer::Stored,
            Err(_) => Answer::Refused,
        }
    }

    /// Waits until the broker has lost its patience with a delivery that came after all others.
    async fn outlast(&self) {
        let name = format!("beside-{}", self.names[0]);
        let name = name.as_str();
        let kind = retryrmq_model::QueueType::Quorum;
        self.declare(&Declare::durable(name, kind)).await;
        let published = self.publisher.basic_publish(
            "".into(),
            name.into(),
            BasicPublishOptions::default(),
            b"",
            Default::default(),
        );
        soon(soon(published).await.expect("it is sent"))
            .await
            .expect("it is confirmed");
        let channel = open(&self.clients.house).await;
        let (options, arguments) = (BasicConsumeOptions::default(), FieldTable::default());
        let consume = channel.basic_consume(name.into(), "beside".into(), options, arguments);
        let mut consumer = soon(consume).await.expect("it is consumed");
        while let Some(Ok(_)) = soon(consumer.next()).await {}
        let delete = (self.publisher).queue_delete(name.into(), QueueDeleteOptions::default());
        soon(delete).await.expect("it is deleted");
        close(&channel).await;
    }

    async fn open(&mut self, channel: usize, life: usize) {
        let connection = usize::from(channel >= 2);
        let is_open = |connection: &mut Connection| connection.status().connected();
        let kept = self.clients.connections[connection].take_if(is_open);
        self.clients.connections[connection] = kept;
        if self.clients.connections[connection].is_none() {
            self.clients.connections[connection] = Some(connect(&self.clients.vhost).await);
        }
        if let Some(connection) = &self.clients.connections[connection] {
            self.channels[channel] = Some((life, open(connection).await));
        }
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.entry(life).or_default();
    }

    async fn consume(
        &mut self,
        channel: usize,
        queue: &str,
        tag: &str,
        prefetch: u16,
        no_ack: bool,
    ) {
        let life = self.channels[channel].as_ref().map_or(0, |(life, _)| *life);
        let channel = self.channel(channel);
        soon(channel.basic_qos(prefetch, BasicQosOptions::default()))
            .await
            .expect("prefetch is accepted");
        let options = BasicConsumeOptions {
            no_ack,
            ..Default::default()
        };
        let consume =
            channel.basic_consume(queue.into(), tag.into(), options, FieldTable::default());
        let consumer = match soon(consume).await {
            // The client hears of the end before it hands out the consumer.
            Err(error) if code(&error) == Some(541) => {
                self.blind = Some(life);
                return;
            }
            consumer => consumer.expect("it is consumed"),
        };
        tokio::spawn(watch(consumer, life, tag.to_owned(), self.seen.clone()));
    }

    async fn get(&mut self, channel: usize, queue: &str) {
        let life = self.channels[channel].as_ref().map_or(0, |(life, _)| *life);
        let get = self
            .channel(channel)
            .basic_get(queue.into(), BasicGetOptions::default());
        let got = match soon(get).await {
            Err(error) if code(&error) == Some(541) => return, // it is unreadable
            got => got.expect("basic.get is allowed"),
        };
        if let Some(got) = got {
            let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
            let observation = seen.entry(life).or_default();
            observation
                .deliveries
                .insert(got.delivery.delivery_tag, of(&got.delivery, ""));
        }
    }

    async fn settle(&self, channel: usize, tag: u64, multiple: bool, how: How) {
        let channel = self.channel(channel);
        let sent = match how {
            How::Ack => soon(channel.basic_ack(tag, BasicAckOptions { multiple })).await,
            How::Nack { requeue } => {
                let options = BasicNackOptions { multiple, requeue };
                soon(channel.basic_nack(tag, options)).await
            }
            How::Reject { requeue } => {
                soon(channel.basic_reject(tag, BasicRejectOptions { requeue })).await
            }
        };
        sent.expect("it is sent");
    }

    async fn close_connection(&mut self, connection: usize) {
        let mut open = Vec::new(); // a channel that is dropped closes itself, at the wrong time
        for number in 0..CHANNELS {
            if usize::from(number >= 2) == connection
                && let Some((life, channel)) = self.channels[number].take()
            {
                self.stop_watching(life);
                open.push(channel);
            }
        }
        if let Some(connection) = self.clients.connections[connection].take() {
            soon(connection.close(200, "".into()))
                .await
                .expect("it closes");
        }
    }

    async fn declare(&self, declare: &Declare) {
        let name: &str = &declare.queue;
        let arguments = declare.arguments.clone();
        let declared =
            (self.publisher).queue_declare(name.into(), QueueDeclareOptions::durable(), arguments);
        soon(declared).await.expect("it is declared");
    }

    /// What a channel sees while it is closed at our wish is nobody's business.
    fn stop_watching(&self, life: usize) {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.entry(life).or_default().left = true;
    }

    fn channel(&self, channel: usize) -> &Channel {
        let (_, channel) = self.channels[channel].as_ref().expect("it is open");
        channel
    }
}

/// Writes down what a consumer gets, until its end.
async fn watch(
    mut consumer: Consumer,
    life: usize,
    tag: String,
    seen: Arc<Mutex<BTreeMap<usize, ChannelObservation>>>,
) {
    while let Some(next) = consumer.next().await {
        let Ok(delivery) = next else { return };
        let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
        let observation = seen.entry(life).or_default();
        if observation.left {
            return;
        }
        observation
            .deliveries
            .insert(delivery.delivery_tag, of(&delivery, &tag));
    }
    let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
    let observation = seen.entry(life).or_default();
    if !observation.left {
        observation.ended.insert(tag);
    }
}

fn of(delivery: &Delivery, consumer: &str) -> Seen {
    Seen {
        consumer: consumer.to_owned(),
        redelivered: delivery.redelivered,
        exchange: delivery.exchange.to_string(),
        routing_key: delivery.routing_key.to_string(),
        body: String::from_utf8_lossy(&delivery.data).into(),
        properties: delivery.properties.clone(),
    }
    .timeless()
}

/// How many messages are ready; `None` where there is no such queue, which costs the channel.
async fn depth(house: &Connection, watcher: &mut Channel, queue: &str) -> Option<u32> {
    let passive = QueueDeclareOptions {
        passive: true,
        ..Default::default()
    };
    let look = watcher.queue_declare(queue.into(), passive, FieldTable::default());
    match soon(look).await {
        Ok(queue) => Some(queue.message_count()),
        Err(error) if code(&error) == Some(404) => {
            while watcher.status().connected() {
                sleep(Duration::from_millis(1)).await;
            }
            *watcher = open(house).await;
            None
        }
        Err(error) => panic!("a look fails: {error}"),
    }
}

async fn open(connection: &Connection) -> Channel {
    soon(connection.create_channel())
        .await
        .expect("a channel opens")
}

/// A channel that the broker is closing refuses to be closed, and closes.
async fn close(channel: &Channel) {
    let _ = soon(channel.close(200, "".into())).await;
    while channel.status().connected() {
        sleep(Duration::from_millis(1)).await;
    }
}

async fn connect(vhost: &Vhost) -> Connection {
    soon(Connection::connect(
        vhost.url(),
        ConnectionProperties::default(),
    ))
    .await
    .expect("the broker lets us in")
}

fn code(error: &Error) -> Option<u16> {
    match error.kind() {
        ErrorKind::ProtocolError(error) => Some(error.get_id()),
        _ => None,
    }
}

async fn soon<T>(answer: impl Future<Output = T>) -> T {
    timeout(DEADLINE, answer).await.expect("the broker answers")
}
