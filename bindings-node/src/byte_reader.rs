//! The bytes in which outcomes and messages to publish come from the TypeScript half: little-endian numbers; texts and bytes with their
//! length before them. Both halves have the same version, so nothing is named and nothing is skipped.

use crate::errors::{Code, mixed_versions};

/// The length of an absent value.
const NONE: u32 = u32::MAX;

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

    /// All that is left.
    pub(crate) fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.0)
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
