//! Messages of AMQP 1.0, with all of their sections.

use super::value::Value10;

/// The body of a message.
#[derive(Clone, Debug)]
pub enum Body10 {
    /// One or more sections of bytes.
    Data(Vec<Vec<u8>>),
    /// One value.
    Value(Value10),
    /// One or more sections that are lists.
    Sequence(Vec<Vec<Value10>>),
}

/// The properties of a message, in the order of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are those of the protocol")]
pub enum Property10 {
    MessageId,
    UserId,
    To,
    Subject,
    ReplyTo,
    CorrelationId,
    ContentType,
    ContentEncoding,
    AbsoluteExpiryTime,
    CreationTime,
    GroupId,
    GroupSequence,
    ReplyToGroupId,
}

const PROPERTIES: usize = Property10::ReplyToGroupId as usize + 1;

/// A message in the format of AMQP 1.0. A new one is durable and has one data section; everything else is added, of whatever type.
#[derive(Clone, Debug)]
pub struct Message10 {
    header: Vec<Value10>,
    delivery: Vec<(Value10, Value10)>,
    annotations: Vec<(Value10, Value10)>,
    properties: [Value10; PROPERTIES],
    application: Vec<(Value10, Value10)>,
    body: Body10,
    footer: Vec<(Value10, Value10)>,
}

impl Message10 {
    /// A message with this body.
    pub fn new(body: impl Into<Vec<u8>>) -> Self {
        Self::of(Body10::Data(vec![body.into()]))
    }

    /// A message with a body of any kind.
    #[must_use]
    pub fn of(body: Body10) -> Self {
        Self {
            header: vec![Value10::Bool(true)],
            delivery: Vec::new(),
            annotations: Vec::new(),
            properties: [const { Value10::Null }; PROPERTIES],
            application: Vec::new(),
            body,
            footer: Vec::new(),
        }
    }

    /// Sets the header: durable, priority, ttl, first-acquirer, delivery-count. Without a field it is left out.
    #[must_use]
    pub fn header(mut self, fields: impl Into<Vec<Value10>>) -> Self {
        self.header = fields.into();
        self
    }

    /// Adds a delivery annotation.
    #[must_use]
    pub fn delivery_annotation(mut self, key: Value10, value: Value10) -> Self {
        self.delivery.push((key, value));
        self
    }

    /// Adds a message annotation.
    #[must_use]
    pub fn annotation(mut self, key: Value10, value: Value10) -> Self {
        self.annotations.push((key, value));
        self
    }

    /// Sets a property.
    #[must_use]
    pub fn with(mut self, property: Property10, value: Value10) -> Self {
        self.properties[property as usize] = value;
        self
    }

    /// Sets the property `message-id`.
    #[must_use]
    pub fn id(self, id: &str) -> Self {
        self.with(Property10::MessageId, Value10::string(id))
    }

    /// Sets the property `reply-to`.
    #[must_use]
    pub fn reply_to(self, address: &str) -> Self {
        self.with(Property10::ReplyTo, Value10::string(address))
    }

    /// Sets the property `content-type`.
    #[must_use]
    pub fn content_type(self, kind: &str) -> Self {
        self.with(Property10::ContentType, Value10::symbol(kind))
    }

    /// Adds an application property; the value is encoded, as [`string`](super::string), [`uuid`](super::uuid) and
    /// [`char()`](super::char()) do it.
    #[must_use]
    pub fn property(self, name: &str, value: Vec<u8>) -> Self {
        self.application(Value10::string(name), Value10::Encoded(value))
    }

    /// Adds an application property.
    #[must_use]
    pub fn application(mut self, name: Value10, value: Value10) -> Self {
        self.application.push((name, value));
        self
    }

    /// Adds an entry of the footer.
    #[must_use]
    pub fn footer(mut self, key: Value10, value: Value10) -> Self {
        self.footer.push((key, value));
        self
    }

    /// The sections, without those that are empty.
    pub(crate) fn encoded(&self) -> Vec<u8> {
        let mut all = Vec::new();
        if !self.header.is_empty() {
            all.extend(section(0x70, Value10::List(self.header.clone())));
        }
        all.extend(map_section(0x71, &self.delivery));
        all.extend(map_section(0x72, &self.annotations));
        if self.properties.iter().any(|one| *one != Value10::Null) {
            all.extend(section(0x73, Value10::List(self.properties.to_vec())));
        }
        all.extend(map_section(0x74, &self.application));
        match &self.body {
            Body10::Data(sections) => {
                for bytes in sections {
                    all.extend(section(0x75, Value10::Binary(bytes.clone())));
                }
            }
            Body10::Sequence(sections) => {
                for items in sections {
                    all.extend(section(0x76, Value10::List(items.clone())));
                }
            }
            Body10::Value(value) => all.extend(section(0x77, value.clone())),
        }
        all.extend(map_section(0x78, &self.footer));
        all
    }
}

fn section(code: u64, value: Value10) -> Vec<u8> {
    Value10::Described(Value10::Ulong(code).into(), value.into()).encoded()
}

fn map_section(code: u64, pairs: &[(Value10, Value10)]) -> Vec<u8> {
    if pairs.is_empty() {
        return Vec::new();
    }
    section(code, Value10::Map(pairs.to_vec()))
}
