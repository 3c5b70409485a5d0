//! Messages for JavaScript, as `message_codec.rs` of `bindings-common` has them.

use napi::{Env, bindgen_prelude::BufferSlice};
use napi_derive::napi;
use retryrmq::{Delivery, Message};
use retryrmq_bindings::{json_rows, message_codec};

use crate::errors::{Code, Result, thrown};

/// A longer body has its own buffer, so that keeping one message does not keep the batch.
const LARGE: usize = 4096;

/// Messages, and the bodies that are outside.
#[napi(object, object_from_js = false)]
pub struct Batch<'env> {
    /// The messages.
    pub messages: BufferSlice<'env>,
    /// Large bodies, in the order of their messages.
    pub bodies: Vec<BufferSlice<'env>>,
}

/// Several messages.
pub(crate) fn batch<'env>(
    env: &'env Env,
    deliveries: &[Delivery],
    may_park: impl Fn(&Message) -> bool,
) -> Result<Batch<'env>> {
    buffers(env, message_codec::Batch::of(deliveries, LARGE, may_park))
}

/// A message that nobody settles.
pub(crate) fn alone<'env>(env: &'env Env, message: &Message) -> Result<Batch<'env>> {
    buffers(env, message_codec::Batch::alone(message, LARGE))
}

fn buffers<'env>(env: &'env Env, batch: message_codec::Batch<'_>) -> Result<Batch<'env>> {
    let bodies = batch.bodies.into_iter();
    Ok(Batch {
        messages: BufferSlice::copy_from(env, batch.bytes).map_err(failed)?,
        bodies: bodies
            .map(|body| BufferSlice::copy_from(env, body).map_err(failed))
            .collect::<Result<_>>()?,
    })
}

/// The last failures that these headers tell of, oldest first, as an array of rows.
#[napi(catch_unwind)]
pub fn history(headers: &[u8]) -> Result<String> {
    let history = message_codec::history(headers).map_err(thrown)?;
    Ok(json_rows::history(&history))
}

fn failed(error: napi::Error) -> napi::Error<Code> {
    napi::Error::new(Code("error"), error.reason.clone())
}
