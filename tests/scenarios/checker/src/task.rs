//! What a driver is told: one JSON object on its standard input.
//!
//! Durations are in milliseconds, patterns are resolved to message ids, names are as they are on the broker: a driver
//! needs a JSON reader and nothing else of the scenario format.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::scenario::{Consume, Scenario, Step};

/// The version of the contract with drivers.
pub const PROTOCOL: u32 = 1;

/// One order to a driver.
#[derive(Debug, Serialize)]
pub struct Order<'a> {
    /// [`PROTOCOL`].
    pub protocol: u32,
    /// What to do.
    #[serde(flatten)]
    pub task: Task<'a>,
}

impl<'a> From<Task<'a>> for Order<'a> {
    fn from(task: Task<'a>) -> Self {
        Self {
            protocol: PROTOCOL,
            task,
        }
    }
}

/// What a driver can be asked to do.
#[derive(Debug, Serialize)]
#[serde(tag = "task", rename_all = "snake_case")]
pub enum Task<'a> {
    /// Say what it can do, and end.
    Describe,
    /// Consume until SIGTERM.
    Consume {
        /// The broker, the virtual host in its path.
        url: &'a str,
        /// The work queue.
        queue: &'a str,
        /// The options of the consumer.
        consume: &'a Consume,
        /// What the handler does: message id → steps, one per run; the last one repeats.
        handler: BTreeMap<String, &'a [Step]>,
        /// How often the handler ran before the driver was started again.
        runs: BTreeMap<String, usize>,
    },
    /// Replay everything parked for a queue, and end.
    Replay {
        /// The broker, the virtual host in its path.
        url: &'a str,
        /// The work queue.
        queue: &'a str,
    },
    /// Publish through the library, and end.
    Publish {
        /// The broker, the virtual host in its path.
        url: &'a str,
        /// What to publish, in this order.
        messages: Vec<Outgoing>,
    },
}

/// A message for the driver's publisher.
#[derive(Debug, Serialize)]
pub struct Outgoing {
    /// Its id in the scenario; the same as its header `scenario-id`.
    pub id: String,
    /// The exchange.
    pub exchange: String,
    /// The routing key.
    pub routing_key: String,
    /// The body, a text.
    pub body: String,
    /// Headers; texts, numbers and flags only.
    pub headers: BTreeMap<String, serde_json::Value>,
    /// The delay.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delay_ms: Option<u64>,
}

/// The steps of every message that has some.
pub fn handler(scenario: &Scenario) -> BTreeMap<String, &[Step]> {
    let ids = scenario.messages().into_iter().map(|message| message.id);
    ids.map(|id| (scenario.steps(&id), id))
        .filter(|(steps, _)| !steps.is_empty())
        .map(|(steps, id)| (id, steps))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_driver_reads_plain_json() {
        let scenario = Scenario::from_yaml(
            "x",
            "
shows: x
consume: {retry: 'fixed(1s)', handler_timeout: 2s, rules: ['error=T* => fixed(2s)']}
publish: [{id: a, count: 2}]
handler: {'a-*': [{error: {type: T, message: m}}, ok]}
expect: {messages: {'*': {runs: 2, ends: handled}}}
",
        )
        .unwrap();
        let task = Task::Consume {
            url: "amqp://localhost/x",
            queue: "orders",
            consume: &scenario.consume,
            handler: handler(&scenario),
            runs: BTreeMap::from([("a-1".into(), 1)]),
        };
        let steps = serde_json::json!([{"do": "error", "type": "T", "message": "m"}, {"do": "ok"}]);
        assert_eq!(
            serde_json::to_value(Order::from(task)).unwrap(),
            serde_json::json!({
                "protocol": 1, "task": "consume", "url": "amqp://localhost/x", "queue": "orders", "runs": {"a-1": 1},
                "consume": {"dlx": true, "retry": "fixed(1s)", "rules": ["error=T* => fixed(2s)"], "handler_timeout_ms": 2000},
                "handler": {"a-1": steps, "a-2": steps},
            })
        );
    }
}
