//! A rule of a policy, checked, and what it says of a dead letter.

use std::collections::BTreeSet;

use retryrmq::{Failure, Policy, Rule, glob::glob, types::FieldTable};
use serde_json::{Value, json};

use super::{
    Reason,
    configuration::{Reasons, RuleEntry, TerminalAction},
};

/// What becomes of a dead letter.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// It waits, and comes back to the tail of its queue; parked when the policy says it was enough.
    Retry(Policy),
    /// It is parked.
    Park,
    /// It is gone.
    Drop,
}

/// A rule that was checked.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct CheckedRule {
    queue: Option<String>,
    reasons: Vec<Reason>,
    /// The conditions that consumers have as well.
    conditions: Rule,
    action: Action,
    /// Its words, for the digest.
    digest_value: Value,
}

/// What a rule without reasons is about: an attempt has failed, however the consumer says so.
const FAILURES: [Reason; 2] = [Reason::Rejected, Reason::Failed];

impl CheckedRule {
    /// Checks a rule. `retry` is the policy it names, read.
    ///
    /// # Errors
    /// It says nothing or two things, or can never hold: a sentence says what to change.
    pub(super) fn read(entry: &RuleEntry, retry: Option<Policy>) -> Result<Self, &'static str> {
        let action = match (retry, entry.end) {
            (Some(policy), None) => Action::Retry(policy),
            (None, Some(TerminalAction::Park)) => Action::Park,
            (None, Some(TerminalAction::Drop)) => Action::Drop,
            (None, None) => {
                return Err(
                    "this rule says nothing; add `retry = \"fixed(5s)\"`, `end = \"park\"` or `end = \"drop\"`",
                );
            }
            (Some(_), Some(_)) => {
                return Err("this rule has both `retry` and `end`; leave out one");
            }
        };
        let reasons = reasons(entry)?;
        Ok(Self {
            queue: entry.queue.clone(),
            digest_value: digest_value(entry, &reasons, &action),
            reasons,
            conditions: conditions(entry),
            action,
        })
    }

    /// Whether it is about a message that died in `queue` for this reason.
    pub(super) fn holds(
        &self,
        queue: &str,
        routing_key: &str,
        headers: Option<&FieldTable>,
        reason: Reason,
        failure: &Failure,
    ) -> bool {
        let is_there = |pattern: &String| glob(pattern, queue);
        self.reasons.contains(&reason)
            && self.queue.as_ref().is_none_or(is_there)
            && self.conditions.holds(routing_key, headers, failure)
    }

    /// What becomes of such a message.
    pub(super) fn action(&self) -> &Action {
        &self.action
    }

    /// Its words, for the digest.
    pub(super) fn digest_value(&self) -> &Value {
        &self.digest_value
    }
}

/// The reasons that a rule is about.
///
/// # Errors
/// It can never hold: a sentence says why.
fn reasons(entry: &RuleEntry) -> Result<Vec<Reason>, &'static str> {
    let said = entry.reason.as_ref().map(Reasons::list);
    if said.as_ref().is_some_and(Vec::is_empty) {
        return Err(
            "`reason` is an empty list, so that this rule never holds; name a reason, or leave it out for rejected and failed",
        );
    }
    let Some(error_type) = &entry.error_type else {
        return Ok(said.unwrap_or_else(|| FAILURES.to_vec()));
    };
    if error_type.is_empty() {
        return Err("`error_type` has no value, and every error has one; name it, or leave it out");
    }
    match said {
        None => Ok(vec![Reason::Failed]),
        Some(said) if said.iter().all(|reason| *reason == Reason::Failed) => Ok(said),
        Some(_) => Err(
            "`error_type` is known of what clients hand over alone; leave `reason` out, or say `reason = \"failed\"`",
        ),
    }
}

/// What a rule says, whatever it looks like in its file.
fn digest_value(entry: &RuleEntry, reasons: &[Reason], action: &Action) -> Value {
    let action = match action {
        Action::Retry(policy) => policy.to_string(),
        Action::Park => "park".to_owned(),
        Action::Drop => "drop".to_owned(),
    };
    let reasons: BTreeSet<_> = reasons.iter().collect();
    json!([
        entry.queue,
        entry.routing_key,
        entry.headers,
        entry.error_type,
        reasons,
        action
    ])
}

fn conditions(entry: &RuleEntry) -> Rule {
    // Its own policy is never asked.
    let mut rule = Rule::new(Policy::default());
    if let Some(pattern) = &entry.routing_key {
        rule = rule.routing_key(pattern);
    }
    for (name, value) in &entry.headers {
        rule = rule.header(name, value);
    }
    if let Some(pattern) = &entry.error_type {
        rule = rule.error(pattern);
    }
    rule
}
