//! How many native objects are alive, for tests of leaks.

use std::sync::atomic::{AtomicI64, Ordering};

macro_rules! kinds {
    ($($kind:ident = $name:literal),* $(,)?) => {
        /// The kinds that are counted.
        #[derive(Clone, Copy, Debug)]
        #[allow(missing_docs, reason = "each is the object of that name")]
        pub enum Kind { $($kind),* }

        const NAMES: [&str; [$($name),*].len()] = [$($name),*];
        static ALIVE: [AtomicI64; NAMES.len()] = [const { AtomicI64::new(0) }; NAMES.len()];
    };
}

kinds! {
    Bridge = "bridges",
    Client = "clients",
    Subscription = "subscriptions",
    Message = "messages",
    Operation = "operations",
    Options = "options",
    Walk = "walks",
    Record = "records",
    Simulation = "simulations",
    Credentials = "credentials",
    Question = "questions",
}

/// One living object. It is counted until it is dropped.
#[derive(Debug)]
pub struct Alive(Kind);

impl Alive {
    /// Counts one more object of this kind.
    #[must_use]
    pub fn new(kind: Kind) -> Self {
        ALIVE[kind as usize].fetch_add(1, Ordering::Relaxed);
        Self(kind)
    }
}

impl Drop for Alive {
    fn drop(&mut self) {
        ALIVE[self.0 as usize].fetch_sub(1, Ordering::Relaxed);
    }
}

/// The number of living native objects of this process, by kind.
pub fn living() -> impl Iterator<Item = (&'static str, i64)> {
    NAMES
        .iter()
        .zip(&ALIVE)
        .map(|(name, count)| (*name, count.load(Ordering::Relaxed)))
}
