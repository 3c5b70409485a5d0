//! Bodies within base64 and compression.

use std::io::Write;

use flate2::{
    Compression,
    write::{DeflateEncoder, GzEncoder, ZlibEncoder},
};
use ruzstd::encoding::{CompressionLevel, compress_to_vec};
use serde_json::json;

use super::{super::*, look_at};

const JSON: &[u8] = b"{\"customer\": {\"id\": 7}}";

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn zlib(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = ZlibEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn deflate(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = DeflateEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn zstd(bytes: &[u8]) -> Vec<u8> {
    compress_to_vec(bytes, CompressionLevel::Fastest)
}

fn base64(bytes: &[u8]) -> Vec<u8> {
    use ::base64::{Engine, prelude::BASE64_STANDARD};
    BASE64_STANDARD.encode(bytes).into_bytes()
}

fn encoded<'a>(body: &'a [u8], encoding: &str) -> Decoded<'a> {
    let hints = Hints {
        content_type: None,
        content_encoding: Some(encoding),
    };
    decode(body, hints, None)
}

#[test]
fn wrappings_are_taken_off_one_after_another() {
    use Encoding::{Base64, Gzip, Zlib, Zstd};
    for (body, unwrapped) in [
        (gzip(JSON), vec![Gzip]),
        (zstd(JSON), vec![Zstd]),
        (zlib(JSON), vec![Zlib]),
        (base64(JSON), vec![Base64]),
        (base64(&gzip(JSON)), vec![Base64, Gzip]),
        (gzip(&base64(&zstd(JSON))), vec![Gzip, Base64, Zstd]),
        ([gzip(&JSON[..9]), gzip(&JSON[9..])].concat(), vec![Gzip]),
        ([zstd(&JSON[..9]), zstd(&JSON[9..])].concat(), vec![Zstd]),
    ] {
        let decoded = look_at(&body);
        assert_eq!(decoded.unwrapped, unwrapped);
        assert_eq!(
            (decoded.format, decoded.sound()),
            (Format::Json, Some(&json!({"customer": {"id": 7}})))
        );
        assert_eq!(&*decoded.bytes, JSON);
    }
    // What a plain word may be as well.
    assert_eq!(
        look_at(&base64(b"the quick brown fox")).value,
        Some(json!("the quick brown fox"))
    );
}

#[test]
fn what_is_declared_is_done_in_its_order() {
    for (body, encoding, unwrapped) in [
        (deflate(JSON), "deflate", 1),
        (zlib(JSON), "deflate", 1),
        (base64(&gzip(JSON)), "gzip, base64", 2),
        (gzip(JSON), "utf-8, GZIP", 1),
        (JSON.to_vec(), "utf-8", 0),
        (b"eyJjdXN0b21lciI6IHsi\naWQiOiA3fX0".to_vec(), "base64", 1),
    ] {
        let decoded = encoded(&body, encoding);
        assert_eq!(
            decoded.unwrapped.len(),
            unwrapped,
            "{encoding}: {decoded:?}"
        );
        assert_eq!(
            decoded.sound(),
            Some(&json!({"customer": {"id": 7}})),
            "{encoding}"
        );
    }
}

#[test]
fn what_does_not_unwrap_says_where() {
    let plain = encoded(JSON, "gzip");
    let broken = plain.truncation.unwrap();
    assert_eq!(
        (broken.within.as_str(), plain.format),
        ("gzip", Format::Json)
    );

    let body: String = (0..2_000).map(|n| format!("{{\"n\": {n}}}\n")).collect();
    let whole = gzip(body.as_bytes());
    let half = look_at(&whole[..whole.len() / 2]);
    assert_eq!(half.unwrapped, [Encoding::Gzip]);
    assert!(!half.bytes.is_empty() && body.as_bytes().starts_with(&half.bytes));
    let broken = half.truncation.unwrap();
    assert!(
        broken.within == "gzip" && broken.byte <= whole.len() / 2,
        "{broken:?}"
    );

    let broken = encoded(b"abc!defg", "base64").truncation.unwrap();
    assert_eq!((broken.within.as_str(), broken.byte), ("base64", 3));
}

#[test]
fn wrappings_within_wrappings_end() {
    let mut body = JSON.to_vec();
    for _ in 0..10 {
        body = gzip(&body);
    }
    let decoded = look_at(&body);
    assert_eq!(
        (decoded.unwrapped.len(), decoded.format),
        (MOST_WRAPPINGS, Format::Binary)
    );
}
