//! Judging a run: what a scenario expects against what was seen, as sentences. No sentence, no failure.
//!
//! Beside what the scenario names, some things hold in every scenario: headers and properties stay as they were
//! published, the handler sees where a message was first published, a parked message says why and since when, every
//! message is somewhere or was handled, and nobody else's message appears.

mod ending;
mod runs;
mod whole;

pub(crate) use whole::description;

use std::collections::BTreeMap;

use lapin::types::{AMQPValue, FieldTable};
use serde_json::Value;

use crate::field;
use crate::matcher::{self, Seen as Sighting};
use crate::observations::{Observations, sha256};
use crate::scenario::{Message, Scenario};

/// What differs between the expected and the seen.
pub fn judge(scenario: &Scenario, seen: &Observations) -> Vec<String> {
    let mut violations = seen.problems.clone();
    violations.extend(whole::judge(scenario, seen));
    for message in scenario.messages() {
        let Some(expected) = scenario.expected(&message.id) else {
            continue;
        };
        let published = Published::new(scenario, &message);
        violations.extend(runs::judge(&published, expected, seen));
        violations.extend(ending::judge(scenario, &published, expected, seen));
    }
    violations
}

/// A message as it was published, ready for comparison.
pub(crate) struct Published<'a> {
    message: &'a Message,
    routing_key: String,
    headers: FieldTable,
    properties: BTreeMap<String, Value>,
    body_bytes: u64,
    body_sha256: String,
}

impl<'a> Published<'a> {
    fn new(scenario: &Scenario, message: &'a Message) -> Self {
        let body = message.bytes();
        Self {
            message,
            routing_key: message
                .routing_key
                .clone()
                .unwrap_or_else(|| scenario.topology.queue.name.clone()),
            headers: field::table(&message.all_headers()).unwrap_or_default(),
            properties: message.all_properties(),
            body_bytes: body.len() as u64,
            body_sha256: sha256(&body),
        }
    }

    /// What changed of the headers and properties that nobody may change.
    fn changed(
        &self,
        place: &str,
        headers: Sighting<'_>,
        properties: Option<&Value>,
    ) -> Vec<String> {
        let mut violations = Vec::new();
        for (key, value) in &self.headers {
            if !is_moved(key.as_str()) && !matches!(value, AMQPValue::ShortString(_)) {
                let found = match headers {
                    Sighting::Exact(AMQPValue::FieldTable(table)) => {
                        table.inner().get(key.as_str()).map(Sighting::Exact)
                    }
                    Sighting::Told(Value::Object(map)) => map.get(key.as_str()).map(Sighting::Told),
                    _ => None,
                };
                violations.extend(matcher::kept(
                    &format!("{place}, header {key}"),
                    value,
                    found,
                ));
            }
        }
        let Some(properties) = properties else {
            return violations;
        };
        for (name, value) in &self.properties {
            if !matches!(name.as_str(), "user_id" | "expiration" | "delivery_mode") {
                let found = properties.get(name).map(Sighting::Told);
                violations.extend(matcher::differences(
                    &format!("{place}, property {name}"),
                    value,
                    found,
                ));
            }
        }
        violations
    }

    fn body_differs(&self, place: &str, bytes: u64, sha256: &str) -> Option<String> {
        if bytes == self.body_bytes && sha256 == self.body_sha256 {
            return None;
        }
        let (published, now) = (self.body_bytes, bytes);
        Some(match published == now {
            true => format!("{place}: the body's {now} bytes are not those that were published"),
            false => format!("{place}: the body has {now} bytes, {published} were published"),
        })
    }
}

/// Headers that belong to the broker or to the wire contract, and may come, go and change.
fn is_moved(key: &str) -> bool {
    matches!(
        key,
        "x-death" | "x-delivery-count" | "x-acquired-count" | "CC" | "BCC"
    ) || ["x-retry-", "x-first-death-", "x-last-death-"]
        .iter()
        .any(|start| key.starts_with(start))
}

#[cfg(test)]
mod tests;
