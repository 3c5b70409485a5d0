//! What is judged over all messages: strangers, order, concurrency, queues, events, refusal, restarts.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use crate::matcher::{self, Seen as Sighting};
use crate::observations::Observations;
use crate::scenario::{End, Scenario};

pub(super) fn judge(scenario: &Scenario, seen: &Observations) -> Vec<String> {
    let expect = &scenario.expect;
    let mut violations = strangers(scenario, seen);
    violations.extend(refusal(scenario, seen));
    if let Some(order) = &expect.order {
        let seen: Vec<&str> = seen
            .attempts
            .iter()
            .map(|attempt| attempt.id.as_str())
            .collect();
        if order.iter().ne(seen.iter()) {
            violations.push(format!(
                "expected the order {}, saw {}",
                order.join(" "),
                seen.join(" ")
            ));
        }
    }
    if let Some(together) = expect.together {
        let most = most_at_once(seen);
        if !together.allows(most) {
            violations.push(format!(
                "expected {together} runs in progress at one time, saw {most}"
            ));
        }
    }
    violations.extend(queues(scenario, seen));
    violations.extend(expect.events.iter().flat_map(|event| seen.told(event)));
    violations.extend(unread(scenario, seen));
    for line in expect.log.iter().filter(|line| !seen.logged(line)) {
        violations.push(format!("expected '{line}' in the log, saw {:?}", seen.log));
    }
    if !expect.restarts.allows(seen.restarts) {
        violations.push(format!(
            "expected the driver to be started again {} times, it was {} times",
            expect.restarts, seen.restarts
        ));
    }
    violations
}

fn strangers(scenario: &Scenario, seen: &Observations) -> Vec<String> {
    let ids: BTreeSet<String> = scenario
        .messages()
        .into_iter()
        .map(|message| message.id)
        .collect();
    let shown = seen
        .attempts
        .iter()
        .map(|attempt| attempt.id.as_str())
        .filter(|id| !ids.contains(*id));
    let mut violations: BTreeSet<String> = shown
        .map(|id| format!("the handler saw a message '{id}' that nobody published"))
        .collect();
    for (queue, messages) in &seen.left {
        for message in messages {
            match message.id() {
                Some(id) if ids.contains(&id) => {}
                Some(id) => drop(violations.insert(format!(
                    "{queue} holds a message '{id}' that nobody published"
                ))),
                None => drop(violations.insert(format!("{queue} holds a message without an id"))),
            }
        }
    }
    violations.into_iter().collect()
}

fn refusal(scenario: &Scenario, seen: &Observations) -> Vec<String> {
    match (&scenario.expect.refused, &seen.refused) {
        (None, None) => Vec::new(),
        (None, Some((code, message))) => {
            vec![format!("the subscription was refused: {code}: {message}")]
        }
        (Some(_), None) => vec!["expected the subscription to be refused, it was not".into()],
        (Some(expected), Some((code, message))) => {
            let mut violations = Vec::new();
            if expected
                .code
                .as_ref()
                .is_some_and(|expected| expected != code)
            {
                violations.push(format!(
                    "expected a refusal with the code {:?}, saw '{code}': {message}",
                    expected.code
                ));
            }
            for word in expected
                .says
                .iter()
                .filter(|word| !message.contains(word.as_str()))
            {
                violations.push(format!(
                    "expected the refusal to say '{word}', it says: {message}"
                ));
            }
            violations
        }
    }
}

/// The largest number of runs that had begun and not ended. A run whose end was not told counts as over at once.
fn most_at_once(seen: &Observations) -> usize {
    let mut moments: Vec<(u64, i32)> = Vec::new();
    for attempt in &seen.attempts {
        if let Some(end) = seen.settled.get(&(attempt.id.clone(), attempt.run)) {
            moments.push((attempt.at_ms, 1));
            moments.push((*end, -1));
        }
    }
    // one that ends in the same millisecond in which another begins does not overlap it
    moments.sort_unstable();
    let mut now = 0;
    moments
        .iter()
        .map(|(_, step)| (now += step, now).1)
        .max()
        .map_or(0, |most| usize::try_from(most).unwrap_or(0))
}

/// Which messages they are cannot be read over AMQP 0-9-1, so they are counted.
fn unread(scenario: &Scenario, seen: &Observations) -> Vec<String> {
    let messages = scenario.messages();
    let mut violations = Vec::new();
    let work = scenario.topology.queue.name.clone();
    for (end, queue) in [
        (End::Unreadable, scenario.unreadable_queue()),
        (End::Stuck, work),
    ] {
        let meant = messages.iter().filter(|message| {
            let expected = scenario.expected(&message.id);
            expected.is_some_and(|expected| expected.ends == end)
        });
        let meant = meant.count();
        let held = seen.unread.get(&queue).copied().unwrap_or(0) as usize;
        if meant != held {
            violations.push(format!(
                "expected {meant} messages in {queue} that cannot be read, there are {held}"
            ));
        }
    }
    violations
}

fn queues(scenario: &Scenario, seen: &Observations) -> Vec<String> {
    let Some(expected) = &scenario.expect.queues else {
        return Vec::new();
    };
    let mut violations = Vec::new();
    for (name, description) in expected {
        match seen.queues.get(name) {
            None => violations.push(format!("expected a queue {name}, there is none")),
            Some(_) if description.is_null() => {}
            Some(queue) => {
                violations.extend(matcher::differences(
                    &format!("queue {name}"),
                    description,
                    Some(Sighting::Told(queue)),
                ));
            }
        }
    }
    let work = &scenario.topology.queue;
    let own = scenario
        .topology
        .queues
        .iter()
        .map(|queue| &queue.name)
        .chain(work.declare.then_some(&work.name));
    let known: BTreeSet<&String> = expected.keys().chain(own).collect();
    for name in seen.queues.keys().filter(|name| !known.contains(name)) {
        violations.push(format!("nobody expected a queue {name}"));
    }
    violations
}

/// What the broker says of a queue, as far as scenarios can ask.
pub(crate) fn description(kind: &str, durable: bool, arguments: Map<String, Value>) -> Value {
    serde_json::json!({"type": kind, "durable": durable, "arguments": arguments})
}
