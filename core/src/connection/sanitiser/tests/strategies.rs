//! What the generated streams are made of: valid frames, and content headers that are nearly valid.

use super::*;
use amq_protocol::{
    frame::{AMQPContentHeader, GenError, WriteContext, gen_frame},
    protocol::{AMQPClass, basic, basic::AMQPProperties, channel, connection, queue},
    types::{AMQPValue, DecimalValue, FieldTable, ShortString},
};
use proptest::{
    collection::vec,
    prelude::*,
    sample::{Index, select},
};

fn name() -> impl Strategy<Value = ShortString> {
    prop_oneof!["[a-z.-]{0,12}", "\\PC{0,20}"].prop_map(ShortString::from)
}

fn value() -> impl Strategy<Value = AMQPValue> {
    let leaf = prop_oneof![
        any::<bool>().prop_map(AMQPValue::Boolean),
        any::<i8>().prop_map(AMQPValue::ShortShortInt),
        any::<u8>().prop_map(AMQPValue::ShortShortUInt),
        any::<i16>().prop_map(AMQPValue::ShortInt),
        any::<u16>().prop_map(AMQPValue::ShortUInt),
        any::<i32>().prop_map(AMQPValue::LongInt),
        any::<u32>().prop_map(AMQPValue::LongUInt),
        any::<i64>().prop_map(AMQPValue::LongLongInt),
        any::<f32>().prop_map(AMQPValue::Float),
        any::<f64>().prop_map(AMQPValue::Double),
        any::<(u8, u32)>()
            .prop_map(|(scale, value)| AMQPValue::DecimalValue(DecimalValue { scale, value })),
        vec(any::<u8>(), 0..40).prop_map(|bytes| AMQPValue::LongString(bytes.into())),
        vec(any::<u8>(), 0..40).prop_map(|bytes| AMQPValue::ByteArray(bytes.into())),
        any::<u64>().prop_map(AMQPValue::Timestamp),
        Just(AMQPValue::Void),
    ];
    leaf.prop_recursive(6, 40, 5, |inner| {
        prop_oneof![
            vec(inner.clone(), 0..5).prop_map(|values| AMQPValue::FieldArray(values.into())),
            table_of(inner).prop_map(AMQPValue::FieldTable),
        ]
    })
}

fn table_of(value: impl Strategy<Value = AMQPValue>) -> impl Strategy<Value = FieldTable> {
    proptest::collection::btree_map(name(), value, 0..5).prop_map(FieldTable::from)
}

fn properties() -> impl Strategy<Value = AMQPProperties> {
    let texts = proptest::array::uniform10(proptest::option::of(name()));
    let rest = proptest::option::of((table_of(value()), any::<u8>(), any::<u8>(), any::<u64>()));
    (texts, rest).prop_map(|(texts, rest)| {
        let mut properties = AMQPProperties::default();
        let setters = [
            AMQPProperties::with_content_type,
            AMQPProperties::with_content_encoding,
            AMQPProperties::with_correlation_id,
            AMQPProperties::with_reply_to,
            AMQPProperties::with_expiration,
            AMQPProperties::with_message_id,
            AMQPProperties::with_type,
            AMQPProperties::with_user_id,
            AMQPProperties::with_app_id,
            AMQPProperties::with_cluster_id,
        ];
        for (set, text) in setters.into_iter().zip(texts) {
            if let Some(text) = text {
                properties = set(properties, text);
            }
        }
        if let Some((headers, delivery_mode, priority, timestamp)) = rest {
            properties = properties
                .with_headers(headers)
                .with_delivery_mode(delivery_mode)
                .with_priority(priority)
                .with_timestamp(timestamp);
        }
        properties
    })
}

fn a_method() -> impl Strategy<Value = AMQPClass> {
    use basic::AMQPMethod::*;
    prop_oneof![
        (name(), any::<u64>(), any::<bool>(), name(), name()).prop_map(
            |(consumer_tag, delivery_tag, redelivered, exchange, routing_key)| {
                AMQPClass::Basic(Deliver(basic::Deliver {
                    consumer_tag,
                    delivery_tag,
                    redelivered,
                    exchange,
                    routing_key,
                }))
            }
        ),
        (any::<u64>(), name(), name(), any::<u32>()).prop_map(
            |(delivery_tag, exchange, routing_key, message_count)| {
                AMQPClass::Basic(GetOk(basic::GetOk {
                    delivery_tag,
                    redelivered: false,
                    exchange,
                    routing_key,
                    message_count,
                }))
            }
        ),
        (any::<u16>(), name(), name(), name()).prop_map(
            |(reply_code, reply_text, exchange, routing_key)| {
                AMQPClass::Basic(Return(basic::Return {
                    reply_code,
                    reply_text,
                    exchange,
                    routing_key,
                }))
            }
        ),
        (any::<u64>(), any::<bool>()).prop_map(|(delivery_tag, multiple)| AMQPClass::Basic(Ack(
            basic::Ack {
                delivery_tag,
                multiple
            }
        ))),
        name().prop_map(|consumer_tag| AMQPClass::Basic(ConsumeOk(basic::ConsumeOk {
            consumer_tag
        }))),
        name().prop_map(|queue| {
            AMQPClass::Queue(queue::AMQPMethod::DeclareOk(queue::DeclareOk {
                queue,
                message_count: 1,
                consumer_count: 2,
            }))
        }),
        name().prop_map(|reply_text| {
            AMQPClass::Channel(channel::AMQPMethod::Close(channel::Close {
                reply_code: 404,
                reply_text,
                class_id: 50,
                method_id: 10,
            }))
        }),
        (table_of(value()), "[A-Z ]{0,20}").prop_map(|(server_properties, mechanisms)| {
            AMQPClass::Connection(connection::AMQPMethod::Start(connection::Start {
                version_major: 0,
                version_minor: 9,
                server_properties,
                mechanisms: mechanisms.into(),
                locales: "en_US".into(),
            }))
        }),
    ]
}

pub(super) fn a_frame() -> impl Strategy<Value = AMQPFrame> {
    let channel = select(vec![1, 2, 2047, u16::MAX]);
    prop_oneof![
        3 => (channel.clone(), a_method()).prop_map(|(channel, method)| AMQPFrame::Method(channel, method)),
        3 => (channel.clone(), any::<u64>(), properties()).prop_map(|(channel, body_size, properties)| {
            AMQPFrame::Header(channel, AMQPContentHeader { class_id: 60, body_size, properties })
        }),
        1 => (channel, vec(any::<u8>(), 0..600)).prop_map(|(channel, body)| AMQPFrame::Body(channel, body)),
        1 => Just(AMQPFrame::Heartbeat),
    ]
}

pub(super) fn encode(frame: &AMQPFrame) -> Vec<u8> {
    let mut buffer = vec![0; 1 << 10];
    loop {
        let context = WriteContext::from(&mut buffer[..]);
        let written = gen_frame(frame)(context).map(|context| context.position);
        match written {
            Ok(len) => {
                buffer.truncate(len as usize);
                return buffer;
            }
            Err(GenError::BufferTooSmall(_)) => buffer = vec![0; buffer.len() * 2],
            Err(error) => panic!("{frame:?} can be generated: {error:?}"),
        }
    }
}

pub(super) fn splits() -> impl Strategy<Value = Vec<usize>> {
    vec(prop_oneof![3 => 1..16usize, 1 => 16..700usize], 1..8)
}

/// One field of a container, of any type and mostly well formed, or any bytes in its place.
fn raw_field() -> impl Strategy<Value = (u8, Vec<u8>)> {
    let tag = prop_oneof![4 => select(b"tbBsUuIilLfdDSTxVFA".to_vec()), 1 => any::<u8>()];
    let exact = (tag, vec(any::<u8>(), 8)).prop_map(|(tag, bytes)| {
        let value = match tag {
            b'V' => vec![],
            b't' | b'b' | b'B' => bytes[..1].to_vec(),
            b's' | b'U' | b'u' => bytes[..2].to_vec(),
            b'I' | b'i' | b'f' => bytes[..4].to_vec(),
            b'D' => bytes[..5].to_vec(),
            b'l' | b'L' | b'd' | b'T' => bytes,
            _ => long(&bytes[..4]),
        };
        (tag, value)
    });
    exact.prop_recursive(48, 80, 3, |inner| {
        let keyed = vec((vec(any::<u8>(), 0..4), inner.clone()), 0..4).prop_map(|fields| {
            let fields = fields
                .into_iter()
                .map(|(key, (tag, value))| entry(&key, tag, &value));
            (b'F', long(&fields.collect::<Vec<_>>().concat()))
        });
        let listed = vec(inner, 0..4).prop_map(|fields| {
            let fields = fields
                .into_iter()
                .map(|(tag, value)| [&[tag], &value[..]].concat());
            (b'A', long(&fields.collect::<Vec<_>>().concat()))
        });
        prop_oneof![keyed, listed]
    })
}

pub(super) fn changes() -> impl Strategy<Value = Vec<(Index, u8)>> {
    vec((any::<Index>(), any::<u8>()), 0..4)
}

pub(super) fn change(bytes: &mut [u8], changes: Vec<(Index, u8)>) {
    if !bytes.is_empty() {
        for (at, byte) in changes {
            bytes[at.index(bytes.len())] = byte;
        }
    }
}

/// A content header that keeps to the grammar except for a few bytes; its headers begin with strings of these sizes.
pub(super) fn hostile_header(
    flags: impl Strategy<Value = u16>,
    sizes: impl Strategy<Value = Vec<usize>>,
) -> impl Strategy<Value = Vec<u8>> {
    let texts = vec(vec(any::<u8>(), 0..20), 10);
    let deep = prop_oneof![Just(0), 0..80usize, 900..2000usize];
    let cut = prop_oneof![3 => Just(0), 1 => 0..60usize];
    let table = (sizes, deep, vec(raw_field(), 0..5));
    (flags, texts, table, changes(), cut).prop_map(
        |(flags, texts, (sizes, deep, fields), changes, cut)| {
            let blobs = sizes.into_iter().map(|size| vec![b'v'; size]);
            let mut table: Vec<u8> = blobs
                .flat_map(|blob| entry(b"b", b'S', &long(&blob)))
                .collect();
            if deep > 0 {
                table.extend(tables(deep, b"\x01\xffV"));
            }
            for (index, (tag, value)) in fields.into_iter().enumerate() {
                table.extend(entry(&texts[index], tag, &value));
            }
            let mut texts = texts.iter().map(|text| short(text));
            let mut list = Vec::new();
            for index in (0..14).filter(|index| flags & (1 << 15 >> index) != 0) {
                match index {
                    2 => list.extend(long(&table)),
                    3 | 4 => list.push(2),
                    9 => list.extend([0xff; 8]),
                    _ => list.extend(texts.next().unwrap_or_else(|| short(b"\xff"))),
                }
            }
            list.truncate(list.len().saturating_sub(cut));
            change(&mut list, changes);
            header(1, flags, &list)
        },
    )
}
