//! Queues of ours that are left over, and messages that do not leave.

use super::{Code, Finding, QueueRole, Snapshot};

/// RQ113.
pub(super) fn work_queue_gone(all: &Snapshot) -> Vec<Finding> {
    let mut found = Vec::new();
    for queue in all.queues.values() {
        let Some(QueueRole::Waiting(work)) = all.role(&queue.name) else {
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
                if all.may_do_at_least_once(queue) && !all.lacks_the_flag() {
                    "held"
                } else {
                    "dropped"
                }
            ),
            format!(
                "{} declare queue --name {} --durable true --type quorum   # with the arguments and bindings that it had",
                all.rabbitmqadmin(),
                shell_words::quote(work)
            ),
        );
        finding.queues.push(work.to_owned());
        found.push(finding);
    }
    found
}

/// RQ122.
pub(super) fn held(all: &Snapshot) -> Vec<Finding> {
    let mut found = Vec::new();
    for queue in all.queues.values() {
        let count = queue.totals.dead_lettering.unwrap_or(0);
        let target = all.text(queue, "dead-letter-routing-key");
        let is_gone = all.text(queue, "dead-letter-exchange") == Some("")
            && target.is_some_and(|target| !all.has_queue(target));
        // RQ103 and RQ113 say more about a route that leads nowhere.
        if count == 0 || is_gone {
            continue;
        }
        let messages = if count == 1 {
            "message is due and does"
        } else {
            "messages are due and do"
        };
        let name = shell_words::quote(&queue.name);
        let place = format!("--vhost {} {name}", shell_words::quote(&all.vhost));
        found.push(Finding::of_queue(
            Code::Held,
            &queue.name,
            format!(
                "{count} {messages} not leave `{}`: their target is full or its node is down, or the member that leads the queue joined it late",
                queue.name
            ),
            format!(
                "rabbitmq-queues delete_member {place} LEADER && rabbitmq-queues add_member {place} LEADER   # in a cluster, and after five minutes"
            ),
        ));
    }
    found
}

/// RQ124.
pub(super) fn unreadable(all: &Snapshot) -> Vec<Finding> {
    let mut found = Vec::new();
    for queue in all.queues.values() {
        let Some(QueueRole::Unreadable(work)) = all.role(&queue.name) else {
            continue;
        };
        let count = queue.totals.ready.unwrap_or(0);
        if count == 0 {
            continue;
        }
        let messages = if count == 1 {
            "message is"
        } else {
            "messages are"
        };
        let mut finding = Finding::of_queue(
            Code::Unreadable,
            &queue.name,
            format!(
                "{count} {messages} in `{}`: RabbitMQ cannot deliver them over AMQP 0-9-1, so no consumer of `{work}` has handled them",
                queue.name
            ),
            format!("retryrmq unreadable ls {}", shell_words::quote(work)),
        );
        finding.queues.push(work.to_owned());
        found.push(finding);
    }
    found
}
