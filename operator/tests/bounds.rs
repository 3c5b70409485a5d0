//! What decoding takes at most, by the peak of this process: so there is one test here, and nothing beside it.
#![allow(missing_docs)]
#![cfg(target_os = "linux")]

use std::{fs, io::Write};

use flate2::{Compression, write::GzEncoder};
use retryrmq_operator::decoding::{Decoder, Hints, decode};

/// The most memory that this process ever had, in MiB.
fn peak() -> usize {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status
        .lines()
        .find(|line| line.starts_with("VmHWM:"))
        .unwrap();
    let kib: usize = line.split_whitespace().nth(1).unwrap().parse().unwrap();
    kib / 1024
}

/// The largest body that RabbitMQ takes by default.
const LARGEST: usize = 16 << 20;

#[test]
fn hostile_bodies_take_less_than_256_mib_beside_themselves() {
    let list =
        Decoder::avro(r#"{"type": "array", "items": {"type": "array", "items": "null"}}"#).unwrap();
    let mut bomb = GzEncoder::new(Vec::new(), Compression::fast());
    for _ in 0..256 {
        bomb.write_all(&[b'['; 1 << 20]).unwrap();
    }
    let bomb = bomb.finish().unwrap();
    let filled = |head: &[u8], unit: &[u8]| {
        [head, &unit.repeat((LARGEST - head.len()) / unit.len())].concat()
    };
    let text = "application/json";
    let pack = "application/msgpack";
    let wire = "application/x-protobuf";
    for (what, body, kind, decoder) in [
        ("256 MiB in gzip", bomb, None, None),
        ("ones in JSON", filled(b"[1", b",1"), Some(text), None),
        ("brackets in JSON", filled(b"[", b"["), Some(text), None),
        ("a long text in JSON", filled(b"\"", b"x"), Some(text), None),
        (
            "nothing, in MessagePack",
            filled(b"\xdd\xff\xff\xff\xff", b"\xc0"),
            Some(pack),
            None,
        ),
        (
            "lists in MessagePack",
            filled(b"\xdd\xff\xff\xff\xff", b"\x91"),
            Some(pack),
            None,
        ),
        (
            "empty fields of protobuf",
            filled(b"", b"\x0a\x00"),
            Some(wire),
            None,
        ),
        ("groups of protobuf", filled(b"", b"\x0b"), Some(wire), None),
        ("numbers of protobuf", filled(b"", b"\x08\x01"), None, None),
        (
            "counts of Avro",
            filled(b"\xfe\xff\xff\xff\x0f", b"\xfe\xff\xff\xff\x0f"),
            None,
            Some(&list),
        ),
        ("base64 of nothing known", filled(b"", b"AAAA"), None, None),
        ("bytes", filled(b"", b"\xff"), None, None),
    ] {
        let hints = Hints {
            content_type: kind,
            content_encoding: None,
        };
        let decoded = decode(&body, hints, decoder);
        drop(decoded);
        let most = peak();
        assert!(most < 16 + 16 + 256, "{what} took {most} MiB");
    }
}
