//! A message on its way out.

use std::time::Duration;

use retryrmq::Publish;
use retryrmq_bindings::amqp_table::read_table;

use crate::{byte_buffer::ByteBuffer, errors::FfiError};

/// What a message carries beside its body. Durations are nanoseconds.
#[derive(Debug, uniffi::Record)]
pub struct Outgoing {
    /// The exchange.
    pub exchange: String,
    /// The routing key.
    pub routing_key: String,
    /// The headers, as AMQP writes them; none when there is nothing.
    pub headers: Option<ByteBuffer>,
    /// Delivers it later.
    pub delay: Option<u64>,
    /// How long publishing takes at most.
    pub timeout: Option<u64>,
    /// Whether it is an error when no queue takes it.
    pub mandatory: bool,
    /// Whether it survives a restart of the broker.
    pub persistent: bool,
    /// The property `message_id`.
    pub message_id: Option<String>,
    /// The property `content_type`.
    pub content_type: Option<String>,
    /// The property `content_encoding`.
    pub content_encoding: Option<String>,
    /// The property `correlation_id`.
    pub correlation_id: Option<String>,
    /// The property `reply_to`.
    pub reply_to: Option<String>,
    /// Dropped when it has waited that long.
    pub expiration: Option<u64>,
    /// The property `priority`.
    pub priority: Option<u8>,
    /// The property `timestamp`, in seconds since 1970.
    pub timestamp: Option<u64>,
    /// The property `type`.
    pub kind: Option<String>,
    /// The property `app_id`.
    pub app_id: Option<String>,
    /// The property `user_id`.
    pub user_id: Option<String>,
}

impl Outgoing {
    pub(crate) fn message(self, body: ByteBuffer) -> Result<Publish, FfiError> {
        let headers = self.headers.as_ref();
        let outgoing = retryrmq_bindings::Outgoing {
            exchange: self.exchange,
            routing_key: self.routing_key,
            body: body.0,
            headers: headers.map(|headers| read_table(headers)).transpose()?,
            delay: self.delay.map(Duration::from_nanos),
            timeout: self.timeout.map(Duration::from_nanos),
            mandatory: self.mandatory,
            persistent: self.persistent,
            message_id: self.message_id,
            content_type: self.content_type,
            content_encoding: self.content_encoding,
            correlation_id: self.correlation_id,
            reply_to: self.reply_to,
            kind: self.kind,
            app_id: self.app_id,
            user_id: self.user_id,
            expiration: self.expiration.map(Duration::from_nanos),
            priority: self.priority,
            timestamp: self.timestamp,
        };
        Ok(outgoing.message(NAMES)?)
    }
}

const NAMES: [&str; 8] = [
    "MessageID",
    "ContentType",
    "ContentEncoding",
    "CorrelationID",
    "ReplyTo",
    "Type",
    "AppID",
    "UserID",
];
