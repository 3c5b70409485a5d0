//! What the handler saw of one message.

use serde_json::Value;

use super::Published;
use crate::line::Attempt;
use crate::matcher::{self, Seen as Sighting};
use crate::observations::Observations;
use crate::scenario::{FieldMatchers, MessageExpect, Span};

/// Both ends of a space are cut to whole milliseconds, by different clocks' ticks.
const ROUNDING_MS: u64 = 1;

pub(super) fn judge(
    published: &Published<'_>,
    expected: &MessageExpect,
    seen: &Observations,
) -> Vec<String> {
    let id = &published.message.id;
    let runs: Vec<&Attempt> = seen.runs(id).collect();
    let mut violations = Vec::new();
    if !expected.runs.allows(runs.len()) {
        violations.push(format!(
            "{id}: expected the handler to run {} times, it ran {} times",
            expected.runs,
            runs.len()
        ));
    }
    violations.extend(numbers(id, expected, &runs));
    violations.extend(spacing(id, &expected.spacing, &runs, seen));
    if let (Some(least), Some(first), Some(since)) =
        (expected.not_before, runs.first(), seen.published.get(id))
    {
        violations.extend(too_early(
            &format!("{id}, from publication to run 1"),
            least,
            *since,
            first.at_ms,
        ));
    }
    violations.extend(replays(id, &expected.replayed, seen));
    for (index, run) in runs.iter().enumerate() {
        let place = format!("{id}, run {}", index + 1);
        if published.message.hostile.is_none() {
            violations.extend(original(published, &place, run));
        }
        violations.extend(all_matchers(&place, expected, index, runs.len(), run));
    }
    violations
}

/// The driver's count of runs, and the library's count of attempts.
fn numbers(id: &str, expected: &MessageExpect, runs: &[&Attempt]) -> Vec<String> {
    let mut violations = Vec::new();
    let counted: Vec<usize> = runs.iter().map(|run| run.run).collect();
    if counted
        .iter()
        .enumerate()
        .any(|(index, run)| *run != index + 1)
    {
        violations.push(format!(
            "{id}: the driver counted the runs {counted:?}, not from 1 on"
        ));
    }
    let one_by_one = || expected.runs.at_least == expected.runs.at_most;
    let wanted = match &expected.attempts {
        Some(attempts) => attempts.clone(),
        None if one_by_one() => (1..=expected.runs.at_least as u64).collect(),
        None => return violations,
    };
    let told: Vec<u64> = runs.iter().map(|run| run.attempt).collect();
    if told != wanted {
        violations.push(format!(
            "{id}: expected the attempts {wanted:?}, the handler was told {told:?}"
        ));
    }
    violations
}

fn spacing(id: &str, least: &[Span], runs: &[&Attempt], seen: &Observations) -> Vec<String> {
    let spaces = least.iter().zip(runs.windows(2));
    spaces
        .enumerate()
        .filter_map(|(index, (least, pair))| {
            let ended = seen.settled.get(&(id.to_owned(), pair[0].run));
            let from = ended.copied().unwrap_or(pair[0].at_ms);
            too_early(
                &format!("{id}, from run {} to run {}", index + 1, index + 2),
                *least,
                from,
                pair[1].at_ms,
            )
        })
        .collect()
}

fn too_early(place: &str, least: Span, from: u64, to: u64) -> Option<String> {
    let passed = to.saturating_sub(from);
    (passed + ROUNDING_MS < least.millis())
        .then(|| format!("{place}: expected at least {least}, saw {passed} ms"))
}

/// What is shown as it was first published, in every run of every scenario.
fn original(published: &Published<'_>, place: &str, run: &Attempt) -> Vec<String> {
    let mut violations = Vec::new();
    let shown = [
        ("exchange", &published.message.exchange, &run.exchange),
        ("routing key", &published.routing_key, &run.routing_key),
    ];
    for (name, expected, told) in shown {
        if expected != told {
            violations.push(format!(
                "{place}: expected the {name} '{expected}', the handler was told '{told}'"
            ));
        }
    }
    let retries = run.rest.get("retries").and_then(Value::as_u64);
    if retries.is_some_and(|retries| retries + 1 != run.attempt) {
        violations.push(format!(
            "{place}: attempt {} and retries {retries:?} do not fit",
            run.attempt
        ));
    }
    let headers = Value::Object(run.headers.clone());
    violations.extend(published.changed(
        place,
        Sighting::Told(&headers),
        run.rest.get("properties"),
    ));
    violations.extend(published.body_differs(place, run.body_bytes, &run.body_sha256));
    violations
}

/// What replays were shown of the message.
fn replays(id: &str, expected: &[FieldMatchers], seen: &Observations) -> Vec<String> {
    let shown: Vec<&Value> = seen
        .replayed
        .iter()
        .filter(|(whose, _)| whose == id)
        .map(|(_, record)| record)
        .collect();
    if !expected.is_empty() && shown.len() != expected.len() {
        return vec![format!(
            "{id}: expected {} replays, saw {}",
            expected.len(),
            shown.len()
        )];
    }
    let pairs = expected.iter().zip(shown).enumerate();
    pairs
        .flat_map(|(index, (matchers, record))| {
            matchers.iter().flat_map(move |(field, value)| {
                let found = record.get(field).map(Sighting::Told);
                matcher::differences(
                    &format!("{id}, replay {}, {field}", index + 1),
                    value,
                    found,
                )
            })
        })
        .collect()
}

/// What the scenario says that this run saw.
fn all_matchers(
    place: &str,
    expected: &MessageExpect,
    index: usize,
    count: usize,
    run: &Attempt,
) -> Vec<String> {
    let number = (index + 1).to_string();
    let is_last = index + 1 == count;
    let fields = run.fields();
    let mut violations = Vec::new();
    for (which, matchers) in &expected.sees {
        if *which == number || which == "each" || (which == "last" && is_last) {
            for (field, value) in matchers {
                let found = fields.get(field).map(Sighting::Told);
                violations.extend(matcher::differences(
                    &format!("{place}, {field}"),
                    value,
                    found,
                ));
            }
        }
    }
    violations
}
