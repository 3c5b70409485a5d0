//! A plain client, apart from the one that is tested: it sets the stage and looks at what is left.

use crate::{Message, QueueType};
use lapin::options::{
    BasicConsumeOptions, BasicGetOptions, BasicPublishOptions, BasicQosOptions,
    ConfirmSelectOptions, QueueDeclareOptions, QueueDeleteOptions,
};
use lapin::types::{AMQPValue, FieldTable, ShortString};
use lapin::{BasicProperties, Channel, Connection, ConnectionProperties, Consumer};
use std::fmt;
use std::future::Future;
use std::time::Duration;
use tokio::time::timeout;

/// lapin waits for ever where a broker does not answer.
const DEADLINE: Duration = Duration::from_secs(120);
/// How many publishes wait for their confirms at once.
const WAVE: usize = 200;
const NOT_FOUND: u16 = 404;
/// How many channels RabbitMQ lets a connection number (`channel_max`).
const NUMBERS: usize = 2047;

/// A connection with one channel that confirms publishes. What it is asked for succeeds or the test fails.
pub struct Amqp {
    connection: Connection,
    channel: Channel,
}

impl Amqp {
    /// Connects to an `amqp://` URL, as [`Broker::url`](crate::Broker::url), [`Vhost::url`](crate::Vhost::url) and
    /// [`CutProxy::url`](crate::CutProxy::url) give it.
    ///
    /// A broker hangs up where the handshake takes longer than 10 s (`handshake_timeout`), as it may on a busy machine: so it is tried again.
    pub async fn connect(url: &str) -> Self {
        for _ in 0..4 {
            match Self::try_connect(url).await {
                Err(error) if matches!(error.kind(), lapin::ErrorKind::IOError(_)) => {}
                done => return done.expect("the broker lets us in"),
            }
        }
        Self::try_connect(url).await.expect("the broker lets us in")
    }

    /// As [`Amqp::connect`], for a test that wants to be refused.
    ///
    /// # Errors
    /// When the broker does not let us in.
    pub async fn try_connect(url: &str) -> lapin::Result<Self> {
        let connection = soon(
            "connect",
            Connection::connect(url, ConnectionProperties::default()),
        )
        .await?;
        let channel = soon("open a channel", connection.create_channel()).await?;
        soon(
            "confirm",
            channel.confirm_select(ConfirmSelectOptions::default()),
        )
        .await?;
        Ok(Amqp {
            connection,
            channel,
        })
    }

    /// Its channel, for what is not offered here.
    pub fn channel(&self) -> &Channel {
        &self.channel
    }

    /// Its connection, for what is not offered here.
    pub fn connection(&self) -> &Connection {
        &self.connection
    }

    /// Another channel, for what may close it.
    ///
    /// lapin answers for the number of a channel that the broker once closed with the error of that time (lapin fact 20). A long
    /// test comes round to such numbers, so the next one is taken.
    pub async fn new_channel(&self) -> Channel {
        for _ in 0..NUMBERS {
            match soon("open a channel", self.connection.create_channel()).await {
                Err(error) if is_of_a_channel(&error) => {}
                opened => return opened.expect("a channel opens"),
            }
        }
        panic!("the broker closed all {NUMBERS} channels of the connection once");
    }

    /// Declares a durable queue.
    pub async fn declare(&self, queue: &str, kind: QueueType) {
        self.declare_with(queue, kind, FieldTable::default()).await;
    }

    /// Declares a durable queue with arguments besides its type.
    pub async fn declare_with(&self, queue: &str, kind: QueueType, arguments: FieldTable) {
        self.try_declare_with(queue, kind, arguments)
            .await
            .unwrap_or_else(|error| panic!("declare {queue}: {error}"));
    }

    /// As [`Amqp::declare_with`], on a channel of its own, for a test that wants to be refused.
    ///
    /// # Errors
    /// What the broker refuses it with.
    pub async fn try_declare_with(
        &self,
        queue: &str,
        kind: QueueType,
        mut arguments: FieldTable,
    ) -> lapin::Result<()> {
        arguments.insert(
            "x-queue-type".into(),
            AMQPValue::LongString(kind.as_str().into()),
        );
        let channel = self.new_channel().await;
        let declare =
            channel.queue_declare(short(queue), QueueDeclareOptions::durable(), arguments);
        let outcome = soon("declare", declare).await.map(drop);
        part(channel, outcome.is_err()).await;
        outcome
    }

    /// Deletes a queue with what is in it.
    pub async fn delete(&self, queue: &str) {
        let delete = self
            .channel
            .queue_delete(short(queue), QueueDeleteOptions::default());
        soon("delete", delete)
            .await
            .unwrap_or_else(|error| panic!("delete {queue}: {error}"));
    }

    /// Publishes one persistent message to a queue, confirmed.
    pub async fn publish(&self, queue: &str, body: impl AsRef<[u8]>) {
        self.publish_with(queue, body, BasicProperties::default())
            .await;
    }

    /// As [`Amqp::publish`], with properties (the delivery mode is always persistent).
    pub async fn publish_with(
        &self,
        queue: &str,
        body: impl AsRef<[u8]>,
        properties: BasicProperties,
    ) {
        self.publish_to("", queue, body, properties).await;
    }

    /// Publishes one persistent message to an exchange, confirmed.
    pub async fn publish_to(
        &self,
        exchange: &str,
        key: &str,
        body: impl AsRef<[u8]>,
        properties: BasicProperties,
    ) {
        self.publish_all(exchange, [(key, body.as_ref(), properties)])
            .await;
    }

    /// Publishes many persistent messages (routing key, body, properties) in order, confirmed.
    pub async fn publish_all<B: AsRef<[u8]>>(
        &self,
        exchange: &str,
        messages: impl IntoIterator<Item = (impl AsRef<str>, B, BasicProperties)>,
    ) {
        let mandatory = BasicPublishOptions {
            mandatory: true,
            ..Default::default()
        };
        let mut outstanding = Vec::with_capacity(WAVE);
        for (key, body, properties) in messages {
            let publish = self.channel.basic_publish(
                short(exchange),
                short(key.as_ref()),
                mandatory,
                body.as_ref(),
                properties.with_delivery_mode(2),
            );
            outstanding.push(soon("publish", publish).await.expect("the message is sent"));
            if outstanding.len() == WAVE {
                confirmed(&mut outstanding).await;
            }
        }
        confirmed(&mut outstanding).await;
    }

    /// Takes one message out of a queue; `None` when none is ready.
    pub async fn take(&self, queue: &str) -> Option<Message> {
        let get = self
            .channel
            .basic_get(short(queue), BasicGetOptions { no_ack: true });
        let got = soon("get", get)
            .await
            .unwrap_or_else(|error| panic!("get from {queue}: {error}"));
        got.map(|got| Message::from(&got.delivery))
    }

    /// Takes all messages that are ready out of a queue, in order.
    pub async fn drain(&self, queue: &str) -> Vec<Message> {
        let mut all = Vec::new();
        while let Some(message) = self.take(queue).await {
            all.push(message);
        }
        all
    }

    /// How many messages are ready in a queue now, `None` when it does not exist. This is the queue's own count, where
    /// the management interface has one that is seconds old.
    pub async fn depth(&self, queue: &str) -> Option<u32> {
        self.look(queue).await.map(|queue| queue.message_count())
    }

    /// How many consumers a queue has, `None` when it does not exist.
    pub async fn consumers(&self, queue: &str) -> Option<u32> {
        self.look(queue).await.map(|queue| queue.consumer_count())
    }

    async fn look(&self, queue: &str) -> Option<lapin::Queue> {
        let channel = self.new_channel().await; // a queue that does not exist costs the channel
        let passive = QueueDeclareOptions {
            passive: true,
            ..Default::default()
        };
        let seen = soon(
            "look",
            channel.queue_declare(short(queue), passive, FieldTable::default()),
        )
        .await;
        part(channel, seen.is_err()).await;
        match seen {
            Ok(queue) => Some(queue),
            Err(error) if code(&error) == Some(NOT_FOUND) => None,
            Err(error) => panic!("look at {queue}: {error}"),
        }
    }

    /// Consumes a queue on a channel of its own; each delivery is to be acked by the caller.
    pub async fn consume(&self, queue: &str, prefetch: u16) -> Consumer {
        let channel = self.new_channel().await;
        soon(
            "qos",
            channel.basic_qos(prefetch, BasicQosOptions::default()),
        )
        .await
        .expect("prefetch is accepted");
        let consume = channel.basic_consume(
            short(queue),
            "".into(),
            BasicConsumeOptions::default(),
            FieldTable::default(),
        );
        soon("consume", consume)
            .await
            .unwrap_or_else(|error| panic!("consume {queue}: {error}"))
    }

    /// Closes the connection.
    pub async fn close(self) {
        // A connection that is gone already is as closed as it can be.
        let _ = timeout(DEADLINE, self.connection.close(200, "done".into())).await;
    }
}

impl fmt::Debug for Amqp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Amqp") // lapin's own Debug shows the password
    }
}

/// Waits for all confirms of a wave.
async fn confirmed(outstanding: &mut Vec<lapin::PublisherConfirm>) {
    for confirm in outstanding.drain(..) {
        let confirmation = soon("confirm", confirm).await.expect("the broker confirms");
        assert!(confirmation.is_ack(), "the broker refused a message");
        assert!(
            confirmation.take_message().is_none(),
            "a message could not be routed"
        );
    }
}

/// Lets a channel go. One that the broker is closing may take the connection with it, so its end is awaited.
async fn part(channel: Channel, refused: bool) {
    if refused {
        let closed = async {
            while channel.status().connected() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        timeout(DEADLINE, closed)
            .await
            .expect("the refused channel closes");
    } else {
        soon("close a channel", channel.close(200, "done".into()))
            .await
            .expect("the channel closes");
    }
}

/// Whether an error ends a channel, which no broker answers `channel.open` with.
fn is_of_a_channel(error: &lapin::Error) -> bool {
    matches!(error.kind(), lapin::ErrorKind::ProtocolError(error)
        if matches!(error.kind(), lapin::protocol::AMQPErrorKind::Soft(_)))
}

/// The AMQP reply code of an error, such as 404.
fn code(error: &lapin::Error) -> Option<u16> {
    match error.kind() {
        lapin::ErrorKind::ProtocolError(error) => Some(error.get_id()),
        _ => None,
    }
}

fn short(text: &str) -> ShortString {
    ShortString::try_new(text)
        .unwrap_or_else(|_| panic!("a name of {} bytes is too long for AMQP", text.len()))
}

async fn soon<T>(what: &str, answer: impl Future<Output = T>) -> T {
    timeout(DEADLINE, answer)
        .await
        .unwrap_or_else(|_| panic!("{what}: the broker has not answered for {DEADLINE:?}"))
}
