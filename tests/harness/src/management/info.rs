//! What the management interface tells and takes.

use serde_json::{Map, Value, json};

/// A queue as the management interface sees it.
#[derive(Clone, Debug)]
pub struct QueueInfo {
    /// Everything there is, for what has no field here.
    pub raw: Value,
}

impl QueueInfo {
    /// Its name.
    pub fn name(&self) -> &str {
        self.text("name")
    }

    /// `classic`, `quorum` or `stream`.
    pub fn kind(&self) -> &str {
        self.text("type")
    }

    /// Whether it survives a restart.
    pub fn is_durable(&self) -> bool {
        self.raw["durable"] == true
    }

    /// The arguments it was declared with.
    pub fn arguments(&self) -> Map<String, Value> {
        self.raw["arguments"]
            .as_object()
            .cloned()
            .unwrap_or_default()
    }

    /// The policy that applies to it.
    pub fn policy(&self) -> Option<&str> {
        self.raw["policy"].as_str().filter(|name| !name.is_empty())
    }

    /// All messages in it. `None` until the broker has counted.
    pub fn messages(&self) -> Option<u64> {
        self.raw["messages"].as_u64()
    }

    /// Messages that a consumer could have now.
    pub fn ready(&self) -> Option<u64> {
        self.raw["messages_ready"].as_u64()
    }

    /// Messages that were delivered and not yet settled.
    pub fn unacknowledged(&self) -> Option<u64> {
        self.raw["messages_unacknowledged"].as_u64()
    }

    /// Messages that are dead-lettered and not yet accepted by where they go (quorum, at-least-once).
    pub fn dead_lettering(&self) -> Option<u64> {
        self.raw["messages_dlx"].as_u64()
    }

    /// How many consumers it has.
    pub fn consumers(&self) -> Option<u64> {
        self.raw["consumers"].as_u64()
    }

    fn text(&self, key: &str) -> &str {
        self.raw[key].as_str().unwrap_or_default()
    }
}

impl From<Value> for QueueInfo {
    fn from(raw: Value) -> Self {
        QueueInfo { raw }
    }
}

/// An open client connection.
#[derive(Clone, Debug)]
pub struct ConnectionInfo {
    /// The name that [`Management::close_connection`](crate::Management::close_connection) takes.
    pub name: String,
    /// The name that the client gave itself.
    pub client_name: Option<String>,
    /// `running`, `blocked`, `blocking`, …
    pub state: String,
    /// Everything there is, for what has no field here.
    pub raw: Value,
}

impl ConnectionInfo {
    pub(super) fn parse(raw: Value) -> Option<Self> {
        let text = |value: &Value| value.as_str().map(str::to_owned);
        Some(ConnectionInfo {
            name: text(&raw["name"])?,
            client_name: text(&raw["client_properties"]["connection_name"]),
            state: text(&raw["state"]).unwrap_or_default(),
            raw,
        })
    }
}

/// A policy: settings for all queues whose names match.
#[derive(Clone, Debug)]
pub struct Policy {
    /// A regular expression over names.
    pub pattern: String,
    /// `queues`, `classic_queues`, `quorum_queues` (the last two from 4.0 on) or `all`.
    pub apply_to: String,
    /// Of several that match, the highest applies, alone.
    pub priority: i64,
    /// The settings, such as `{"dead-letter-exchange": ""}`.
    pub definition: Value,
}

impl Policy {
    /// A policy of priority 0 for all queues whose names match.
    pub fn new(pattern: &str, definition: Value) -> Self {
        Policy {
            pattern: pattern.into(),
            apply_to: "queues".into(),
            priority: 0,
            definition,
        }
    }

    pub(super) fn to_json(&self) -> Value {
        json!({
            "pattern": self.pattern, "apply-to": self.apply_to, "priority": self.priority,
            "definition": self.definition,
        })
    }
}

/// What a user may do in a vhost, as regular expressions over names.
#[derive(Clone, Copy, Debug)]
pub struct Permissions<'a> {
    /// What it may declare and delete.
    pub configure: &'a str,
    /// What it may publish to and bind.
    pub write: &'a str,
    /// What it may consume, bind from and purge.
    pub read: &'a str,
}

impl Permissions<'static> {
    /// Everything.
    pub const ALL: Self = Permissions {
        configure: ".*",
        write: ".*",
        read: ".*",
    };
}
