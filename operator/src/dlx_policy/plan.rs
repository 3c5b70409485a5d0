//! Which policy a queue needs, as a pure function of what is there.

use serde_json::{Map, Value};

use super::PolicyName;
use crate::management::{Policy, Queue, QueueKind};

/// Where dead letters shall go.
#[derive(Clone, Debug)]
pub struct DeadLetterTarget<'a> {
    /// The way there.
    pub route: DeadLetterRoute<'a>,
    /// Whether a dead-letter route that is in force by policy may be replaced.
    pub replaces: bool,
}

/// A way for dead letters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeadLetterRoute<'a> {
    /// To this queue, through the default exchange.
    Queue(&'a str),
    /// To this exchange, with the routing key that they came with.
    Exchange(&'a str),
}

impl DeadLetterRoute<'_> {
    /// The keys of a policy that lead there.
    fn keys(self) -> Vec<(&'static str, Value)> {
        match self {
            Self::Queue(queue) => vec![
                ("dead-letter-exchange", Value::from("")),
                ("dead-letter-routing-key", Value::from(queue)),
            ],
            Self::Exchange(exchange) => vec![("dead-letter-exchange", Value::from(exchange))],
        }
    }

    /// The keys of a policy in force that would lead elsewhere.
    fn left_out(self) -> &'static [&'static str] {
        match self {
            Self::Queue(_) => &[],
            Self::Exchange(_) => &["dead-letter-routing-key"],
        }
    }

    /// Whether an exchange and a routing key lead there. The routing key is all the same to an exchange that has one queue.
    fn is(self, exchange: Option<&Value>, key: Option<&Value>) -> bool {
        match self {
            Self::Queue(queue) => {
                exchange.is_some_and(|exchange| exchange == "")
                    && key.is_some_and(|key| key == queue)
            }
            Self::Exchange(name) => exchange.is_some_and(|exchange| exchange == name),
        }
    }
}

/// What changes for the queue by one key.
#[derive(Clone, Debug, PartialEq)]
pub struct PolicyChange {
    /// The key of the policy.
    pub key: String,
    /// What the policy in force says.
    pub before: Option<Value>,
    /// What the new one says.
    pub after: Value,
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq)]
pub enum PolicyPlan {
    /// Dead letters go there already, by this policy of ours or, without one, by the queue's arguments or a policy of somebody else.
    Done(Option<Policy>),
    /// Make this policy, and delete these afterwards, which it takes the place of.
    Make {
        /// The policy to make.
        policy: Policy,
        /// Every key of it, with what the policy in force says.
        changes: Vec<PolicyChange>,
        /// Policies that `enable` made earlier.
        obsolete: Vec<String>,
        /// What is in force without ours.
        base: Option<Policy>,
    },
}

/// Why nothing can be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Obstacle {
    /// A stream, or a type that has no dead letters.
    NotAQueue,
    /// The dead-letter exchange is an argument of the queue, which wins over every policy: this exchange.
    Argument(String),
    /// A policy already takes dead letters elsewhere: its name and exchange.
    OtherRoute(String, String),
    /// A policy of ours that somebody has changed since.
    Changed(String),
    /// A policy whose pattern cannot be read here, so that nobody knows what would be in force without ours.
    Unreadable(String),
}

/// What is in force on a queue without the policies that `enable` made; `None` when that cannot be told.
#[must_use]
pub fn base_of<'a>(queue: &Queue, policies: &'a [Policy]) -> Option<Option<&'a Policy>> {
    let others = || {
        policies
            .iter()
            .filter(|policy| PolicyName::of(policy).is_none())
    };
    // What the broker says is certain, unless it says ours.
    if let Some(name) = &queue.policy {
        if let Some(base) = others().find(|policy| policy.name == *name) {
            return Some(Some(base));
        }
    } else {
        return Some(None);
    }
    if others().any(|policy| policy.is_for(queue).is_none()) {
        return None;
    }
    let fitting = others().filter(|policy| policy.is_for(queue) == Some(true));
    Some(fitting.max_by_key(|policy| policy.priority))
}

/// Decides what makes the dead letters of `queue` go to the target.
///
/// # Errors
/// [`Obstacle`]; nothing must be done then.
pub fn plan(
    queue: &Queue,
    policies: &[Policy],
    target: &DeadLetterTarget<'_>,
) -> Result<PolicyPlan, Obstacle> {
    if !matches!(queue.kind, QueueKind::Classic | QueueKind::Quorum) {
        return Err(Obstacle::NotAQueue);
    }
    let goes_there = |exchange: Option<&Value>, key: Option<&Value>| target.route.is(exchange, key);
    let in_force = queue
        .policy
        .as_ref()
        .and_then(|name| policies.iter().find(|policy| policy.name == *name));
    if let Some(exchange) = queue.arguments.get("x-dead-letter-exchange") {
        let key = queue.arguments.get("x-dead-letter-routing-key");
        if goes_there(Some(exchange), key) {
            return Ok(PolicyPlan::Done(None));
        }
        return Err(Obstacle::Argument(
            exchange.as_str().unwrap_or_default().to_owned(),
        ));
    }
    let ours: Vec<_> = policies
        .iter()
        .filter_map(|policy| {
            Some((
                policy,
                PolicyName::of(policy).filter(|mark| mark.queue == queue.name)?,
            ))
        })
        .collect();
    if let Some((changed, _)) = ours.iter().find(|(policy, mark)| !mark.is_of(policy)) {
        return Err(Obstacle::Changed(changed.name.clone()));
    }
    let Some(base) = base_of(queue, policies) else {
        let unreadable = policies
            .iter()
            .find(|policy| PolicyName::of(policy).is_none() && policy.is_for(queue).is_none());
        return Err(Obstacle::Unreadable(
            unreadable.map_or_else(String::new, |policy| policy.name.clone()),
        ));
    };
    if let Some(base) = base {
        let exchange = base.definition.get("dead-letter-exchange");
        if goes_there(exchange, base.definition.get("dead-letter-routing-key")) && ours.is_empty() {
            return Ok(PolicyPlan::Done(None));
        }
        if let Some(exchange) = exchange.and_then(Value::as_str).filter(|_| !target.replaces)
            // A policy that was replaced before was replaced on purpose.
            && ours.is_empty()
        {
            return Err(Obstacle::OtherRoute(base.name.clone(), exchange.to_owned()));
        }
    }
    let mut set = target.route.keys();
    if may_be_at_least_once(queue, base) {
        set.push(("dead-letter-strategy", "at-least-once".into()));
        set.push(("overflow", "reject-publish".into()));
    }
    let mut policy = policy_for(base, &queue.name, &set, target.route.left_out());
    policy.name = PolicyName::name(&queue.name, &policy, base);
    if let [(only, _)] = ours.as_slice()
        && only.name == policy.name
        && in_force.is_some_and(|in_force| in_force.name == policy.name)
    {
        return Ok(PolicyPlan::Done(Some(policy)));
    }
    let before = in_force
        .map(|policy| policy.definition.clone())
        .unwrap_or_default();
    let changes = policy.definition.iter().map(|(key, after)| PolicyChange {
        key: key.clone(),
        before: before.get(key).cloned(),
        after: after.clone(),
    });
    let obsolete = ours.iter().map(|(policy, _)| policy.name.clone());
    Ok(PolicyPlan::Make {
        changes: changes.collect(),
        obsolete: obsolete.filter(|name| *name != policy.name).collect(),
        base: base.cloned(),
        policy,
    })
}

/// At least once takes a quorum queue that rejects publishes when it is full. Where a length is limited, or an overflow is said otherwise, that would change
/// what publishers meet, so it is left as it is.
fn may_be_at_least_once(queue: &Queue, base: Option<&Policy>) -> bool {
    let said = |name: &str| {
        let argument = queue.arguments.get(&format!("x-{name}"));
        let policy = base.and_then(|base| base.definition.get(name));
        // On a quorum queue, and only such are asked about.
        if name == "overflow" {
            policy.or(argument)
        } else {
            argument.or(policy)
        }
    };
    let operators = |name: &str| {
        queue
            .effective
            .as_ref()
            .is_some_and(|all| all.contains_key(name))
    };
    let limited = ["max-length", "max-length-bytes"]
        .iter()
        .any(|name| said(name).is_some() || operators(name));
    let rejects = said("overflow").is_some_and(|overflow| overflow == "reject-publish");
    let strategy_is_free =
        said("dead-letter-strategy").is_none_or(|strategy| strategy == "at-least-once");
    queue.kind == QueueKind::Quorum
        && strategy_is_free
        && (rejects || (!limited && said("overflow").is_none()))
}

/// A policy for exactly one queue, one above `base`, with its keys, some of them set and some left out.
#[must_use]
pub fn policy_for(
    base: Option<&Policy>,
    queue: &str,
    set: &[(&str, Value)],
    left_out: &[&str],
) -> Policy {
    let mut definition: Map<String, Value> =
        base.map(|base| base.definition.clone()).unwrap_or_default();
    definition.retain(|key, _| !left_out.contains(&key.as_str()));
    for (key, value) in set {
        definition.insert((*key).to_owned(), value.clone());
    }
    Policy {
        name: format!("only.{queue}"),
        pattern: format!("^{}$", escaped(queue)),
        apply_to: "queues".to_owned(),
        priority: base.map_or(1, |base| base.priority.saturating_add(1)),
        definition,
    }
}

/// Like [`policy_for`], for all queues in which messages of `work` wait, also those of delays to come.
#[must_use]
pub fn policy_for_waiting(base: Option<&Policy>, work: &str, set: &[(&str, Value)]) -> Policy {
    Policy {
        name: format!("only.{work}.retry"),
        pattern: format!("^{}\\.retry\\.[0-9]+$", escaped(work)),
        ..policy_for(base, work, set, &[])
    }
}

/// A name as a pattern that matches nothing else, for the broker's regular expressions (PCRE).
fn escaped(name: &str) -> String {
    let mut pattern = String::with_capacity(name.len() + 8);
    for c in name.chars() {
        // A backslash before what is ASCII and neither letter nor digit always means that character.
        if c.is_ascii_punctuation() && !matches!(c, '_' | '-') {
            pattern.push('\\');
        }
        pattern.push(c);
    }
    pattern
}

impl Policy {
    /// The command that makes it.
    #[must_use]
    pub fn as_command(&self, vhost: &str) -> String {
        shell_words::join([
            "rabbitmqctl",
            "set_policy",
            "-p",
            vhost,
            "--priority",
            &self.priority.to_string(),
            "--apply-to",
            &self.apply_to,
            &self.name,
            &self.pattern,
            &Value::Object(self.definition.clone()).to_string(),
        ])
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::doctor::tests_support::{policy, queue};

    const THERE: DeadLetterTarget<'static> = DeadLetterTarget {
        route: DeadLetterRoute::Queue("orders.parked"),
        replaces: false,
    };

    fn definition(made: &PolicyPlan) -> Value {
        match made {
            PolicyPlan::Make { policy, .. } => Value::Object(policy.definition.clone()),
            PolicyPlan::Done(_) => panic!("nothing to do"),
        }
    }

    #[test]
    fn a_route_to_an_exchange_leaves_out_the_key_of_another_route() {
        let to = |replaces| DeadLetterTarget {
            route: DeadLetterRoute::Exchange("retryrmq.dead"),
            replaces,
        };
        let base = policy(
            "base",
            "^orders$",
            7,
            json!({"dead-letter-exchange": "", "dead-letter-routing-key": "graveyard", "max-priority": 3}),
        );
        let mut orders = queue("orders", json!({}));
        orders.policy = Some("base".to_owned());
        let policies = std::slice::from_ref(&base);
        assert!(matches!(
            plan(&orders, policies, &to(false)),
            Err(Obstacle::OtherRoute(..))
        ));
        let Ok(PolicyPlan::Make { policy: ours, .. }) = plan(&orders, policies, &to(true)) else {
            panic!("there is nothing in the way");
        };
        let mut expected = json!({"dead-letter-exchange": "retryrmq.dead", "max-priority": 3});
        expected["dead-letter-strategy"] = "at-least-once".into();
        expected["overflow"] = "reject-publish".into();
        assert_eq!(Value::Object(ours.definition.clone()), expected);
        // What goes there already stays as it is.
        let there = queue("orders", json!({"x-dead-letter-exchange": "retryrmq.dead"}));
        assert_eq!(plan(&there, &[], &to(false)), Ok(PolicyPlan::Done(None)));
    }

    #[test]
    fn every_key_of_the_policy_in_force_is_kept() {
        let mut orders = queue("orders", json!({}));
        orders.policy = Some("base".to_owned());
        let base = policy(
            "base",
            "^ord",
            7,
            json!({"max-length": 5, "overflow": "drop-head"}),
        );
        let made = plan(&orders, std::slice::from_ref(&base), &THERE).unwrap();
        assert_eq!(
            definition(&made),
            json!({"max-length": 5, "overflow": "drop-head", "dead-letter-exchange": "", "dead-letter-routing-key": "orders.parked"})
        );
        let PolicyPlan::Make {
            policy,
            base: Some(from),
            ..
        } = made
        else {
            panic!()
        };
        assert_eq!(
            (policy.priority, policy.pattern.as_str(), from),
            (8, "^orders$", base)
        );
    }

    #[test]
    fn at_least_once_only_where_publishers_meet_nothing_new() {
        let strategy = |arguments: Value, base: Option<Value>| {
            let mut orders = queue("orders", arguments);
            let base: Vec<_> = base
                .into_iter()
                .map(|base| policy("base", "^ord", 0, base))
                .collect();
            orders.policy = base.first().map(|base| base.name.clone());
            let made = plan(&orders, &base, &THERE).unwrap();
            definition(&made).get("dead-letter-strategy").is_some()
        };
        assert!(strategy(json!({}), None));
        assert!(strategy(
            json!({"x-max-length": 5, "x-overflow": "reject-publish"}),
            None
        ));
        assert!(!strategy(json!({"x-max-length": 5}), None));
        assert!(!strategy(json!({}), Some(json!({"max-length-bytes": 5}))));
        assert!(!strategy(json!({"x-overflow": "drop-head"}), None));
        assert!(!strategy(json!({"x-queue-type": "classic"}), None));
    }

    #[test]
    fn what_was_made_is_known_again_and_renewed_when_its_base_has_changed() {
        let mut orders = queue("orders", json!({}));
        orders.policy = Some("base".to_owned());
        let mut policies = vec![policy("base", "^ord", 0, json!({"expires": 9}))];
        let Ok(PolicyPlan::Make { policy: ours, .. }) = plan(&orders, &policies, &THERE) else {
            panic!()
        };
        orders.policy = Some(ours.name.clone());
        policies.push(ours.clone());
        assert_eq!(
            plan(&orders, &policies, &THERE),
            Ok(PolicyPlan::Done(Some(ours.clone())))
        );
        policies[0]
            .definition
            .insert("expires".to_owned(), json!(10));
        let Ok(PolicyPlan::Make {
            policy: renewed,
            obsolete,
            ..
        }) = plan(&orders, &policies, &THERE)
        else {
            panic!()
        };
        assert_eq!(
            (&renewed.definition["expires"], obsolete),
            (&json!(10), vec![ours.name.clone()])
        );
        policies[1].priority = 99;
        assert_eq!(
            plan(&orders, &policies, &THERE),
            Err(Obstacle::Changed(ours.name))
        );
    }

    #[test]
    fn a_route_of_somebody_else_stays_unless_it_may_be_replaced() {
        let mut orders = queue("orders", json!({}));
        orders.policy = Some("base".to_owned());
        let policies = [policy(
            "base",
            "^ord",
            0,
            json!({"dead-letter-exchange": "dlx"}),
        )];
        assert_eq!(
            plan(&orders, &policies, &THERE),
            Err(Obstacle::OtherRoute("base".into(), "dlx".into()))
        );
        let replaces = DeadLetterTarget {
            replaces: true,
            ..THERE
        };
        assert_eq!(
            definition(&plan(&orders, &policies, &replaces).unwrap())["dead-letter-exchange"],
            ""
        );
        let fixed = queue("orders", json!({"x-dead-letter-exchange": "dlx"}));
        assert_eq!(
            plan(&fixed, &policies, &replaces),
            Err(Obstacle::Argument("dlx".into()))
        );
        let ours = queue(
            "orders",
            json!({"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "orders.parked"}),
        );
        assert_eq!(plan(&ours, &[], &THERE), Ok(PolicyPlan::Done(None)));
    }

    #[test]
    fn a_pattern_is_for_one_queue_alone() {
        for (name, pattern) in [
            ("orders", "^orders$"),
            ("a.b*(c)", r"^a\.b\*\(c\)$"),
            ("ä b-_", "^ä b-_$"),
        ] {
            assert_eq!(policy_for(None, name, &[], &[]).pattern, pattern);
            let named = queue(name, json!({}));
            assert_eq!(policy_for(None, name, &[], &[]).is_for(&named), Some(true));
        }
    }
}
