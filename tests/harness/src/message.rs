//! A message as a test looks at it.

use lapin::BasicProperties;
use lapin::message::Delivery;
use lapin::types::{AMQPValue, FieldTable};

/// A message that was taken from a queue.
#[derive(Clone, Debug)]
pub struct Message {
    /// The payload.
    pub body: Vec<u8>,
    /// All properties, headers included.
    pub properties: BasicProperties,
    /// The exchange it was published to.
    pub exchange: String,
    /// The routing key it was published with.
    pub routing_key: String,
    /// The broker's redelivered flag.
    pub redelivered: bool,
}

impl Message {
    /// The payload as text.
    ///
    /// # Panics
    /// When it is not UTF-8.
    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.body).expect("the body is text")
    }

    /// All headers; empty when there are none.
    pub fn headers(&self) -> FieldTable {
        self.properties.headers().clone().unwrap_or_default()
    }

    /// A header, as it is.
    pub fn header(&self, key: &str) -> Option<AMQPValue> {
        self.properties
            .headers()
            .as_ref()?
            .inner()
            .get(key)
            .cloned()
    }

    /// A header that is an integer of any width.
    pub fn header_int(&self, key: &str) -> Option<i64> {
        match self.header(key)? {
            AMQPValue::ShortShortInt(value) => Some(value.into()),
            AMQPValue::ShortShortUInt(value) => Some(value.into()),
            AMQPValue::ShortInt(value) => Some(value.into()),
            AMQPValue::ShortUInt(value) => Some(value.into()),
            AMQPValue::LongInt(value) => Some(value.into()),
            AMQPValue::LongUInt(value) => Some(value.into()),
            AMQPValue::LongLongInt(value) => Some(value),
            _ => None,
        }
    }

    /// A header that is text.
    pub fn header_text(&self, key: &str) -> Option<String> {
        match self.header(key)? {
            AMQPValue::LongString(value) => {
                Some(String::from_utf8_lossy(value.as_bytes()).into_owned())
            }
            AMQPValue::ShortString(value) => Some(value.as_str().to_owned()),
            _ => None,
        }
    }

    /// The message id.
    pub fn id(&self) -> Option<&str> {
        self.properties.message_id().as_ref().map(|id| id.as_str())
    }
}

impl From<&Delivery> for Message {
    fn from(delivery: &Delivery) -> Self {
        Message {
            body: delivery.data.clone(),
            properties: delivery.properties.clone(),
            exchange: delivery.exchange.as_str().to_owned(),
            routing_key: delivery.routing_key.as_str().to_owned(),
            redelivered: delivery.redelivered,
        }
    }
}
