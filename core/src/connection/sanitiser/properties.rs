//! The payload of a content header frame: class, weight, body size, property flags and the properties.

use super::{log::Repaired, table, text};
use std::ops::Range;

/// Class, weight and body size.
const FLAGS: usize = 2 + 2 + 8;
const LIST: usize = FLAGS + 2;

const HEADERS_FLAG: u16 = 1 << 13;
const CLUSTER_ID_FLAG: u16 = 1 << 2;

#[derive(Clone, Copy)]
enum Property {
    Name(Repaired),
    Headers,
    Fixed(usize),
}

/// In the order of their flags, from the highest bit down. lapin ignores the two remaining bits, including the continuation bit.
const PROPERTIES: [Property; 14] = [
    Property::Name(Repaired::CONTENT_TYPE),
    Property::Name(Repaired::CONTENT_ENCODING),
    Property::Headers,
    Property::Fixed(1), // delivery mode
    Property::Fixed(1), // priority
    Property::Name(Repaired::CORRELATION_ID),
    Property::Name(Repaired::REPLY_TO),
    Property::Name(Repaired::EXPIRATION),
    Property::Name(Repaired::MESSAGE_ID),
    Property::Fixed(8), // timestamp
    Property::Name(Repaired::TYPE),
    Property::Name(Repaired::USER_ID),
    Property::Name(Repaired::APP_ID),
    Property::Name(Repaired::CLUSTER_ID),
];

/// Repairs a content header. One without property flags is left alone: no publisher can cause it.
pub(super) fn repair(payload: &mut [u8]) -> Repaired {
    let mut mended = Repaired::default();
    if payload.len() < LIST {
        return mended;
    }
    let Some(values) = locate(payload) else {
        replace(payload);
        return Repaired::MALFORMED_PROPERTIES;
    };
    for (property, value) in PROPERTIES.into_iter().zip(values) {
        match property {
            Property::Name(name) if text::repair(&mut payload[value.clone()]) => mended |= name,
            Property::Headers => mended |= table::repair(&mut payload[value]),
            _ => {}
        }
    }
    mended
}

/// Where the content of the headers table is, if there are headers.
pub(super) fn headers(payload: &[u8]) -> Option<Range<usize>> {
    let [_, _, headers, ..] = locate(payload)?;
    (!headers.is_empty()).then_some(headers)
}

/// Where each property's value is, without its length prefix; empty if it is absent. `None` unless the payload is exactly its properties
/// and the headers are well formed.
fn locate(payload: &[u8]) -> Option<[Range<usize>; PROPERTIES.len()]> {
    let flags = u16::from_be_bytes([*payload.get(FLAGS)?, *payload.get(FLAGS + 1)?]);
    let mut values = [const { 0..0 }; PROPERTIES.len()];
    let mut at = LIST;
    for (index, property) in PROPERTIES.into_iter().enumerate() {
        if flags & (1 << 15 >> index) == 0 {
            continue;
        }
        let rest = payload.get(at..)?;
        let (prefix, len) = match property {
            Property::Name(_) => (1, usize::from(*rest.first()?)),
            Property::Fixed(len) => (0, len),
            Property::Headers => {
                let len = u32::from_be_bytes(*rest.first_chunk()?);
                (4, usize::try_from(len).ok()?)
            }
        };
        let value = at + prefix..(at + prefix).checked_add(len)?;
        let content = payload.get(value.clone())?;
        if matches!(property, Property::Headers) && !table::well_formed(content) {
            return None;
        }
        at = value.end;
        values[index] = value;
    }
    (at == payload.len()).then_some(values)
}

/// Replaces a list of properties that cannot be parsed by one of the same length that can: a single header with the name "" and the rest of
/// the bytes, or if even that does not fit, a cluster id, which nobody reads.
fn replace(payload: &mut [u8]) {
    let (head, list) = payload.split_at_mut(LIST);
    let flags = match list.len() {
        0 => 0,
        n @ 1..6 => {
            list[0] = (n - 1) as u8;
            list[1..].fill(b'?');
            CLUSTER_ID_FLAG
        }
        n => {
            let table = n - 4;
            list[..4].copy_from_slice(&(table as u32).to_be_bytes());
            let entry = &mut list[4..];
            if table < 6 {
                entry[0] = (table - 2) as u8;
                entry[1..].fill(b'?');
                entry[table - 1] = b'V';
            } else {
                entry[0] = 0;
                entry[1] = b'x';
                entry[2..6].copy_from_slice(&((table - 6) as u32).to_be_bytes());
            }
            HEADERS_FLAG
        }
    };
    head[FLAGS..].copy_from_slice(&u16::to_be_bytes(flags));
}
