//! What a body means: unwrapped, decoded, and where it breaks off.
//!
//! ```text
//!   body ─► base64 · gzip · zstd · deflate ─► what was given, what the content type says, what it looks like ─► value
//!           wrapping                          protobuf · avro · json · messagepack · text · wire                tree
//! ```
//!
//! Bodies come from strangers. Whatever is in them, a body takes less than 256 MiB beside itself while it is decoded, and
//! what it claims of itself (a length, a count, a depth) is believed only as far as its bytes go.

mod avro;
mod bounded_value;
mod cursor;
mod decoded;
mod decoder;
mod encoding;
mod json;
mod messagepack;
mod protobuf;
mod protobuf_wire;
#[cfg(test)]
mod tests;

use std::borrow::Cow;

use serde_json::{Value, json};

pub use decoded::{Decoded, Format, Truncation};
pub use decoder::Decoder;
pub use encoding::{Encoding, MOST_UNWRAPPED, MOST_WRAPPINGS, is_declared_packed, may_be_packed};
pub use protobuf::SchemaFit;

use bounded_value::BoundedValue;
use cursor::MalformedAt;
use decoder::DecoderKind;

/// What the properties of a message say about its body.
#[derive(Clone, Copy, Debug, Default)]
pub struct Hints<'a> {
    /// The property `content_type`.
    pub content_type: Option<&'a str>,
    /// The property `content_encoding`.
    pub content_encoding: Option<&'a str>,
}

/// Decodes a body: by `decoder` where one is given, else as its properties say, else as it looks.
#[must_use]
pub fn decode<'a>(body: &'a [u8], hints: Hints<'_>, decoder: Option<&Decoder>) -> Decoded<'a> {
    let mut decoded = Decoded {
        unwrapped: Vec::new(),
        bytes: Cow::Borrowed(body),
        format: Format::Binary,
        is_guess: false,
        fit: None,
        schema: None,
        value: None,
        truncation: None,
    };
    unwrap(&mut decoded, hints, decoder);
    if decoded.bytes.is_empty()
        && !matches!(
            decoder,
            Some(Decoder(DecoderKind::Protobuf(_) | DecoderKind::Avro(_)))
        )
    {
        decoded.format = Format::Empty;
        return decoded;
    }
    match decoder {
        Some(Decoder(way)) => by(way, &mut decoded),
        None => match format_of_content_type(hints.content_type) {
            Some(format) => as_said(format, &mut decoded),
            None => guess_format(&mut decoded),
        },
    }
    decoded
}

fn unwrap(decoded: &mut Decoded<'_>, hints: Hints<'_>, decoder: Option<&Decoder>) {
    let declared = encoding::declared(hints.content_encoding.unwrap_or_default());
    for wrapping in declared.into_iter().take(MOST_WRAPPINGS) {
        let unwrapped = encoding::unwrap(wrapping, &decoded.bytes);
        if unwrapped.broken.is_some() && unwrapped.bytes.is_empty() {
            // It is something else than it says: shown as it is, with the reason.
            note(decoded, &wrapping.to_string(), unwrapped.broken);
            return;
        }
        decoded.unwrapped.push(wrapping);
        decoded.bytes = Cow::Owned(unwrapped.bytes);
        note(decoded, &wrapping.to_string(), unwrapped.broken);
    }
    while decoded.unwrapped.len() < MOST_WRAPPINGS && decoded.truncation.is_none() {
        let wrapping = match encoding::marked(&decoded.bytes) {
            Some(wrapping) => wrapping,
            None if is_base64_of_something(&decoded.bytes, hints, decoder) => Encoding::Base64,
            None => return,
        };
        let unwrapped = encoding::unwrap(wrapping, &decoded.bytes);
        if unwrapped.broken.is_some() && unwrapped.bytes.is_empty() {
            return; // not what it looked like
        }
        decoded.unwrapped.push(wrapping);
        decoded.bytes = Cow::Owned(unwrapped.bytes);
        note(decoded, &wrapping.to_string(), unwrapped.broken);
    }
}

/// Many words are base64 of some bytes: only what is clearly something inside counts.
fn is_base64_of_something(bytes: &[u8], hints: Hints<'_>, decoder: Option<&Decoder>) -> bool {
    let Some(inside) = encoding::maybe_base64(bytes) else {
        return false;
    };
    match decoder {
        Some(Decoder(DecoderKind::Protobuf(messages))) => {
            return messages.fits(&inside) && !messages.fits(bytes);
        }
        Some(Decoder(DecoderKind::Avro(schema))) => {
            return framed_avro(&inside).any(|(at, _)| {
                schema
                    .decode(&inside[at..], at, &mut BoundedValue::default())
                    .is_ok()
            });
        }
        Some(Decoder(DecoderKind::Text | DecoderKind::Hex)) => return false,
        _ => {}
    }
    if hints
        .content_type
        .is_some_and(|kind| kind.starts_with("text/"))
        && decoder.is_none()
    {
        return false;
    }
    encoding::marked(&inside).is_some()
        || (looks_like_json(&inside) && json::decode(&inside, &mut BoundedValue::default()).is_ok())
        || (inside.len() >= 8
            && messagepack::begins_like_one(&inside)
            && messagepack::decode(&inside, &mut BoundedValue::default()).is_ok())
        || (inside.len() >= 12
            && std::str::from_utf8(&inside)
                .is_ok_and(|text| !text.chars().any(|c| c.is_control() && !c.is_whitespace())))
}

/// What a content type says.
fn format_of_content_type(content_type: Option<&str>) -> Option<Format> {
    let kind = content_type?.split(';').next()?.trim().to_ascii_lowercase();
    let (_, subtype) = kind.split_once('/')?;
    let subtype = subtype.trim_start_matches("x-").trim_start_matches("vnd.");
    match subtype {
        "json" => Some(Format::Json),
        "msgpack" | "messagepack" => Some(Format::MessagePack),
        "protobuf" | "google.protobuf" => Some(Format::ProtobufWire),
        other if other.ends_with("+json") => Some(Format::Json),
        other if other.ends_with("+msgpack") => Some(Format::MessagePack),
        other if other.ends_with("+proto") || other.ends_with("+protobuf") => {
            Some(Format::ProtobufWire)
        }
        _ => None,
    }
}

fn as_said(format: Format, decoded: &mut Decoded<'_>) {
    let way = match format {
        Format::Json => DecoderKind::Json,
        Format::MessagePack => DecoderKind::MessagePack,
        _ => DecoderKind::Wire,
    };
    let mut attempt = decoded.clone();
    by(&way, &mut attempt);
    if attempt.truncation.is_none() || decoded.truncation.is_some() {
        *decoded = attempt;
        return;
    }
    // It is not what it says. What it looks like instead, if anything; and where it breaks off, unless it is sound.
    let mut other = decoded.clone();
    guess_format(&mut other);
    let is_text = other.format == Format::Text;
    if is_text || (other.format != Format::Binary && other.truncation.is_none()) {
        other.is_guess = !is_text;
        *decoded = other;
        if is_text {
            decoded.truncation = attempt.truncation;
        }
    } else {
        *decoded = attempt;
    }
}

fn by(way: &DecoderKind, decoded: &mut Decoded<'_>) {
    let mut tree = BoundedValue::default();
    let bytes = std::mem::take(&mut decoded.bytes);
    let (format, done) = match way {
        DecoderKind::Json => (Format::Json, json::decode(&bytes, &mut tree)),
        DecoderKind::MessagePack => (Format::MessagePack, messagepack::decode(&bytes, &mut tree)),
        DecoderKind::Wire => {
            decoded.is_guess = true;
            (
                Format::ProtobufWire,
                protobuf_wire::guess(&bytes, &mut tree),
            )
        }
        DecoderKind::Text => (Format::Text, text(&bytes, &mut tree)),
        DecoderKind::Hex => (Format::Binary, Ok(())),
        DecoderKind::Avro(schema) => {
            decoded.schema = schema.name();
            let mut at = 0;
            let sound = framed_avro(&bytes).find(|(at, _)| {
                schema
                    .decode(&bytes[*at..], *at, &mut BoundedValue::default())
                    .is_ok()
            });
            if let Some((start, wrapping)) = sound {
                decoded.unwrapped.extend(wrapping);
                at = start;
            }
            (Format::Avro, schema.decode(&bytes[at..], at, &mut tree))
        }
        DecoderKind::Protobuf(messages) => {
            let start = if messages.fits(&bytes) {
                0
            } else {
                registry(&bytes, messages)
            };
            if start > 0 {
                decoded.unwrapped.push(registry_id(&bytes));
            }
            let read = messages.decode(&bytes[start..], start);
            decoded.bytes = bytes;
            let Some(read) = read else {
                decoded.truncation.get_or_insert_with(|| Truncation {
                    within: Format::Protobuf.name().to_owned(),
                    byte: 0,
                    why: "no message of the descriptor set fits".to_owned(),
                });
                let broken = decoded.truncation.clone();
                guess_format(decoded);
                decoded.truncation = broken;
                return;
            };
            (decoded.format, decoded.value) = (Format::Protobuf, read.value);
            decoded.is_guess = read.fit.tried > 0;
            decoded.fit = Some(read.fit);
            note(decoded, Format::Protobuf.name(), read.broken);
            return;
        }
    };
    decoded.bytes = bytes;
    decoded.format = format;
    decoded.value = tree.finish();
    note(decoded, format.name(), done.err());
}

/// Where an Avro datum may begin, and what stands before it.
fn framed_avro(bytes: &[u8]) -> impl Iterator<Item = (usize, Option<Encoding>)> {
    let registry = (bytes.len() >= 5 && bytes[0] == 0).then(|| (5, Some(registry_id(bytes))));
    let single = (bytes.len() >= 10 && bytes.starts_with(&[0xc3, 0x01]))
        .then_some((10, Some(Encoding::SingleObject)));
    std::iter::once((0, None)).chain(single).chain(registry)
}

fn registry_id(bytes: &[u8]) -> Encoding {
    let id = bytes.get(1..5).and_then(|id| id.try_into().ok());
    Encoding::SchemaRegistry(u32::from_be_bytes(id.unwrap_or_default()))
}

/// Where a protobuf message begins that a client of a schema registry wrote: after the id and the place of the message in
/// its file, which is one zero for the first. 0 where it is not so.
fn registry(bytes: &[u8], messages: &protobuf::Messages) -> usize {
    if bytes.len() < 6 || bytes[0] != 0 {
        return 0;
    }
    let mut cursor = cursor::Cursor::within(&bytes[5..], 5);
    let Ok(count @ 0..=16) = cursor.zigzag("a count") else {
        return 0;
    };
    for _ in 0..count {
        if cursor.zigzag("an index").is_err() {
            return 0;
        }
    }
    let start = cursor.position();
    if messages.fits(&bytes[start..]) {
        start
    } else {
        0
    }
}

/// What the bytes look like, where nobody says.
fn guess_format(decoded: &mut Decoded<'_>) {
    let text = std::str::from_utf8(&decoded.bytes);
    if text.is_ok() && looks_like_json(&decoded.bytes) {
        let mut tree = BoundedValue::default();
        match json::decode(&decoded.bytes, &mut tree) {
            Ok(()) => {
                (decoded.format, decoded.value) = (Format::Json, tree.finish());
                return;
            }
            // Text that begins as JSON does: worth a word where it breaks off.
            Err(broken) => {
                as_text(decoded);
                note(decoded, Format::Json.name(), Some(broken));
                return;
            }
        }
    }
    if text.is_ok_and(|text| !text.chars().any(|c| c.is_control() && !c.is_whitespace())) {
        as_text(decoded);
        return;
    }
    let mut tree = BoundedValue::default();
    if messagepack::begins_like_one(&decoded.bytes)
        && messagepack::decode(&decoded.bytes, &mut tree).is_ok()
    {
        (decoded.format, decoded.value, decoded.is_guess) =
            (Format::MessagePack, tree.finish(), true);
        return;
    }
    if protobuf_wire::is_sound(&decoded.bytes) {
        let mut tree = BoundedValue::default();
        let done = protobuf_wire::guess(&decoded.bytes, &mut tree);
        (decoded.format, decoded.value, decoded.is_guess) =
            (Format::ProtobufWire, tree.finish(), true);
        note(decoded, Format::ProtobufWire.name(), done.err());
        return;
    }
    if std::str::from_utf8(&decoded.bytes).is_ok_and(|text| !is_odd(text)) {
        as_text(decoded);
    }
}

fn as_text(decoded: &mut Decoded<'_>) {
    decoded.format = Format::Text;
    let text = String::from_utf8_lossy(&decoded.bytes).into_owned();
    decoded.value = Some(Value::String(text));
}

fn text(bytes: &[u8], tree: &mut BoundedValue) -> Result<(), MalformedAt> {
    let (text, broken) = match std::str::from_utf8(bytes) {
        Ok(text) => (text, None),
        Err(error) => {
            let at = error.valid_up_to();
            let why = "it is not UTF-8".to_owned();
            (
                std::str::from_utf8(&bytes[..at]).unwrap_or_default(),
                Some(MalformedAt { at, why }),
            )
        }
    };
    tree.text(text).map_err(|full| MalformedAt {
        at: 0,
        why: full.to_owned(),
    })?;
    broken.map_or(Ok(()), Err)
}

fn looks_like_json(bytes: &[u8]) -> bool {
    matches!(bytes.trim_ascii_start().first(), Some(b'{' | b'['))
}

/// Text that is mostly control characters reads better as bytes.
fn is_odd(text: &str) -> bool {
    let some = || text.chars().take(4096);
    let odd = some()
        .filter(|c| c.is_control() && !c.is_whitespace())
        .count();
    odd * 5 > some().count()
}

/// Notes where it breaks off, unless something outside of it did before.
fn note(decoded: &mut Decoded<'_>, within: &str, broken: Option<MalformedAt>) {
    if let (Some(broken), None) = (broken, &decoded.truncation) {
        decoded.truncation = Some(Truncation {
            within: within.to_owned(),
            byte: broken.at,
            why: broken.why,
        });
    }
}

/// A fraction as JSON can have it: what is no number is a text.
fn fraction(number: f64) -> Value {
    match serde_json::Number::from_f64(number) {
        Some(number) => Value::Number(number),
        None if number.is_nan() => json!("NaN"),
        None if number > 0.0 => json!("Infinity"),
        None => json!("-Infinity"),
    }
}

/// By way of text, so that 0.1 does not become 0.10000000149011612.
fn fraction_f32(number: f32) -> Value {
    fraction(number.to_string().parse().unwrap_or(f64::from(number)))
}
