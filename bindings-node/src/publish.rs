//! A message to publish, from the bytes of the TypeScript half.

use retryrmq::Publish;
use retryrmq_bindings::{Outgoing, amqp_table::read_table};

use crate::{
    byte_reader::Reader,
    errors::{Result, about, thrown},
    outcome::duration,
};

const MANDATORY: u8 = 1;
const PERSISTENT: u8 = 2;
const HEADERS: u8 = 4;

/// Reads a message, and refuses one that cannot be published.
pub(crate) fn read(bytes: &[u8]) -> Result<Publish> {
    let from = &mut Reader::new(bytes);
    let flags = from.u8()?;
    let span = |option, ms: Option<f64>| ms.map(|ms| duration(option, ms)).transpose();
    // In the order in which they were written.
    let outgoing = Outgoing {
        mandatory: flags & MANDATORY != 0,
        persistent: flags & PERSISTENT != 0,
        delay: span("delay", from.maybe_f64()?)?,
        timeout: span("timeout", from.maybe_f64()?)?,
        exchange: from.text()?,
        routing_key: from.text()?,
        body: from.bytes()?.to_vec(),
        message_id: from.maybe()?,
        content_type: from.maybe()?,
        content_encoding: from.maybe()?,
        correlation_id: from.maybe()?,
        reply_to: from.maybe()?,
        kind: from.maybe()?,
        app_id: from.maybe()?,
        user_id: from.maybe()?,
        expiration: span("expiration", from.maybe_f64()?)?,
        priority: from.maybe_f64()?.map(|priority| priority as u8),
        timestamp: from.maybe_f64()?.map(|seconds| seconds as u64),
        headers: (flags & HEADERS != 0)
            .then(|| read_table(from.rest()))
            .transpose()
            .map_err(thrown)?,
    };
    let is_delayed = outgoing.delay.is_some();
    let message = outgoing.message(NAMES).map_err(thrown)?;
    message.validate().map_err(|error| match is_delayed {
        // The core's error about a delay names the message; here the option is named.
        true => about("delay", &error),
        false => thrown(error),
    })?;
    Ok(message)
}

const NAMES: [&str; 8] = [
    "messageId",
    "contentType",
    "contentEncoding",
    "correlationId",
    "replyTo",
    "type",
    "appId",
    "userId",
];
