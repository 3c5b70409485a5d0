//! What a body is wrapped in: base64 and compression, one within another, bounded.

use std::{borrow::Cow, fmt, io::Read};

use base64::{
    Engine, alphabet,
    engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig},
};
use flate2::bufread::{DeflateDecoder, MultiGzDecoder, ZlibDecoder};
use ruzstd::decoding::{FrameDecoder, StreamingDecoder};

use super::cursor::MalformedAt;

/// Bytes that unwrapping yields at most; a body that has more is cut there. The peak is about four times this.
pub const MOST_UNWRAPPED: usize = 32 << 20;
/// Wrappings of a body at most.
pub const MOST_WRAPPINGS: usize = 4;

/// One of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Encoding {
    /// Base64 of either alphabet, white space and missing padding allowed.
    Base64,
    /// RFC 1952.
    Gzip,
    /// RFC 8878.
    Zstd,
    /// RFC 1950: what HTTP calls deflate.
    Zlib,
    /// RFC 1951: what some libraries call deflate.
    Deflate,
    /// Five bytes before the data, with the id of a schema: as the clients of Confluent's schema registry write it.
    SchemaRegistry(u32),
    /// Ten bytes before the data, with the fingerprint of a schema: Avro's "single object encoding".
    SingleObject,
}

impl fmt::Display for Encoding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Base64 => f.write_str("base64"),
            Self::Gzip => f.write_str("gzip"),
            Self::Zstd => f.write_str("zstd"),
            Self::Zlib => f.write_str("zlib"),
            Self::Deflate => f.write_str("deflate"),
            Self::SchemaRegistry(id) => write!(f, "schema registry (id {id})"),
            Self::SingleObject => f.write_str("Avro single object"),
        }
    }
}

/// What came out of a wrapping, whole or as far as it went.
pub(super) struct DecodedEncoding {
    pub(super) bytes: Vec<u8>,
    pub(super) broken: Option<MalformedAt>,
}

/// The wrappings that a content encoding names, the outermost first. Words for character sets and the like name none.
pub(super) fn declared(encoding: &str) -> Vec<Encoding> {
    let mut all: Vec<Encoding> = encoding
        .split(',')
        .filter_map(|word| match word.trim().to_ascii_lowercase().as_str() {
            "base64" => Some(Encoding::Base64),
            "gzip" | "x-gzip" => Some(Encoding::Gzip),
            "zstd" => Some(Encoding::Zstd),
            "deflate" | "zlib" => Some(Encoding::Zlib),
            _ => None,
        })
        .collect();
    all.reverse(); // the list says in which order they were applied
    all
}

/// Whether a content encoding says that the body is packed, as `gzip` does and `utf-8` does not.
#[must_use]
pub fn is_declared_packed(encoding: &str) -> bool {
    !declared(encoding).is_empty()
}

/// The compression whose mark the bytes begin with. That of zlib is two bytes only, so it counts where all of it unwraps.
pub(super) fn marked(bytes: &[u8]) -> Option<Encoding> {
    match bytes {
        [0x1f, 0x8b, 8, ..] => Some(Encoding::Gzip),
        [0x28, 0xb5, 0x2f, 0xfd, ..] => Some(Encoding::Zstd),
        [0x78, flags, _, ..] if (0x7800 | u16::from(*flags)) % 31 == 0 => {
            let whole = unwrap(Encoding::Zlib, bytes).broken.is_none();
            whole.then_some(Encoding::Zlib)
        }
        _ => None,
    }
}

/// Whether a body may unpack to much more than it has: it begins like a compression, or is base64 of something that does. It does not
/// unpack anything.
#[must_use]
pub fn may_be_packed(body: &[u8]) -> bool {
    let begins_so = |bytes: &[u8]| match bytes {
        [0x1f, 0x8b, ..] | [0x28, 0xb5, 0x2f, 0xfd, ..] => true,
        [0x78, flags, ..] => (0x7800 | u16::from(*flags)) % 31 == 0,
        _ => false,
    };
    begins_so(body)
        || maybe_base64(body)
            .is_some_and(|inside| begins_so(&inside) || maybe_base64(&inside).is_some())
}

/// Unwraps one of them, within [`MOST_UNWRAPPED`].
pub(super) fn unwrap(wrapping: Encoding, bytes: &[u8]) -> DecodedEncoding {
    match wrapping {
        Encoding::Base64 => base64(bytes),
        Encoding::Gzip => {
            let mut reader = MultiGzDecoder::new(bytes);
            let (out, fault) = read(&mut reader);
            with_fault(out, fault, bytes.len() - reader.get_ref().len())
        }
        Encoding::Zlib => {
            let mut reader = ZlibDecoder::new(bytes);
            let (out, fault) = read(&mut reader);
            let left = reader.get_ref().len();
            if fault.is_some() && out.is_empty() {
                // What is called deflate is raw at times.
                let raw = unwrap(Encoding::Deflate, bytes);
                if raw.broken.is_none() {
                    return raw;
                }
            }
            with_fault(out, fault, bytes.len() - left)
        }
        Encoding::Deflate => {
            let mut reader = DeflateDecoder::new(bytes);
            let (out, fault) = read(&mut reader);
            with_fault(out, fault, bytes.len() - reader.get_ref().len())
        }
        Encoding::Zstd => zstd(bytes),
        Encoding::SchemaRegistry(_) | Encoding::SingleObject => DecodedEncoding {
            bytes: bytes.to_vec(),
            broken: None,
        },
    }
}

fn zstd(bytes: &[u8]) -> DecodedEncoding {
    let mut rest = bytes;
    let mut all = Vec::new();
    while !rest.is_empty() {
        let before = bytes.len() - rest.len();
        let mut decoder = FrameDecoder::new();
        decoder.set_max_window_size(MOST_UNWRAPPED as u64);
        let mut reader = match StreamingDecoder::new_with_decoder(&mut rest, decoder) {
            Ok(reader) => reader,
            Err(error) => return with_fault(all, Some(error.to_string()), before),
        };
        let fault = read_into(&mut reader, &mut all);
        drop(reader);
        if fault.is_some() {
            return with_fault(all, fault, bytes.len() - rest.len());
        }
    }
    with_fault(all, None, bytes.len())
}

fn read(reader: &mut impl Read) -> (Vec<u8>, Option<String>) {
    let mut out = Vec::new();
    let fault = read_into(reader, &mut out);
    (out, fault)
}

/// Reads to the end, the bound or a fault; which is told, unless it is the end.
fn read_into(reader: &mut impl Read, out: &mut Vec<u8>) -> Option<String> {
    let room = MOST_UNWRAPPED - out.len();
    let fault = reader.take(room as u64 + 1).read_to_end(out).err();
    if out.len() > MOST_UNWRAPPED {
        out.truncate(MOST_UNWRAPPED);
        return Some("it unwraps to more than 32 MiB, and is cut there".to_owned());
    }
    fault.map(|error| error.to_string())
}

fn with_fault(bytes: Vec<u8>, fault: Option<String>, at: usize) -> DecodedEncoding {
    DecodedEncoding {
        bytes,
        broken: fault.map(|why| MalformedAt { at, why }),
    }
}

fn base64(bytes: &[u8]) -> DecodedEncoding {
    let engine = |alphabet| {
        let config = GeneralPurposeConfig::new()
            .with_decode_padding_mode(DecodePaddingMode::Indifferent)
            .with_decode_allow_trailing_bits(true);
        GeneralPurpose::new(alphabet, config)
    };
    let has_space = bytes.iter().any(u8::is_ascii_whitespace);
    let compact: Cow<'_, [u8]> = if has_space {
        let kept = bytes.iter().filter(|byte| !byte.is_ascii_whitespace());
        kept.copied().collect()
    } else {
        bytes.into()
    };
    let alphabet = match bytes.iter().any(|byte| matches!(byte, b'-' | b'_')) {
        true => &alphabet::URL_SAFE,
        false => &alphabet::STANDARD,
    };
    match engine(alphabet).decode(&*compact) {
        Ok(decoded) => with_fault(decoded, None, bytes.len()),
        Err(error) => {
            let at = bytes
                .iter()
                .position(|byte| !byte.is_ascii_whitespace() && !is_base64(*byte))
                .unwrap_or(bytes.len());
            with_fault(Vec::new(), Some(error.to_string()), at)
        }
    }
}

fn is_base64(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/' | b'-' | b'_' | b'=')
}

/// What is inside, if the text could be base64 at all: of its alphabet, and as long as four characters are three bytes.
pub(super) fn maybe_base64(bytes: &[u8]) -> Option<Vec<u8>> {
    let text = bytes.trim_ascii_end();
    let sound = text.len() >= 8
        && text
            .iter()
            .all(|byte| is_base64(*byte) || matches!(byte, b'\r' | b'\n'))
        && text.iter().filter(|byte| is_base64(**byte)).count() % 4 == 0;
    if !sound {
        return None;
    }
    let inside = base64(text);
    inside.broken.is_none().then_some(inside.bytes)
}
