//! How many bytes properties take on the wire.

use lapin::BasicProperties;
use lapin::types::{AMQPValue, FieldTable};

/// The class, the weight, the size of the body and the flags of a content header.
const FIXED: usize = 14;

/// The size of a content header frame's payload.
pub(crate) fn encoded(properties: &BasicProperties) -> usize {
    let short = |text: &Option<lapin::types::ShortString>| {
        text.as_ref().map_or(0, |text| 1 + text.as_str().len())
    };
    let texts = [
        properties.content_type(),
        properties.content_encoding(),
        properties.correlation_id(),
        properties.reply_to(),
        properties.expiration(),
        properties.message_id(),
        properties.kind(),
        properties.user_id(),
        properties.app_id(),
        properties.cluster_id(),
    ];
    FIXED
        + texts.into_iter().map(short).sum::<usize>()
        + properties.headers().as_ref().map_or(0, table)
        + usize::from(properties.delivery_mode().is_some())
        + usize::from(properties.priority().is_some())
        + properties.timestamp().map_or(0, |_| 8)
}

fn table(table: &FieldTable) -> usize {
    let field = |(name, content): (&lapin::types::ShortString, &AMQPValue)| {
        1 + name.as_str().len() + value(content)
    };
    4 + table.inner().iter().map(field).sum::<usize>()
}

/// The size of a value with its type.
fn value(content: &AMQPValue) -> usize {
    1 + match content {
        AMQPValue::Boolean(_) | AMQPValue::ShortShortInt(_) | AMQPValue::ShortShortUInt(_) => 1,
        AMQPValue::ShortInt(_) | AMQPValue::ShortUInt(_) => 2,
        AMQPValue::LongInt(_) | AMQPValue::LongUInt(_) | AMQPValue::Float(_) => 4,
        AMQPValue::LongLongInt(_) | AMQPValue::Double(_) | AMQPValue::Timestamp(_) => 8,
        AMQPValue::DecimalValue(_) => 5,
        AMQPValue::ShortString(text) => 1 + text.as_str().len(),
        AMQPValue::LongString(text) => 4 + text.as_bytes().len(),
        AMQPValue::FieldArray(values) => 4 + values.as_slice().iter().map(value).sum::<usize>(),
        AMQPValue::FieldTable(fields) => table(fields),
        AMQPValue::ByteArray(bytes) => 4 + bytes.len(),
        AMQPValue::Void => 0,
    }
}
