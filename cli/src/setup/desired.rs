//! What a setup file wants of the broker.

use retryrmq::{Plan, QueueType, Rules, Strategy};

/// A work queue and what its consumers need.
pub(crate) struct DesiredQueue {
    pub(crate) name: String,
    pub(crate) rules: Rules,
    pub(super) strategy: Strategy,
    pub(super) queue_type: QueueType,
    pub(super) plan: Plan,
}
