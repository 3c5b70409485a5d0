//! Every queue of the virtual host that dead letters end up in. Only the management API names queues.

use std::collections::{BTreeMap, BTreeSet};

use retryrmq_operator::management::{Policy, Queue, QueueKind, Scope, settings};

use crate::{error::CliError, global::Global, management::Management};

/// The queues that hold dead letters: those named as ours or other libraries' are, and those that a queue dead-letters to by name.
/// A waiting queue, which has a time to live, sends back to work, and what somebody consumes is work.
fn dead_letter_queues(
    queues: &BTreeMap<String, Queue>,
    policies: &[Policy],
    consumed: &BTreeSet<String>,
) -> Vec<String> {
    let targets: BTreeSet<String> = queues
        .values()
        .filter_map(|queue| {
            let effective = settings::effective(queue, policies, &[]);
            let says = |name| settings::setting(queue, &effective, name);
            let is_by_name = says("message-ttl").is_none()
                && says("dead-letter-exchange").is_some_and(|name| name == "");
            let target = says("dead-letter-routing-key")?.as_str()?;
            is_by_name.then(|| target.to_owned())
        })
        .collect();
    // What operators wrote about the parked messages of a queue, as PROTOCOL says.
    let are_notes = |name: &str| {
        let queue = name.strip_suffix(".notes.parked");
        queue.is_some_and(|queue| {
            queues.contains_key(&format!("{queue}.parked"))
                && !queues.contains_key(&format!("{queue}.notes"))
        })
    };
    queues
        .values()
        .filter(|queue| {
            let can_be_walked =
                queue.kind != QueueKind::Stream && !queue.auto_delete && !queue.exclusive;
            let name = &queue.name;
            let is_idle = !consumed.contains(name);
            can_be_walked
                && !are_notes(name)
                && (name.ends_with(".parked")
                    || (is_idle && (is_named_so(name) || targets.contains(name))))
        })
        .map(|queue| queue.name.clone())
        .collect()
}

/// As MassTransit, NServiceBus, EasyNetQ, Spring Cloud Stream, Dramatiq, taskiq, Moleculer and Watermill's documentation name theirs, and most people their own.
fn is_named_so(name: &str) -> bool {
    let small = name.to_ascii_lowercase();
    let ends = [
        "_error",
        "_skipped",
        ".error",
        ".xq",
        ".dlq",
        "-dlq",
        "_dlq",
        ".dead",
        ".dead-letter",
        "-dead-letter",
        "-dead-letters",
        ".dead_letter",
        "poison",
        "poison_queue",
    ];
    ends.iter().any(|end| small.ends_with(end))
        || matches!(
            &*small,
            "error" | "failed" | "failed_messages" | "dlq" | "easynetq_default_error_queue"
        )
}

/// Asks for all of them.
pub(super) async fn names(options: &Management, global: &Global) -> Result<Vec<String>, CliError> {
    let management_client = options.open(global)?;
    let queues = management_client
        .api
        .queues(&management_client.vhost)
        .await?;
    let policies = management_client
        .api
        .policies(&management_client.vhost, Scope::Users)
        .await?;
    // A user that may not see consumers takes their queues for dead-letter queues, too: a look harms nothing.
    let consumers = management_client
        .api
        .consumers(&management_client.vhost)
        .await?
        .unwrap_or_default();
    let consumed = consumers.into_iter().map(|consumer| consumer.queue);
    Ok(dead_letter_queues(&queues, &policies, &consumed.collect()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_holds_dead_letters_and_what_is_work() {
        let rows = json!([
            {"name": "orders", "arguments": {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "graveyard"}},
            {"name": "graveyard"},
            {"name": "orders.retry.1000", "arguments": {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "orders", "x-message-ttl": 1000}},
            {"name": "orders.parked"},
            {"name": "orders.notes.parked"},
            {"name": "memo.parked"},
            {"name": "memo.notes"},
            {"name": "memo.notes.parked"},
            {"name": "mail", "effective_policy_definition": {"dead-letter-exchange": "", "dead-letter-routing-key": "lost"}},
            {"name": "lost"},
            {"name": "submit-order_error", "type": "classic"},
            {"name": "log_error", "type": "stream"},
            {"name": "busy_error"},
            {"name": "EasyNetQ_Default_Error_Queue"},
            {"name": "short.dlq", "exclusive": true},
            {"name": "none", "effective_policy_definition": []},
        ]);
        let rows = rows.as_array().expect("a list");
        let queues = rows
            .iter()
            .filter_map(Queue::of)
            .map(|queue| (queue.name.clone(), queue));
        let consumed = ["busy_error", "orders.parked"].map(str::to_owned).into();
        assert_eq!(
            dead_letter_queues(&queues.collect(), &[], &consumed),
            [
                "EasyNetQ_Default_Error_Queue",
                "graveyard",
                "lost",
                "memo.notes.parked",
                "memo.parked",
                "orders.parked",
                "submit-order_error",
            ]
        );
    }
}
