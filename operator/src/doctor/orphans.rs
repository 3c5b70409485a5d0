//! Queues of ours that are left over, and messages that do not leave.

use super::{Code, Finding, QueueRole, Snapshot};
use crate::management::Queue;

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
        let full = target
            .and_then(|target| all.queues.get(target))
            .filter(|target| is_full(all, target));
        let returns = target
            .and_then(|target| all.queues.get(target))
            .filter(|target| {
                all.text(target, "dead-letter-exchange") == Some("")
                    && all.text(target, "dead-letter-routing-key") == Some(&queue.name)
            });
        let (why, fix) = match (full, returns) {
            (Some(target), _) => (
                format!("their target `{}` is full", target.name),
                format!(
                    "rabbitmqctl list_queues {} name messages policy arguments   # no command of the broker mends it: make room in the target, or raise its limit; what is held leaves within three minutes",
                    all.in_vhost()
                ),
            ),
            (None, Some(work)) => (
                format!(
                    "RabbitMQ takes them for messages in a cycle, because they expired in `{0}` or passed its delivery limit, and with the 32nd nothing comes back to `{0}` any more; or `{0}` is full or its node is down",
                    work.name
                ),
                format!(
                    "retryrmq waiting flush --all {}   # if they are in a cycle: then delete `{}` with what it holds, and use the strategy retry-queues where messages expire",
                    shell_words::quote(&work.name),
                    queue.name
                ),
            ),
            (None, None) => (
                "their target is full or its node is down, or the member that leads the queue joined it late".to_owned(),
                format!(
                    "rabbitmq-queues delete_member {place} LEADER && rabbitmq-queues add_member {place} LEADER   # make room in the target, or start its node; only if neither is the cause, in a cluster, and after five minutes, this command"
                ),
            ),
        };
        found.push(Finding::of_queue(
            Code::Held,
            &queue.name,
            format!("{count} {messages} not leave `{}`: {why}", queue.name),
            fix,
        ));
    }
    found
}

/// Whether a queue has as many messages as it may have, and refuses more.
fn is_full(all: &Snapshot, queue: &Queue) -> bool {
    let refuses = all
        .text(queue, "overflow")
        .is_some_and(|overflow| overflow.starts_with("reject-publish"));
    let most = all
        .number(queue, "max-length")
        .and_then(|most| u64::try_from(most).ok());
    refuses && most.is_some_and(|most| queue.totals.ready.unwrap_or(0) >= most)
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
            format!(
                "retryrmq unreadable ls {}   # no command delivers them: have their publisher send them again, and remove them with `retryrmq unreadable drop`",
                shell_words::quote(work)
            ),
        );
        finding.queues.push(work.to_owned());
        found.push(finding);
    }
    found
}
