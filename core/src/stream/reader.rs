//! Reads a stream: what was published since some time, and then what arrives.

use std::{pin::Pin, sync::Arc, time::SystemTime};

use futures_util::StreamExt;
use lapin::{
    BasicProperties,
    options::{BasicAckOptions, BasicConsumeOptions, BasicQosOptions},
    types::{AMQPValue, FieldTable, ShortString},
};

use crate::{
    Error, ErrorKind, Result,
    connection::{Addresses, Connection, OpenChannel, Operation, StartedCall, ask},
    terminal_escape,
    topology::name,
};

/// How many entries may be unacknowledged.
const WINDOW: u16 = 500;
/// How many entries are acknowledged together.
const SHARE: u64 = 100;
/// The header with an entry's offset, and the argument that says where to begin.
const OFFSET: &str = "x-stream-offset";

/// Where a reader of a stream begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StreamFrom {
    /// At the first entry published at this time, or a little before: the broker finds a chunk of entries, not the exact one.
    Time(SystemTime),
    /// At the entry after the one with this offset.
    After(u64),
}

/// One entry of a stream.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct StreamEntry {
    /// Its position in the stream. Offsets grow, with gaps.
    pub offset: u64,
    /// Its body, in bytes.
    pub body: Vec<u8>,
    /// Its AMQP properties.
    pub properties: BasicProperties,
}

/// Reads a stream, on a connection of its own. Reading removes nothing, and a stream may have any number of readers. Dropping it ends it.
pub struct StreamReader {
    stream: String,
    consumer: lapin::Consumer,
    channel: OpenChannel,
    /// Kept open as long as the reader.
    _connection: Connection,
    came: u64,
    /// An acknowledgement under way. It is kept here and not in `next`, which the caller may drop.
    pending_ack: Option<Pin<Box<dyn Future<Output = Result<()>> + Send>>>,
}

impl StreamReader {
    pub(crate) async fn open(
        addresses: &Arc<Addresses>,
        stream: &str,
        from: StreamFrom,
    ) -> Result<Self> {
        let wire = name(stream)?;
        let connection = Connection::open(addresses, "stream").await?;
        let channel = connection.channel().await?;
        let qos = channel
            .lapin()
            .basic_qos(WINDOW, BasicQosOptions::default());
        ask(Operation::Consuming(stream), qos).await?;
        let since = |time: SystemTime| {
            let since = time.duration_since(SystemTime::UNIX_EPOCH);
            since.map_or(0, |since| since.as_secs())
        };
        let offset = match from {
            StreamFrom::Time(time) => AMQPValue::Timestamp(since(time)),
            StreamFrom::After(offset) => {
                AMQPValue::LongLongInt(i64::try_from(offset).unwrap_or(i64::MAX).saturating_add(1))
            }
        };
        let mut arguments = FieldTable::default();
        arguments.insert(OFFSET.into(), offset);
        let consume = channel.lapin().basic_consume(
            wire,
            ShortString::default(),
            BasicConsumeOptions::default(),
            arguments,
        );
        let consumer = ask(Operation::Consuming(stream), consume).await?;
        Ok(Self {
            stream: stream.to_owned(),
            consumer,
            channel,
            _connection: connection,
            came: 0,
            pending_ack: None,
        })
    }

    /// The next entry; waits for one. If the future is dropped while it waits, no entry is lost.
    ///
    /// # Errors
    /// [`ErrorKind::ConnectionLost`] if the connection or the stream is gone. Open a new reader with [`StreamFrom::After`] the last entry.
    pub async fn next(&mut self) -> Result<StreamEntry> {
        if let Some(pending_ack) = &mut self.pending_ack {
            let acknowledged = pending_ack.await;
            self.pending_ack = None;
            acknowledged?;
        }
        let Some(Ok(delivery)) = self.consumer.next().await else {
            return Err(Error::new(
                ErrorKind::ConnectionLost,
                format!(
                    "the stream `{}` is not read any more: its connection was lost, or it was deleted",
                    terminal_escape::line(&self.stream)
                ),
            ));
        };
        self.came += 1;
        if self.came.is_multiple_of(SHARE) {
            let (channel, tag) = (self.channel.lapin().clone(), delivery.delivery_tag);
            let all = BasicAckOptions { multiple: true };
            let acked = StartedCall::new(async move { channel.basic_ack(tag, all).await });
            let stream = self.stream.clone();
            self.pending_ack = Some(Box::pin(async move {
                ask(Operation::Consuming(&stream), acked.answer()).await
            }));
        }
        let headers = delivery.properties.headers().as_ref();
        let offset = headers.and_then(|headers| headers.inner().get(OFFSET));
        let offset = match offset {
            Some(AMQPValue::LongLongInt(offset)) => u64::try_from(*offset).unwrap_or_default(),
            _ => 0,
        };
        Ok(StreamEntry {
            offset,
            body: delivery.data,
            properties: delivery.properties,
        })
    }
}

impl std::fmt::Debug for StreamReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StreamReader")
            .field("stream", &self.stream)
            .finish_non_exhaustive()
    }
}
