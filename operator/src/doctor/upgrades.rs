//! What the next version does otherwise.

use super::{Code, Finding, Snapshot, Subject, routes::is_work_queue};
use crate::management::{QueueKind, Version};

/// RQ116.
pub(super) fn deprecated_in_use(all: &Snapshot) -> Vec<Finding> {
    let found = all.deprecated.iter().map(|feature| Finding {
        code: Code::Deprecated,
        severity: Code::Deprecated.severity(),
        subject: Subject::Feature(feature.name.clone()),
        queues: Vec::new(),
        sentence: format!(
            "this broker uses `{}`, which RabbitMQ takes away ({}){}",
            feature.name,
            feature.phase.replace('_', " "),
            if feature.page.is_empty() {
                String::new()
            } else {
                format!(": {}", feature.page)
            }
        ),
        // With `--used`, RabbitMQ 4.3 lists nothing at all. 4.0 has no column `state`.
        fix: "rabbitmqctl list_deprecated_features name deprecation_phase doc_url   # no command of the broker mends it: change the programs or settings that use the feature".to_owned(),
    });
    found.collect()
}

/// RQ117.
pub(super) fn next_version(all: &Snapshot) -> Vec<Finding> {
    let mut found = Vec::new();
    let severity = Code::NextVersion.severity();
    if all.version < Version(4, 3, 0) {
        for exchange in all
            .exchanges
            .values()
            .filter(|exchange| exchange.kind == "x-delayed-message")
        {
            found.push(Finding {
                code: Code::NextVersion,
                severity,
                subject: Subject::Exchange(exchange.name.clone()),
                queues: Vec::new(),
                sentence: format!("exchange `{}` needs the delayed-message plugin, which is archived and does not run on RabbitMQ 4.3", exchange.name),
                fix: format!(
                    "rabbitmqctl list_bindings {}   # and let `retryrmq topology` make waiting queues for what is bound to it, with the strategy retry-queues",
                    all.in_vhost()
                ),
            });
        }
        for queue in all.queues.values() {
            let said = all
                .number(queue, "delivery-limit")
                .filter(|limit| (0..1_000_000).contains(limit));
            let Some(limit) =
                said.filter(|_| queue.kind == QueueKind::Quorum && is_work_queue(all, queue))
            else {
                continue;
            };
            found.push(Finding::of_queue(
                Code::NextVersion,
                &queue.name,
                format!(
                    "`{}` relies on its delivery limit of {limit}: from RabbitMQ 4.3 on a basic.nack is not counted, so a consumer that nacks goes round forever",
                    queue.name
                ),
                format!(
                    "rabbitmqctl list_consumers {} queue_name consumer_tag   # and let them requeue by basic.reject, or retry with `retryrmq consume --dlx`",
                    all.in_vhost()
                ),
            ));
        }
    }
    if all.version < Version(4, 0, 0) {
        for policy in all
            .policies
            .iter()
            .filter(|policy| policy.definition.contains_key("ha-mode"))
        {
            found.push(Finding {
                code: Code::NextVersion,
                severity,
                subject: Subject::Policy(policy.name.clone()),
                queues: Vec::new(),
                sentence: format!("policy `{}` mirrors classic queues (`ha-mode`), which RabbitMQ 4.0 does not do: they will be on one node alone", policy.name),
                fix: format!("rabbitmqctl list_policies {}   # and move what matters to quorum queues", all.in_vhost()),
            });
        }
    }
    found
}
