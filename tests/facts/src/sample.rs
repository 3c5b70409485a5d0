//! A message that makes use of everything AMQP allows.

use crate::{array, int, string, table};
use lapin::BasicProperties;
use lapin::types::{AMQPValue, DecimalValue};

/// Every property but expiration, and a header of every type that lapin can write, nested ones included. The user id
/// is the given one, because brokers insist on the truth there.
pub fn every_property(user: &str) -> BasicProperties {
    let inner = table([(
        "deeper",
        AMQPValue::FieldTable(table([("byte", AMQPValue::ShortShortInt(-1))])),
    )]);
    let headers = table([
        ("boolean", AMQPValue::Boolean(true)),
        ("byte", AMQPValue::ShortShortInt(-5)),
        ("unsigned byte", AMQPValue::ShortShortUInt(250)),
        ("short", AMQPValue::ShortInt(-300)),
        ("unsigned short", AMQPValue::ShortUInt(65_000)),
        ("int", AMQPValue::LongInt(-70_000)),
        ("unsigned int", AMQPValue::LongUInt(4_000_000_000)),
        ("long", int(i64::MIN)),
        ("float", AMQPValue::Float(1.5)),
        ("double", AMQPValue::Double(0.1)),
        (
            "decimal",
            AMQPValue::DecimalValue(DecimalValue {
                scale: 2,
                value: 4_000_000_000,
            }),
        ),
        ("text", string("grün")),
        (
            "not text",
            AMQPValue::LongString(vec![0xff, 0xfe, 0].into()),
        ),
        ("bytes", AMQPValue::ByteArray(vec![1, 2, 0xff].into())),
        ("time", AMQPValue::Timestamp(1_700_000_000)),
        ("end of time", AMQPValue::Timestamp(u64::MAX)),
        (
            "array",
            array([
                int(1),
                AMQPValue::Void,
                AMQPValue::FieldTable(inner.clone()),
            ]),
        ),
        ("table", AMQPValue::FieldTable(inner)),
        ("empty table", AMQPValue::FieldTable(table([]))),
        ("nothing", AMQPValue::Void),
        ("", string("a header without a name")),
    ]);
    BasicProperties::default()
        .with_headers(headers)
        .with_content_type("text/plain".into())
        .with_content_encoding("identity".into())
        .with_delivery_mode(2)
        .with_priority(3)
        .with_correlation_id("correlation".into())
        .with_reply_to("reply".into())
        .with_message_id("message".into())
        .with_timestamp(123)
        .with_type("type".into())
        .with_user_id(user.into())
        .with_app_id("application".into())
        .with_cluster_id("cluster".into())
}
