//! Messages as one block of bytes, laid out so that Go reads only what is looked at.
//!
//! ```text
//! batch    count u32, messages
//! message  token u64, first failure u64 (seconds since 1970, 0 none), attempt u32, replays u32, flags u8,
//!          exchange u32+, routing key u32+, message id u32+, last error u32+, what was mended u32+ (if the flags say so),
//!          properties u32+, headers u32+, body u32+
//! ```
//!
//! Numbers are little-endian; `u32+` is a length and as many bytes.

use retryrmq::{BasicProperties, Delivery, Message};
use retryrmq_bindings::unix_seconds;

use crate::{values, wire::Wire};

const REDELIVERED: u8 = 1;
const MAY_PARK: u8 = 2;
const HAS_ID: u8 = 4;
const HAS_ERROR: u8 = 8;
const HAS_HEADERS: u8 = 16;
const MENDED: u8 = 32;

/// Several messages.
pub(crate) fn batch(batch: &[Delivery], may_park: impl Fn(&Message) -> bool) -> Wire {
    if batch.is_empty() {
        return Wire::default();
    }
    let size: usize = batch
        .iter()
        .map(|delivery| delivery.message.body().len() + 192)
        .sum();
    let mut out = Vec::with_capacity(size);
    out.extend(u32::try_from(batch.len()).unwrap_or(0).to_le_bytes());
    for Delivery { token, message, .. } in batch {
        write(&mut out, token.to_u64(), message, may_park(message));
    }
    Wire(out)
}

/// One message.
pub(crate) fn write(out: &mut Vec<u8>, token: u64, message: &Message, may_park: bool) {
    let first_failed_at = unix_seconds(message.first_failed_at()).unwrap_or(0);
    let headers = message.headers();
    let mut flags = 0;
    for (flag, is_set) in [
        (REDELIVERED, message.redelivered()),
        (MAY_PARK, may_park),
        (HAS_ID, message.message_id().is_some()),
        (HAS_ERROR, message.last_error().is_some()),
        (HAS_HEADERS, headers.is_some()),
        (MENDED, message.mended().is_some()),
    ] {
        flags |= if is_set { flag } else { 0 };
    }
    out.extend(token.to_le_bytes());
    out.extend(first_failed_at.to_le_bytes());
    out.extend(message.attempt().to_le_bytes());
    out.extend(message.replays().to_le_bytes());
    out.push(flags);
    for text in [
        message.exchange(),
        message.routing_key(),
        message.message_id().unwrap_or_default(),
        message.last_error().unwrap_or_default(),
    ] {
        block(out, text.as_bytes());
    }
    if let Some(mended) = message.mended() {
        block(out, mended.as_bytes());
    }
    sized(out, |out| properties(out, message.properties()));
    sized(out, |out| {
        if let Some(headers) = headers {
            values::write_table(out, headers);
        }
    });
    block(out, message.body());
}

fn block(out: &mut Vec<u8>, bytes: &[u8]) {
    // Nothing that AMQP carries is longer.
    out.extend(u32::try_from(bytes.len()).unwrap_or(0).to_le_bytes());
    out.extend_from_slice(bytes);
}

/// Writes a length and what it is the length of.
fn sized(out: &mut Vec<u8>, write: impl FnOnce(&mut Vec<u8>)) {
    let at = out.len();
    out.extend([0; 4]);
    write(out);
    let length = u32::try_from(out.len() - at - 4).unwrap_or(0);
    out[at..at + 4].copy_from_slice(&length.to_le_bytes());
}

/// The properties that are set, without the headers: number, then a byte of length and as many bytes for texts, one byte
/// for delivery mode and priority, eight for the timestamp.
fn properties(out: &mut Vec<u8>, properties: &BasicProperties) {
    let texts = retryrmq_bindings::texts(properties);
    for (number, (_, text)) in (0_u8..).zip(texts) {
        if let Some(text) = text {
            let bytes = text.as_str().as_bytes();
            let length = u8::try_from(bytes.len()).unwrap_or(u8::MAX);
            out.extend([number, length]);
            out.extend_from_slice(&bytes[..usize::from(length)]);
        }
    }
    if let Some(mode) = properties.delivery_mode() {
        out.extend([10, *mode]);
    }
    if let Some(priority) = properties.priority() {
        out.extend([11, *priority]);
    }
    if let Some(seconds) = properties.timestamp() {
        out.push(12);
        out.extend(seconds.to_le_bytes());
    }
}
