//! Bytes across the boundary, moved as one block.

use std::ops::Deref;

use uniffi::{
    FfiConverter, MetadataBuffer, RustBuffer, TypeId,
    deps::{anyhow, bytes::BufMut},
};

/// Bytes. As a `Vec<u8>` they would go one by one.
#[derive(Clone, Debug, Default)]
pub struct ByteBuffer(pub(crate) Vec<u8>);

impl Deref for ByteBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

// SAFETY: `lower` gives the vector's own memory away and `try_lift` takes back what was given away by a `RustBuffer` of this
// library, as the converter of `String` does; `write` and `try_read` are inverse to each other, and every read is checked.
#[allow(unsafe_code)]
unsafe impl FfiConverter<crate::UniFfiTag> for ByteBuffer {
    type FfiType = RustBuffer;

    fn lower(wire: Self) -> RustBuffer {
        RustBuffer::from_vec(wire.0)
    }

    fn try_lift(buffer: RustBuffer) -> uniffi::Result<Self> {
        Ok(Self(buffer.destroy_into_vec()))
    }

    fn write(wire: Self, buffer: &mut Vec<u8>) {
        // A body has less than 2³¹ bytes: AMQP brokers refuse far smaller ones.
        buffer.put_i32(i32::try_from(wire.0.len()).unwrap_or(0));
        if i32::try_from(wire.0.len()).is_ok() {
            buffer.extend_from_slice(&wire.0);
        }
    }

    fn try_read(buffer: &mut &[u8]) -> uniffi::Result<Self> {
        uniffi::check_remaining(buffer, 4)?;
        let (length, rest) = buffer.split_at(4);
        let length = usize::try_from(i32::from_be_bytes(length.try_into()?))?;
        anyhow::ensure!(rest.len() >= length, "not enough bytes");
        let (bytes, rest) = rest.split_at(length);
        *buffer = rest;
        Ok(Self(bytes.to_vec()))
    }

    const TYPE_ID_META: MetadataBuffer = <Vec<u8> as TypeId<crate::UniFfiTag>>::TYPE_ID_META;
}

uniffi::derive_ffi_traits!(local ByteBuffer);
