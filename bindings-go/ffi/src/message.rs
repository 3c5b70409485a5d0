//! Messages as bytes, as `message_codec.rs` of `bindings-common` has them. Go copies each message, so every body is inside.

use retryrmq::{Delivery, Message};
use retryrmq_bindings::message_codec::Batch;

use crate::byte_buffer::ByteBuffer;

/// Several messages; nothing for none.
pub(crate) fn batch(deliveries: &[Delivery], may_park: impl Fn(&Message) -> bool) -> ByteBuffer {
    ByteBuffer(Batch::of(deliveries, usize::MAX, may_park).bytes)
}

/// A message that nobody settles.
pub(crate) fn alone(message: &Message) -> ByteBuffer {
    ByteBuffer(Batch::alone(message, usize::MAX).bytes)
}
