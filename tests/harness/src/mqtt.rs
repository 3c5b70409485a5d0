//! A publisher that speaks MQTT 5, on a node with the plugin `rabbitmq_mqtt`. Packets are written by hand, so that a message may
//! contain anything.

use crate::Vhost;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use url::Url;

const DEADLINE: Duration = Duration::from_secs(60);
/// How many messages are sent before the broker has answered.
const AT_ONCE: usize = 10;

const CONNECT: u8 = 0x10;
const CONNACK: u8 = 0x20;
const PUBLISH_ONCE_OR_MORE: u8 = 0x32;
const PUBACK: u8 = 0x40;
/// Codes from here on are failures.
const FAILURE: u8 = 0x80;

/// A message of MQTT 5, which is published with QoS 1.
#[derive(Clone, Debug, Default)]
pub struct MqttMessage {
    body: Vec<u8>,
    properties: Vec<u8>,
}

impl MqttMessage {
    /// A message with this body.
    pub fn new(body: impl Into<Vec<u8>>) -> Self {
        Self {
            body: body.into(),
            properties: Vec::new(),
        }
    }

    /// Says whether the body is text.
    #[must_use]
    pub fn text(mut self, is_text: bool) -> Self {
        self.properties.extend([0x01, u8::from(is_text)]);
        self
    }

    /// Sets the message expiry interval, in seconds.
    #[must_use]
    pub fn expires_after(mut self, seconds: u32) -> Self {
        self.properties.push(0x02);
        self.properties.extend(seconds.to_be_bytes());
        self
    }

    /// Sets the content type.
    #[must_use]
    pub fn content_type(self, text: &str) -> Self {
        self.sized(0x03, text.as_bytes())
    }

    /// Sets the response topic.
    #[must_use]
    pub fn response_topic(self, topic: &str) -> Self {
        self.sized(0x08, topic.as_bytes())
    }

    /// Sets the correlation data.
    #[must_use]
    pub fn correlation(self, bytes: &[u8]) -> Self {
        self.sized(0x09, bytes)
    }

    /// Adds a user property. The same name may be added again.
    #[must_use]
    pub fn user(mut self, name: &str, value: &str) -> Self {
        self = self.sized(0x26, name.as_bytes());
        self.properties.extend(sized(value.as_bytes()));
        self
    }

    fn sized(mut self, code: u8, bytes: &[u8]) -> Self {
        self.properties.push(code);
        self.properties.extend(sized(bytes));
        self
    }
}

/// A connection.
#[derive(Debug)]
pub struct Mqtt {
    stream: TcpStream,
    published: u16,
}

impl Mqtt {
    /// Connects to a vhost of a node with the plugin, as the user of its URL.
    ///
    /// # Panics
    /// If the broker does not let us in.
    pub async fn connect(vhost: &Vhost) -> Self {
        let url = Url::parse(vhost.url()).expect("a vhost has a URL");
        let stream = TcpStream::connect(vhost.broker().mqtt()).await;
        let mut connection = Self {
            stream: stream.expect("the port is open"),
            published: 0,
        };
        let user = format!("{}:{}", vhost.name(), url.username());
        let client = format!("harness-{:x}", fastrand::u64(..));
        let mut body = sized(b"MQTT");
        // Version 5; with a user, a password and a clean start; alive without ever saying so; no properties.
        body.extend([5, 0b1100_0010, 0, 0, 0]);
        body.extend(sized(client.as_bytes()));
        body.extend(sized(user.as_bytes()));
        body.extend(sized(url.password().unwrap_or_default().as_bytes()));
        connection.send(CONNECT, &body).await;
        let answer = connection.next(CONNACK).await;
        let answer = answer.expect("the broker answers");
        assert_eq!(answer.get(1), Some(&0), "the user is refused: {answer:?}");
        connection
    }

    /// Publishes to a topic, and waits until the broker has taken all messages.
    ///
    /// # Panics
    /// If it does not take one.
    pub async fn publish_all(&mut self, topic: &str, messages: &[MqttMessage]) {
        let published = self.try_publish_all(topic, messages).await;
        published.unwrap_or_else(|says| panic!("{says}"));
    }

    /// As [`publish_all`](Self::publish_all), with what the broker says if it does not take one. Publish no more after that.
    pub async fn try_publish_all(
        &mut self,
        topic: &str,
        messages: &[MqttMessage],
    ) -> Result<(), String> {
        for some in messages.chunks(AT_ONCE) {
            for message in some {
                self.published = self.published % u16::MAX + 1;
                let mut body = sized(topic.as_bytes());
                body.extend(self.published.to_be_bytes());
                body.extend(variable(message.properties.len()));
                body.extend(&message.properties);
                body.extend(&message.body);
                self.send(PUBLISH_ONCE_OR_MORE, &body).await;
            }
            for _ in some {
                let answer = self.next(PUBACK).await?;
                match answer.get(2) {
                    Some(code) if *code >= FAILURE => return Err(format!("{answer:x?}")),
                    _ => {}
                }
            }
        }
        Ok(())
    }

    async fn send(&mut self, kind: u8, body: &[u8]) {
        let packet = [&[kind], &variable(body.len())[..], body].concat();
        // Who has closed the connection says why in what is read next.
        let _ = self.stream.write_all(&packet).await;
    }

    /// The body of the next packet, which is of this kind.
    async fn next(&mut self, kind: u8) -> Result<Vec<u8>, String> {
        let packet = timeout(DEADLINE, self.packet()).await;
        let packet = packet.unwrap_or_else(|_| panic!("no answer 0x{kind:x}"));
        match packet {
            Ok((is, body)) if is & 0xf0 == kind => Ok(body),
            Ok((is, body)) => Err(format!("the broker answers 0x{is:x}: {body:x?}")),
            Err(error) => Err(format!("the broker ended the connection: {error}")),
        }
    }

    async fn packet(&mut self) -> std::io::Result<(u8, Vec<u8>)> {
        let kind = self.stream.read_u8().await?;
        let (mut size, mut shift) = (0, 0);
        loop {
            let byte = self.stream.read_u8().await?;
            size |= usize::from(byte & 0x7f) << shift;
            shift += 7;
            if byte < 0x80 {
                break;
            }
        }
        let mut body = vec![0; size];
        self.stream.read_exact(&mut body).await?;
        Ok((kind, body))
    }
}

/// Bytes behind their length.
fn sized(bytes: &[u8]) -> Vec<u8> {
    let length = u16::try_from(bytes.len()).expect("it is short");
    [&length.to_be_bytes()[..], bytes].concat()
}

/// A number in as many bytes as it needs.
fn variable(mut number: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    loop {
        let low = u8::try_from(number & 0x7f).expect("seven bits");
        number >>= 7;
        if number == 0 {
            bytes.push(low);
            return bytes;
        }
        bytes.push(low | 0x80);
    }
}
