//! The names of headers, and careful reading of their values: any publisher may have written them.

use std::hash::{Hash, Hasher};

use lapin::{
    BasicProperties,
    types::{AMQPValue, FieldTable, ShortString},
};

pub const COUNT: &str = "x-retry-count";
pub const DEFERRALS: &str = "x-retry-deferrals";
pub const CRASHES: &str = "x-retry-crashes";
pub const FIRST_FAILED_AT: &str = "x-retry-first-failed-at";
pub const ERROR: &str = "x-retry-error";
pub const ERROR_TYPE: &str = "x-retry-error-type";
pub const ERROR_STACK: &str = "x-retry-error-stack";
pub const HISTORY: &str = "x-retry-history";
pub const EXCHANGE: &str = "x-retry-exchange";
pub const ROUTING_KEY: &str = "x-retry-routing-key";
pub const USER_ID: &str = "x-retry-user-id";
pub const EXPIRATION: &str = "x-retry-expiration";
pub const REPLY_TO: &str = "x-retry-reply-to";
pub const HEADERS_CUT: &str = "x-retry-headers-cut";
pub const PROTOCOL: &str = "x-retry-protocol";
pub const PARKED_AT: &str = "x-retry-parked-at";
pub const PARKED_REASON: &str = "x-retry-parked-reason";
pub const FINGERPRINT: &str = "x-retry-fingerprint";
pub const REPLAYS: &str = "x-retry-replays";
pub const WALK: &str = "x-retry-walk";
/// For a message handed over to a service: what is asked, the queue where it failed, and the chosen delay.
pub const HANDOVER: &str = "x-retry-handover";
pub const QUEUE: &str = "x-retry-queue";
pub const AFTER: &str = "x-retry-after";

/// While the service keeps a message with `x-delay`: the exchange and the routing key that it was published with, its `CC`, and when it is due in
/// milliseconds since 1970.
pub const DELAYED_FROM: &str = "x-retry-delayed-from";
pub const DELAYED_KEY: &str = "x-retry-delayed-key";
pub const DELAYED_CC: &str = "x-retry-delayed-cc";
pub const DELAYED_UNTIL: &str = "x-retry-delayed-until";

pub const DELIVERY_COUNT: &str = "x-delivery-count";
pub const ACQUIRED_COUNT: &str = "x-acquired-count";
pub const DEATH: &str = "x-death";
/// How long the delayed-message plugin keeps a message, in ms.
pub const DELAY: &str = "x-delay";
/// The count that older delayed-exchange solutions write. It is read once.
pub const LEGACY_RETRIES: &str = "x-retries";

/// The value of `reply_to` with which a client asks for direct replies. RabbitMQ accepts it only from a channel that consumes this queue
/// (406 otherwise), and replaces it. AMQP 1.0 publishers can write it as it is; such a message reaches its consumer, but nobody can publish a
/// copy of it. Copies of this library have it in the header `x-retry-reply-to`, and [`Message::properties`](crate::Message::properties)
/// shows it as `reply_to`.
pub const DIRECT_REPLY_TO: &str = "amq.rabbitmq.reply-to";

/// The version of the wire contract that this crate writes.
pub(crate) const PROTOCOL_VERSION: i64 = 1;

/// Larger counts are forged or broken: no policy comes near.
pub(crate) const MOST_COUNTED: u32 = 1_000_000;

/// Whether the name has the prefix of our headers: one of ours, or one that another version writes.
#[must_use]
pub fn has_our_prefix(name: &str) -> bool {
    name.starts_with("x-retry-")
}

/// Headers that neither a publisher nor an operator can set.
#[must_use]
pub fn is_reserved(name: &str) -> bool {
    has_our_prefix(name) || is_brokers_own(name)
}

/// The broker's own headers, which must not be on a copy. RabbitMQ 3.10 continues a re-published `x-death`, 4.x ignores it, and brokers
/// before 4.0.1 can drop the message because of it, as a cycle. `CC` and `BCC` would route the copy to more queues.
#[must_use]
pub fn is_brokers_own(name: &str) -> bool {
    matches!(name, "CC" | "BCC") || is_count(name) || is_of_death(name)
}

/// Headers that the broker increments at each delivery.
#[must_use]
pub fn is_count(name: &str) -> bool {
    matches!(name, DELIVERY_COUNT | ACQUIRED_COUNT)
}

/// Headers that the broker writes when it dead-letters a message.
#[must_use]
pub fn is_of_death(name: &str) -> bool {
    name == DEATH || name.starts_with("x-first-death-") || name.starts_with("x-last-death-")
}

/// The record of one parking. No later copy may have it, because it would be believed.
pub(crate) fn is_of_parking(name: &str) -> bool {
    matches!(name, PARKED_AT | PARKED_REASON | ERROR_STACK | FINGERPRINT)
}

/// Headers of one hand-over. No later copy of the message may have them.
pub(crate) fn is_of_handover(name: &str) -> bool {
    matches!(name, HANDOVER | QUEUE | AFTER)
}

/// Whether this is a header that our copies use, and that is kept before the publisher's if room is short. A name that only resembles one
/// of ours belongs to the publisher.
pub(crate) fn is_ours(name: &str) -> bool {
    is_of_parking(name)
        || is_of_handover(name)
        || matches!(
            name,
            COUNT
                | DEFERRALS
                | CRASHES
                | FIRST_FAILED_AT
                | ERROR
                | ERROR_TYPE
                | HISTORY
                | EXCHANGE
                | ROUTING_KEY
                | USER_ID
                | EXPIRATION
                | REPLY_TO
                | HEADERS_CUT
                | PROTOCOL
                | REPLAYS
                | WALK
        )
}

/// Whether a broker refuses this `reply_to` from everybody who publishes a copy.
pub(crate) fn asks_for_direct_replies(properties: &BasicProperties) -> bool {
    let address = properties.reply_to().as_ref();
    address.is_some_and(|address| address.as_str() == DIRECT_REPLY_TO)
}

/// The properties of a delivery as its publisher set them: `reply_to` is put back from the header in which a copy has it.
pub(crate) fn with_reply_to(properties: BasicProperties) -> BasicProperties {
    if properties.reply_to().is_some() {
        return properties;
    }
    let kept = properties.headers().as_ref();
    let kept = kept
        .and_then(|table| table.inner().get(REPLY_TO))
        .and_then(as_text);
    if kept == Some(DIRECT_REPLY_TO) {
        properties.with_reply_to(ShortString::from(DIRECT_REPLY_TO))
    } else {
        properties
    }
}

/// Any AMQP integer as `i64`.
#[must_use]
pub fn integer(value: &AMQPValue) -> Option<i64> {
    match *value {
        AMQPValue::ShortShortInt(n) => Some(n.into()),
        AMQPValue::ShortShortUInt(n) => Some(n.into()),
        AMQPValue::ShortInt(n) => Some(n.into()),
        AMQPValue::ShortUInt(n) => Some(n.into()),
        AMQPValue::LongInt(n) => Some(n.into()),
        AMQPValue::LongUInt(n) => Some(n.into()),
        AMQPValue::LongLongInt(n) => Some(n),
        _ => None,
    }
}

/// A short or long string, or bytes that are valid UTF-8.
pub(crate) fn as_text(value: &AMQPValue) -> Option<&str> {
    match value {
        AMQPValue::ShortString(text) => Some(text.as_str()),
        AMQPValue::LongString(text) => std::str::from_utf8(text.as_bytes()).ok(),
        AMQPValue::ByteArray(bytes) => std::str::from_utf8(bytes.as_slice()).ok(),
        _ => None,
    }
}

/// Like [`as_text`], for keeping.
pub(crate) fn text(value: &AMQPValue) -> Option<String> {
    as_text(value).map(str::to_owned)
}

/// A count, or `None` if it is absent. `Err` says why the value is not believed.
pub(crate) fn count(headers: &FieldTable, name: &str) -> Result<Option<u32>, &'static str> {
    let Some(value) = headers.inner().get(name) else {
        return Ok(None);
    };
    match integer(value) {
        Some(n) if (0..=i64::from(MOST_COUNTED)).contains(&n) => {
            Ok(Some(u32::try_from(n).unwrap_or(MOST_COUNTED)))
        }
        Some(n) if n < 0 => Err("is negative"),
        Some(_) => Err("is larger than any count can be"),
        None => Err("is not an integer"),
    }
}

/// A time in seconds since 1970, as an AMQP timestamp or any integer.
pub(crate) fn timestamp(headers: &FieldTable, name: &str) -> Result<Option<u64>, &'static str> {
    // The end of year 9999: people and libraries cannot print later times.
    const LAST: u64 = 253_402_300_799;
    let Some(value) = headers.inner().get(name) else {
        return Ok(None);
    };
    let seconds = match value {
        AMQPValue::Timestamp(seconds) => Some(*seconds),
        other => integer(other).and_then(|n| u64::try_from(n).ok()),
    };
    seconds
        .filter(|seconds| *seconds <= LAST)
        .map(Some)
        .ok_or("is not a time")
}

/// A text; `None` if it is absent or of another type.
pub(crate) fn string(headers: &FieldTable, name: &str) -> Option<String> {
    headers.inner().get(name).and_then(text)
}

/// The `count` of the `x-death` entry for `queue` and `reason`. It is looked up by both, because the entry's position depends on the
/// topology.
pub(crate) fn death_count(
    headers: &FieldTable,
    queue: &str,
    reason: &str,
) -> Result<Option<u32>, &'static str> {
    let deaths = match headers.inner().get(DEATH) {
        None => return Ok(None),
        Some(AMQPValue::FieldArray(deaths)) => deaths.as_slice(),
        Some(_) => return Err("is not an array"),
    };
    for death in deaths {
        let AMQPValue::FieldTable(death) = death else {
            return Err("holds something that is not a table");
        };
        let is = |name: &str, text| death.inner().get(name).and_then(as_text) == Some(text);
        if is("queue", queue) && is("reason", reason) {
            return count(death, "count");
        }
    }
    Ok(None)
}

/// The tables in `x-death`, newest first; none if it is not a list of tables.
pub(crate) fn deaths(headers: &FieldTable) -> Vec<&FieldTable> {
    match headers.inner().get(DEATH) {
        Some(AMQPValue::FieldArray(deaths)) => deaths
            .as_slice()
            .iter()
            .filter_map(|death| match death {
                AMQPValue::FieldTable(death) => Some(death),
                _ => None,
            })
            .collect(),
        _ => Vec::new(),
    }
}

/// The routing key with which a message came to the queue of that death; the first, if there were several (`CC`).
pub(crate) fn first_routing_key(death: &FieldTable) -> Option<String> {
    match death.inner().get("routing-keys") {
        Some(AMQPValue::FieldArray(keys)) => keys.as_slice().first().and_then(text),
        _ => None,
    }
}

/// Whether the routing key with which a message was first published is no text, so that only its death has it whole.
pub(crate) fn has_odd_key(headers: &FieldTable) -> bool {
    let oldest = deaths(headers).pop();
    match oldest.and_then(|death| death.inner().get("routing-keys")) {
        Some(AMQPValue::FieldArray(keys)) => {
            let first = keys.as_slice().first();
            first.is_some_and(|key| text(key).is_none())
        }
        _ => false,
    }
}

/// Hashes a value with its type, so that values are equal only if everything in them is.
pub(crate) fn hash(value: &AMQPValue, hasher: &mut impl Hasher) {
    std::mem::discriminant(value).hash(hasher);
    match value {
        AMQPValue::Boolean(value) => value.hash(hasher),
        AMQPValue::ShortShortInt(value) => value.hash(hasher),
        AMQPValue::ShortShortUInt(value) => value.hash(hasher),
        AMQPValue::ShortInt(value) => value.hash(hasher),
        AMQPValue::ShortUInt(value) => value.hash(hasher),
        AMQPValue::LongInt(value) => value.hash(hasher),
        AMQPValue::LongUInt(value) => value.hash(hasher),
        AMQPValue::LongLongInt(value) => value.hash(hasher),
        AMQPValue::Timestamp(value) => value.hash(hasher),
        AMQPValue::Float(value) => value.to_bits().hash(hasher),
        AMQPValue::Double(value) => value.to_bits().hash(hasher),
        AMQPValue::DecimalValue(value) => (value.scale, value.value).hash(hasher),
        AMQPValue::ShortString(value) => value.as_str().hash(hasher),
        AMQPValue::LongString(value) => value.as_bytes().hash(hasher),
        AMQPValue::ByteArray(value) => value.as_slice().hash(hasher),
        AMQPValue::FieldArray(items) => {
            items.as_slice().len().hash(hasher);
            items.as_slice().iter().for_each(|item| hash(item, hasher));
        }
        AMQPValue::FieldTable(table) => {
            table.inner().len().hash(hasher);
            for (name, value) in table {
                name.as_str().hash(hasher);
                hash(value, hasher);
            }
        }
        AMQPValue::Void => {}
    }
}
