//! How many native objects are alive, for tests of leaks.

use std::sync::atomic::{AtomicI64, Ordering};

macro_rules! kinds {
    ($($kind:ident = $name:literal),* $(,)?) => {
        /// The kinds that are counted.
        #[derive(Clone, Copy, Debug)]
        #[allow(missing_docs, reason = "each is the object of that name")]
        pub enum ObjectKind { $($kind),* }

        const NAMES: [&str; [$($name),*].len()] = [$($name),*];
        static LIVE: [AtomicI64; NAMES.len()] = [const { AtomicI64::new(0) }; NAMES.len()];
    };
}

kinds! {
    NotificationQueue = "notification_queues",
    Client = "clients",
    Subscription = "subscriptions",
    Message = "messages",
    Operation = "operations",
    Options = "options",
    Walk = "walks",
    Record = "records",
    Simulation = "simulations",
    CredentialProvider = "credential_providers",
    CredentialRequest = "credential_requests",
}

/// One live object. It is counted until it is dropped.
#[derive(Debug)]
pub struct LiveObject(ObjectKind);

impl LiveObject {
    /// Counts one more object of this kind.
    #[must_use]
    pub fn new(kind: ObjectKind) -> Self {
        LIVE[kind as usize].fetch_add(1, Ordering::Relaxed);
        Self(kind)
    }
}

impl Drop for LiveObject {
    fn drop(&mut self) {
        LIVE[self.0 as usize].fetch_sub(1, Ordering::Relaxed);
    }
}

/// The number of live native objects of this process, by kind.
pub fn live_objects() -> impl Iterator<Item = (&'static str, i64)> {
    NAMES
        .iter()
        .zip(&LIVE)
        .map(|(name, count)| (*name, count.load(Ordering::Relaxed)))
}
