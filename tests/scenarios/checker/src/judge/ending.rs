//! Where one message is in the end.

use lapin::types::AMQPValue;
use serde_json::{Value, json};

use super::Published;
use crate::matcher::{self, Seen as Sighting};
use crate::observations::{Observations, RemainingMessage};
use crate::property;
use crate::scenario::{End, FieldMatchers, HandlerEnd, MessageExpect, Scenario};

pub(super) fn judge(
    scenario: &Scenario,
    published: &Published<'_>,
    expected: &MessageExpect,
    seen: &Observations,
) -> Vec<String> {
    let id = published.message.id.as_str();
    let mut places: Vec<(&str, &RemainingMessage)> = seen
        .left
        .iter()
        .flat_map(|(queue, messages)| {
            messages
                .iter()
                .map(move |message| (queue.as_str(), message))
        })
        .filter(|(_, message)| message.id().as_deref() == Some(id))
        .collect();
    for queue in &expected.also_in {
        match places.iter().position(|(place, _)| place == queue) {
            Some(copy) => drop(places.remove(copy)),
            None => {
                return vec![format!(
                    "{id}: expected a copy in {queue} too, found it in {}",
                    list(&places)
                )];
            }
        }
    }
    let parking = format!("{}.parked", scenario.topology.queue.name);
    let (wanted, record, reason) = match &expected.ends {
        End::Handled | End::Gone | End::Unreadable | End::Stuck => {
            if !places.is_empty() {
                return vec![format!(
                    "{id}: expected it in no queue, found it in {}",
                    list(&places)
                )];
            }
            return if expected.ends == End::Handled {
                unhandled(scenario, id, seen)
            } else {
                Vec::new()
            };
        }
        End::Parked { reason, record } => (parking.as_str(), record, Some(reason)),
        End::In { queue, record } => (queue.as_str(), record, None),
    };
    let [(place, left)] = places.as_slice() else {
        return vec![format!(
            "{id}: expected it once, in {wanted}, found it in {}",
            list(&places)
        )];
    };
    if *place != wanted {
        return vec![format!(
            "{id}: expected it in {wanted}, found it in {place}"
        )];
    }
    let place = format!("{id} in {wanted}");
    let headers = AMQPValue::FieldTable(left.headers());
    let properties = Value::Object(property::to_notation(&left.properties));
    let mut violations = Vec::new();
    if published.message.hostile.is_none() {
        violations.extend(published.changed(&place, Sighting::Exact(&headers), Some(&properties)));
        violations.extend(published.body_differs(&place, left.body_bytes, &left.body_sha256));
    }
    if let Some(reason) = reason {
        violations.extend(parked(published, &place, reason.as_deref(), &headers));
    }
    violations.extend(as_recorded(&place, record, left, &headers, &properties));
    violations
}

fn list(places: &[(&str, &RemainingMessage)]) -> String {
    if places.is_empty() {
        return "no queue".into();
    }
    places
        .iter()
        .map(|(queue, _)| *queue)
        .collect::<Vec<_>>()
        .join(", ")
}

/// A message that is in no queue was lost, unless its last run succeeded.
fn unhandled(scenario: &Scenario, id: &str, seen: &Observations) -> Vec<String> {
    let Some(last) = seen.runs(id).last() else {
        return vec![format!(
            "{id}: it is in no queue and the handler never saw it: lost"
        )];
    };
    let steps = scenario.steps(id);
    let step = steps
        .get(last.run.saturating_sub(1))
        .or_else(|| steps.last());
    match step {
        Some(step) if step.act != HandlerEnd::Ok => vec![format!(
            "{id}: it is in no queue, but its last run did not succeed: lost"
        )],
        _ => Vec::new(),
    }
}

/// What every message that the library parked says; what the broker parked by itself says nothing.
fn parked(
    published: &Published<'_>,
    place: &str,
    reason: Option<&str>,
    headers: &AMQPValue,
) -> Vec<String> {
    let expected = match reason {
        None => json!({"x-retry-parked-reason": {"$absent": true}}),
        Some(reason) if published.message.hostile.is_some() => {
            json!({"x-retry-parked-reason": reason})
        }
        Some(reason) => json!({
            "x-retry-parked-reason": reason,
            "x-retry-parked-at": {"$type": "timestamp"},
            "x-retry-protocol": 1,
            "x-retry-count": {"$type": "int64"},
            "x-retry-exchange": published.message.exchange,
            "x-retry-routing-key": published.routing_key,
            "x-retry-fingerprint": {"$type": "string"},
        }),
    };
    matcher::differences(
        &format!("{place}, headers"),
        &expected,
        Some(Sighting::Exact(headers)),
    )
}

fn as_recorded(
    place: &str,
    record: &FieldMatchers,
    left: &RemainingMessage,
    headers: &AMQPValue,
    properties: &Value,
) -> Vec<String> {
    let told = json!({
        "properties": properties,
        "exchange": left.exchange,
        "routing_key": left.routing_key,
        "body_bytes": left.body_bytes,
    });
    let mut violations = Vec::new();
    for (field, expected) in record {
        let found = match field.as_str() {
            "headers" => Some(Sighting::Exact(headers)),
            _ => told.get(field).map(Sighting::Told),
        };
        violations.extend(matcher::differences(
            &format!("{place}, {field}"),
            expected,
            found,
        ));
    }
    violations
}
