//! A message on its way out.

use std::time::Duration;

use retryrmq::{BasicProperties, Publish, types::ShortString};

use crate::{errors::Refusal, values, wire::Wire};

/// What a message carries beside its body. Durations are nanoseconds.
#[derive(Debug, uniffi::Record)]
pub struct Outgoing {
    /// The exchange.
    pub exchange: String,
    /// The routing key.
    pub routing_key: String,
    /// The headers, as AMQP writes them; none when there is nothing.
    pub headers: Option<Wire>,
    /// Delivers it later.
    pub delay: Option<u64>,
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
    pub(crate) fn message(self, body: Wire) -> Result<Publish, Refusal> {
        let mut properties =
            BasicProperties::default().with_delivery_mode(if self.persistent { 2 } else { 1 });
        macro_rules! texts {
            ($($field:ident ($name:literal) => $set:ident),*) => {$(
                if let Some(text) = &self.$field {
                    properties = properties.$set(short($name, text)?);
                }
            )*};
        }
        texts!(
            message_id ("MessageID") => with_message_id, content_type ("ContentType") => with_content_type,
            content_encoding ("ContentEncoding") => with_content_encoding,
            correlation_id ("CorrelationID") => with_correlation_id, reply_to ("ReplyTo") => with_reply_to,
            app_id ("AppID") => with_app_id, user_id ("UserID") => with_user_id, kind ("Type") => with_type
        );
        if let Some(headers) = &self.headers {
            properties = properties.with_headers(values::read_table(headers)?);
        }
        if let Some(expiration) = self.expiration {
            // Up to whole milliseconds: nothing is dropped before its time, and 0 would be at once.
            let ms = expiration.div_ceil(1_000_000).to_string();
            properties = properties.with_expiration(ms.into());
        }
        if let Some(priority) = self.priority {
            properties = properties.with_priority(priority);
        }
        if let Some(timestamp) = self.timestamp {
            properties = properties.with_timestamp(timestamp);
        }
        let mut message = Publish::to_exchange(self.exchange, self.routing_key, body.0)
            .properties(properties)
            .mandatory(self.mandatory);
        if let Some(delay) = self.delay {
            message = message.delay(Duration::from_nanos(delay));
        }
        Ok(message)
    }
}

fn short(name: &str, text: &str) -> Result<ShortString, Refusal> {
    ShortString::try_new(text)
        .map_err(|_| Refusal::option(format!("`{name}` is longer than 255 bytes")))
}
