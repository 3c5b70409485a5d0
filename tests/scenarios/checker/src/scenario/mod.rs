//! A scenario: what is published, what the handler does with it, and what must be seen.
//!
//! The fields are described, for people, in `tests/scenarios/README.md`; the types here are the same thing for the
//! YAML reader, which refuses a key it does not know.

mod expect;
mod load;
mod message;
mod setup;
mod span;
mod step;

pub use expect::{Count, End, EventExpect, Expect, FieldMatchers, MessageExpect, Refusal};
pub use load::{LoadError, find_files};
pub use message::{Body, HostileKind, ID_HEADER, Message};
pub use setup::{Binding, Consume, Exchange, Pause, Queue, QueueKind, Topology, WorkQueue};
pub use span::Span;
pub use step::{HandlerEnd, Step};

use std::collections::BTreeMap;

use retryrmq_harness::Version;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};
use serde_json::Value;

/// One scenario file, read and found consistent.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// The file's name without `.yaml`.
    #[serde(skip)]
    pub name: String,
    /// What the scenario shows, one sentence.
    pub shows: String,
    /// Where it applies.
    #[serde(default)]
    pub on: Applies,
    /// What a driver must be able to do (`panic`, `exit`, …); others are reported as "not for this driver".
    #[serde(default)]
    pub needs: Vec<String>,
    /// The queues and exchanges that exist before the driver starts.
    #[serde(default)]
    pub topology: Topology,
    /// The options of the consumer.
    #[serde(default)]
    pub consume: Consume,
    /// What is published before the driver starts (after it subscribed, where the driver declares the queue).
    #[serde(default)]
    pub publish: Vec<Message>,
    /// What the handler does with a message, run by run: message id or pattern → steps; the last step repeats.
    #[serde(default)]
    pub handler: BTreeMap<String, Vec<Step>>,
    /// What happens later, each when its condition holds, in this order.
    #[serde(default)]
    pub then: Vec<Later>,
    /// What must be seen.
    pub expect: Expect,
}

impl Scenario {
    /// The same with another strategy; `None` for one that is about a strategy, or about queues of one: that somebody made, or that
    /// a message waits in at the end. Which queues there are in the end is the strategy's affair, and not judged.
    #[must_use]
    pub fn with_strategy(mut self, strategy: &str) -> Option<Self> {
        let waits = |end: &End| matches!(end, End::In { queue, .. } if queue.contains(".retry."));
        let ends_waiting = self.expect.messages.values().any(|of| waits(&of.ends));
        if self.consume.strategy.is_some() || self.consume.declare == Some(false) || ends_waiting {
            return None;
        }
        if self.consume.dlx {
            self.consume.strategy = Some(strategy.to_owned());
        }
        self.expect.queues = None;
        Some(self)
    }
}

/// Queue types and broker versions on which a scenario has a meaning.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Applies {
    /// Types of the work queue.
    #[serde(default = "both_kinds")]
    pub types: Vec<QueueKind>,
    /// The oldest broker, as `4.0`.
    pub since: Option<Series>,
    /// The first broker on which it no longer applies.
    pub before: Option<Series>,
}

/// A version of RabbitMQ, read from a text such as `4.3`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Series(pub Version);

impl<'de> Deserialize<'de> for Series {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?
            .parse()
            .map(Self)
            .map_err(D::Error::custom)
    }
}

impl Default for Applies {
    fn default() -> Self {
        Self {
            types: both_kinds(),
            since: None,
            before: None,
        }
    }
}

fn both_kinds() -> Vec<QueueKind> {
    vec![QueueKind::Classic, QueueKind::Quorum]
}

/// Something that happens while the driver runs.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Later {
    /// When: all that is given must hold.
    pub once: Condition,
    /// Messages to publish.
    #[serde(default)]
    pub publish: Vec<Message>,
    /// The driver's own publisher sends these (`needs: [publish]`).
    #[serde(default)]
    pub driver_publish: Vec<Message>,
    /// The driver replays everything that is parked for a queue (`needs: [replay]`).
    #[serde(default)]
    pub replay: Replay,
    /// The driver is asked to stop (SIGTERM) and is not started again.
    #[serde(default)]
    pub stop: bool,
}

/// Whether parked messages are replayed, and those of which queue.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(untagged)]
pub enum Replay {
    /// `true`: those of the work queue; `false`: none.
    OfWork(bool),
    /// Those of this queue.
    Of(String),
}

impl Default for Replay {
    fn default() -> Self {
        Self::OfWork(false)
    }
}

impl Replay {
    /// The queue whose parked messages are replayed.
    pub fn queue<'a>(&'a self, work: &'a str) -> Option<&'a str> {
        match self {
            Self::OfWork(true) => Some(work),
            Self::OfWork(false) => None,
            Self::Of(queue) => Some(queue),
        }
    }
}

/// What must hold before something happens.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Condition {
    /// The broker reports a consumer on the work queue.
    #[serde(default)]
    pub consuming: bool,
    /// So many runs of a message began.
    #[serde(default)]
    pub runs: BTreeMap<String, usize>,
    /// So many messages are ready in a queue.
    #[serde(default)]
    pub queues: BTreeMap<String, u32>,
}

impl Scenario {
    /// The scenario as the user of a broker plays it: `$user` stands for the user's name.
    pub fn for_user(&self, user: &str) -> Self {
        let mut scenario = self.clone();
        let later = scenario
            .then
            .iter_mut()
            .flat_map(|then| then.publish.iter_mut().chain(&mut then.driver_publish));
        for message in scenario.publish.iter_mut().chain(later) {
            message
                .headers
                .values_mut()
                .chain(message.properties.values_mut())
                .for_each(|value| name_user(value, user));
        }
        for expected in scenario.expect.messages.values_mut() {
            expected
                .sees
                .values_mut()
                .flat_map(BTreeMap::values_mut)
                .for_each(|value| name_user(value, user));
            if let End::Parked { record, .. } | End::In { record, .. } = &mut expected.ends {
                record.values_mut().for_each(|value| name_user(value, user));
            }
        }
        scenario
    }

    /// Every message the scenario publishes, bulk ones one by one, in order of publication.
    pub fn messages(&self) -> Vec<Message> {
        let later = self
            .then
            .iter()
            .flat_map(|then| then.publish.iter().chain(&then.driver_publish));
        self.publish
            .iter()
            .chain(later)
            .flat_map(Message::each)
            .collect()
    }

    /// The queue to which the library moves what cannot be delivered.
    pub fn unreadable_queue(&self) -> String {
        format!("{}.unreadable", self.topology.queue.name)
    }

    /// The steps of the handler for a message: its own, or those of the first pattern that fits.
    pub fn steps(&self, id: &str) -> &[Step] {
        lookup(&self.handler, id).map_or(&[], Vec::as_slice)
    }

    /// What is expected of a message: its own entry, or that of the first pattern that fits.
    pub fn expected(&self, id: &str) -> Option<&MessageExpect> {
        lookup(&self.expect.messages, id)
    }
}

fn name_user(value: &mut Value, user: &str) {
    match value {
        Value::String(text) if text == "$user" => *text = user.to_owned(),
        Value::Array(items) => items.iter_mut().for_each(|item| name_user(item, user)),
        Value::Object(map) => map.values_mut().for_each(|value| name_user(value, user)),
        _ => {}
    }
}

fn lookup<'a, T>(entries: &'a BTreeMap<String, T>, id: &str) -> Option<&'a T> {
    entries.get(id).or_else(|| {
        let fits = |(pattern, _): &(&String, &T)| wildmatch::WildMatch::new(pattern).matches(id);
        entries.iter().find(fits).map(|(_, value)| value)
    })
}
