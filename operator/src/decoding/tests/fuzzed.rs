//! Whatever strangers send, by whatever decoder.

use retryrmq_harness::fuzz::{fuzz, gist};

use super::{super::*, schemas::descriptor_set};

/// What it led to: the way, and where it breaks off without its numbers.
fn outcome(body: &[u8], hints: Hints<'_>, decoder: Option<&Decoder>) -> String {
    let decoded = decode(body, hints, decoder);
    assert!(decoded.unwrapped.len() <= MOST_WRAPPINGS + 1);
    assert!(decoded.value.is_none() || decoded.format != Format::Binary);
    let why = decoded.truncation.map(|broken| gist(&broken.why));
    format!(
        "{:?} {} {why:?}",
        decoded.unwrapped.first(),
        decoded.format.code()
    )
}

const WORDS: [&str; 14] = [
    "{",
    "}",
    "[",
    "\"a\":",
    "\x08",
    "\x12\x03",
    "\x1a",
    "\n",
    "null",
    "\u{1}",
    "eyJh",
    "IjoxfQ==",
    "x/shop.Order",
    "x/google.protobuf.Any",
];

#[test]
fn any_body_is_something() {
    let seeds: [&[u8]; 6] = [
        b"{\"a\": [1, {\"b\": null}]}",
        b"eyJhIjoxfQ==",
        b"\x82\xa1a\x01\xa1b\x93\x01\xc4\x01x",
        b"\x08\x96\x01\x12\x03Ada\x1a\x05\x0a\x03x\x10\x01",
        b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03\xabV*.)J\xcc\xcb,\x01\x00",
        b"\x28\xb5\x2f\xfd\x04\x58\x11\x00\x00ab",
    ];
    fuzz(&seeds, &WORDS, |body| outcome(body, Hints::default(), None));
}

#[test]
fn any_body_with_any_properties_is_something() {
    let seeds: [&[u8]; 4] = [
        b"0{\"a\": 1}",
        b"1eyJhIjoxfQ==",
        b"2\x81\xa1a\x01",
        b"3\x08\x01",
    ];
    let types = [
        "application/json",
        "text/plain",
        "application/msgpack",
        "application/x-protobuf",
    ];
    let encodings = ["", "base64", "gzip, base64", "deflate", "zstd"];
    fuzz(&seeds, &WORDS, |body| {
        let (first, body) = body.split_first().unwrap_or((&0, body));
        let hints = Hints {
            content_type: Some(types[usize::from(*first) % types.len()]),
            content_encoding: Some(encodings[usize::from(*first) % encodings.len()]),
        };
        outcome(body, hints, None)
    });
}

#[test]
fn any_body_by_a_descriptor_set_is_something() {
    let seeds: [&[u8]; 3] = [
        b"\x08\x96\x01\x12\x07\x08\x07\x12\x03Ada\x1a\x05\x0a\x03A-1\x20\x01\x3a\x02\x01\x04",
        b"\x0a\x04R-17\x11\x01\x02\x03\x04\x05\x06\x07\x08\x18\x01",
        b"\x42\x18\x0a\x0fx/shop.Customer\x12\x05\x08\x07\x12\x01A",
    ];
    let set = descriptor_set();
    let all = ["shop.Order", "shop.Tree", "google.protobuf.Any"]
        .map(|name| Decoder::protobuf(&set, Some(name)).unwrap());
    let best = Decoder::protobuf(&set, None).unwrap();
    fuzz(&seeds, &WORDS, |body| {
        let mut outcomes: Vec<String> = all
            .iter()
            .map(|one| outcome(body, Hints::default(), Some(one)))
            .collect();
        outcomes.push(outcome(body, Hints::default(), Some(&best)));
        outcomes
    });
}

#[test]
fn any_body_by_an_avro_schema_is_something() {
    const SCHEMA: &str = r#"{"type": "record", "name": "A", "fields": [
        {"name": "a", "type": ["null", "A", "string", {"type": "array", "items": "A"}, {"type": "map", "values": ["null", "A"]}]},
        {"name": "n", "type": ["null", "long", "double", "bytes", {"type": "enum", "name": "E", "symbols": ["X"]}, {"type": "fixed", "name": "F", "size": 3}]},
        {"name": "d", "type": ["null", {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}]},
        {"name": "t", "type": ["null", {"type": "long", "logicalType": "timestamp-micros"}]}
    ]}"#;
    let seeds: [&[u8]; 3] = [
        b"\x02\x00\x00\x00\x00\x02\x02\x00\x00",
        b"\x06\x02\x00\x00\x00\x00\x00\x02\x80\x01\x00\x00",
        b"\x04\x06abc\x06\x04xy\x02\x02\x07\x02\x08",
    ];
    let decoder = Decoder::avro(SCHEMA).unwrap();
    fuzz(&seeds, &WORDS, |body| {
        outcome(body, Hints::default(), Some(&decoder))
    });
}

#[test]
fn any_schema_is_one_or_a_sentence() {
    let set = descriptor_set();
    let seeds: [&[u8]; 2] = [
        &set[set.len().saturating_sub(1_500)..],
        br#"{"type": "record", "name": "A", "fields": [{"name": "a", "type": ["null", "A"]}]}"#,
    ];
    fuzz(
        &seeds,
        &[
            "\"type\":",
            "\"record\"",
            "\"fixed\"",
            "\"size\": 4",
            "{",
            "[",
            "\"A\"",
        ],
        |bytes| {
            let proto = Decoder::protobuf(bytes, None).is_ok();
            let avro = std::str::from_utf8(bytes)
                .ok()
                .map(|text| Decoder::avro(text).is_ok());
            (proto, avro)
        },
    );
}
