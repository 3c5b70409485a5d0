//! What publishers may send, and what lapin is given in its place.

use super::*;
use amq_protocol::{
    protocol::{AMQPClass, basic, basic::AMQPProperties},
    types::{AMQPValue, FieldTable, parsing::parse_value},
};

/// Guards one content header of a delivery; its properties as lapin sees them, and the remark.
fn mended(header: &[u8]) -> (AMQPProperties, String) {
    let mut guard = Sanitiser::new(0);
    let input = [&deliver(1, 7, b"key")[..], header].concat();
    let output = through(&mut guard, &input);
    assert_eq!(output.len(), input.len());
    let mut frames = parse(&output).expect("lapin can parse what the guard lets pass");
    let Some(AMQPFrame::Header(1, header)) = frames.pop() else {
        panic!("the content header is still one: {frames:?}");
    };
    let remark = guard.log().take(1, 7).map(|mended| mended.to_string());
    assert_eq!(guard.mended(), u64::from(remark.is_some()));
    (header.properties, remark.unwrap_or_default())
}

fn mended_headers(table: &[u8]) -> (FieldTable, String) {
    let (properties, remark) = mended(&headers(1, table));
    (
        properties.headers().clone().expect("there are headers"),
        remark,
    )
}

#[test]
fn properties_that_are_not_utf8() {
    type Get = fn(&AMQPProperties) -> Option<&str>;
    macro_rules! property {
        ($name:ident) => {
            |properties| properties.$name().as_ref().map(|text| text.as_str())
        };
    }
    let all: [(u16, &str, Get); 11] = [
        (15, "content_type", property!(content_type)),
        (14, "content_encoding", property!(content_encoding)),
        (10, "correlation_id", property!(correlation_id)),
        (9, "reply_to", property!(reply_to)),
        (8, "expiration", property!(expiration)),
        (7, "message_id", property!(message_id)),
        (5, "type", property!(kind)),
        (4, "user_id", property!(user_id)),
        (3, "app_id", property!(app_id)),
        (2, "cluster_id", property!(cluster_id)),
        (2, "cluster_id", property!(cluster_id)),
    ];
    for (bit, name, get) in all {
        let raw = header(1, 1 << bit, &short("é\u{fffd}x".as_bytes()));
        let (properties, remark) = mended(&raw);
        assert_eq!(
            (get(&properties), &*remark),
            (Some("é\u{fffd}x"), ""),
            "{name}"
        );

        let raw = header(1, 1 << bit, &short(b"a\xff\xc3b\xe2\x82"));
        assert!(parse(&raw).is_err(), "lapin minds {name}");
        let (properties, remark) = mended(&raw);
        assert_eq!(get(&properties), Some("a??b??"));
        assert_eq!(remark, format!("{name} is not UTF-8"));
    }
}

#[test]
fn header_keys_that_are_not_utf8() {
    let inner = long(&entry(b"\xc3", b'V', b""));
    let array = long(&[b"F", &inner[..]].concat());
    for (table, expected) in [
        (entry(b"k\xff", b'V', b""), "k?"),
        (entry(b"t", b'F', &inner), "t"),
        (entry(b"a", b'A', &array), "a"),
    ] {
        assert!(parse(&headers(1, &table)).is_err(), "lapin minds");
        let (headers, remark) = mended_headers(&table);
        assert!(headers.contains_key(expected), "{headers:?}");
        assert_eq!(remark, "a header key is not UTF-8");
    }
}

#[test]
fn header_values_may_be_any_bytes() {
    let table = [
        entry(b"S", b'S', &long(b"\xff")),
        entry(b"x", b'x', &long(b"\xff")),
        entry(b"t", b't', b"\xff"),
        entry(b"T", b'T', &[0xff; 8]),
        entry(b"d", b'd', &[0xff; 8]),
        entry(b"D", b'D', &[0xff; 5]),
    ];
    let (headers, remark) = mended_headers(&table.concat());
    assert_eq!(headers.inner().len(), table.len());
    assert_eq!(remark, "");
}

#[test]
fn every_type_the_parser_knows_is_known_here() {
    for tag in 0..=u8::MAX {
        let raw = [&[tag], &[0; 16][..]].concat();
        let known = parse_value(&raw[..]).map(|(rest, _)| raw.len() - rest.len());
        let table = entry(
            b"k",
            tag,
            &raw[1..known.as_ref().map_or(raw.len(), |len| *len)],
        );
        let mut guard = Sanitiser::new(0);
        let output = through(&mut guard, &headers(1, &table));
        let unchanged = output == headers(1, &table);
        assert_eq!(unchanged, known.is_ok(), "type {:?}", char::from(tag));
    }
}

#[test]
fn nesting_ends_at_a_byte_array_with_the_same_content() {
    let content = entry(b"in", b'V', b"");
    let (mut table, remark) = mended_headers(&tables(32, &content));
    assert_eq!(remark, "");
    for _ in 0..32 {
        let Some(AMQPValue::FieldTable(inner)) = table.inner().get("k") else {
            panic!("32 tables stay tables: {table:?}");
        };
        table = inner.clone();
    }
    assert!(table.contains_key("in"));

    let (mut table, remark) = mended_headers(&tables(35, &content));
    assert_eq!(remark, "tables nested deeper than 32");
    for _ in 0..32 {
        let Some(AMQPValue::FieldTable(inner)) = table.inner().get("k") else {
            panic!("32 tables stay tables: {table:?}");
        };
        table = inner.clone();
    }
    let Some(AMQPValue::ByteArray(bytes)) = table.inner().get("k") else {
        panic!("the 33rd becomes bytes: {table:?}");
    };
    assert_eq!(bytes.as_slice(), tables(2, &content));
}

#[test]
fn nesting_that_would_abort_the_process() {
    for table in [
        tables(1_000, b""),
        tables(18_000, b""),
        arrays(2_000),
        arrays(26_000),
    ] {
        assert_eq!(mended_headers(&table).1, "tables nested deeper than 32");
    }
    // Wide is fine: only depth costs stack.
    let wide = entry(b"a", b'F', &long(b"")).repeat(18_000);
    assert_eq!(mended_headers(&wide).1, "");
}

#[test]
fn malformed_containers_become_bytes() {
    for content in [
        &b"\x05ab"[..],                              // a key that ends too late
        b"\x01kz",                                   // a type nobody knows
        b"\x01k",                                    // no value
        b"\x01kS\0\0\0\x09abc",                      // a value that ends too late
        b"\x01kF\xff\xff\xff\xff",                   // a table of 4 GiB
        b"\xffkV",                                   // not a key at all
        b"\x01\xffV\x01kz",                          // and what came before it is left alone
        b"\x01kF\0\0\0\x07\x01kF\xff\xff\xff\xff\0", // one within another
    ] {
        let table = [
            entry(b"before", b'V', b""),
            entry(b"bad", b'F', &long(content)),
            entry(b"behind", b't', b"\x01"),
        ]
        .concat();
        assert!(parse(&headers(1, &table)).is_err(), "lapin minds");
        let (headers, remark) = mended_headers(&table);
        assert_eq!(headers.inner().len(), 3, "{headers:?}");
        assert_eq!(
            headers.inner().get("bad"),
            Some(&AMQPValue::ByteArray(content.into()))
        );
        assert_eq!(remark, "a malformed table within the headers");
    }
}

#[test]
fn malformed_properties_become_one_header() {
    for len in 0..80 {
        for flags in [0x8000, 0x2000, 0xffff, 0] {
            if len == 0 && flags == 0 {
                continue; // well formed
            }
            let raw = header(1, flags, &vec![0xff; len]);
            assert!(
                parse(&raw).is_err(),
                "lapin minds {len} bytes for {flags:x}"
            );
            let (properties, remark) = mended(&raw);
            assert_eq!(remark, "malformed properties");
            if len >= 10 {
                let headers = properties.headers().clone().unwrap_or_default();
                let expected = AMQPValue::ByteArray(vec![0xff; len - 10].into());
                assert_eq!(headers.inner().get(""), Some(&expected));
            }
        }
    }
}

#[test]
fn lapin_ignores_the_continuation_bit_and_so_do_we() {
    let (properties, remark) = mended(&header(1, 1 << 7 | 0b11, &short(b"id")));
    assert_eq!(
        properties.message_id().as_ref().map(|id| id.as_str()),
        Some("id")
    );
    assert_eq!(remark, "");
}

#[test]
fn a_content_header_without_room_for_flags_is_no_publishers_doing() {
    for len in 0..14 {
        let raw = frame(frame::HEADER, 1, &vec![0xff; len]);
        assert_eq!(through(&mut Sanitiser::new(0), &raw), raw);
    }
}

#[test]
fn names_in_methods() {
    let bad = &short(b"a\xff")[..];
    for (class, id, arguments) in [
        (10, 41, bad.to_vec()),
        (10, 50, [&[0, 1][..], bad, &[0; 4]].concat()),
        (10, 60, bad.to_vec()),
        (20, 40, [&[0, 1][..], bad, &[0; 4]].concat()),
        (50, 11, [bad, &[0; 8]].concat()),
        (60, 21, bad.to_vec()),
        (60, 30, [bad, &[0]].concat()),
        (60, 31, bad.to_vec()),
        (60, 50, [&[0, 1], bad, bad, bad].concat()),
        (60, 60, [bad, &[0; 9], bad, bad].concat()),
        (60, 71, [&[0; 9], bad, bad, &[0; 4]].concat()),
        (60, 72, bad.to_vec()),
        (
            10,
            10,
            [
                &[0, 9],
                &long(&entry(b"\xff", b'V', b""))[..],
                &long(b"\xff"),
                &long(b"\xff"),
            ]
            .concat(),
        ),
    ] {
        let raw = method(1, class, id, &arguments);
        assert!(parse(&raw).is_err(), "lapin minds in {class}.{id}");
        let mut guard = Sanitiser::new(0);
        let output = through(&mut guard, &raw);
        assert_eq!(output.len(), raw.len());
        assert!(parse(&output).is_ok(), "{class}.{id}");
        assert_eq!(guard.mended(), 1);
    }
}

#[test]
fn a_routing_key_keeps_its_valid_parts() {
    let raw = deliver(1, 7, "gr\u{fc}n.\u{fffd}".as_bytes());
    let mut guard = Sanitiser::new(0);
    assert_eq!(through(&mut guard, &raw), raw);

    let output = through(&mut guard, &deliver(1, 7, b"gr\xfcn.\xed\xa0\x80"));
    let frames = parse(&output).expect("lapin can parse it");
    let [AMQPFrame::Method(1, AMQPClass::Basic(basic::AMQPMethod::Deliver(deliver)))] = &frames[..]
    else {
        panic!("still a delivery: {frames:?}");
    };
    assert_eq!(deliver.routing_key.as_str(), "gr?n.???");
    assert_eq!(
        (deliver.delivery_tag, deliver.consumer_tag.as_str()),
        (7, "ctag")
    );
}

#[test]
fn a_server_that_nests_its_own_properties() {
    let raw = method(
        0,
        10,
        10,
        &[
            &[0, 9],
            &long(&tables(5_000, b""))[..],
            &long(b""),
            &long(b""),
        ]
        .concat(),
    );
    assert!(parse(&through(&mut Sanitiser::new(0), &raw)).is_ok());
    // The table is cut short, but what lapin would have read of it until there is mended all the same.
    let table = [&tables(5_000, b"")[..], b"\x05"].concat();
    let raw = method(
        0,
        10,
        10,
        &[&[0, 9], &long(&table)[..], &long(b""), &long(b"")].concat(),
    );
    assert!(parse(&through(&mut Sanitiser::new(0), &raw)).is_err());
}
