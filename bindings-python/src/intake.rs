//! Where the messages of a consumer come from, and where they are settled.

use crate::live::{Alive, Kind, Own};

/// Where messages come from and where they are settled.
pub(crate) struct Intake {
    pub(crate) subscription: Own<retryrmq::Subscription>,
    _alive: Alive,
}

impl Intake {
    pub(crate) fn new(subscription: retryrmq::Subscription) -> Self {
        Self {
            subscription: Own::new(subscription),
            _alive: Alive::new(Kind::Subscription),
        }
    }
}
