//! Who is told what about which delivery.

use super::*;

const BAD_ID: u16 = 1 << 7;

fn bad_header(channel: u16) -> Vec<u8> {
    header(channel, BAD_ID, &short(b"\xff"))
}

fn remark(guard: &Sanitiser, channel: u16, tag: u64) -> Option<String> {
    guard
        .log()
        .take(channel, tag)
        .map(|mended| mended.to_string())
}

#[test]
fn a_remark_is_found_under_its_delivery_once() {
    let mut guard = Sanitiser::new(0);
    let good = header(1, BAD_ID, &short(b"id"));
    let input = [
        deliver(1, 1, b""),
        good.clone(),
        deliver(1, 2, b""),
        bad_header(1),
        deliver(1, 3, b""),
        good,
    ];
    through(&mut guard, &input.concat());
    assert_eq!(remark(&guard, 1, 1), None);
    assert_eq!(remark(&guard, 1, 3), None);
    assert_eq!(remark(&guard, 2, 2), None);
    assert_eq!(
        remark(&guard, 1, 2).as_deref(),
        Some("message_id is not UTF-8")
    );
    assert_eq!(remark(&guard, 1, 2), None);
    assert_eq!(guard.mended(), 1);
}

#[test]
fn all_that_was_wrong_with_a_message_is_one_remark() {
    let mut guard = Sanitiser::new(0);
    let table = [tables(40, b""), entry(b"\xff", b'V', b"")].concat();
    through(
        &mut guard,
        &[deliver(9, 4, b"\xff"), headers(9, &table)].concat(),
    );
    assert_eq!(
        remark(&guard, 9, 4).as_deref(),
        Some(
            "the routing key is not UTF-8; a header key is not UTF-8; tables nested deeper than 32"
        )
    );
    assert_eq!(guard.mended(), 1);
}

#[test]
fn channels_may_interleave() {
    let mut guard = Sanitiser::new(0);
    let get_ok = method(
        3,
        60,
        71,
        &[&6u64.to_be_bytes()[..], &[0, 0, 0], &[0; 4]].concat(),
    );
    let good = header(2, BAD_ID, &short(b"id"));
    let input = [
        deliver(1, 5, b""),
        deliver(2, 5, b""),
        get_ok,
        bad_header(1),
        good,
        bad_header(3),
    ];
    through(&mut guard, &input.concat());
    assert!(remark(&guard, 1, 5).is_some());
    assert!(remark(&guard, 2, 5).is_none());
    assert!(remark(&guard, 3, 6).is_some());
}

#[test]
fn a_returned_message_counts_and_is_not_taken_for_a_delivery() {
    let mut guard = Sanitiser::new(0);
    let returned = method(1, 60, 50, &[0, 1, 0, 0, 0]);
    through(
        &mut guard,
        &[deliver(1, 5, b""), returned, bad_header(1)].concat(),
    );
    assert!(remark(&guard, 1, 5).is_none());
    assert_eq!(guard.mended(), 1);
}

#[test]
fn a_channel_that_opens_again_starts_clean() {
    let mut guard = Sanitiser::new(0);
    let messages = [1, 2].map(|channel| [deliver(channel, 1, b""), bad_header(channel)].concat());
    through(&mut guard, &messages.concat());
    through(&mut guard, &method(1, 20, 11, &long(b"")));
    assert!(remark(&guard, 1, 1).is_none());
    assert!(remark(&guard, 2, 1).is_some());
    assert_eq!(guard.mended(), 2);
}

#[test]
fn remarks_nobody_asks_for_do_not_pile_up() {
    let mut guard = Sanitiser::new(0);
    for tag in 1..=70_000 {
        through(&mut guard, &[deliver(1, tag, b""), bad_header(1)].concat());
    }
    assert!(remark(&guard, 1, 70_000 - 65_536).is_none());
    assert!(remark(&guard, 1, 70_000 - 65_535).is_some());
    assert!(remark(&guard, 1, 70_000).is_some());
    assert_eq!(guard.mended(), 70_000);
}
