//! Content headers above the frame size, which RabbitMQ sends and lapin refuses.

use super::*;
use amq_protocol::types::AMQPValue;

const FRAME_MAX: u32 = 8192;
const MAX: usize = FRAME_MAX as usize;

fn blob(key: &[u8], len: usize) -> Vec<u8> {
    entry(key, b'S', &long(&vec![b'v'; len]))
}

/// A content header with these headers, a message id before and a type behind them.
fn message(table: &[u8]) -> Vec<u8> {
    let list = [
        &short(b"text/plain")[..],
        &long(table),
        &short(b"id"),
        &short(b"kind"),
    ]
    .concat();
    header(1, 1 << 15 | 1 << 13 | 1 << 7 | 1 << 5, &list)
}

/// The names of the headers lapin gets to see of this table, and the remark; the rest must not have changed.
fn seen(guard: &mut Sanitiser, table: &[u8]) -> (Vec<String>, String) {
    let follows = deliver(1, 2, b"next");
    let input = [&deliver(1, 1, b"")[..], &message(table), &follows].concat();
    let output = through(guard, &input);
    assert!(output.ends_with(&follows));
    let frames = parse(&output).expect("lapin can parse it");
    let [_, AMQPFrame::Header(1, header), _] = &frames[..] else {
        panic!("three frames: {frames:?}");
    };
    let properties = &header.properties;
    let texts = [
        properties.content_type(),
        properties.message_id(),
        properties.kind(),
    ];
    assert_eq!(
        texts.map(|text| text.as_ref().map(|text| text.as_str())),
        ["text/plain", "id", "kind"].map(Some)
    );
    let headers = properties.headers().clone().expect("there are headers");
    assert!(
        headers
            .inner()
            .values()
            .all(|value| !matches!(value, AMQPValue::ByteArray(_)))
    );
    let size = output.len() - deliver(1, 1, b"").len() - follows.len();
    assert!(size <= MAX || output == input, "{size} bytes");
    let remark = guard.log().take(1, 1).map(|mended| mended.to_string());
    (
        headers.inner().keys().map(ToString::to_string).collect(),
        remark.unwrap_or_default(),
    )
}

#[test]
fn the_largest_headers_are_left_out_and_the_protocols_last() {
    let guard = &mut Sanitiser::new(FRAME_MAX);
    let table = [
        blob(b"x-death", 3000),
        blob(b"small", 10),
        blob(b"large", 5500),
        blob(b"medium", 2500),
        blob(b"x-retry-count", 8),
    ];
    let (keys, remark) = seen(guard, &table.concat());
    assert_eq!(keys, ["medium", "small", "x-death", "x-retry-count"]);
    assert_eq!(remark, "headers above the frame size, the largest left out");

    let table = [
        blob(b"x-death", 9000),
        blob(b"small", 10),
        blob(b"x-retry-count", 8),
    ];
    assert_eq!(seen(guard, &table.concat()).0, ["x-retry-count"]);
}

#[test]
fn a_header_of_exactly_one_frame_stays() {
    let room = MAX - message(&blob(b"k", 0)).len();
    let (keys, remark) = seen(&mut Sanitiser::new(FRAME_MAX), &blob(b"k", room));
    assert_eq!((keys.len(), &*remark), (1, ""));
    let (keys, remark) = seen(&mut Sanitiser::new(FRAME_MAX), &blob(b"k", room + 1));
    assert_eq!((keys.len(), remark.is_empty()), (0, false));
}

#[test]
fn the_server_can_lower_the_limit_but_not_raise_it() {
    let tune = |frame_max: u32| {
        method(
            0,
            10,
            30,
            &[&[0, 0], &frame_max.to_be_bytes()[..], &[0, 0]].concat(),
        )
    };
    for (ours, servers, too_large) in [
        (131_072, 8192, true),
        (8192, 131_072, true),
        (8192, 0, true),
        (0, 8192, true),
        (131_072, 0, false),
        (131_072, 1 << 20, false),
        (0, 0, false),
    ] {
        let mut guard = Sanitiser::new(ours);
        through(&mut guard, &tune(servers));
        let raw = message(&blob(b"k", 9000));
        assert_eq!(
            through(&mut guard, &raw) != raw,
            too_large,
            "{ours} and {servers}"
        );
    }
}

#[test]
fn a_limit_below_what_amqp_allows_is_not_taken_at_its_word() {
    let raw = message(&blob(b"k", 3900));
    assert_eq!(through(&mut Sanitiser::new(1), &raw), raw);
}

#[test]
fn what_cannot_be_parsed_is_left_out_as_a_whole() {
    let raw = header(1, 1 << 13, &[0xff; 9000]);
    let output = through(&mut Sanitiser::new(FRAME_MAX), &raw);
    assert!(output.len() <= MAX);
    assert!(parse(&output).is_ok());
}
