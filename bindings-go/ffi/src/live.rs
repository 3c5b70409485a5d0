//! How many native objects are alive: what a test of leaks asks.

use std::sync::atomic::{AtomicI64, Ordering};

/// The kinds that are counted.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind {
    Client,
    Subscription,
    Operation,
    Walk,
    Simulation,
    Options,
    Question,
}

const KINDS: usize = 7;
static ALIVE: [AtomicI64; KINDS] = [const { AtomicI64::new(0) }; KINDS];

/// One living object; counted for as long as it is.
#[derive(Debug)]
pub(crate) struct Alive(Kind);

impl Alive {
    pub(crate) fn new(kind: Kind) -> Self {
        ALIVE[kind as usize].fetch_add(1, Ordering::Relaxed);
        Self(kind)
    }
}

impl Drop for Alive {
    fn drop(&mut self) {
        ALIVE[self.0 as usize].fetch_sub(1, Ordering::Relaxed);
    }
}

/// The living native objects of this process.
#[uniffi::export]
pub fn live() -> i64 {
    ALIVE
        .iter()
        .map(|alive| alive.load(Ordering::Relaxed))
        .sum()
}
