//! Queues of ours that are left over.

use super::{Code, Finding, Kin, Snapshot};

/// RQ113.
pub(super) fn work_queue_gone(all: &Snapshot) -> Vec<Finding> {
    let mut found = Vec::new();
    for queue in all.queues.values() {
        let Some(Kin::Waiting(work)) = all.kin(&queue.name) else {
            continue;
        };
        if all.has_queue(work) {
            continue;
        }
        let mut finding = Finding::of_queue(
            Code::WorkQueueGone,
            &queue.name,
            format!(
                "the work queue `{work}` of `{}` is gone: what waits there is {} when its time is over",
                queue.name,
                if all.text(queue, "dead-letter-strategy") == Some("at-least-once") {
                    "held"
                } else {
                    "dropped"
                }
            ),
            format!("retryrmq topology {} --apply", shell_words::quote(work)),
        );
        finding.queues.push(work.to_owned());
        found.push(finding);
    }
    found
}
