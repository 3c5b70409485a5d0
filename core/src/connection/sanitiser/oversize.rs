//! Content headers larger than the negotiated frame size.
//!
//! RabbitMQ sends them: it adds `x-death` and `x-delivery-count` to what the publisher was allowed, and a publisher may have negotiated
//! more than we did. A content header cannot be split, so headers are left out until it fits: the largest first, those of the protocol
//! (`x-…`) last.

use super::{
    properties,
    table::{self, Field},
};

struct Entry {
    at: usize,
    len: usize,
    protocol: bool,
    dropped: bool,
}

/// Leaves out headers of a well-formed payload until it fits into `room` bytes. Returns its new length, or the old one if there is nothing
/// to leave out.
pub(super) fn shrink(payload: &mut [u8], room: usize) -> usize {
    let Some(headers) = properties::headers(payload) else {
        return payload.len();
    };
    let mut entries = entries(&payload[headers.clone()]);
    drop_largest(&mut entries, payload.len().saturating_sub(room));

    let mut kept = headers.start;
    for entry in entries.iter().filter(|entry| !entry.dropped) {
        let from = headers.start + entry.at;
        payload.copy_within(from..from + entry.len, kept);
        kept += entry.len;
    }
    let table_len = (kept - headers.start) as u32;
    payload[headers.start - 4..headers.start].copy_from_slice(&table_len.to_be_bytes());
    let behind = payload.len() - headers.end;
    payload.copy_within(headers.end.., kept);
    kept + behind
}

fn entries(table: &[u8]) -> Vec<Entry> {
    let mut entries = Vec::new();
    let mut at = 0;
    while let Some(Field { key, value, .. }) = table::field(table, at) {
        entries.push(Entry {
            at,
            len: value.end - at,
            protocol: table[key].starts_with(b"x-"),
            dropped: false,
        });
        at = value.end;
    }
    entries
}

fn drop_largest(entries: &mut [Entry], mut excess: usize) {
    let mut order: Vec<usize> = (0..entries.len()).collect();
    order.sort_by_key(|&index| {
        (
            entries[index].protocol,
            std::cmp::Reverse(entries[index].len),
        )
    });
    for index in order {
        if excess == 0 {
            break;
        }
        entries[index].dropped = true;
        excess = excess.saturating_sub(entries[index].len);
    }
}
