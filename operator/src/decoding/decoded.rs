//! What a body turned out to be.

use std::borrow::Cow;

use serde_json::Value;

use super::{encoding::Encoding, protobuf::SchemaFit};

/// A body, decoded as far as it goes.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Decoded<'a> {
    /// What it was wrapped in, the outermost first.
    pub unwrapped: Vec<Encoding>,
    /// What was inside.
    pub bytes: Cow<'a, [u8]>,
    /// What that is.
    pub format: Format,
    /// Whether this is a guess: nobody said so, and other bytes could look the same.
    pub is_guess: bool,
    /// The message of a protobuf body, and how well it fits.
    pub fit: Option<SchemaFit>,
    /// The name of an Avro schema.
    pub schema: Option<String>,
    /// The value; where it breaks off, what came before. None of bytes that are nothing known, and of an empty body.
    pub value: Option<Value>,
    /// Where it does not go on.
    pub truncation: Option<Truncation>,
}

/// The format of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Format {
    /// No bytes.
    Empty,
    /// RFC 8259.
    Json,
    /// UTF-8.
    Text,
    /// The specification of 2013 on, with its timestamps.
    MessagePack,
    /// A datum of a schema that was given.
    Avro,
    /// A message of a descriptor set that was given.
    Protobuf,
    /// Fields of protobuf without a schema.
    ProtobufWire,
    /// Anything else.
    Binary,
}

impl Format {
    /// As people call it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Empty => "empty",
            Self::Json => "JSON",
            Self::Text => "text",
            Self::MessagePack => "MessagePack",
            Self::Avro => "Avro",
            Self::Protobuf => "protobuf",
            Self::ProtobufWire => "protobuf without a schema",
            Self::Binary => "binary",
        }
    }

    /// As programs call it, in JSON and in a configuration file.
    #[must_use]
    pub fn code(self) -> &'static str {
        match self {
            Self::Empty => "empty",
            Self::Json => "json",
            Self::Text => "text",
            Self::MessagePack => "messagepack",
            Self::Avro => "avro",
            Self::Protobuf => "protobuf",
            Self::ProtobufWire => "protobuf-wire",
            Self::Binary => "binary",
        }
    }
}

/// Where a body stops to make sense.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Truncation {
    /// In what: the name of a format or of a wrapping. The byte counts from 0, in what that was read from.
    pub within: String,
    /// The byte.
    pub byte: usize,
    /// Why, in words that may quote the body.
    pub why: String,
}

impl Decoded<'_> {
    /// The value, where all of the body is in it: what a filter may judge by.
    #[must_use]
    pub fn sound(&self) -> Option<&Value> {
        self.value.as_ref().filter(|_| self.truncation.is_none())
    }
}
