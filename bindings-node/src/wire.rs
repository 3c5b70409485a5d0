//! The bytes in which messages, outcomes and values pass between the halves: little-endian numbers; texts and bytes with their length
//! before them. Both halves have the same version, so nothing is named and nothing is skipped.

use crate::errors::{Code, mixed_versions};

/// The length of an absent value.
const NONE: u32 = u32::MAX;

/// Writes for the TypeScript half.
#[derive(Debug, Default)]
pub(crate) struct Writer(pub(crate) Vec<u8>);

impl Writer {
    pub(crate) fn u8(&mut self, value: u8) {
        self.0.push(value);
    }

    pub(crate) fn u32(&mut self, value: u32) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    pub(crate) fn i64(&mut self, value: i64) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    pub(crate) fn f64(&mut self, value: f64) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    pub(crate) fn len(&mut self, len: usize) {
        self.u32(u32::try_from(len).unwrap_or(NONE - 1));
    }

    pub(crate) fn bytes(&mut self, bytes: &[u8]) {
        self.len(bytes.len());
        self.0.extend_from_slice(bytes);
    }

    pub(crate) fn maybe(&mut self, text: Option<&str>) {
        match text {
            Some(text) => self.bytes(text.as_bytes()),
            None => self.u32(NONE),
        }
    }

    /// Writes a number where room was left for it.
    pub(crate) fn fill(&mut self, at: usize, value: u32) {
        self.0[at..at + 4].copy_from_slice(&value.to_le_bytes());
    }
}

/// Reads what the TypeScript half has written.
#[derive(Debug)]
pub(crate) struct Reader<'a>(&'a [u8]);

type Read<T> = Result<T, napi::Error<Code>>;

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn take(&mut self, len: usize) -> Read<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(len).ok_or_else(mixed_versions)?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Read<[u8; N]> {
        self.take(N)?.try_into().map_err(|_| mixed_versions())
    }

    pub(crate) fn u8(&mut self) -> Read<u8> {
        Ok(self.array::<1>()?[0])
    }

    pub(crate) fn u32(&mut self) -> Read<u32> {
        self.array().map(u32::from_le_bytes)
    }

    pub(crate) fn i64(&mut self) -> Read<i64> {
        self.array().map(i64::from_le_bytes)
    }

    pub(crate) fn f64(&mut self) -> Read<f64> {
        self.array().map(f64::from_le_bytes)
    }

    /// A number that may be left out; NaN if it is.
    pub(crate) fn maybe_f64(&mut self) -> Read<Option<f64>> {
        Ok(Some(self.f64()?).filter(|number| !number.is_nan()))
    }

    pub(crate) fn bytes(&mut self) -> Read<&'a [u8]> {
        let len = self.u32()?;
        self.take(len as usize)
    }

    pub(crate) fn text(&mut self) -> Read<String> {
        Ok(String::from_utf8_lossy(self.bytes()?).into_owned())
    }

    pub(crate) fn maybe(&mut self) -> Read<Option<String>> {
        let len = self.u32()?;
        if len == NONE {
            return Ok(None);
        }
        let text = self.take(len as usize)?;
        Ok(Some(String::from_utf8_lossy(text).into_owned()))
    }
}
