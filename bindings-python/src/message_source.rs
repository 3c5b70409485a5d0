//! Where the messages of a consumer come from, and where they are settled.

use crate::object_count::{LiveObject, ObjectKind, ProcessBound};

/// Where messages come from and where they are settled.
pub(crate) struct MessageSource {
    pub(crate) subscription: ProcessBound<retryrmq::Subscription>,
    _alive: LiveObject,
}

impl MessageSource {
    pub(crate) fn new(subscription: retryrmq::Subscription) -> Self {
        Self {
            subscription: ProcessBound::new(subscription),
            _alive: LiveObject::new(ObjectKind::Subscription),
        }
    }
}
