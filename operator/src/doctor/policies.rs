//! Policies that hide each other, or change queues they were not meant for.

use serde_json::Value;

use super::{
    Code, Finding, QueueRole, Snapshot, Subject,
    routes::{Route, is_work_queue, route},
};
use crate::{
    dlx_policy::{PolicyName, base_of, policy_for},
    management::{Policy, Queue, QueueKind},
};

impl Snapshot {
    /// The policy in force on a queue.
    pub(super) fn base(&self, queue: &Queue) -> Option<&Policy> {
        let name = queue.policy.as_ref()?;
        self.policies.iter().find(|policy| policy.name == *name)
    }

    /// Who says what applies by that name; `None` when nobody does.
    pub(super) fn source(&self, queue: &Queue, name: &str) -> Option<PolicySource> {
        let applied = self.setting(queue, name)?;
        let policy = self.base(queue).and_then(|base| base.definition.get(name));
        Some(
            if queue.arguments.get(&format!("x-{name}")) == Some(applied) {
                PolicySource::Argument
            } else if policy == Some(applied) {
                PolicySource::Policy
            } else {
                PolicySource::Operator
            },
        )
    }

    /// The command that makes these keys go, or be as they are said, on a queue; `by_hand` where only making it anew does.
    pub(super) fn mend(
        &self,
        queue: &Queue,
        keys: &[&str],
        set: &[(&str, Value)],
        by_hand: String,
    ) -> String {
        let said_by = |source| {
            keys.iter()
                .any(|key| self.source(queue, key) == Some(source))
        };
        if said_by(PolicySource::Argument) || self.stays_by_argument(queue, keys, set) {
            by_hand
        } else if said_by(PolicySource::Operator) {
            format!(
                "rabbitmqctl list_operator_policies {}   # narrow the pattern of the one that says {}",
                self.in_vhost(),
                keys.join(", ")
            )
        } else {
            let gone: Vec<&str> = keys
                .iter()
                .copied()
                .filter(|key| set.iter().all(|(name, _)| name != key))
                .collect();
            let mut policy = policy_for(self.base(queue), &queue.name, set, &gone);
            if policy.definition.is_empty() {
                // A broker refuses a policy that says nothing: this says what is in force already.
                let overflow = self.text(queue, "overflow").unwrap_or("drop-head");
                policy
                    .definition
                    .insert("overflow".to_owned(), overflow.into());
            }
            policy.as_command(&self.vhost)
        }
    }

    /// Whether an argument would still say too little after a policy has been mended: the lower of the two counts.
    fn stays_by_argument(&self, queue: &Queue, keys: &[&str], set: &[(&str, Value)]) -> bool {
        keys.iter().any(|key| {
            let Some(argument) = queue.arguments.get(&format!("x-{key}")) else {
                return false;
            };
            let wanted = set.iter().find(|(name, _)| name == key);
            wanted.is_none_or(|(_, wanted)| argument.as_i64() < wanted.as_i64())
        })
    }
}

/// Who says what applies to a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PolicySource {
    /// Its declaration, for good.
    Argument,
    /// The policy in force.
    Policy,
    /// An operator policy.
    Operator,
}

/// RQ105.
pub(super) fn hides_a_route(all: &Snapshot) -> Vec<Finding> {
    let mut found = Vec::new();
    for queue in all
        .queues
        .values()
        .filter(|queue| is_work_queue(all, queue))
    {
        let Some(base) = all.base(queue) else {
            continue;
        };
        if route(all, queue) != Route::None {
            continue;
        }
        let hidden = all.policies.iter().find(|policy| {
            policy.name != base.name
                && policy.definition.contains_key("dead-letter-exchange")
                && policy.is_for(queue) == Some(true)
        });
        let Some(hidden) = hidden else { continue };
        let keys = hidden
            .definition
            .iter()
            .filter(|(key, _)| key.starts_with("dead-letter"));
        let keys: Vec<_> = keys
            .map(|(key, value)| (key.as_str(), value.clone()))
            .collect();
        found.push(Finding::of_queue(
            Code::HiddenRoute,
            &queue.name,
            format!(
                "policy `{}` hides the dead-letter route of policy `{}` on `{}`: one policy applies to a queue, and what is rejected there is dropped",
                base.name, hidden.name, queue.name
            ),
            policy_for(Some(base), &queue.name, &keys, &[]).as_command(&all.vhost),
        ));
    }
    found
}

/// RQ111.
pub(super) fn on_our_queues(all: &Snapshot) -> Vec<Finding> {
    let mut found = Vec::new();
    for queue in all.queues.values() {
        // What loses what is parked is RQ110, what makes a waiting queue expire RQ109.
        let harmful: &[(&str, &str)] = match all.role(&queue.name) {
            Some(QueueRole::Waiting(_)) => &[
                ("message-ttl", "brings messages back too early"),
                ("max-length", "refuses or drops what has to wait"),
                ("max-length-bytes", "refuses or drops what has to wait"),
            ],
            Some(QueueRole::Dropped(_)) => &[
                ("message-ttl", "deletes dropped messages earlier"),
                ("max-length", "refuses or drops what is kept"),
                ("max-length-bytes", "refuses or drops what is kept"),
            ],
            Some(QueueRole::Parking(_) | QueueRole::Unreadable(_)) => &[
                ("dead-letter-exchange", "sends on what is kept for people"),
                ("delayed-retry-type", "hides what was looked at"),
            ],
            None => continue,
        };
        let Some(effective) = all.effective.get(&queue.name) else {
            continue;
        };
        let argument = |key: &str| queue.arguments.get(&format!("x-{key}"));
        let does: Vec<_> = harmful
            .iter()
            .filter(|(key, _)| match (effective.get(*key), argument(key)) {
                (None, _) => false,
                // The lower of two times counts, so a longer one is harmless.
                (Some(policy), Some(argument)) => policy.as_i64() < argument.as_i64(),
                (Some(value), None) => value != "disabled",
            })
            .collect();
        if does.is_empty() {
            continue;
        }
        let keys: Vec<&str> = does.iter().map(|(key, _)| *key).collect();
        let mut says: Vec<_> = does
            .iter()
            .map(|(key, what)| format!("`{key}` {what}"))
            .collect();
        says.dedup();
        let base = all.base(queue);
        let by_user =
            base.is_some_and(|base| keys.iter().any(|key| base.definition.contains_key(*key)));
        let (who, fix) = match (base, by_user) {
            (Some(base), true) => {
                let harmless = match all.role(&queue.name) {
                    Some(QueueRole::Parking(_) | QueueRole::Unreadable(_)) => {
                        ("delivery-limit", 1_000_000_000.into())
                    }
                    _ => ("overflow", "reject-publish".into()),
                };
                let policy = policy_for(Some(base), &queue.name, &[harmless], &keys);
                (
                    format!("policy `{}`", base.name),
                    policy.as_command(&all.vhost),
                )
            }
            _ => (
                "an operator policy".to_owned(),
                format!(
                    "rabbitmqctl list_operator_policies {}   # end the pattern for the work queue with `$`",
                    all.in_vhost()
                ),
            ),
        };
        found.push(Finding::of_queue(
            Code::ForeignPolicy,
            &queue.name,
            format!(
                "{who} is in force on `{}`, a queue of ours: {}",
                queue.name,
                says.join("; ")
            ),
            fix,
        ));
    }
    found
}

/// RQ123.
pub(super) fn changes_a_delay(all: &Snapshot) -> Vec<Finding> {
    const KEYS: [&str; 3] = [
        "delayed-retry-type",
        "delayed-retry-min",
        "delayed-retry-max",
    ];
    let mut found = Vec::new();
    for queue in all.queues.values() {
        let asked = |key: &str| queue.arguments.get(&format!("x-{key}"));
        let wanted = asked(KEYS[0]).and_then(Value::as_str).unwrap_or("disabled");
        if queue.kind != QueueKind::Quorum || wanted == "disabled" {
            continue;
        }
        let changed: Vec<_> = KEYS
            .into_iter()
            .filter_map(|key| Some((key, all.setting(queue, key)?)))
            .filter(|(key, now)| match asked(key) {
                // `all` delays whatever any other type does.
                _ if *key == KEYS[0] => *now != wanted && *now != "all",
                Some(asked) => now.as_i64() < asked.as_i64(),
                // Without a maximum the minimum is the maximum.
                None => now.as_i64() < asked(KEYS[1]).and_then(Value::as_i64),
            })
            .collect();
        if changed.is_empty() {
            continue;
        }
        let keys: Vec<&str> = changed.iter().map(|(key, _)| *key).collect();
        let says: Vec<_> = changed
            .iter()
            .map(|(key, now)| format!("`{key}` is {now}"))
            .collect();
        let by_user = keys
            .iter()
            .any(|key| all.source(queue, key) == Some(PolicySource::Policy));
        let who = match all.base(queue) {
            Some(base) if by_user => format!("policy `{}`", base.name),
            _ => "an operator policy".to_owned(),
        };
        let set: Vec<(&str, Value)> = KEYS
            .into_iter()
            .filter_map(|key| Some((key, asked(key)?.clone())))
            .collect();
        let by_hand = format!(
            "rabbitmqctl list_policies {}   # narrow the pattern of the one that changes it",
            all.in_vhost()
        );
        found.push(Finding::of_queue(
            Code::DelayChanged,
            &queue.name,
            format!(
                "{who} wins over the delayed retry that `{}` was declared with ({}): failed messages come back too early, and soon have no retries left",
                queue.name,
                says.join(", ")
            ),
            all.mend(queue, &keys, &set, by_hand),
        ));
    }
    found
}

/// RQ120.
pub(super) fn enabled_drifted(all: &Snapshot) -> Vec<Finding> {
    let mut found = Vec::new();
    for policy in &all.policies {
        let Some(mark) = PolicyName::of(policy) else {
            continue;
        };
        let quoted = shell_words::quote(&mark.queue);
        let target = target_option(all, &mark, policy);
        let again = format!(
            "retryrmq enable {quoted}{}",
            target.as_deref().unwrap_or_default()
        );
        // What somebody has changed is not touched without it.
        let force = if mark.is_of(policy) { "" } else { " --force" };
        let disable = format!("retryrmq disable {quoted}{force}");
        let (why, fix) = match all.queues.get(&mark.queue) {
            None => ("its queue is gone".to_owned(), disable),
            Some(queue) if !mark.is_of(policy) => (
                "somebody has changed it since, so it is taken away before it is made again"
                    .to_owned(),
                match (&target, base_of(queue, &all.policies)) {
                    (Some(_), Some(base)) => {
                        let dead_letters = base.is_some_and(|base| {
                            base.definition.contains_key("dead-letter-exchange")
                        });
                        let replace = if dead_letters { " --replace" } else { "" };
                        format!("{disable} && {again}{replace}")
                    }
                    // Without it dead letters would be dropped, so its successor must be certain.
                    _ => format!(
                        "rabbitmqctl list_policies {}   # choose a target for its dead letters; then {disable} && retryrmq enable {quoted} --to QUEUE",
                        all.in_vhost()
                    ),
                },
            ),
            Some(queue) if queue.policy.as_ref() != Some(&policy.name) => {
                let above = queue.policy.as_deref().unwrap_or("none");
                (
                    format!("policy `{above}` is in force on `{}` instead", mark.queue),
                    again,
                )
            }
            Some(queue) => match base_of(queue, &all.policies) {
                Some(base) if !mark.is_made_from(base) => (
                    match base {
                        Some(base) => format!(
                            "policy `{}`, which it was made from or hides, is not what it was",
                            base.name
                        ),
                        None => "the policy that it was made from is gone".to_owned(),
                    },
                    again,
                ),
                _ => continue,
            },
        };
        found.push(Finding {
            code: Code::EnableDrifted,
            severity: Code::EnableDrifted.severity(),
            subject: Subject::Policy(policy.name.clone()),
            sentence: format!(
                "the policy that `retryrmq enable` made for `{}` does not fit any more: {why}",
                mark.queue
            ),
            fix,
            queues: vec![mark.queue],
        });
    }
    found
}

/// The option with which `enable` made a policy, so that dead letters go there as before; `None` if that is not known, or not there.
fn target_option(all: &Snapshot, mark: &PolicyName, policy: &Policy) -> Option<String> {
    let text = |key: &str| policy.definition.get(key).and_then(Value::as_str);
    match (
        text("dead-letter-exchange")?,
        text("dead-letter-routing-key"),
    ) {
        ("", Some(key)) if key == (all.names.parking_queue)(&mark.queue) => Some(String::new()),
        ("", Some(key)) if all.queues.contains_key(key) => {
            Some(format!(" --to {}", shell_words::quote(key)))
        }
        (exchange, None)
            if exchange == all.names.dead_exchange && all.exchanges.contains_key(exchange) =>
        {
            Some(" --service".to_owned())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{
        super::snapshot::tests::{policy, queue, snapshot},
        *,
    };
    use crate::management::Exchange;

    #[test]
    fn a_policy_of_enable_is_made_again_with_the_same_target() {
        let mut all = snapshot([queue("the morgue", json!({}))]);
        let service = |exchange: &str| json!({"dead-letter-exchange": exchange});
        let option = |all: &Snapshot, definition: Value| {
            let name = "retryrmq.enable.01234567.89abcdef.orders";
            let policy = policy(name, "^orders$", 1, definition);
            let mark = PolicyName::of(&policy).unwrap();
            target_option(all, &mark, &policy)
        };
        let to = |key: &str| json!({"dead-letter-exchange": "", "dead-letter-routing-key": key});
        assert_eq!(option(&all, to("orders.parked")).as_deref(), Some(""));
        let morgue = option(&all, to("the morgue"));
        assert_eq!(morgue.as_deref(), Some(" --to 'the morgue'"));
        // What is not there, or was not made by `enable`.
        for definition in [
            to("gone"),
            service("retryrmq.dead"),
            service("my.dlx"),
            json!({"dead-letter-exchange": "my.dlx", "dead-letter-routing-key": "the morgue"}),
            json!({"max-length": 1}),
        ] {
            assert_eq!(option(&all, definition.clone()), None, "{definition}");
        }
        let exchange = Exchange {
            name: "retryrmq.dead".to_owned(),
            kind: "fanout".to_owned(),
            alternate: None,
            policy: None,
        };
        all.exchanges.insert(exchange.name.clone(), exchange);
        let option = option(&all, service("retryrmq.dead"));
        assert_eq!(option.as_deref(), Some(" --service"));
    }

    #[test]
    fn a_policy_mends_nothing_where_an_argument_says_as_much() {
        let fix = |arguments: Value, keys: &[&str], set: &[(&str, Value)]| {
            let mut orders = queue("orders", arguments);
            let definition = json!({"expires": 9, "delivery-limit": 3});
            let base = policy("base", "^ord", 4, definition.clone());
            orders.policy = Some("base".to_owned());
            orders.effective = definition.as_object().cloned();
            let mut all = snapshot([orders.clone()]);
            all.policies.push(base);
            all.mend(&orders, keys, set, "by hand".to_owned())
        };
        let never = [("delivery-limit", json!(1_000_000_000))];
        let without = fix(json!({}), &["expires"], &[]);
        assert!(without.contains(r#"'{"delivery-limit":3}'"#), "{without}");
        let both = fix(json!({"x-expires": 10}), &["expires"], &[]);
        assert_eq!(both, "by hand");
        let limit = fix(json!({}), &["delivery-limit"], &never);
        assert!(limit.contains(r#""delivery-limit":1000000000"#), "{limit}");
        let lower = json!({"x-delivery-limit": 5});
        assert_eq!(fix(lower, &["delivery-limit"], &never), "by hand");
        // A policy needs at least one key.
        let none = fix(json!({}), &["expires", "delivery-limit"], &[]);
        assert!(none.contains(r#"'{"overflow":"drop-head"}'"#), "{none}");
    }
}
