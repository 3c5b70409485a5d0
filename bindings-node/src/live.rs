//! How many native objects are alive, for tests of leaks.

use napi_derive::napi;
pub(crate) use retryrmq_bindings::{Alive, Kind};

/// The number of living native objects of this process, in all threads, by kind.
#[napi(catch_unwind)]
pub fn live() -> Vec<(&'static str, i64)> {
    retryrmq_bindings::living().collect()
}
