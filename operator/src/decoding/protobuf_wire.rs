//! Protobuf as it is on the wire: fields with numbers, and a guess at what they hold where no schema says.

use serde_json::{Value, json};

use super::{
    bounded_value::{BoundedValue, TOO_DEEP},
    cursor::{Cursor, MalformedAt},
};

/// Levels that a guess goes down. Each level is read twice, so this bounds the time as well.
const DEEPEST: usize = 24;

/// What a field holds, as far as the wire tells.
#[derive(Clone, Copy, Debug)]
pub(super) enum Payload<'a> {
    Varint(u64),
    Fixed64([u8; 8]),
    Fixed32([u8; 4]),
    /// Text, bytes, a message or numbers one after another.
    Bytes(&'a [u8]),
    Group(&'a [u8]),
}

/// One field.
#[derive(Clone, Copy, Debug)]
pub(super) struct Field<'a> {
    pub(super) number: u32,
    pub(super) payload: Payload<'a>,
    /// Where it begins.
    pub(super) at: usize,
    /// Where the bytes of its payload begin.
    pub(super) inside: usize,
}

/// The next field; none at the end.
pub(super) fn field<'a>(
    cursor: &mut Cursor<'a>,
    depth: usize,
) -> Result<Option<Field<'a>>, MalformedAt> {
    if cursor.left() == 0 {
        return Ok(None);
    }
    let start = *cursor;
    let (number, kind) = tag(cursor)?;
    let inside = cursor.position();
    let (payload, inside) = match kind {
        0 => (Payload::Varint(cursor.varint("a number")?), inside),
        1 => (Payload::Fixed64(cursor.array("a number")?), inside),
        5 => (Payload::Fixed32(cursor.array("a number")?), inside),
        2 => {
            let length = cursor.varint("a length")?;
            let inside = cursor.position();
            let what = format!("field {number}");
            (Payload::Bytes(cursor.take(length, &what)?), inside)
        }
        3 => (Payload::Group(group(cursor, number, depth)?), inside),
        4 => return Err(start.broken(format!("the end of group {number}, which did not begin"))),
        _ => {
            return Err(start.broken(format!(
                "field {number} of wire type {kind}, which does not exist"
            )));
        }
    };
    Ok(Some(Field {
        number,
        payload,
        at: start.position(),
        inside,
    }))
}

fn tag(cursor: &mut Cursor<'_>) -> Result<(u32, u64), MalformedAt> {
    let start = *cursor;
    let tag = cursor.varint("a field number")?;
    match u32::try_from(tag >> 3) {
        Ok(number @ 1..=0x1fff_ffff) => Ok((number, tag & 7)),
        _ => Err(start.broken(format!("field number {}, which does not exist", tag >> 3))),
    }
}

/// What stands before the end of the group.
fn group<'a>(cursor: &mut Cursor<'a>, number: u32, depth: usize) -> Result<&'a [u8], MalformedAt> {
    if depth >= super::bounded_value::DEEPEST {
        return Err(cursor.broken(TOO_DEEP));
    }
    let start = *cursor;
    loop {
        let before = *cursor;
        if cursor.left() == 0 {
            return Err(cursor.broken(format!("group {number} does not end")));
        }
        let (found, kind) = tag(cursor)?;
        if kind == 4 && found == number {
            let mut whole = start;
            return whole.take((before.position() - start.position()) as u64, "a group");
        }
        *cursor = before;
        field(cursor, depth + 1)?;
    }
}

/// Whether the bytes are fields from one end to the other, at least one.
pub(super) fn is_sound(bytes: &[u8]) -> bool {
    let mut cursor = Cursor::new(bytes);
    let mut fields = 0;
    loop {
        match field(&mut cursor, 0) {
            Ok(Some(_)) => fields += 1,
            Ok(None) => return fields > 0,
            Err(_) => return false,
        }
    }
}

/// A map from field numbers to what they seem to hold; of a number that comes more than once, a list.
pub(super) fn guess(bytes: &[u8], tree: &mut BoundedValue) -> Result<(), MalformedAt> {
    level(Cursor::new(bytes), tree, 0)
}

fn level(cursor: Cursor<'_>, tree: &mut BoundedValue, depth: usize) -> Result<(), MalformedAt> {
    let full = |at: usize, why: &str| MalformedAt {
        at,
        why: why.to_owned(),
    };
    tree.map().map_err(|why| cursor.full(why))?;
    // Those of one number together, in the order of their first: a pass to number them, then one for each list.
    let mut fields: Vec<Field<'_>> = Vec::new();
    let mut reading = cursor;
    let broken = loop {
        match field(&mut reading, depth) {
            Ok(Some(_)) if fields.len() >= super::bounded_value::MOST_VALUES => {
                break Some(reading.broken("it has more than 131 072 fields"));
            }
            Ok(Some(field)) => fields.push(field),
            Ok(None) => break None,
            Err(broken) => break Some(broken),
        }
    };
    fields.sort_by_key(|field| field.number); // stable: equal ones keep their order
    for alike in fields.chunk_by(|one, other| one.number == other.number) {
        let at = alike[0].at;
        tree.key(&alike[0].number.to_string())
            .map_err(|why| full(at, why))?;
        if alike.len() > 1 {
            tree.list().map_err(|why| full(at, why))?;
        }
        for field in alike {
            payload(field, tree, depth)?;
        }
        if alike.len() > 1 {
            tree.end();
        }
    }
    tree.end();
    broken.map_or(Ok(()), Err)
}

fn payload(field: &Field<'_>, tree: &mut BoundedValue, depth: usize) -> Result<(), MalformedAt> {
    let done = match field.payload {
        Payload::Varint(number) => tree.put(json!(number)),
        Payload::Fixed64(bytes) => {
            tree.put(number(f64::from_le_bytes(bytes), u64::from_le_bytes(bytes)))
        }
        Payload::Fixed32(bytes) => {
            let float = f32::from_le_bytes(bytes);
            let float = float.to_string().parse().unwrap_or(f64::from(float));
            tree.put(number(float, u32::from_le_bytes(bytes).into()))
        }
        Payload::Group(bytes) if depth < DEEPEST => {
            return level(Cursor::within(bytes, field.inside), tree, depth + 1);
        }
        Payload::Group(bytes) => tree.bytes(bytes),
        Payload::Bytes(bytes) => match std::str::from_utf8(bytes) {
            Ok(text) if is_plain(text) => tree.text(text),
            _ if depth < DEEPEST && is_sound(bytes) => {
                return level(Cursor::within(bytes, field.inside), tree, depth + 1);
            }
            Ok(text) if !super::is_odd(text) => tree.text(text),
            _ => tree.bytes(bytes),
        },
    };
    done.map_err(|why| MalformedAt {
        at: field.at,
        why: why.to_owned(),
    })
}

/// A fixed number is a fraction where that would be one that people use.
fn number(fraction: f64, whole: u64) -> Value {
    let is_usual = fraction == 0.0 || (1e-6..1e15).contains(&fraction.abs());
    if is_usual && whole != 0 {
        json!(fraction)
    } else {
        json!(whole)
    }
}

/// Text without a control character: a message within has some, for its field numbers and lengths.
fn is_plain(text: &str) -> bool {
    !text.chars().any(char::is_control)
}
