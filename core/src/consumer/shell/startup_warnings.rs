//! What a consumer logs about the broker and its queues when it subscribes.

use tracing::{info, warn};

use crate::{
    Server,
    topology::{self, Finding, Status},
};

/// A publisher that declares the queue differently gets a 406 from now on, and finds the reason in the log.
pub(super) fn log_created_queue(findings: &[Finding]) {
    for finding in findings {
        if finding.status == Status::Created && finding.item.is_work_queue() {
            info!(
                made = %finding.item,
                "the queue did not exist and was created; other programs that declare it must use these arguments; to create it with others, set `work_queue`"
            );
        }
    }
}

/// Handed-over messages wait until there is a service.
pub(super) fn warn_of_no_service(findings: &[Finding]) {
    if findings.iter().any(|finding| finding.services == Some(0)) {
        warn!(
            "nothing consumes `{}`: failed messages wait there until the service runs; start `retryrmq serve`",
            topology::HANDOVER_QUEUE
        );
    }
}

/// Whether the queue dead-letters cannot be asked over AMQP, and the first failure may be the first message that is lost.
pub(super) fn warn_of_no_choice(queue: &str) {
    warn!(
        queue,
        "dlx was not set: failed messages are rejected, not retried, and lost unless the queue has a dead-letter exchange; turn dlx on to \
         retry and park them, or off to keep this and silence this warning"
    );
}

/// Behaviour on RabbitMQ is measured; that of other brokers is only read in their documentation.
pub(super) fn warn_of_an_untested_broker(server: &Server) {
    if !server.is_rabbitmq() {
        warn!(
            %server,
            "retryrmq is not tested with this broker: it relies on what its documentation says of confirms, dead-lettering and time \
             to live; try what happens to a failed message before you trust it with any"
        );
    }
}
