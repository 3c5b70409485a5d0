//! Messages as bytes, as `layout.rs` of `bindings-common` has them. Go copies each message, so every body is inside.

use retryrmq::{Delivery, Message};
use retryrmq_bindings::message_codec::Batch;

use crate::wire::Wire;

/// Several messages; nothing for none.
pub(crate) fn batch(deliveries: &[Delivery], may_park: impl Fn(&Message) -> bool) -> Wire {
    Wire(Batch::of(deliveries, usize::MAX, may_park).bytes)
}

/// A message that nobody settles.
pub(crate) fn alone(message: &Message) -> Wire {
    Wire(Batch::alone(message, usize::MAX).bytes)
}
