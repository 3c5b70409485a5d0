//! One publisher of each protocol.

use std::collections::HashSet;

use retryrmq_harness::{
    Amqp, Amqp10, Class, Message10, Mqtt, MqttMessage, RandomMessages, Stomp, StompMessage,
    Value10, Vhost,
    lapin::{
        BasicProperties, ExchangeKind,
        options::{ExchangeBindOptions, ExchangeDeclareOptions, QueueBindOptions},
        types::{AMQPValue, FieldTable},
    },
    random_messages::token,
};

/// What somebody publishes with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protocol {
    Amqp10,
    Mqtt,
    Stomp,
    /// An ordinary message, which the others must not block.
    Amqp091,
}

impl Protocol {
    pub(crate) const ALL: [Self; 4] = [Self::Amqp10, Self::Mqtt, Self::Stomp, Self::Amqp091];

    /// Of the message with this number. What handlers do with it depends on its last bits, so these do not count here.
    pub(crate) fn of(number: u32) -> Self {
        match number / 4 % 12 {
            0..6 => Self::Amqp10,
            6..8 => Self::Mqtt,
            8..10 => Self::Stomp,
            _ => Self::Amqp091,
        }
    }
}

/// Where messages are published to.
#[derive(Clone, Copy)]
pub(crate) enum Target {
    Queue(&'static str),
    /// An exchange and a routing key. Half of the messages say how long they are to wait.
    Delayed(&'static str, &'static str),
}

/// How many messages of all protocols are published before the next protocol has its turn.
const TURN: u32 = 240;
const TOPIC: &str = "amq.topic";

/// Random messages from one seed, of which some have more in them.
#[derive(Clone, Copy)]
pub(crate) struct Mixture {
    pub(crate) seed: u64,
    pub(crate) usual: Class,
    pub(crate) rare: Class,
    /// One in so many is rare.
    pub(crate) one_in: u32,
}

impl Mixture {
    fn of(self, number: u32) -> RandomMessages {
        // What happens to a message depends on its last bits, so these do not choose here.
        let is_rare = (number.wrapping_mul(0x9e37_79b1) >> 16).is_multiple_of(self.one_in);
        RandomMessages {
            class: if is_rare { self.rare } else { self.usual },
            seed: self.seed,
        }
    }
}

pub(crate) struct Publishers<'v> {
    vhost: &'v Vhost,
    target: Target,
    messages: Mixture,
    amqp10: Amqp10,
    amqp: Amqp,
    mqtt: Mqtt,
    stomp: Stomp,
}

impl<'v> Publishers<'v> {
    pub(crate) async fn connect(vhost: &'v Vhost, target: Target, messages: Mixture) -> Self {
        let amqp = vhost.connect().await;
        // A publisher of MQTT reaches queues through this exchange alone.
        match target {
            Target::Queue(queue) => bind_queue(&amqp, queue, TOPIC, queue).await,
            Target::Delayed(exchange, key) => bind_exchange(&amqp, exchange, key).await,
        }
        Self {
            vhost,
            target,
            messages,
            amqp10: Amqp10::connect(vhost).await,
            amqp,
            mqtt: Mqtt::connect(vhost).await,
            stomp: Stomp::connect(vhost).await,
        }
    }

    /// Publishes the messages with the numbers below `count`, and waits until the broker has answered. Returns those that it refused.
    pub(crate) async fn publish(&mut self, count: u32) -> HashSet<u32> {
        let mut refused = HashSet::new();
        for first in (0..count).step_by(TURN as usize) {
            for protocol in Protocol::ALL {
                let all = first..count.min(first + TURN);
                let own: Vec<u32> = all.filter(|one| Protocol::of(*one) == protocol).collect();
                self.publish_by(protocol, &own, &mut refused).await;
            }
        }
        refused
    }

    async fn publish_by(
        &mut self,
        protocol: Protocol,
        numbers: &[u32],
        refused: &mut HashSet<u32>,
    ) {
        if self.try_publish(protocol, numbers).await.is_ok() {
            return;
        }
        // One of them is refused, and perhaps the connection is gone: again, one after the other.
        for number in numbers {
            self.connect_again(protocol).await;
            if let Err(why) = self.try_publish(protocol, &[*number]).await {
                println!("  {protocol:?} {number} is refused: {why}");
                refused.insert(*number);
            }
        }
    }

    async fn connect_again(&mut self, protocol: Protocol) {
        match protocol {
            Protocol::Amqp10 => self.amqp10 = Amqp10::connect(self.vhost).await,
            Protocol::Mqtt => self.mqtt = Mqtt::connect(self.vhost).await,
            Protocol::Stomp => self.stomp = Stomp::connect(self.vhost).await,
            Protocol::Amqp091 => self.amqp = self.vhost.connect().await,
        }
    }

    async fn try_publish(&mut self, protocol: Protocol, numbers: &[u32]) -> Result<(), String> {
        match (protocol, self.target) {
            (Protocol::Amqp10, target) => {
                let all: Vec<_> = numbers.iter().map(|one| self.amqp10(*one)).collect();
                let address = match target {
                    Target::Queue(queue) => format!("/queues/{queue}"),
                    Target::Delayed(exchange, key) => format!("/exchanges/{exchange}/{key}"),
                };
                let published = self.amqp10.try_publish_all(&address, &all).await;
                published.map_err(|refused| refused.to_string())
            }
            (Protocol::Mqtt, Target::Queue(topic) | Target::Delayed(_, topic)) => {
                let all: Vec<_> = numbers.iter().map(|one| self.mqtt(*one)).collect();
                let topic = topic.replace('.', "/");
                self.mqtt.try_publish_all(&topic, &all).await
            }
            (Protocol::Stomp, target) => {
                let all: Vec<_> = numbers.iter().map(|one| self.stomp(*one)).collect();
                let destination = match target {
                    Target::Queue(queue) => format!("/amq/queue/{queue}"),
                    Target::Delayed(exchange, key) => format!("/exchange/{exchange}/{key}"),
                };
                self.stomp.try_publish_all(&destination, &all).await
            }
            (Protocol::Amqp091, _) => {
                for number in numbers {
                    self.publish_ordinary(*number).await;
                }
                Ok(())
            }
        }
    }

    fn amqp10(&self, number: u32) -> Message10 {
        let message = self.messages.of(number).amqp10(number);
        match self.delay(number) {
            Some(delay) => {
                message.application(Value10::string("x-delay"), Value10::Long(delay.into()))
            }
            None => message,
        }
    }

    fn mqtt(&self, number: u32) -> MqttMessage {
        let message = self.messages.of(number).mqtt(number);
        match self.delay(number) {
            Some(delay) => message.user("x-delay", &delay.to_string()),
            None => message,
        }
    }

    fn stomp(&self, number: u32) -> StompMessage {
        let message = self.messages.of(number).stomp(number);
        match self.delay(number) {
            Some(delay) => message.header("x-delay", &delay.to_string()),
            None => message,
        }
    }

    async fn publish_ordinary(&self, number: u32) {
        let mut headers = FieldTable::default();
        if let Some(delay) = self.delay(number) {
            headers.insert("x-delay".into(), AMQPValue::LongUInt(delay));
        }
        let properties = BasicProperties::default().with_headers(headers);
        let (exchange, key) = match self.target {
            Target::Queue(queue) => ("", queue),
            Target::Delayed(exchange, key) => (exchange, key),
        };
        self.amqp
            .publish_to(exchange, key, token(number), properties)
            .await;
    }

    fn delay(&self, number: u32) -> Option<u32> {
        let is_delayed = matches!(self.target, Target::Delayed(..)) && number.is_multiple_of(2);
        is_delayed.then_some(number % 400)
    }
}

pub(crate) async fn declare_exchange(amqp: &Amqp, exchange: &str) {
    let durable = ExchangeDeclareOptions {
        durable: true,
        ..ExchangeDeclareOptions::default()
    };
    let channel = amqp.channel();
    let kind = ExchangeKind::Topic;
    let declared = channel.exchange_declare(exchange.into(), kind, durable, FieldTable::default());
    declared.await.expect("the exchange is declared");
}

pub(crate) async fn bind_queue(amqp: &Amqp, queue: &str, exchange: &str, key: &str) {
    let (options, arguments) = (QueueBindOptions::default(), FieldTable::default());
    let channel = amqp.channel();
    let bound = channel.queue_bind(
        queue.into(),
        exchange.into(),
        key.into(),
        options,
        arguments,
    );
    bound.await.expect("the queue is bound");
}

async fn bind_exchange(amqp: &Amqp, exchange: &str, key: &str) {
    let (options, arguments) = (ExchangeBindOptions::default(), FieldTable::default());
    let channel = amqp.channel();
    let bound = channel.exchange_bind(
        exchange.into(),
        TOPIC.into(),
        key.into(),
        options,
        arguments,
    );
    bound.await.expect("the exchange is bound");
}
