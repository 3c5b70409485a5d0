//! How many native objects are alive: what a test of leaks asks.

pub(crate) use retryrmq_bindings::{Alive, Kind};

/// The living native objects of this process.
#[uniffi::export]
pub fn live() -> i64 {
    retryrmq_bindings::living().map(|(_, count)| count).sum()
}
