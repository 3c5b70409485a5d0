//! How many native objects are alive, for tests of leaks.

use napi_derive::napi;
pub(crate) use retryrmq_bindings::{LiveObject, ObjectKind};

/// The number of live native objects of this process, in all threads, by kind.
#[napi(catch_unwind)]
pub fn live_objects() -> Vec<(&'static str, i64)> {
    retryrmq_bindings::live_objects().collect()
}
