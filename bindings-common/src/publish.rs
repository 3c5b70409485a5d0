//! A message to publish, from plain values.

use std::time::Duration;

use retryrmq::{
    BasicProperties, Publish,
    types::{FieldTable, ShortString},
};

use crate::BindingError;

/// What a message carries. What is not there is not set.
#[derive(Clone, Debug, Default)]
#[allow(
    missing_docs,
    reason = "each is the property of AMQP with that name, or the option of `Publish`"
)]
pub struct Outgoing {
    pub exchange: String,
    pub routing_key: String,
    pub body: Vec<u8>,
    pub headers: Option<FieldTable>,
    pub delay: Option<Duration>,
    pub timeout: Option<Duration>,
    pub mandatory: bool,
    pub persistent: bool,
    pub message_id: Option<String>,
    pub content_type: Option<String>,
    pub content_encoding: Option<String>,
    pub correlation_id: Option<String>,
    pub reply_to: Option<String>,
    pub kind: Option<String>,
    pub app_id: Option<String>,
    pub user_id: Option<String>,
    pub expiration: Option<Duration>,
    pub priority: Option<u8>,
    pub timestamp: Option<u64>,
}

impl Outgoing {
    /// The message for the core. `names` are the language's names for `message_id`, `content_type`, `content_encoding`, `correlation_id`,
    /// `reply_to`, `type`, `app_id` and `user_id`, in this order.
    ///
    /// # Errors
    /// `invalid_option` for a text longer than 255 bytes. Nothing is published then.
    pub fn message(mut self, names: [&str; 8]) -> Result<Publish, BindingError> {
        let properties = self.take_properties(names)?;
        let message = Publish::to_exchange(self.exchange, self.routing_key, self.body)
            .properties(properties)
            .mandatory(self.mandatory);
        let message = match self.delay {
            Some(delay) => message.delay(delay),
            None => message,
        };
        Ok(match self.timeout {
            Some(timeout) => message.timeout(timeout),
            None => message,
        })
    }

    fn take_properties(&mut self, names: [&str; 8]) -> Result<BasicProperties, BindingError> {
        type Set = fn(BasicProperties, ShortString) -> BasicProperties;
        let texts: [(Option<String>, Set); 8] = [
            (self.message_id.take(), BasicProperties::with_message_id),
            (self.content_type.take(), BasicProperties::with_content_type),
            (
                self.content_encoding.take(),
                BasicProperties::with_content_encoding,
            ),
            (
                self.correlation_id.take(),
                BasicProperties::with_correlation_id,
            ),
            (self.reply_to.take(), BasicProperties::with_reply_to),
            (self.kind.take(), BasicProperties::with_type),
            (self.app_id.take(), BasicProperties::with_app_id),
            (self.user_id.take(), BasicProperties::with_user_id),
        ];
        let mode = if self.persistent { 2 } else { 1 };
        let mut properties = BasicProperties::default().with_delivery_mode(mode);
        for ((text, set), name) in texts.into_iter().zip(names) {
            if let Some(text) = text {
                let text = ShortString::try_new(text.as_str()).map_err(|_| {
                    BindingError::option(format!("`{name}` is longer than 255 bytes"))
                })?;
                properties = set(properties, text);
            }
        }
        if let Some(headers) = self.headers.take() {
            properties = properties.with_headers(headers);
        }
        if let Some(expiration) = self.expiration {
            // Rounded up to whole milliseconds: a message must not expire early, and 0 would be at once.
            let ms = expiration.as_nanos().div_ceil(1_000_000).to_string();
            properties = properties.with_expiration(ms.into());
        }
        if let Some(priority) = self.priority {
            properties = properties.with_priority(priority);
        }
        if let Some(timestamp) = self.timestamp {
            properties = properties.with_timestamp(timestamp);
        }
        Ok(properties)
    }
}
