//! Frames of AMQP 0-9-1: a type, a channel, a size, that many bytes, and an end octet.

use std::io;

pub(super) const METHOD: u8 = 1;
pub(super) const HEADER: u8 = 2;
pub(super) const BODY: u8 = 3;
pub(super) const HEARTBEAT: u8 = 8;
pub(super) const FRAME_END: u8 = 0xCE;

/// Type, channel and size.
pub(super) const HEAD: usize = 7;
/// [`HEAD`] and the end octet.
pub(super) const OVERHEAD: usize = HEAD + 1;
/// lapin's smallest limit, whatever the server negotiates.
const FRAME_MIN: usize = 4096;
/// The largest method or content header that is collected, far above any frame size in use. It keeps a size field alone from making us
/// allocate without bound.
pub(super) const COLLECT_MAX: usize = 16 << 20;

/// What the first bytes of a frame say.
pub(super) enum Head {
    /// Too few bytes to tell.
    Partial,
    /// Not a frame.
    Foreign,
    /// A body or heartbeat frame.
    Passed { size: u32 },
    /// A method or content header frame with this total length.
    Repaired { total: usize },
}

impl Head {
    /// Looks at the beginning of a frame.
    pub(super) fn of(bytes: &[u8]) -> Self {
        match bytes {
            [METHOD | HEADER | BODY | HEARTBEAT, _, _, a, b, c, d, ..] => {
                let size = u32::from_be_bytes([*a, *b, *c, *d]);
                if matches!(bytes[0], BODY | HEARTBEAT) {
                    Self::Passed { size }
                } else {
                    let total = usize::try_from(size).unwrap_or(usize::MAX);
                    Self::Repaired {
                        total: total.saturating_add(OVERHEAD),
                    }
                }
            }
            [] | [METHOD | HEADER | BODY | HEARTBEAT, ..] => Self::Partial,
            _ => Self::Foreign,
        }
    }
}

/// How many bytes are missing before the frame that begins with `split` can be handled.
pub(super) fn missing(split: &[u8]) -> io::Result<usize> {
    match Head::of(split) {
        Head::Partial => Ok(HEAD - split.len()),
        Head::Foreign | Head::Passed { .. } => Ok(0),
        Head::Repaired { total } if total <= COLLECT_MAX => Ok(total.saturating_sub(split.len())),
        Head::Repaired { total } => Err(io::Error::new(
            io::ErrorKind::InvalidData,
            format!("the server announced a frame of {total} bytes that is not a message body"),
        )),
    }
}

/// The lower of both limits, as lapin negotiates it; 0 means no limit.
pub(super) fn limit(frame_max: u32, other: usize) -> usize {
    match usize::try_from(frame_max) {
        Ok(1..) => other.min((frame_max as usize).max(FRAME_MIN)),
        _ => other,
    }
}
