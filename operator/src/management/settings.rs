//! What applies to a queue: its arguments, its policy and the operator's, as the broker adds them up.

use serde_json::{Map, Value};

use super::{Policy, Queue, QueueKind};

/// For these a policy wins over the argument of a quorum queue.
const POLICY_WINS: [&str; 2] = ["overflow", "delayed-retry-type"];

/// For these the lower of argument and policy counts; for all others the argument.
const LOWER: [&str; 10] = [
    "message-ttl",
    "expires",
    "max-length",
    "max-length-bytes",
    "delivery-limit",
    "max-in-memory-length",
    "max-in-memory-bytes",
    "consumer-timeout",
    "delayed-retry-min",
    "delayed-retry-max",
];

/// What its policy and the operator's come to. `known` is what the broker says, if it does.
#[must_use]
pub fn effective(
    queue: &Queue,
    policies: &[Policy],
    operator_policies: &[Policy],
) -> Map<String, Value> {
    if let Some(known) = &queue.effective {
        return known.clone();
    }
    let mut all = queue
        .policy
        .as_ref()
        .and_then(|name| policies.iter().find(|policy| policy.name == *name))
        .map(|policy| policy.definition.clone())
        .unwrap_or_default();
    let operator = match &queue.operator_policy {
        Some(name) => operator_policies.iter().find(|policy| policy.name == *name),
        None => strongest(queue, operator_policies),
    };
    for (name, value) in operator.into_iter().flat_map(|policy| &policy.definition) {
        let value = match all.get(name) {
            Some(said) if LOWER.contains(&name.as_str()) => lower(said, value).clone(),
            _ => value.clone(),
        };
        all.insert(name.clone(), value);
    }
    all
}

/// The one of the highest priority that is for the queue, as far as its pattern can be read here.
pub fn strongest<'a>(
    queue: &Queue,
    policies: impl IntoIterator<Item = &'a Policy>,
) -> Option<&'a Policy> {
    let fitting = policies
        .into_iter()
        .filter(|policy| policy.is_for(queue) == Some(true));
    fitting.max_by_key(|policy| policy.priority)
}

/// What applies by that name, such as `dead-letter-exchange`.
#[must_use]
pub fn setting<'a>(
    queue: &'a Queue,
    effective: &'a Map<String, Value>,
    name: &str,
) -> Option<&'a Value> {
    let argument = queue.arguments.get(&format!("x-{name}"));
    match (argument, effective.get(name)) {
        (Some(argument), Some(policy)) if LOWER.contains(&name) => Some(lower(argument, policy)),
        (_, Some(policy)) if queue.kind == QueueKind::Quorum && POLICY_WINS.contains(&name) => {
            Some(policy)
        }
        (argument, policy) => argument.or(policy),
    }
}

fn lower<'a>(one: &'a Value, other: &'a Value) -> &'a Value {
    match (one.as_i64(), other.as_i64()) {
        (Some(a), Some(b)) if b < a => other,
        _ => one,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::doctor::snapshot::tests::{policy, queue};

    #[test]
    fn the_lower_of_two_limits_counts_and_of_other_settings_the_argument() {
        let queue = queue(
            "q",
            json!({"x-delivery-limit": 20, "x-dead-letter-exchange": "", "x-delayed-retry-max": 5000}),
        );
        let effective = json!({"delivery-limit": 2, "dead-letter-exchange": "dlx", "expires": 5, "delayed-retry-max": 6000});
        let effective = effective.as_object().unwrap();
        for (name, expected) in [
            ("delivery-limit", json!(2)),
            ("dead-letter-exchange", json!("")),
            ("expires", json!(5)),
            ("delayed-retry-max", json!(5000)),
        ] {
            assert_eq!(setting(&queue, effective, name), Some(&expected));
        }
    }

    #[test]
    fn on_a_quorum_queue_a_policy_wins_for_overflow_and_the_type_of_delayed_retry() {
        let effective = json!({"overflow": "drop-head", "delayed-retry-type": "disabled"});
        let effective = effective.as_object().unwrap();
        for (kind, overflow) in [("quorum", "drop-head"), ("classic", "reject-publish")] {
            let queue = queue(
                "q",
                json!({"x-queue-type": kind, "x-overflow": "reject-publish", "x-delayed-retry-type": "failed"}),
            );
            let found = setting(&queue, effective, "overflow");
            assert_eq!(found, Some(&json!(overflow)), "{kind}");
        }
        let quorum = queue("q", json!({"x-delayed-retry-type": "failed"}));
        let found = setting(&quorum, effective, "delayed-retry-type");
        assert_eq!(found, Some(&json!("disabled")));
    }

    #[test]
    fn where_the_broker_does_not_say_it_the_policies_are_added_up() {
        let mut queue = queue("orders", json!({}));
        queue.effective = None;
        queue.policy = Some("mine".to_owned());
        let users = [policy(
            "mine",
            "^ord",
            0,
            json!({"max-length": 100, "overflow": "reject-publish"}),
        )];
        let operators = [
            policy("low", ".*", 0, json!({"max-length": 10})),
            policy("high", "^o", 1, json!({"max-length": 50, "expires": 7})),
        ];
        assert_eq!(
            Value::Object(effective(&queue, &users, &operators)),
            json!({"max-length": 50, "overflow": "reject-publish", "expires": 7})
        );
    }
}
