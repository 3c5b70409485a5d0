//! `[[decoders]]`: which messages are read with which schema.
//!
//! ```toml
//! [[decoders]]
//! queue = "orders*"                  # conditions: all that are given must hold; `*` is any text
//! routing_key = "eu.#"               # as in a binding of a topic exchange
//! header = { "x-schema" = "order" }
//! content_type = "application/*"
//! proto = "schemas/orders.pb"        # relative to this file
//! type = "shop.Order"                # without it, the message that fits best
//! ```
//!
//! In place of `proto`: `avro = "order.avsc"`, or `format = "json"`, `"messagepack"`, `"protobuf-wire"`, `"text"` or `"hex"`.

use std::{collections::BTreeMap, fs, path::Path};

use retryrmq::glob::{glob, topic};
use serde::Deserialize;
use serde_json::{Map, Value};
use toml::Spanned;

use super::error::SpannedError;
use crate::decoding::Decoder;

/// A table as it is written.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct DecoderEntry {
    queue: Option<String>,
    routing_key: Option<String>,
    #[serde(default)]
    header: BTreeMap<String, String>,
    content_type: Option<String>,
    proto: Option<Spanned<String>>,
    r#type: Option<Spanned<String>>,
    avro: Option<Spanned<String>>,
    format: Option<Spanned<String>>,
}

/// The decoders of a configuration, in their order.
#[derive(Debug, Default)]
pub struct Decoders(Vec<(DecoderConditions, Decoder)>);

/// When a decoder is meant; what is not given always holds.
#[derive(Debug)]
struct DecoderConditions {
    queue: Option<String>,
    routing_key: Option<String>,
    header: BTreeMap<String, String>,
    content_type: Option<String>,
}

/// What decoders are chosen by.
#[derive(Clone, Copy, Debug)]
pub struct MessageFacts<'a> {
    /// The queue that the message belongs to; where nobody knows that, the one that it lies in.
    pub queue: &'a str,
    /// The key that it was published with.
    pub routing_key: &'a str,
    /// The property `content_type`.
    pub content_type: Option<&'a str>,
    /// Its headers.
    pub headers: &'a Map<String, Value>,
}

impl Decoders {
    /// The first whose conditions all hold.
    #[must_use]
    pub fn find(&self, facts: &MessageFacts<'_>) -> Option<&Decoder> {
        let found = self.0.iter().find(|(conditions, _)| conditions.hold(facts));
        found.map(|(_, decoder)| decoder)
    }

    /// Whether any of them reads bodies as the protobuf message that fits best.
    #[must_use]
    pub fn guess_types(&self) -> bool {
        self.0.iter().any(|(_, decoder)| decoder.guesses_type())
    }

    pub(super) fn read(
        entries: Vec<Spanned<DecoderEntry>>,
        folder: &Path,
    ) -> Result<Self, SpannedError> {
        let all = entries.into_iter().map(|entry| {
            let decoder = decoder(&entry, folder)?;
            let entry = entry.into_inner();
            let conditions = DecoderConditions {
                queue: entry.queue,
                routing_key: entry.routing_key,
                header: entry.header,
                content_type: entry.content_type,
            };
            Ok((conditions, decoder))
        });
        Ok(Self(all.collect::<Result<_, SpannedError>>()?))
    }
}

impl DecoderConditions {
    fn hold(&self, facts: &MessageFacts<'_>) -> bool {
        let like = |pattern: &Option<String>, text: &str| {
            pattern.as_deref().is_none_or(|pattern| glob(pattern, text))
        };
        like(&self.queue, facts.queue)
            && self
                .routing_key
                .as_deref()
                .is_none_or(|pattern| topic(pattern, facts.routing_key))
            && like(&self.content_type, facts.content_type.unwrap_or_default())
            && self.header.iter().all(|(name, pattern)| {
                facts.headers.get(name).is_some_and(|value| match value {
                    Value::String(text) => glob(pattern, text),
                    other => glob(pattern, &other.to_string()),
                })
            })
    }
}

fn decoder(entry: &Spanned<DecoderEntry>, folder: &Path) -> Result<Decoder, SpannedError> {
    let written = entry.get_ref();
    if let (Some(kind), None) = (&written.r#type, &written.proto) {
        return Err(SpannedError::at(
            kind,
            "`type` is a message of a descriptor set: it goes with `proto`",
        ));
    }
    match (&written.proto, &written.avro, &written.format) {
        (Some(file), None, None) => {
            let path = folder.join(file.get_ref());
            let set = fs::read(&path).map_err(|why| {
                SpannedError::at(file, format!("cannot read `{}`: {why}", path.display()))
            })?;
            let message = written.r#type.as_ref().map(|name| name.get_ref().as_str());
            Decoder::protobuf(&set, message).map_err(|why| {
                let place = written.r#type.as_ref().unwrap_or(file);
                SpannedError::at(
                    place,
                    format!(
                        "the descriptor set `{}` cannot be used: {why}",
                        path.display()
                    ),
                )
            })
        }
        (None, Some(file), None) => {
            let path = folder.join(file.get_ref());
            let schema = fs::read_to_string(&path).map_err(|why| {
                SpannedError::at(file, format!("cannot read `{}`: {why}", path.display()))
            })?;
            Decoder::avro(&schema).map_err(|why| {
                SpannedError::at(
                    file,
                    format!("`{}` is no Avro schema: {why}", path.display()),
                )
            })
        }
        (None, None, Some(word)) => Decoder::format(word.get_ref()).ok_or_else(|| {
            SpannedError::at(
                word,
                "there is no such format: `json`, `messagepack`, `protobuf-wire`, `text` or `hex`",
            )
        }),
        _ => Err(SpannedError::at(
            entry,
            "a decoder has one of `proto`, `avro` and `format`",
        )),
    }
}
