//! Field tables and arrays: makes names UTF-8, and nesting finite.
//!
//! A container has a tag, a length and that many bytes; so has a byte array. So a container that lapin must not parse can get the tag of a
//! byte array, and everything around it stays the same.

use super::{log::Repaired, text};
use std::ops::Range;

/// The deepest containers that are still parsed; deeper ones become byte arrays. lapin's parser recurses, and nobody writes such headers by
/// hand: RabbitMQ's own `x-death` is two deep.
const MAX_DEPTH: usize = 32;

const TABLE: u8 = b'F';
const ARRAY: u8 = b'A';
const BYTES: u8 = b'x';

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Table,
    Array,
}

/// Where one field of a container is. In an array the key is empty.
pub(super) struct Field {
    pub(super) key: Range<usize>,
    pub(super) tag: usize,
    pub(super) value: Range<usize>,
}

/// Repairs the content of a table (headers, server properties), as far as it is well formed.
pub(super) fn repair(table: &mut [u8]) -> Repaired {
    repair_container(table, Kind::Table, 0)
}

/// Whether `table` is a sequence of whole fields of known types. The content of containers is not checked.
pub(super) fn well_formed(table: &[u8]) -> bool {
    is_well_formed(table, Kind::Table)
}

/// The field of a table at this position, if it is whole and of a known type.
pub(super) fn field(table: &[u8], at: usize) -> Option<Field> {
    next(table, at, Kind::Table)
}

/// [`MAX_DEPTH`] bounds the recursion. The order is the parser's, so the parser meets nothing that was not repaired.
fn repair_container(bytes: &mut [u8], kind: Kind, depth: usize) -> Repaired {
    let mut mended = Repaired::default();
    let mut at = 0;
    while let Some(field) = next(bytes, at, kind) {
        at = field.value.end;
        if text::repair(&mut bytes[field.key]) {
            mended |= Repaired::HEADER_KEY;
        }
        let inner = match bytes[field.tag] {
            TABLE => Kind::Table,
            ARRAY => Kind::Array,
            _ => continue,
        };
        let content = field.value.start + 4..field.value.end;
        if depth == MAX_DEPTH {
            bytes[field.tag] = BYTES;
            mended |= Repaired::TOO_DEEP;
        } else if !is_well_formed(&bytes[content.clone()], inner) {
            bytes[field.tag] = BYTES;
            mended |= Repaired::MALFORMED_TABLE;
        } else {
            mended |= repair_container(&mut bytes[content], inner, depth + 1);
        }
    }
    mended
}

fn is_well_formed(bytes: &[u8], kind: Kind) -> bool {
    let mut at = 0;
    while at < bytes.len() {
        match next(bytes, at, kind) {
            Some(field) => at = field.value.end,
            None => return false,
        }
    }
    true
}

fn next(bytes: &[u8], at: usize, kind: Kind) -> Option<Field> {
    let key = match kind {
        Kind::Array => at..at,
        Kind::Table => at + 1..at + 1 + usize::from(*bytes.get(at)?),
    };
    let tag = key.end;
    let start = tag + 1;
    let len = value_len(*bytes.get(tag)?, bytes.get(start..)?)?;
    Some(Field {
        key,
        tag,
        value: start..start + len,
    })
}

/// How many of the bytes after `tag` are its value. It covers the types that amq-protocol knows, which are more than RabbitMQ's.
fn value_len(tag: u8, rest: &[u8]) -> Option<usize> {
    let len = match tag {
        b'V' => 0,
        b't' | b'b' | b'B' => 1,
        b's' | b'U' | b'u' => 2,
        b'I' | b'i' | b'f' => 4,
        b'D' => 5,
        b'l' | b'L' | b'd' | b'T' => 8,
        b'S' | BYTES | TABLE | ARRAY => {
            let content = u32::from_be_bytes(*rest.first_chunk()?);
            usize::try_from(content).ok()?.checked_add(4)?
        }
        _ => return None,
    };
    (len <= rest.len()).then_some(len)
}
