//! Bodies that were written by a schema: protobuf and Avro.

use std::path::Path;

use apache_avro::{Schema, to_avro_datum, types::Record};
use proptest::prelude::*;
use prost::Message;
use prost_reflect::{DescriptorPool, DynamicMessage, MessageDescriptor};
use serde::de::DeserializeSeed;
use serde_json::json;

use super::super::*;

/// As `protoc --descriptor_set_out=… --include_imports shop.proto` writes it.
pub(super) fn descriptor_set() -> Vec<u8> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/decoding/tests");
    protox::compile(["shop.proto"], [folder])
        .unwrap()
        .encode_to_vec()
}

fn message(name: &str) -> MessageDescriptor {
    DescriptorPool::decode(&*descriptor_set())
        .unwrap()
        .get_message_by_name(name)
        .unwrap()
}

fn encode(name: &str, value: &Value) -> Vec<u8> {
    let message: DynamicMessage = message(name).deserialize(value).unwrap();
    message.encode_to_vec()
}

fn decode_by<'a>(body: &'a [u8], decoder: &Decoder) -> Decoded<'a> {
    decode(body, Hints::default(), Some(decoder))
}

fn order() -> Value {
    json!({
        "id": 4711,
        "customer": {"id": 7, "name": "Ada"},
        "lines": [{"sku": "A-1", "count": 2, "price": 9.5}, {"sku": "B-2", "count": 1, "price": 0.25}],
        "state": "STATE_PAID",
        "placed_at": "2026-11-22T21:00:00Z",
        "labels": {"tier": "gold"},
        "offsets": [-1, 0, 300],
        "extra": {"@type": "type.googleapis.com/shop.Customer", "id": 8, "name": "Bob"},
    })
}

#[test]
fn a_named_message_is_decoded_as_it() {
    let body = encode("shop.Order", &order());
    for name in ["shop.Order", ".shop.Order", "Order"] {
        let decoded = decode_by(
            &body,
            &Decoder::protobuf(&descriptor_set(), Some(name)).unwrap(),
        );
        assert_eq!(
            (decoded.format, decoded.is_guess, decoded.sound()),
            (Format::Protobuf, false, Some(&order()))
        );
        assert_eq!(decoded.fit.unwrap().score, 100);
    }
}

/// A publisher of proto3 does not send them.
#[test]
fn fields_with_their_default_are_there() {
    let of = |name: &str, value: &Value| {
        let decoder = Decoder::protobuf(&descriptor_set(), Some(name)).unwrap();
        decode_by(&encode(name, value), &decoder)
            .sound()
            .cloned()
            .unwrap()
    };
    let order = of(
        "shop.Order",
        &json!({"customer": {"id": 0}, "lines": [{"sku": "A-1"}]}),
    );
    assert_eq!(order["id"], 0);
    assert_eq!(order["customer"]["id"], 0);
    assert_eq!(order["customer"]["name"], "");
    assert_eq!(order["lines"][0]["count"], 0);
    assert_eq!(order["offsets"], json!([]));
    let invoice = of("shop.Invoice", &json!({"number": "R-17"}));
    assert_eq!(
        (&invoice["paid"], &invoice["amount"]),
        (&json!(false), &json!(0))
    );
    // A message that was not sent is no message of zeros.
    assert_eq!(of("shop.Order", &json!({"id": 7})).get("customer"), None);
    // A few bytes do not become a huge value.
    let many = json!({"lines": vec![json!({}); 10_000]});
    let many = of("shop.Order", &many);
    assert_eq!(many["lines"].as_array().unwrap().len(), 10_000);
    assert_eq!(many["lines"][0], json!({}));
}

#[test]
fn without_a_name_the_best_fit_is_found() {
    let decoder = Decoder::protobuf(&descriptor_set(), None).unwrap();
    for (name, value) in [
        ("shop.Order", order()),
        ("shop.Customer", json!({"id": 7, "name": "Ada"})),
        ("shop.Line", json!({"sku": "A-1", "count": 2, "price": 9.5})),
        (
            "shop.Invoice",
            json!({"number": "R-17", "amount": 995, "paid": true}),
        ),
    ] {
        let body = encode(name, &value);
        let decoded = decode_by(&body, &decoder);
        let fit = decoded.fit.clone().unwrap();
        assert_eq!(
            (fit.message.as_str(), fit.score, decoded.is_guess),
            (name, 100, true),
            "{fit:?}"
        );
        assert_eq!(decoded.sound(), Some(&value));
        assert!(fit.tried >= 5);
    }
    // Wrapped, as a client of a schema registry writes it, and with fields that the set does not have yet.
    let mut body = encode("shop.Order", &order());
    body.extend(b"\xf2\x01\x03new");
    let decoded = decode_by(&body, &decoder);
    let fit = decoded.fit.clone().unwrap();
    assert!(fit.message == "shop.Order" && fit.score < 100, "{fit:?}");
    let framed = [&b"\0\0\0\0\x2a\0"[..], &encode("shop.Order", &order())].concat();
    let decoded = decode_by(&framed, &decoder);
    assert_eq!(
        (&*decoded.unwrapped, decoded.sound()),
        (&[Encoding::SchemaRegistry(42)][..], Some(&order()))
    );
}

#[test]
fn what_is_no_message_of_the_set_is_shown_as_what_it_looks_like() {
    let decoded = decode_by(
        b"{\"id\": 7}",
        &Decoder::protobuf(&descriptor_set(), None).unwrap(),
    );
    assert_eq!(decoded.format, Format::Json);
    assert!(decoded.truncation.unwrap().why.contains("no message"));
}

#[test]
fn a_broken_message_keeps_the_fields_before_the_break() {
    let body = encode("shop.Order", &order());
    let decoder = Decoder::protobuf(&descriptor_set(), Some("shop.Order")).unwrap();
    let decoded = decode_by(&body[..20], &decoder);
    let broken = decoded.truncation.clone().unwrap();
    assert!(
        broken.within == "protobuf" && broken.byte <= 20,
        "{broken:?}"
    );
    assert_eq!(
        decoded.value,
        Some(json!({"id": 4711, "customer": {"id": 7, "name": "Ada"}}))
    );
    assert_eq!(decoded.sound(), None);
}

#[test]
fn bad_sets_and_names_are_refused_with_a_sentence() {
    let why = Decoder::protobuf(b"\xff\xff", None).unwrap_err();
    assert!(!why.is_empty());
    let why = Decoder::protobuf(&descriptor_set(), Some("shop.Ordr")).unwrap_err();
    assert!(
        why.contains("`shop.Ordr`") && why.contains("`shop.Order`"),
        "{why}"
    );
    assert!(Decoder::avro("{").is_err() && Decoder::avro("{\"type\": \"record\"}").is_err());
}

const SCHEMA: &str = r#"{"type": "record", "name": "Order", "namespace": "shop", "fields": [
    {"name": "id", "type": "long"},
    {"name": "customer", "type": {"type": "record", "name": "Customer", "fields": [{"name": "id", "type": "int"}, {"name": "name", "type": ["null", "string"]}]}},
    {"name": "second", "type": ["null", "Customer"]},
    {"name": "lines", "type": {"type": "array", "items": {"type": "map", "values": "double"}}},
    {"name": "state", "type": {"type": "enum", "name": "State", "symbols": ["NEW", "PAID"]}},
    {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
    {"name": "day", "type": {"type": "int", "logicalType": "date"}},
    {"name": "raw", "type": "bytes"}, {"name": "ok", "type": "boolean"}, {"name": "ratio", "type": "float"}
]}"#;

fn datum(id: i64) -> Vec<u8> {
    use apache_avro::types::Value as Avro;
    let schema = Schema::parse_str(SCHEMA).unwrap();
    let customer = |id| {
        let name = Avro::Union(1, Box::new(Avro::String("Ada".into())));
        Avro::Record(vec![("id".into(), Avro::Int(id)), ("name".into(), name)])
    };
    let mut record = Record::new(&schema).unwrap();
    record.put("id", Avro::Long(id));
    record.put("customer", customer(7));
    record.put("second", Avro::Union(1, Box::new(customer(8))));
    record.put(
        "lines",
        Avro::Array(vec![Avro::Map(
            [("a".to_owned(), Avro::Double(2.5))].into(),
        )]),
    );
    record.put("state", Avro::Enum(1, "PAID".into()));
    record.put("at", Avro::TimestampMillis(1_700_000_000_123));
    record.put("day", Avro::Date(20_000));
    record.put("raw", Avro::Bytes(vec![0xff, 0]));
    record.put("ok", Avro::Boolean(true));
    record.put("ratio", Avro::Float(0.1));
    to_avro_datum(&schema, record).unwrap()
}

#[test]
fn avro_is_read_by_its_schema() {
    let decoder = Decoder::avro(SCHEMA).unwrap();
    let body = datum(4711);
    let expected = json!({
        "id": 4711, "customer": {"id": 7, "name": "Ada"}, "second": {"id": 8, "name": "Ada"}, "lines": [{"a": 2.5}],
        "state": "PAID", "at": "2023-11-14T22:13:20.123Z", "day": "2024-10-04", "raw": {"$bytes": "/wA="}, "ok": true, "ratio": 0.1
    });
    let decoded = decode_by(&body, &decoder);
    assert_eq!(
        (decoded.format, decoded.sound()),
        (Format::Avro, Some(&expected))
    );
    assert_eq!(decoded.schema.as_deref(), Some("shop.Order"));
    for (frame, wrapping) in [
        (&b"\0\0\0\0\x07"[..], Encoding::SchemaRegistry(7)),
        (b"\xc3\x01abcdefgh", Encoding::SingleObject),
    ] {
        let framed = [frame, &body].concat();
        let decoded = decode_by(&framed, &decoder);
        assert_eq!(
            (&*decoded.unwrapped, decoded.sound()),
            (&[wrapping][..], Some(&expected))
        );
    }
    let cut = decode_by(&body[..8], &decoder);
    let broken = cut.truncation.unwrap();
    assert_eq!(
        (cut.value, broken.byte),
        (
            Some(json!({"id": 4711, "customer": {"id": 7, "name": "Ada"}})),
            8
        ),
        "{broken:?}"
    );
}

#[test]
fn decimals_are_numbers_in_texts() {
    let schema = r#"{"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}"#;
    let decoder = Decoder::avro(schema).unwrap();
    for (body, text) in [
        (&b"\x04\x01\x3a"[..], "3.14"),
        (b"\x02\xfb", "-0.05"),
        (b"\x00", "0.00"),
    ] {
        assert_eq!(decode_by(body, &decoder).value, Some(json!(text)));
    }
}

/// Each would take gigabytes, or the stack, if it were believed.
#[test]
fn data_that_claim_too_much_are_cut() {
    let list = Decoder::avro(r#"{"type": "array", "items": "null"}"#).unwrap();
    let lists =
        Decoder::avro(r#"{"type": "array", "items": {"type": "array", "items": "null"}}"#).unwrap();
    let itself =
        Decoder::avro(r#"{"type": "record", "name": "A", "fields": [{"name": "a", "type": "A"}]}"#)
            .unwrap();
    let tree = Decoder::protobuf(&descriptor_set(), Some("shop.Tree")).unwrap();
    let many = b"\xfe\xff\xff\xff\xff\xff\xff\xff\x7f"; // 2^61 and more of them
    let mut deep = Vec::new();
    for _ in 0..500 {
        let mut length = Vec::new();
        prost::encoding::encode_varint(deep.len() as u64, &mut length);
        deep = [&[0x0a][..], &length, &deep].concat();
    }
    let any = message("google.protobuf.Any");
    let mut anys: Vec<u8> = Vec::new();
    for _ in 0..500 {
        let mut outer = DynamicMessage::new(any.clone());
        outer.set_field_by_number(
            1,
            prost_reflect::Value::String("x/google.protobuf.Any".into()),
        );
        outer.set_field_by_number(2, prost_reflect::Value::Bytes(anys.into()));
        anys = outer.encode_to_vec();
    }
    let any = Decoder::protobuf(&descriptor_set(), Some("google.protobuf.Any")).unwrap();
    for (decoder, body) in [
        (&list, &many[..]),
        (&lists, &[&b"\x02"[..], many].concat()),
        (&itself, b"x"),
        (&tree, &deep),
        (&any, &anys),
    ] {
        let decoded = decode_by(body, decoder);
        let broken = decoded.truncation.expect("it breaks off");
        assert!(broken.why.contains("more than"), "{broken:?}");
    }
}

proptest! {
    #[test]
    fn every_cut_of_a_message_is_survived(cut in 0..200_usize) {
        let set = descriptor_set();
        let (proto, avro) = (encode("shop.Order", &order()), datum(-1));
        for (body, decoder) in [
            (&proto, Decoder::protobuf(&set, Some("shop.Order")).unwrap()),
            (&proto, Decoder::protobuf(&set, None).unwrap()),
            (&avro, Decoder::avro(SCHEMA).unwrap()),
        ] {
            let cut = cut.min(body.len());
            let decoded = decode_by(&body[..cut], &decoder);
            if let Some(broken) = decoded.truncation {
                prop_assert!(broken.byte <= cut);
            }
        }
    }
}
