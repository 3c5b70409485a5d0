//! Messages for JavaScript, as `layout.rs` of `bindings-common` has them.

use std::time::SystemTime;

use napi::{Env, bindgen_prelude::BufferSlice};
use napi_derive::napi;
use retryrmq::{Delivery, Message};
use retryrmq_bindings::layout;

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
    buffers(env, layout::Batch::of(deliveries, LARGE, may_park))
}

/// A message that nobody settles.
pub(crate) fn alone<'env>(env: &'env Env, message: &Message) -> Result<Batch<'env>> {
    buffers(env, layout::Batch::alone(message, LARGE))
}

fn buffers<'env>(env: &'env Env, batch: layout::Batch<'_>) -> Result<Batch<'env>> {
    let bodies = batch.bodies.into_iter();
    Ok(Batch {
        messages: BufferSlice::copy_from(env, batch.bytes).map_err(failed)?,
        bodies: bodies
            .map(|body| BufferSlice::copy_from(env, body).map_err(failed))
            .collect::<Result<_>>()?,
    })
}

/// One failed attempt.
#[napi(object, object_from_js = false)]
pub struct Failure {
    /// Which attempt.
    pub attempt: u32,
    /// When, in seconds since 1970.
    pub at: f64,
    /// Why.
    pub error: String,
    /// The host name of the consumer.
    pub host: String,
    /// The version of the consuming application.
    pub app_version: String,
}

/// The last failures that these headers tell of, oldest first.
#[napi(catch_unwind)]
pub fn history(headers: &[u8]) -> Result<Vec<Failure>> {
    let history = layout::history(headers).map_err(thrown)?.into_iter();
    Ok(history
        .map(|entry| Failure {
            attempt: entry.attempt,
            at: entry.at as f64,
            error: entry.error,
            host: entry.host,
            app_version: entry.app_version,
        })
        .collect())
}

/// Seconds since 1970; NaN for never.
pub(crate) fn seconds(at: Option<SystemTime>) -> f64 {
    at.and_then(|at| at.duration_since(SystemTime::UNIX_EPOCH).ok())
        .map_or(f64::NAN, |since| since.as_secs_f64())
}

fn failed(error: napi::Error) -> napi::Error<Code> {
    napi::Error::new(Code("error"), error.reason.clone())
}
