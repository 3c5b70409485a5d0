//! A message on its way out, from the bytes of the TypeScript half.

use retryrmq::{BasicProperties, Publish, types::ShortString};

use crate::{
    errors::{Result, about, bad_option, thrown},
    outcome::duration,
    values::read_table,
    wire::Reader,
};

const MANDATORY: u8 = 1;
const PERSISTENT: u8 = 2;
const HEADERS: u8 = 4;

/// Reads a message, and refuses what cannot be published.
pub(crate) fn read(bytes: &[u8]) -> Result<Publish> {
    let from = &mut Reader::new(bytes);
    let flags = from.u8()?;
    let delay = from.maybe_f64()?;
    let exchange = from.text()?;
    let routing_key = from.text()?;
    let body = from.bytes()?.to_vec();
    let mode = if flags & PERSISTENT == 0 { 1 } else { 2 };
    let mut properties = BasicProperties::default().with_delivery_mode(mode);
    macro_rules! texts {
        ($($option:literal => $set:ident),*) => {$(
            if let Some(text) = from.maybe()? {
                properties = properties.$set(short($option, &text)?);
            }
        )*};
    }
    texts!(
        "messageId" => with_message_id, "contentType" => with_content_type,
        "contentEncoding" => with_content_encoding, "correlationId" => with_correlation_id,
        "replyTo" => with_reply_to, "type" => with_type, "appId" => with_app_id, "userId" => with_user_id
    );
    if let Some(expiration) = from.maybe_f64()? {
        let ms = duration("expiration", expiration)?.as_millis().to_string();
        properties = properties.with_expiration(ms.into());
    }
    if let Some(priority) = from.maybe_f64()? {
        properties = properties.with_priority(priority as u8);
    }
    if let Some(seconds) = from.maybe_f64()? {
        properties = properties.with_timestamp(seconds as u64);
    }
    if flags & HEADERS != 0 {
        properties = properties.with_headers(read_table(from, 0)?);
    }
    let mut message = Publish::to_exchange(exchange, routing_key, body)
        .properties(properties)
        .mandatory(flags & MANDATORY != 0);
    if let Some(delay) = delay {
        message = message.delay(duration("delay", delay)?);
    }
    message.validate().map_err(|error| match delay {
        // What the core says of a delay, it says of the message.
        Some(_) => about("delay", &error),
        None => thrown(&error),
    })?;
    Ok(message)
}

fn short(option: &str, text: &str) -> Result<ShortString> {
    ShortString::try_new(text)
        .map_err(|_| bad_option(format!("`{option}` is longer than 255 bytes")))
}
