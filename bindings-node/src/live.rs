//! How many native objects are alive: what a test of leaks asks.

use napi_derive::napi;
pub(crate) use retryrmq_bindings::{Alive, Kind};

/// The living native objects of this process, all its threads together.
#[napi(catch_unwind)]
pub fn live() -> Vec<(&'static str, i64)> {
    retryrmq_bindings::living().collect()
}
