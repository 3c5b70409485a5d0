//! Bodies of every kind, whole and broken.

mod fuzzed;
mod schemas;
mod wrapped;

use proptest::prelude::*;
use serde_json::json;

use super::*;

/// Without any hint.
fn look_at(body: &[u8]) -> Decoded<'_> {
    decode(body, Hints::default(), None)
}

fn typed<'a>(body: &'a [u8], content_type: &str) -> Decoded<'a> {
    let hints = Hints {
        content_type: Some(content_type),
        content_encoding: None,
    };
    decode(body, hints, None)
}

#[test]
fn plain_bodies_are_what_they_are() {
    for (body, format, value) in [
        (&b""[..], Format::Empty, None),
        (b"{\"id\": 7}", Format::Json, Some(json!({"id": 7}))),
        (
            b"  [1, 2.5, null]\n",
            Format::Json,
            Some(json!([1, 2.5, null])),
        ),
        (b"hello", Format::Text, Some(json!("hello"))),
        (b"7", Format::Text, Some(json!("7"))),
        (b"\x1b[2Jpark", Format::Text, Some(json!("\u{1b}[2Jpark"))),
        (
            b"deadbeefdeadbeef",
            Format::Text,
            Some(json!("deadbeefdeadbeef")),
        ),
        (b"\xff\x00\x41", Format::Binary, None),
    ] {
        let decoded = look_at(body);
        assert_eq!(
            (decoded.format, &decoded.value),
            (format, &value),
            "{}",
            body.escape_ascii()
        );
        assert!(decoded.unwrapped.is_empty() && decoded.truncation.is_none() && !decoded.is_guess);
    }
    assert_eq!(
        typed(b"7", "application/json; charset=utf-8").value,
        Some(json!(7))
    );
    assert_eq!(
        typed(b"\x93\x01\x02\x03", "application/x-msgpack").format,
        Format::MessagePack
    );
}

#[test]
fn what_breaks_off_says_where_and_keeps_what_came_before() {
    let json = look_at(b"{\"a\": [1, 2,\n {\"b\": tru");
    let broken = json.truncation.clone().unwrap();
    assert_eq!(
        (json.format, broken.within.as_str(), broken.byte),
        (Format::Text, "JSON", 22),
        "{broken:?}"
    );
    assert_eq!(json.sound(), None, "half a body is nothing to choose by");

    let pack = typed(b"\x82\xa1a\x01\xa1b\x93\x01\xc1", "application/msgpack");
    let broken = pack.truncation.clone().unwrap();
    assert_eq!(
        (pack.format, &pack.value, broken.byte),
        (Format::MessagePack, &Some(json!({"a": 1, "b": [1]})), 8)
    );
    assert!(broken.why.contains("0xc1"), "{broken:?}");

    let short = typed(b"\x81\xa1a\xdb\xff\xff\xff\xffx", "application/msgpack");
    assert_eq!(
        (short.truncation.unwrap().byte, short.value),
        (8, Some(json!({})))
    );

    let wire = typed(b"\x08\x07\x12\x05ab", "application/x-protobuf");
    let broken = wire.truncation.clone().unwrap();
    assert_eq!(
        (wire.format, wire.value, broken.byte),
        (Format::ProtobufWire, Some(json!({"1": 7})), 4),
        "{broken:?}"
    );
}

#[test]
fn a_wrong_content_type_is_not_believed() {
    let decoded = typed(b"\x81\xa1a\x01", "application/json");
    assert_eq!(
        (decoded.format, decoded.is_guess, decoded.sound()),
        (Format::MessagePack, true, Some(&json!({"a": 1})))
    );
    let decoded = typed(b"no such thing", "application/json");
    assert_eq!(decoded.format, Format::Text);
    assert_eq!(decoded.truncation.unwrap().within, "JSON");
}

#[test]
fn messagepack_has_all_its_types() {
    let body = b"\x88\xa1i\xd1\xfe\xd4\xa1u\xcf\xff\xff\xff\xff\xff\xff\xff\xff\xa1f\xca\x3d\xcc\xcc\xcd\xa1n\xc0\xa1b\xc4\x02\xff\x00\xa1t\xd6\xff\x65\x53\xf1\x00\xa1x\xd4\x05\x07\x07\xa1k";
    let decoded = look_at(body);
    assert_eq!(
        (decoded.format, decoded.is_guess),
        (Format::MessagePack, true)
    );
    assert_eq!(
        decoded.value,
        Some(json!({
            "i": -300, "u": u64::MAX, "f": 0.1, "n": null, "b": {"$bytes": "/wA="}, "t": "2023-11-14T22:13:20Z",
            "x": {"$extension": 5, "value": {"$bytes": "Bw=="}}, "7": "k"
        }))
    );
}

#[test]
fn protobuf_without_a_schema_is_guessed() {
    // 1: 150, 2: "Ada", 3: {1: "x", 2: 2.5}, 4: [1, 2], 5: bytes
    let body = b"\x08\x96\x01\x12\x03Ada\x1a\x0c\x0a\x01x\x11\x00\x00\x00\x00\x00\x00\x04\x40\x20\x01\x20\x02\x2a\x02\xff\xfe";
    let decoded = look_at(body);
    assert_eq!(
        (decoded.format, decoded.is_guess),
        (Format::ProtobufWire, true)
    );
    assert_eq!(
        decoded.value,
        Some(
            json!({"1": 150, "2": "Ada", "3": {"1": "x", "2": 2.5}, "4": [1, 2], "5": {"$bytes": "//4="}})
        )
    );
    // Groups of old.
    assert_eq!(
        look_at(b"\x0b\x10\x07\x0c").value,
        Some(json!({"1": {"2": 7}}))
    );
}

fn any_pack() -> impl Strategy<Value = rmpv::Value> {
    let leaf = prop_oneof![
        Just(rmpv::Value::Nil),
        any::<bool>().prop_map(rmpv::Value::from),
        any::<i64>().prop_map(rmpv::Value::from),
        any::<u64>().prop_map(rmpv::Value::from),
        any::<f64>().prop_map(rmpv::Value::from),
        any::<String>().prop_map(rmpv::Value::from),
        any::<Vec<u8>>().prop_map(rmpv::Value::from),
    ];
    leaf.prop_recursive(5, 64, 6, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..6).prop_map(rmpv::Value::Array),
            prop::collection::vec((any::<String>().prop_map(rmpv::Value::from), inner), 0..6)
                .prop_map(rmpv::Value::Map),
        ]
    })
}

proptest! {
    #[test]
    fn what_another_library_packs_is_read_whole_and_every_cut_is_noticed(value in any_pack(), cut in any::<prop::sample::Index>()) {
        let mut body = Vec::new();
        rmpv::encode::write_value(&mut body, &value).unwrap();
        let whole = typed(&body, "application/msgpack");
        prop_assert_eq!(whole.format, Format::MessagePack);
        prop_assert!(whole.truncation.is_none(), "{:?}", whole.truncation);
        let length = cut.index(body.len());
        let mut tree = BoundedValue::default();
        let broken = messagepack::decode(&body[..length], &mut tree).unwrap_err();
        prop_assert!(broken.at <= length);
    }

    #[test]
    fn json_is_read_as_serde_reads_it(text in "[\\[\\]{}:,\"a0-9. \n\\\\u-]{0,40}") {
        let mut tree = BoundedValue::default();
        let ours = json::decode(text.as_bytes(), &mut tree);
        let theirs = serde_json::from_str::<Value>(&text);
        prop_assert_eq!(ours.is_ok(), theirs.is_ok());
        if let Ok(value) = theirs {
            prop_assert_eq!(tree.finish(), Some(value));
        } else {
            prop_assert!(ours.unwrap_err().at <= text.len());
        }
    }
}
