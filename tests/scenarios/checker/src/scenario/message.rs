//! A message to publish.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde::Deserialize;
use serde_json::Value;

use super::Span;

/// The header that says which message of the scenario this is.
pub const ID_HEADER: &str = "scenario-id";

/// A message to publish, or `count` of them.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Message {
    /// Its name in the scenario.
    pub id: String,
    /// That many messages, named `<id>-1`, `<id>-2`, ….
    pub count: Option<usize>,
    /// The body; the id when it is not given.
    pub body: Option<Body>,
    /// The exchange; the default exchange when it is not given.
    #[serde(default)]
    pub exchange: String,
    /// The routing key; the work queue's name when it is not given.
    pub routing_key: Option<String>,
    /// Headers, in the notation of header values.
    #[serde(default)]
    pub headers: BTreeMap<String, Value>,
    /// Properties by their AMQP names.
    #[serde(default)]
    pub properties: BTreeMap<String, Value>,
    /// False: the message carries no header `scenario-id`; its `message_id` is its id instead.
    #[serde(default = "yes")]
    pub marked: bool,
    /// Bytes that no client library would send.
    pub hostile: Option<HostileKind>,
    /// It is published over AMQP 1.0, with a property that AMQP 0-9-1 has no type for: RabbitMQ 4.0 and later cannot deliver it.
    #[serde(default)]
    pub unreadable: bool,
    /// The driver's publisher is to delay it (only in `driver_publish`).
    pub delay: Option<Span>,
}

fn yes() -> bool {
    true
}

/// The body of a message.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged, deny_unknown_fields)]
pub enum Body {
    /// A text.
    Text(String),
    /// That many bytes.
    Filled {
        /// How many.
        bytes: usize,
    },
    /// These bytes.
    Base64 {
        /// In base64.
        base64: String,
    },
}

/// What a broker accepts from any publisher and breaks clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum HostileKind {
    /// A header with 1 000 tables, one inside the other.
    NestedTables,
    /// A header with 2 000 arrays, one inside the other.
    NestedArrays,
    /// A header whose key is not UTF-8.
    HeaderKey,
    /// A key inside a header that is not UTF-8.
    InnerHeaderKey,
    /// A routing key that is not UTF-8.
    RoutingKey,
    /// A property `content_type` that is not UTF-8.
    ContentType,
    /// A property `correlation_id` that is not UTF-8.
    CorrelationId,
    /// A property `message_id` that is not UTF-8.
    MessageId,
    /// A property `type` that is not UTF-8.
    Type,
    /// A property `app_id` that is not UTF-8.
    AppId,
}

impl Message {
    /// The single messages this stands for.
    pub fn each(&self) -> Vec<Self> {
        match self.count {
            None => vec![self.clone()],
            Some(count) => (1..=count)
                .map(|n| Self {
                    id: format!("{}-{n}", self.id),
                    count: None,
                    ..self.clone()
                })
                .collect(),
        }
    }

    /// The bytes of the body.
    pub fn bytes(&self) -> Vec<u8> {
        match &self.body {
            None => self.id.clone().into_bytes(),
            Some(Body::Text(text)) => text.clone().into_bytes(),
            // 251 is prime: a piece that went missing or came twice shifts what follows
            Some(Body::Filled { bytes }) => (0..*bytes).map(|n| (n % 251) as u8).collect(),
            Some(Body::Base64 { base64 }) => BASE64_STANDARD.decode(base64).unwrap_or_default(),
        }
    }

    /// The headers as published, the mark among them.
    pub fn all_headers(&self) -> BTreeMap<String, Value> {
        let mut headers = self.headers.clone();
        if self.marked {
            headers.insert(ID_HEADER.into(), Value::String(self.id.clone()));
        }
        headers
    }

    /// The properties as published.
    pub fn all_properties(&self) -> BTreeMap<String, Value> {
        let mut properties = self.properties.clone();
        if !self.marked {
            properties.insert("message_id".into(), Value::String(self.id.clone()));
        }
        properties
    }
}
