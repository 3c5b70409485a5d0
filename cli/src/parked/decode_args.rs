//! How bodies are read: the schemas that were given, or those of the configuration file.

use std::{fs, path::PathBuf};

use clap::Args;
use retryrmq::Record;
use retryrmq_operator::{
    configuration::{Bodies, Decoders, MessageFacts},
    decoding::{self, Decoded, Decoder, Hints},
};

use super::foreign::PublishedMessage;
use crate::error::CliError;
use retryrmq::terminal_escape;

/// The options. Without any, a body is read as its properties say, and as it looks.
#[derive(Clone, Debug, Default, Args)]
pub(super) struct DecodeArgs {
    /// Bodies are protobuf, by this descriptor set (protoc --include_imports --descriptor_set_out=FILE); without --proto-type
    /// every message of it is tried, and the best fit is named with its score
    #[arg(
        long,
        value_name = "FILE",
        conflicts_with = "avro",
        help_heading = "Reading bodies"
    )]
    proto: Option<PathBuf>,

    /// They are this message of the descriptor set: pkg.Message
    #[arg(
        long,
        value_name = "MESSAGE",
        requires = "proto",
        help_heading = "Reading bodies"
    )]
    proto_type: Option<String>,

    /// Bodies are Avro, by this schema (an .avsc file)
    #[arg(long, value_name = "FILE", help_heading = "Reading bodies")]
    avro: Option<PathBuf>,

    /// With --proto short for --proto-type, without it for --error-type
    // Both have a good claim to the word, and an operator knows which of the two is on the line.
    #[arg(
        long = "type",
        value_name = "NAME",
        conflicts_with = "proto_type",
        help_heading = "Reading bodies"
    )]
    kind: Option<String>,

    /// A configuration file whose `[[decoders]]` say by queue, routing key, header or content type how bodies are read
    #[arg(
        long,
        value_name = "FILE",
        env = "RETRYRMQ_CONFIG",
        help_heading = "Reading bodies"
    )]
    config: Option<PathBuf>,
}

/// What reads bodies.
#[derive(Debug, Default)]
pub(super) struct BodyDecoder {
    given: Option<Decoder>,
    configured: Decoders,
}

impl DecodeArgs {
    /// `--type`, where it is the error's.
    pub(super) fn error_type(&self) -> Option<&str> {
        self.kind.as_deref().filter(|_| self.proto.is_none())
    }

    /// Reads the files that were named.
    pub(super) fn open(&self) -> Result<BodyDecoder, CliError> {
        let cannot = |path: &PathBuf, why: &dyn std::fmt::Display| {
            CliError::usage(format!(
                "cannot read `{}`: {why}",
                terminal_escape::line(&path.to_string_lossy())
            ))
        };
        let given = match (&self.proto, &self.avro) {
            (Some(path), _) => {
                let set = fs::read(path).map_err(|why| cannot(path, &why))?;
                let message = self.proto_type.as_deref().or(self.kind.as_deref());
                let decoder = Decoder::protobuf(&set, message).map_err(|why| {
                    CliError::usage(format!(
                        "the descriptor set `{}` cannot be used: {}",
                        terminal_escape::line(&path.to_string_lossy()),
                        terminal_escape::line(&why)
                    ))
                })?;
                Some(decoder)
            }
            (None, Some(path)) => {
                let schema = fs::read_to_string(path).map_err(|why| cannot(path, &why))?;
                let decoder = Decoder::avro(&schema).map_err(|why| {
                    CliError::usage(format!(
                        "`{}` is no Avro schema: {}",
                        terminal_escape::line(&path.to_string_lossy()),
                        terminal_escape::line(&why)
                    ))
                })?;
                Some(decoder)
            }
            (None, None) => None,
        };
        // An empty variable is one that is not set.
        let config = self
            .config
            .as_deref()
            .filter(|path| !path.as_os_str().is_empty());
        let configured = config
            .map(Bodies::read)
            .transpose()
            .map_err(|why| CliError::usage(terminal_escape::line(&why)))?
            .unwrap_or_default()
            .decoders;
        Ok(BodyDecoder { given, configured })
    }
}

impl BodyDecoder {
    /// Whether protobuf may be read as the message that fits best, because nobody named the type.
    pub(super) fn guesses_type(&self) -> bool {
        match &self.given {
            Some(decoder) => decoder.guesses_type(),
            None => self.configured.guess_types(),
        }
    }

    /// Decodes a body. What was given on the command line goes before the configuration file.
    pub(super) fn decode<'m>(
        &self,
        record: &Record,
        content: &PublishedMessage<'m>,
    ) -> Decoded<'m> {
        let properties = &content.properties;
        let hints = Hints {
            content_type: properties.content_type().as_ref().map(|text| text.as_str()),
            content_encoding: properties
                .content_encoding()
                .as_ref()
                .map(|text| text.as_str()),
        };
        let headers = content.headers();
        let message = record.message();
        let facts = MessageFacts {
            // Where nobody knows it, the queue that it lies in says most.
            queue: match record.home.as_str() {
                "" => message.queue(),
                home => home,
            },
            routing_key: content.routing_key,
            content_type: hints.content_type,
            headers: &headers,
        };
        let decoder = self.given.as_ref().or_else(|| self.configured.find(&facts));
        decoding::decode(content.body, hints, decoder)
    }
}
