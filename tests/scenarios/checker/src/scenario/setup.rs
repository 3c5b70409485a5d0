//! What stands before the driver starts, and the options it consumes with.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::Span;

/// Queues, exchanges and bindings that the checker makes in the fresh virtual host.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Topology {
    /// The queue the driver consumes.
    #[serde(default)]
    pub queue: WorkQueue,
    /// Exchanges.
    #[serde(default)]
    pub exchanges: Vec<Exchange>,
    /// Other queues.
    #[serde(default)]
    pub queues: Vec<Queue>,
    /// Bindings.
    #[serde(default)]
    pub bindings: Vec<Binding>,
}

/// The work queue.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WorkQueue {
    /// Its name.
    #[serde(default = "orders")]
    pub name: String,
    /// False leaves it to the driver to declare it.
    #[serde(default = "yes")]
    pub declare: bool,
    /// Arguments beside `x-queue-type`, in the notation of header values.
    #[serde(default)]
    pub arguments: BTreeMap<String, Value>,
}

impl Default for WorkQueue {
    fn default() -> Self {
        Self {
            name: orders(),
            declare: true,
            arguments: BTreeMap::new(),
        }
    }
}

fn orders() -> String {
    "orders".into()
}

fn yes() -> bool {
    true
}

/// An exchange.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Exchange {
    /// Its name.
    pub name: String,
    /// `direct`, `fanout`, `topic` or `headers`.
    #[serde(rename = "type")]
    pub kind: String,
}

/// A queue beside the work queue.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Queue {
    /// Its name.
    pub name: String,
    /// Its type; the work queue's when it is not given.
    #[serde(rename = "type")]
    pub kind: Option<QueueKind>,
    /// Arguments beside `x-queue-type`, in the notation of header values.
    #[serde(default)]
    pub arguments: BTreeMap<String, Value>,
}

/// A binding of a queue to an exchange.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Binding {
    /// The exchange.
    pub exchange: String,
    /// The queue.
    pub queue: String,
    /// The routing key or pattern.
    #[serde(default)]
    pub routing_key: String,
}

/// The type of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum QueueKind {
    /// On one node.
    Classic,
    /// Replicated.
    Quorum,
}

impl QueueKind {
    /// The value of `x-queue-type`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Classic => "classic",
            Self::Quorum => "quorum",
        }
    }
}

impl fmt::Display for QueueKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The options of the consumer. What is not given is left to the library's defaults.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Consume {
    /// Whether failures are retried and parked.
    #[serde(default = "yes")]
    pub dlx: bool,
    /// The policy, in its text form.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry: Option<String>,
    /// The strategy's name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub strategy: Option<String>,
    /// Rules that choose another policy, in their text form.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rules: Vec<String>,
    /// How many unsettled messages the broker hands out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prefetch: Option<u16>,
    /// How many bytes of bodies of unsettled messages are held.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prefetch_bytes: Option<u64>,
    /// How many messages are handled at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub concurrency: Option<u16>,
    /// How many messages a handler gets at most, as a list.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub batch: Option<usize>,
    /// How long an incomplete list waits.
    #[serde(
        rename(serialize = "batch_wait_ms"),
        skip_serializing_if = "Option::is_none"
    )]
    pub batch_wait: Option<Span>,
    /// A handler that takes longer has failed.
    #[serde(
        rename(serialize = "handler_timeout_ms"),
        skip_serializing_if = "Option::is_none"
    )]
    pub handler_timeout: Option<Span>,
    /// The retry budget.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pause: Option<Pause>,
    /// False: what is given up is dropped.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub park: Option<bool>,
    /// False: passive declares only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub declare: Option<bool>,
    /// The type of the queues that the library makes: `classic`, `quorum`, or `same` as the work queue's type.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue_type: Option<String>,
    /// So many crashes park a message.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub crash_limit: Option<u32>,
    /// So many deferrals park a message.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub defer_limit: Option<u32>,
    /// Whether the consumer is told of errors that no retry can mend; with `dlx` it is anyway.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fatal: Option<bool>,
}

impl Default for Consume {
    fn default() -> Self {
        Self {
            dlx: true,
            retry: None,
            strategy: None,
            rules: Vec::new(),
            prefetch: None,
            prefetch_bytes: None,
            concurrency: None,
            batch: None,
            batch_wait: None,
            handler_timeout: None,
            pause: None,
            park: None,
            declare: None,
            queue_type: None,
            crash_limit: None,
            defer_limit: None,
            fatal: None,
        }
    }
}

impl Consume {
    /// The options for a run with this type of work queue.
    pub fn on(&self, kind: QueueKind) -> Self {
        let mut consume = self.clone();
        if consume.queue_type.as_deref() == Some("same") {
            consume.queue_type = Some(kind.name().into());
        }
        consume
    }
}

/// The retry budget: past a share of failures among the last attempts, the consumer rests.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Pause {
    /// So many of the last attempts are looked at.
    pub window: u32,
    /// The share of failures among them, between 0 and 1.
    pub share: f64,
    /// How long the consumer rests.
    #[serde(rename(serialize = "for_ms"))]
    pub r#for: Span,
}
