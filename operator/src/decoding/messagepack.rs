//! MessagePack into a bounded tree.
//!
//! Written against the markers of `rmp`, because `rmpv` builds a whole value with no bound on their number, and tells
//! neither where it broke off nor what came before.

use jiff::Timestamp;
use rmp::Marker;
use serde_json::{Value, json};

use super::{
    bounded_value::BoundedValue,
    cursor::{Cursor, MalformedAt},
};

/// Reads one value, which must be all there is.
pub(super) fn decode(bytes: &[u8], tree: &mut BoundedValue) -> Result<(), MalformedAt> {
    let mut cursor = Cursor::new(bytes);
    value(&mut cursor, tree)?;
    cursor.ends()
}

/// Whether the first byte begins a list or a map: anything else is MessagePack by accident.
pub(super) fn begins_like_one(bytes: &[u8]) -> bool {
    bytes.len() > 1
        && matches!(
            Marker::from_u8(bytes[0]),
            Marker::FixMap(_)
                | Marker::FixArray(_)
                | Marker::Array16
                | Marker::Array32
                | Marker::Map16
                | Marker::Map32
        )
}

fn value(cursor: &mut Cursor<'_>, tree: &mut BoundedValue) -> Result<(), MalformedAt> {
    let start = *cursor;
    let marker = Marker::from_u8(cursor.byte("a value")?);
    let done = match marker {
        Marker::FixArray(count) => return list(cursor, tree, count.into(), start),
        Marker::Array16 | Marker::Array32 => {
            let count = length(cursor, marker)?;
            return list(cursor, tree, count, start);
        }
        Marker::FixMap(count) => return map(cursor, tree, count.into(), start),
        Marker::Map16 | Marker::Map32 => {
            let count = length(cursor, marker)?;
            return map(cursor, tree, count, start);
        }
        Marker::Reserved => return Err(start.broken("the byte 0xc1, which MessagePack never uses")),
        Marker::FixStr(_) | Marker::Str8 | Marker::Str16 | Marker::Str32 => {
            let count = length(cursor, marker)?;
            let bytes = cursor.take(count.into(), "a text")?;
            match std::str::from_utf8(bytes) {
                Ok(text) => tree.text(text),
                Err(_) => tree.bytes(bytes),
            }
        }
        Marker::Bin8 | Marker::Bin16 | Marker::Bin32 => {
            let count = length(cursor, marker)?;
            tree.bytes(cursor.take(count.into(), "bytes")?)
        }
        Marker::Ext8
        | Marker::Ext16
        | Marker::Ext32
        | Marker::FixExt1
        | Marker::FixExt2
        | Marker::FixExt4
        | Marker::FixExt8
        | Marker::FixExt16 => {
            let count = length(cursor, marker)?;
            let kind = cursor.byte("an extension")?.cast_signed();
            let bytes = cursor.take(count.into(), "an extension")?;
            match timestamp(kind, bytes) {
                Some(text) => tree.text(&text),
                None => extension(kind, bytes, tree),
            }
        }
        _ => tree.put(scalar(cursor, marker)?),
    };
    done.map_err(|full| start.full(full))
}

fn list(
    cursor: &mut Cursor<'_>,
    tree: &mut BoundedValue,
    count: u32,
    start: Cursor<'_>,
) -> Result<(), MalformedAt> {
    tree.list().map_err(|full| start.full(full))?;
    for _ in 0..count {
        value(cursor, tree)?;
    }
    tree.end();
    Ok(())
}

fn map(
    cursor: &mut Cursor<'_>,
    tree: &mut BoundedValue,
    count: u32,
    start: Cursor<'_>,
) -> Result<(), MalformedAt> {
    tree.map().map_err(|full| start.full(full))?;
    for _ in 0..count {
        let at = *cursor;
        let key = key(cursor)?;
        tree.key(&key).map_err(|full| at.full(full))?;
        value(cursor, tree)?;
    }
    tree.end();
    Ok(())
}

/// A key as JSON can have it: a number or a truth becomes its text.
fn key(cursor: &mut Cursor<'_>) -> Result<String, MalformedAt> {
    let start = *cursor;
    let marker = Marker::from_u8(cursor.byte("a key")?);
    match marker {
        Marker::FixStr(_)
        | Marker::Str8
        | Marker::Str16
        | Marker::Str32
        | Marker::Bin8
        | Marker::Bin16
        | Marker::Bin32 => {
            let count = length(cursor, marker)?;
            let bytes = cursor.take(count.into(), "a key")?;
            Ok(String::from_utf8_lossy(bytes).into_owned())
        }
        Marker::FixPos(_)
        | Marker::FixNeg(_)
        | Marker::Null
        | Marker::True
        | Marker::False
        | Marker::U8
        | Marker::U16
        | Marker::U32
        | Marker::U64
        | Marker::I8
        | Marker::I16
        | Marker::I32
        | Marker::I64
        | Marker::F32
        | Marker::F64 => Ok(scalar(cursor, marker)?.to_string()),
        _ => {
            Err(start.broken("a key that is a list, a map or an extension, which cannot be shown"))
        }
    }
}

/// How long what follows the marker is.
fn length(cursor: &mut Cursor<'_>, marker: Marker) -> Result<u32, MalformedAt> {
    const WHAT: &str = "a length";
    Ok(match marker {
        Marker::FixStr(length) => length.into(),
        Marker::FixExt1 => 1,
        Marker::FixExt2 => 2,
        Marker::FixExt4 => 4,
        Marker::FixExt8 => 8,
        Marker::FixExt16 => 16,
        Marker::Str8 | Marker::Bin8 | Marker::Ext8 => cursor.byte(WHAT)?.into(),
        Marker::Str16 | Marker::Bin16 | Marker::Ext16 | Marker::Array16 | Marker::Map16 => {
            u16::from_be_bytes(cursor.array(WHAT)?).into()
        }
        _ => u32::from_be_bytes(cursor.array(WHAT)?),
    })
}

fn scalar(cursor: &mut Cursor<'_>, marker: Marker) -> Result<Value, MalformedAt> {
    const WHAT: &str = "a number";
    Ok(match marker {
        Marker::FixPos(number) => json!(number),
        Marker::FixNeg(number) => json!(number),
        Marker::True => json!(true),
        Marker::False => json!(false),
        Marker::U8 => json!(u8::from_be_bytes(cursor.array(WHAT)?)),
        Marker::U16 => json!(u16::from_be_bytes(cursor.array(WHAT)?)),
        Marker::U32 => json!(u32::from_be_bytes(cursor.array(WHAT)?)),
        Marker::U64 => json!(u64::from_be_bytes(cursor.array(WHAT)?)),
        Marker::I8 => json!(i8::from_be_bytes(cursor.array(WHAT)?)),
        Marker::I16 => json!(i16::from_be_bytes(cursor.array(WHAT)?)),
        Marker::I32 => json!(i32::from_be_bytes(cursor.array(WHAT)?)),
        Marker::I64 => json!(i64::from_be_bytes(cursor.array(WHAT)?)),
        Marker::F32 => super::fraction_f32(f32::from_be_bytes(cursor.array(WHAT)?)),
        Marker::F64 => super::fraction(f64::from_be_bytes(cursor.array(WHAT)?)),
        _ => Value::Null,
    })
}

fn extension(
    kind: i8,
    bytes: &[u8],
    tree: &mut BoundedValue,
) -> Result<(), super::bounded_value::LimitReached> {
    tree.map()?;
    tree.key("$extension")?;
    tree.put(json!(kind))?;
    tree.key("value")?;
    tree.bytes(bytes)?;
    tree.end();
    Ok(())
}

/// The extension -1 of the specification: seconds in 32, 34 or 64 bits, with nanoseconds in the longer two.
fn timestamp(kind: i8, bytes: &[u8]) -> Option<String> {
    if kind != -1 {
        return None;
    }
    let (seconds, nanoseconds) = match bytes.len() {
        4 => (u32::from_be_bytes(bytes.try_into().ok()?).into(), 0),
        8 => {
            let both = u64::from_be_bytes(bytes.try_into().ok()?);
            let seconds = i64::try_from(both & 0x3_ffff_ffff).ok()?;
            (seconds, u32::try_from(both >> 34).ok()?)
        }
        12 => (
            i64::from_be_bytes(bytes[4..].try_into().ok()?),
            u32::from_be_bytes(bytes[..4].try_into().ok()?),
        ),
        _ => return None,
    };
    let nanoseconds = i32::try_from(nanoseconds)
        .ok()
        .filter(|part| *part < 1_000_000_000)?;
    Some(Timestamp::new(seconds, nanoseconds).ok()?.to_string())
}
