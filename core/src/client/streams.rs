//! Streams, on connections of their own.

use std::time::Duration;

use super::Client;
use crate::{
    Result,
    connection::Connection,
    stream::{self, StreamFrom, StreamReader},
};

impl Client {
    /// Makes sure that a stream of this name exists (AMQP `queue.declare`; RabbitMQ has streams since 3.9). A missing one is created,
    /// durable. It deletes its oldest messages when they are older than `age`, or when there are more than `bytes` bytes, segment by
    /// segment. An existing stream is not changed.
    ///
    /// # Errors
    /// [`ErrorKind::Mismatch`](crate::ErrorKind::Mismatch) for a queue that is not a stream,
    /// [`ErrorKind::AccessRefused`](crate::ErrorKind::AccessRefused) without permission to configure it, and those of a lost connection.
    pub async fn stream(&self, queue: &str, age: Duration, bytes: u64) -> Result<()> {
        let connection = Connection::open(self.addresses(), "stream").await?;
        let made = stream::make(&connection, queue, age, bytes).await;
        connection.close().await;
        made
    }

    /// Reads a stream from this position on (AMQP `basic.consume` with `x-stream-offset`; RabbitMQ has streams since 3.9).
    ///
    /// # Errors
    /// [`ErrorKind::QueueNotFound`](crate::ErrorKind::QueueNotFound), [`ErrorKind::Mismatch`](crate::ErrorKind::Mismatch) for a queue
    /// that is not a stream, [`ErrorKind::AccessRefused`](crate::ErrorKind::AccessRefused) without permission to read it, and those of a
    /// lost connection.
    pub async fn read_stream(&self, stream: &str, from: StreamFrom) -> Result<StreamReader> {
        self.same_process()?;
        StreamReader::open(self.addresses(), stream, from).await
    }
}
