//! Bytes that are read from front to back, and where they break off.

use super::bounded_value::LimitReached;

/// Where bytes stop to make sense, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct MalformedAt {
    /// The byte, counted from 0.
    pub(super) at: usize,
    pub(super) why: String,
}

/// Reads bytes; a position counts from the start of the whole body.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cursor<'a> {
    bytes: &'a [u8],
    base: usize,
    at: usize,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self::within(bytes, 0)
    }

    /// Of a part that begins at `base`.
    pub(super) fn within(bytes: &'a [u8], base: usize) -> Self {
        Self { bytes, base, at: 0 }
    }

    pub(super) fn position(&self) -> usize {
        self.base + self.at
    }

    pub(super) fn left(&self) -> usize {
        self.bytes.len() - self.at
    }

    pub(super) fn take(&mut self, length: u64, what: &str) -> Result<&'a [u8], MalformedAt> {
        let wanted = usize::try_from(length).unwrap_or(usize::MAX);
        if wanted > self.left() {
            return Err(self.broken(format!(
                "{what} of {length} bytes, and {} are left",
                self.left()
            )));
        }
        let taken = &self.bytes[self.at..self.at + wanted];
        self.at += wanted;
        Ok(taken)
    }

    pub(super) fn array<const N: usize>(&mut self, what: &str) -> Result<[u8; N], MalformedAt> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N as u64, what)?);
        Ok(array)
    }

    pub(super) fn byte(&mut self, what: &str) -> Result<u8, MalformedAt> {
        Ok(self.array::<1>(what)?[0])
    }

    /// Seven bits a byte, the lowest first, as protobuf and Avro write numbers.
    pub(super) fn varint(&mut self, what: &str) -> Result<u64, MalformedAt> {
        let start = *self;
        let mut number = 0_u64;
        for shift in (0..70).step_by(7) {
            let byte = self
                .byte(what)
                .map_err(|_| start.broken(format!("{what} that does not end")))?;
            if shift == 63 && byte > 1 {
                break;
            }
            number |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(number);
            }
        }
        Err(start.broken(format!("{what} that is larger than 64 bits")))
    }

    /// The same, as Avro folds signs into it.
    pub(super) fn zigzag(&mut self, what: &str) -> Result<i64, MalformedAt> {
        let number = self.varint(what)?;
        Ok((number >> 1).cast_signed() ^ -((number & 1).cast_signed()))
    }

    pub(super) fn broken(&self, why: impl Into<String>) -> MalformedAt {
        MalformedAt {
            at: self.position(),
            why: why.into(),
        }
    }

    /// That no more than this goes into what is shown.
    pub(super) fn full(&self, full: LimitReached) -> MalformedAt {
        self.broken(full)
    }

    /// What is left at the end is a fault.
    pub(super) fn ends(&self) -> Result<(), MalformedAt> {
        match self.left() {
            0 => Ok(()),
            1 => Err(self.broken("1 byte is left over")),
            left => Err(self.broken(format!("{left} bytes are left over"))),
        }
    }
}
