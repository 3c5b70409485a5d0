//! A setting as data: what it changes, and what is expected of a consumer there.

use retryrmq_harness::{QueueType, Version};
use serde_json::Value;

/// A place in the matrix.
#[derive(Clone, Copy, Debug)]
pub struct MatrixCell {
    /// The broker's version.
    pub version: Version,
    /// The type of the work queue.
    pub kind: QueueType,
}

/// One strange setting, and what is expected with it. By default everything works, and nothing is lost.
#[derive(Debug)]
pub struct Setting {
    pub(crate) node: Vec<&'static str>,
    pub(crate) changes: Vec<Change>,
    pub(crate) from: Version,
    pub(crate) before: Option<Version>,
    pub(crate) expectation: Expectation,
    pub(crate) findings: Vec<(&'static str, &'static str)>,
    pub(crate) parks_others: bool,
    pub(crate) surely: bool,
    pub(crate) untyped: bool,
    pub(crate) eval: Option<&'static str>,
    pub(crate) query: Option<&'static str>,
    pub(crate) alone: bool,
    /// The least bytes of a body, and of the error of an attempt.
    pub(crate) sizes: (usize, usize),
}

/// What is changed in a virtual host of its own.
#[derive(Debug)]
pub(crate) enum Change {
    /// A policy of a user, or of an operator.
    Policy {
        scope: &'static str,
        pattern: &'static str,
        definition: Value,
    },
    /// A limit of the virtual host.
    VhostLimit(&'static str, u32),
    /// A limit of the consumer's user.
    UserLimit(&'static str, u32),
    /// The type of queues that are declared without one.
    DefaultQueueType(&'static str),
}

#[derive(Debug)]
pub(crate) enum Expectation {
    Works,
    Refused(&'static [&'static str]),
    Loses(Loss),
}

/// Which messages a setting deletes by its very meaning, before or after retryrmq had them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// Some that are ready in the work queue.
    Ready,
    /// Some that wait, or are ready after that.
    Waiting,
    /// Some that are parked.
    Parked,
}

impl Setting {
    fn new() -> Self {
        Setting {
            node: Vec::new(),
            changes: Vec::new(),
            from: Version::V3_10,
            before: None,
            expectation: Expectation::Works,
            findings: Vec::new(),
            parks_others: false,
            surely: false,
            untyped: false,
            eval: None,
            query: None,
            alone: false,
            sizes: (0, 0),
        }
    }

    fn of(change: Change) -> Self {
        let mut setting = Self::new();
        setting.changes.push(change);
        setting
    }

    /// Lines of `rabbitmq.conf`, for a node of its own.
    pub fn node(lines: &[&'static str]) -> Self {
        let mut setting = Self::new();
        setting.node = lines.to_vec();
        setting
    }

    /// A policy for the queues whose names match.
    pub fn policy(pattern: &'static str, definition: Value) -> Self {
        Self::of(Change::Policy {
            scope: "policies",
            pattern,
            definition,
        })
    }

    /// An operator policy for the queues whose names match.
    pub fn operator_policy(pattern: &'static str, definition: Value) -> Self {
        Self::of(Change::Policy {
            scope: "operator-policies",
            pattern,
            definition,
        })
    }

    /// A limit of the virtual host, such as `max-queues`.
    pub fn vhost_limit(name: &'static str, value: u32) -> Self {
        Self::of(Change::VhostLimit(name, value))
    }

    /// A limit of the consumer's user, such as `max-channels`.
    pub fn user_limit(name: &'static str, value: u32) -> Self {
        Self::of(Change::UserLimit(name, value))
    }

    /// The type of queues that are declared without one.
    pub fn default_queue_type(name: &'static str) -> Self {
        Self::of(Change::DefaultQueueType(name))
    }

    /// The first version that has this setting.
    #[must_use]
    pub fn from(mut self, version: Version) -> Self {
        self.from = version;
        self
    }

    /// The first version that no longer has this setting.
    #[must_use]
    pub fn before(mut self, version: Version) -> Self {
        self.before = Some(version);
        self
    }

    /// The consumer does not start. Its error has all of these words, and every message is still in the work queue.
    #[must_use]
    pub fn refused(mut self, words: &'static [&'static str]) -> Self {
        self.expectation = Expectation::Refused(words);
        self
    }

    /// The setting deletes messages, and nothing else is lost. A finding has to say so.
    #[must_use]
    pub fn loses(mut self, loss: Loss) -> Self {
        self.expectation = Expectation::Loses(loss);
        self
    }

    /// As [`Setting::loses`], and it is a mistake in the test if nothing is lost.
    #[must_use]
    pub fn surely_loses(mut self, loss: Loss) -> Self {
        self.surely = true;
        self.loses(loss)
    }

    /// Publishers have declared the work queue, without a type.
    #[must_use]
    pub fn untyped(mut self) -> Self {
        self.untyped = true;
        self
    }

    /// An Erlang expression that the node evaluates, for what `rabbitmq.conf` cannot say.
    #[must_use]
    pub fn eval(mut self, expression: &'static str) -> Self {
        self.eval = Some(expression);
        self
    }

    /// Parameters of the consumer's AMQP URL, such as `heartbeat=1`.
    #[must_use]
    pub fn url(mut self, query: &'static str) -> Self {
        self.query = Some(query);
        self
    }

    /// Bodies have so many bytes at least, and errors of attempts so many.
    #[must_use]
    pub fn sizes(mut self, body: usize, error: usize) -> Self {
        self.sizes = (body, error);
        self
    }

    /// On a node of its own, where messages whose queue was missing or full are offered again each second, not after three minutes.
    #[must_use]
    pub fn alone(mut self) -> Self {
        self.alone = true;
        self
    }

    /// The broker dead-letters messages to the parking queue that would have been handled otherwise.
    #[must_use]
    pub fn parks_others(mut self) -> Self {
        self.parks_others = true;
        self
    }

    /// `retryrmq doctor` reports this code about this name.
    #[must_use]
    pub fn finds(mut self, code: &'static str, name: &'static str) -> Self {
        self.findings.push((code, name));
        self
    }

    /// Whether a broker of this version has the setting.
    pub(crate) fn is_for(&self, version: Version) -> bool {
        version >= self.from && self.before.is_none_or(|before| version < before)
    }

    /// Whether it needs a node of its own.
    pub(crate) fn needs_a_node(&self) -> bool {
        self.alone || !self.node.is_empty()
    }

    /// Whether a message may end otherwise than by its fate, so that nothing but empty queues shows that all has ended.
    pub(crate) fn is_unsettled(&self) -> bool {
        self.may_lose() || self.parks_others
    }

    /// Whether the broker closes connections or channels because of it, which doubles messages.
    pub(crate) fn cuts_connections(&self) -> bool {
        self.needs_a_node()
            || self.query.is_some()
            || self.parks_others
            || self
                .changes
                .iter()
                .any(|change| matches!(change, Change::UserLimit(..)))
    }

    /// Whether the broker may refuse a connection because one that was closed still counts for a moment.
    pub(crate) fn limits_connections(&self) -> bool {
        self.changes
            .iter()
            .any(|change| matches!(change, Change::VhostLimit("max-connections", _)))
    }

    pub(crate) fn may_lose(&self) -> bool {
        matches!(self.expectation, Expectation::Loses(_))
    }
}
