//! The contract from the driver's side, for drivers written in Rust: reads the order, knows which step comes next,
//! prints lines. Drivers in other languages write these few lines anew.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// What a driver is asked to do.
#[derive(Debug, Deserialize)]
#[serde(tag = "task", rename_all = "snake_case")]
pub enum Order {
    /// Say what it can do.
    Describe,
    /// Consume until SIGTERM.
    Consume(Box<Play>),
    /// Replay everything parked for the queue, printing `parked` for each.
    Replay {
        /// The broker.
        url: String,
        /// The work queue.
        queue: String,
    },
    /// Publish through the library.
    Publish {
        /// The broker.
        url: String,
        /// What to publish.
        messages: Vec<Outgoing>,
    },
}

/// What is to be consumed, and how.
#[derive(Debug, Deserialize)]
pub struct Play {
    /// The broker.
    pub url: String,
    /// The work queue.
    pub queue: String,
    /// The options of the consumer.
    pub consume: Options,
    /// Message id → steps.
    pub handler: HashMap<String, Vec<Step>>,
    /// How often the handler ran before this process began.
    pub runs: HashMap<String, usize>,
}

/// The options of the consumer; what is absent is the library's default.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(
    missing_docs,
    reason = "they are those of the scenario format, in milliseconds"
)]
pub struct Options {
    pub dlx: bool,
    pub retry: Option<String>,
    pub strategy: Option<String>,
    #[serde(default)]
    pub rules: Vec<String>,
    pub prefetch: Option<u16>,
    pub prefetch_bytes: Option<u64>,
    pub concurrency: Option<u16>,
    pub batch: Option<usize>,
    pub batch_wait_ms: Option<u64>,
    pub handler_timeout_ms: Option<u64>,
    pub pause: Option<Pause>,
    pub park: Option<bool>,
    pub declare: Option<bool>,
    pub queue_type: Option<String>,
    pub crash_limit: Option<u32>,
    pub defer_limit: Option<u32>,
    pub fatal: Option<bool>,
}

/// The retry budget.
#[derive(Clone, Copy, Debug, Deserialize)]
#[expect(
    missing_docs,
    reason = "they are those of the scenario format, in milliseconds"
)]
pub struct Pause {
    pub window: u32,
    pub share: f64,
    pub for_ms: u64,
}

/// A message to publish.
#[derive(Debug, Deserialize)]
#[expect(
    missing_docs,
    reason = "they are those of the scenario format, in milliseconds"
)]
pub struct Outgoing {
    pub id: String,
    pub exchange: String,
    pub routing_key: String,
    pub body: String,
    pub headers: HashMap<String, Value>,
    pub delay_ms: Option<u64>,
}

/// One run of the handler.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub struct Step {
    /// To be waited first.
    #[serde(default)]
    pub sleep_ms: u64,
    /// How it ends.
    #[serde(flatten)]
    pub act: Act,
}

/// How a run ends.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(tag = "do", rename_all = "snake_case")]
#[expect(
    missing_docs,
    reason = "they are the steps of the scenario format, in milliseconds"
)]
pub enum Act {
    Ok,
    Error {
        #[serde(rename = "type")]
        kind: String,
        message: String,
    },
    Fatal {
        message: String,
    },
    RetryAfter {
        delay_ms: u64,
        message: String,
    },
    Park {
        reason: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        within: Option<String>,
    },
    Defer {
        delay_ms: u64,
    },
    Panic {
        message: String,
    },
    Exit,
}

impl Order {
    /// Reads the order from standard input.
    pub fn read() -> Result<Self, Box<dyn std::error::Error + Send + Sync>> {
        let mut text = String::new();
        std::io::stdin().read_to_string(&mut text)?;
        Ok(serde_json::from_str(&text)?)
    }
}

/// Which run of which message comes next, and what it does.
#[derive(Debug)]
pub struct Script {
    handler: HashMap<String, Vec<Step>>,
    runs: Mutex<HashMap<String, usize>>,
}

impl Script {
    /// The script of a play.
    pub fn new(handler: HashMap<String, Vec<Step>>, runs: HashMap<String, usize>) -> Self {
        Self {
            handler,
            runs: Mutex::new(runs),
        }
    }

    /// Counts a run of a message and returns its number and its step.
    pub fn next(&self, id: &str) -> (usize, Step) {
        let mut runs = self.runs.lock().unwrap_or_else(PoisonError::into_inner);
        let run = runs.entry(id.to_owned()).or_default();
        *run += 1;
        let steps = self.handler.get(id);
        let step = steps.and_then(|steps| steps.get(*run - 1).or_else(|| steps.last()));
        (
            *run,
            step.cloned().unwrap_or(Step {
                sleep_ms: 0,
                act: Act::Ok,
            }),
        )
    }
}

/// Prints a line and flushes it. A driver whose checker is gone has nobody to talk to and ends by SIGTERM anyway.
pub fn say(line: &Value) {
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}

/// Milliseconds since 1970.
pub fn now_ms() -> u64 {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or(Duration::ZERO);
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::Scenario;
    use crate::task::{self, Task};

    #[test]
    fn both_sides_of_the_contract_agree() {
        let scenario = Scenario::from_yaml(
            "x",
            "
shows: x
consume:
  {dlx: true, retry: 'fixed(1s)', strategy: native, rules: ['error=T => fixed(2s)'], prefetch: 3, prefetch_bytes: 1024, concurrency: 2, batch: 3, batch_wait: 100ms,
   handler_timeout: 2s,
   pause: {window: 4, share: 0.5, for: 1s}, declare: false, queue_type: quorum, crash_limit: 3, defer_limit: 4, fatal: true}
publish: [{id: a}]
handler:
  a: [{sleep: 1s, error: {type: T, message: m}}, {fatal: f}, {retry_after: 1s}, {park: p}, {defer: 1s}, {panic: p}, exit, ok]
expect: {messages: {a: {runs: 9, ends: handled}}}
",
        )
        .unwrap();
        let order = crate::task::Order::from(Task::Consume {
            url: "amqp://localhost",
            queue: "orders",
            consume: &scenario.consume,
            handler: task::handler(&scenario),
            runs: [("a".to_owned(), 1)].into(),
        });
        let read: Order = serde_json::from_value(serde_json::to_value(order).unwrap()).unwrap();
        let Order::Consume(play) = read else {
            panic!("{read:?}")
        };
        assert_eq!(
            (
                play.consume.prefetch,
                play.consume.prefetch_bytes,
                play.consume.batch,
                play.consume.batch_wait_ms,
                play.consume.handler_timeout_ms,
                play.consume.declare
            ),
            (
                Some(3),
                Some(1024),
                Some(3),
                Some(100),
                Some(2000),
                Some(false)
            )
        );
        let script = Script::new(play.handler, play.runs);
        assert_eq!(
            script.next("a"),
            (
                2,
                Step {
                    sleep_ms: 0,
                    act: Act::Fatal {
                        message: "f".into()
                    }
                }
            )
        );
        let rest: Vec<Act> = (0..7).map(|_| script.next("a").1.act).collect();
        assert_eq!(
            rest[1..5],
            [
                Act::Park {
                    reason: "p".into(),
                    within: None,
                },
                Act::Defer { delay_ms: 1000 },
                Act::Panic {
                    message: "p".into()
                },
                Act::Exit,
            ]
        );
        assert_eq!(
            (&rest[5], &rest[6]),
            (&Act::Ok, &Act::Ok),
            "the last one repeats"
        );
        assert_eq!(
            script.next("stranger"),
            (
                1,
                Step {
                    sleep_ms: 0,
                    act: Act::Ok
                }
            )
        );
    }
}
