//! How a body is to be read where somebody knows.

use super::{avro::AvroSchema, protobuf::Messages};

/// What was given to read bodies with.
#[derive(Debug)]
pub struct Decoder(pub(super) DecoderKind);

#[derive(Debug)]
pub(super) enum DecoderKind {
    Protobuf(Box<Messages>),
    Avro(Box<AvroSchema>),
    Json,
    MessagePack,
    Wire,
    Text,
    Hex,
}

impl Decoder {
    /// Protobuf, by a descriptor set (`protoc --descriptor_set_out=… --include_imports`, `buf build -o …`). `message` is one
    /// of it, with its package, or its name alone where only one is called so; without it each body is tried as every
    /// message of the set.
    ///
    /// # Errors
    /// A sentence: bytes that are no descriptor set, or lack what it imports; a message that the set does not have.
    pub fn protobuf(descriptor_set: &[u8], message: Option<&str>) -> Result<Self, String> {
        Messages::parse(descriptor_set, message)
            .map(|messages| Self(DecoderKind::Protobuf(Box::new(messages))))
    }

    /// Avro, by the JSON of the schema that the writer used.
    ///
    /// # Errors
    /// A sentence, for what is no Avro schema.
    pub fn avro(schema: &str) -> Result<Self, String> {
        AvroSchema::parse(schema).map(|schema| Self(DecoderKind::Avro(Box::new(schema))))
    }

    /// Whether bodies are read as the message that fits best, because none was named.
    #[must_use]
    pub fn guesses_type(&self) -> bool {
        matches!(&self.0, DecoderKind::Protobuf(messages) if !messages.are_named())
    }

    /// A format without a schema: `json`, `messagepack`, `protobuf-wire`, `text` or `hex`; none for another word.
    #[must_use]
    pub fn format(word: &str) -> Option<Self> {
        Some(Self(match word {
            "json" => DecoderKind::Json,
            "messagepack" => DecoderKind::MessagePack,
            "protobuf-wire" => DecoderKind::Wire,
            "text" => DecoderKind::Text,
            "hex" => DecoderKind::Hex,
            _ => return None,
        }))
    }
}
