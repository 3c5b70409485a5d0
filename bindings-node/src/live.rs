//! How many native objects are alive: what a test of leaks asks.

use std::sync::atomic::{AtomicI64, Ordering};

use napi_derive::napi;

/// The kinds that are counted.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind {
    Bridge,
    Client,
    Subscription,
    Operation,
    Walk,
    Record,
    Simulation,
    Credentials,
    Question,
}

const NAMES: [&str; 9] = [
    "bridges",
    "clients",
    "subscriptions",
    "operations",
    "walks",
    "records",
    "simulations",
    "credentials",
    "questions",
];
static ALIVE: [AtomicI64; 9] = [const { AtomicI64::new(0) }; 9];

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

/// The living native objects of this process, all its threads together.
#[napi(catch_unwind)]
pub fn live() -> Vec<(&'static str, i64)> {
    NAMES
        .iter()
        .zip(&ALIVE)
        .map(|(name, count)| (*name, count.load(Ordering::Relaxed)))
        .collect()
}
