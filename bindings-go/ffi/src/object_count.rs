//! How many native objects are alive: what a test of leaks asks.

pub(crate) use retryrmq_bindings::{LiveObject, ObjectKind};

/// The live_objects native objects of this process.
#[uniffi::export]
pub fn live_objects() -> i64 {
    retryrmq_bindings::live_objects()
        .map(|(_, count)| count)
        .sum()
}
