//! AMQP values for property tests of what writes and reads them.

use lapin::types::{AMQPValue, DecimalValue, FieldArray, FieldTable};
use proptest::prelude::*;

/// Any value that AMQP can carry, a few levels deep; texts only as `LongString`.
pub fn any_value() -> impl Strategy<Value = AMQPValue> {
    let leaf = prop_oneof![
        any::<bool>().prop_map(AMQPValue::Boolean),
        any::<i8>().prop_map(AMQPValue::ShortShortInt),
        any::<u8>().prop_map(AMQPValue::ShortShortUInt),
        any::<i16>().prop_map(AMQPValue::ShortInt),
        any::<u16>().prop_map(AMQPValue::ShortUInt),
        any::<i32>().prop_map(AMQPValue::LongInt),
        any::<u32>().prop_map(AMQPValue::LongUInt),
        any::<i64>().prop_map(AMQPValue::LongLongInt),
        any::<u32>().prop_map(|bits| AMQPValue::Float(f32::from_bits(bits))),
        any::<u64>().prop_map(|bits| AMQPValue::Double(f64::from_bits(bits))),
        (any::<u8>(), any::<u32>())
            .prop_map(|(scale, value)| AMQPValue::DecimalValue(DecimalValue { scale, value })),
        any::<Vec<u8>>().prop_map(|bytes| AMQPValue::LongString(bytes.into())),
        any::<Vec<u8>>().prop_map(|bytes| AMQPValue::ByteArray(bytes.into())),
        any::<u64>().prop_map(AMQPValue::Timestamp),
        Just(AMQPValue::Void),
    ];
    leaf.prop_recursive(4, 40, 6, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..6)
                .prop_map(|items| AMQPValue::FieldArray(FieldArray::from(items))),
            any_table(inner).prop_map(AMQPValue::FieldTable),
        ]
    })
}

/// A table of such values.
pub fn any_table(value: impl Strategy<Value = AMQPValue>) -> impl Strategy<Value = FieldTable> {
    prop::collection::btree_map("\\PC{0,40}", value, 0..6).prop_map(|fields| {
        let mut table = FieldTable::default();
        for (name, value) in fields {
            table.insert(name.as_str().into(), value);
        }
        table
    })
}
