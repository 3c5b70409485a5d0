//! The name of a policy that `enable` made: what it was, and what it was made from.

use serde_json::Value;

use crate::management::Policy;

const PREFIX: &str = "retryrmq.enable";

/// What a policy's name remembers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyName {
    /// The queue it is for.
    pub queue: String,
    made: String,
    from: String,
}

impl PolicyName {
    /// The mark of a policy, if `enable` made it.
    #[must_use]
    pub fn of(policy: &Policy) -> Option<Self> {
        let rest = policy.name.strip_prefix(PREFIX)?.strip_prefix('.')?;
        let mut parts = rest.splitn(3, '.');
        let (made, from, queue) = (parts.next()?, parts.next()?, parts.next()?);
        let is_print =
            |text: &str| text.len() == 8 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        (is_print(made) && is_print(from) && !queue.is_empty()).then(|| Self {
            queue: queue.to_owned(),
            made: made.to_owned(),
            from: from.to_owned(),
        })
    }

    /// The name of a policy for that queue.
    pub(super) fn name(queue: &str, policy: &Policy, base: Option<&Policy>) -> String {
        format!(
            "{PREFIX}.{}.{}.{queue}",
            print(Some(policy), false),
            print(base, true)
        )
    }

    /// Whether the policy is as it was made.
    #[must_use]
    pub fn is_of(&self, policy: &Policy) -> bool {
        self.made == print(Some(policy), false)
    }

    /// Whether it was made from this one, or from none, as it is now.
    #[must_use]
    pub fn is_made_from(&self, base: Option<&Policy>) -> bool {
        self.from == print(base, true)
    }
}

/// Eight hexadecimal digits of FNV-1a over all that a policy says.
fn print(policy: Option<&Policy>, with_name: bool) -> String {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    let mut take = |text: &str| {
        for byte in text.bytes().chain([0xff]) {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    };
    if let Some(policy) = policy {
        if with_name {
            take(&policy.name);
        }
        take(&policy.pattern);
        take(&policy.apply_to);
        take(&policy.priority.to_string());
        // In an order that does not depend on how a map keeps it.
        let mut all: Vec<(&String, &Value)> = policy.definition.iter().collect();
        all.sort_by_key(|(key, _)| *key);
        for (key, value) in all {
            take(key);
            take(&value.to_string());
        }
    }
    format!("{:08x}", (hash ^ (hash >> 32)) & 0xffff_ffff)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn policy(name: &str, definition: Value) -> Policy {
        Policy {
            name: name.to_owned(),
            pattern: "^q$".to_owned(),
            apply_to: "queues".to_owned(),
            priority: 1,
            definition: definition.as_object().cloned().unwrap_or_default(),
        }
    }

    #[test]
    fn a_name_remembers_the_policy_and_its_base() {
        let base = policy("base", json!({"max-length": 5}));
        let mut ours = policy("", json!({"max-length": 5, "dead-letter-exchange": ""}));
        ours.name = PolicyName::name("eu.orders.7", &ours, Some(&base));
        let mark = PolicyName::of(&ours).unwrap();
        assert_eq!(mark.queue, "eu.orders.7");
        assert!(mark.is_of(&ours) && mark.is_made_from(Some(&base)) && !mark.is_made_from(None));
        ours.definition.insert("max-length".to_owned(), json!(6));
        assert!(!mark.is_of(&ours));
        assert!(!mark.is_made_from(Some(&policy("base", json!({"max-length": 6})))));
    }

    #[test]
    fn names_of_others_are_no_marks() {
        for name in [
            "orders",
            "retryrmq.enable.x.y.q",
            "retryrmq.enable.01234567.89abcdef.",
            "retryrmq.enable",
        ] {
            assert_eq!(PolicyName::of(&policy(name, json!({}))), None, "{name}");
        }
    }
}
