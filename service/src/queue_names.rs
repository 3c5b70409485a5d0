//! Names of the service's own queues, exchange and stream: every part must tell them from work queues.

/// The internal exchange that dead letters are sent to: no client may publish to it, so that what comes through it has died. The queue in
/// which they wait for the service, and the one in which clients with the strategy `service` hand their failures over.
pub use retryrmq::{DEAD_EXCHANGE, HANDOVER_QUEUE, INTAKE_QUEUE};

/// Where what belongs to no work queue is parked.
pub const INTAKE_PARKED: &str = "retryrmq.intake.parked";

/// The queue that messages with a delay come to: from their publishers, and after each wait. The queues in which they wait are named as those of a
/// work queue of this name.
pub(crate) const DELAYED_QUEUE: &str = "retryrmq.delayed";

/// The stream of the history, unless the policy file names another.
pub const HISTORY_STREAM: &str = "retryrmq.serve.history";

/// What the replicas report to each other.
pub const REPORTS_QUEUE: &str = "retryrmq.serve.alerts";
/// What the leader remembers.
pub const STATE_QUEUE: &str = "retryrmq.serve.alerts.state";
