//! AMQP field values: how tests write them, and how they read what a broker wrote.

use lapin::BasicProperties;
use lapin::types::{AMQPValue, FieldArray, FieldTable};

/// A 64-bit integer, the type in which brokers write every count.
pub fn int(value: i64) -> AMQPValue {
    AMQPValue::LongLongInt(value)
}

/// A long string.
pub fn string(value: &str) -> AMQPValue {
    AMQPValue::LongString(value.into())
}

/// An array.
pub fn array(values: impl IntoIterator<Item = AMQPValue>) -> AMQPValue {
    AMQPValue::FieldArray(FieldArray::from(values.into_iter().collect::<Vec<_>>()))
}

/// A field table.
pub fn table<'a>(fields: impl IntoIterator<Item = (&'a str, AMQPValue)>) -> FieldTable {
    let mut table = FieldTable::default();
    for (name, value) in fields {
        table.insert(name.into(), value);
    }
    table
}

/// Properties that are nothing but headers.
pub fn headers<'a>(fields: impl IntoIterator<Item = (&'a str, AMQPValue)>) -> BasicProperties {
    BasicProperties::default().with_headers(table(fields))
}

/// A header, as it came.
pub fn header(properties: &BasicProperties, name: &str) -> Option<AMQPValue> {
    properties.headers().as_ref()?.inner().get(name).cloned()
}

/// A header that a broker counts in.
///
/// # Panics
/// When it is not a 64-bit integer.
pub fn count(properties: &BasicProperties, name: &str) -> Option<i64> {
    header(properties, name).map(|value| match value {
        AMQPValue::LongLongInt(count) => count,
        other => panic!("{name} is {other:?}"),
    })
}
