//! Methods of the server that contain names or a table, or that the guard itself needs.

use super::{log::Repaired, table, text};

/// What a method means to the guard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// A content header follows on this channel: of the delivery with this tag, or with 0, of a returned message.
    Content {
        /// The delivery tag.
        tag: u64,
    },
    /// Delivery tags of this channel start again.
    ChannelOpened,
    /// The server's frame limit; 0 means no limit.
    Tuned {
        /// In bytes, the whole frame.
        frame_max: u32,
    },
    /// Nothing.
    Other,
}

enum Field {
    Fixed(usize),
    Name(Repaired),
    Table,
}
use Field::{Fixed, Name, Table};

/// The arguments of a method, up to the last one that may need repair. Long strings are bytes to lapin.
fn arguments(class: u16, method: u16) -> &'static [Field] {
    match (class, method) {
        // connection: start, open-ok, close, blocked
        (10, 10) => &[Fixed(2), Table],
        (10, 41 | 60) => &[Name(Repaired::NAME)],
        (10, 50) => &[Fixed(2), Name(Repaired::NAME)],
        // channel.close
        (20, 40) => &[Fixed(2), Name(Repaired::NAME)],
        // queue.declare-ok
        (50, 11) => &[Name(Repaired::NAME)],
        // basic: consume-ok, cancel, cancel-ok, get-empty
        (60, 21 | 30 | 31 | 72) => &[Name(Repaired::NAME)],
        // basic.return
        (60, 50) => &[
            Fixed(2),
            Name(Repaired::NAME),
            Name(Repaired::EXCHANGE),
            Name(Repaired::ROUTING_KEY),
        ],
        // basic.deliver
        (60, 60) => &[
            Name(Repaired::NAME),
            Fixed(9),
            Name(Repaired::EXCHANGE),
            Name(Repaired::ROUTING_KEY),
        ],
        // basic.get-ok
        (60, 71) => &[
            Fixed(9),
            Name(Repaired::EXCHANGE),
            Name(Repaired::ROUTING_KEY),
        ],
        _ => &[],
    }
}

/// Repairs a method's payload in place, as far as it is complete.
pub(super) fn repair(payload: &mut [u8]) -> (Event, Repaired) {
    let mut mended = Repaired::default();
    let &[c0, c1, m0, m1, ..] = &*payload else {
        return (Event::Other, mended);
    };
    let id = (u16::from_be_bytes([c0, c1]), u16::from_be_bytes([m0, m1]));
    let mut at = 4;
    for argument in arguments(id.0, id.1) {
        let end = match argument {
            Fixed(len) => Some(at + len),
            Name(name) => text::repair_at(payload, at).map(|(end, changed)| {
                if changed {
                    mended |= *name;
                }
                end
            }),
            Table => repair_table(payload, at, &mut mended),
        };
        match end {
            Some(end) => at = end,
            None => break,
        }
    }
    (event(id, payload), mended)
}

fn repair_table(payload: &mut [u8], at: usize, mended: &mut Repaired) -> Option<usize> {
    let len = u32::from_be_bytes(*payload.get(at..)?.first_chunk()?);
    let start = at + 4;
    let end = start.checked_add(usize::try_from(len).ok()?)?;
    *mended |= table::repair(payload.get_mut(start..end)?);
    Some(end)
}

fn event(id: (u16, u16), payload: &[u8]) -> Event {
    let long = |at: usize| {
        let bytes = payload.get(at..).and_then(<[u8]>::first_chunk);
        bytes.map_or(0, |bytes| u64::from_be_bytes(*bytes))
    };
    match id {
        (10, 30) => {
            let bytes = payload.get(6..).and_then(<[u8]>::first_chunk);
            Event::Tuned {
                frame_max: bytes.map_or(0, |bytes| u32::from_be_bytes(*bytes)),
            }
        }
        (20, 11) => Event::ChannelOpened,
        (60, 50) => Event::Content { tag: 0 },
        (60, 60) => {
            let consumer_tag = payload.get(4).map_or(0, |len| usize::from(*len));
            Event::Content {
                tag: long(5 + consumer_tag),
            }
        }
        (60, 71) => Event::Content { tag: long(4) },
        _ => Event::Other,
    }
}
