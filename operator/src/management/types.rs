//! What the API's lists hold, as far as it is used. Every field that a version leaves out, gives as null or writes as another type is unknown.

use std::{fmt, time::Duration};

use serde_json::{Map, Value};

/// A version of RabbitMQ.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version(pub u32, pub u32, pub u32);

impl Version {
    /// Reads `4.0.5`, also with a suffix such as `-rc.1`.
    #[must_use]
    pub fn read(text: &str) -> Option<Self> {
        let mut parts = text.split(['.', '-', '+']).map(str::parse::<u32>);
        let major = parts.next()?.ok()?;
        let minor = parts.next()?.ok()?;
        let patch = parts.next().and_then(Result::ok).unwrap_or(0);
        Some(Self(major, minor, patch))
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.0, self.1, self.2)
    }
}

/// What a broker says of itself.
#[derive(Clone, Debug)]
pub struct Overview {
    /// Its version.
    pub version: Version,
    /// The metrics collector is off: nobody knows who consumes.
    pub is_without_metrics: bool,
}

impl Overview {
    pub(super) fn of(row: &Value) -> Option<Self> {
        Some(Self {
            version: Version::read(row["rabbitmq_version"].as_str()?)?,
            is_without_metrics: row["disable_stats"] == true,
        })
    }
}

/// Of which type a queue is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueKind {
    /// A classic queue.
    Classic,
    /// A quorum queue.
    Quorum,
    /// A stream, which is no queue.
    Stream,
    /// Another type, of a plugin or of a version to come.
    Other,
}

/// How many messages a queue holds, as far as the broker says. The counts may be some seconds old.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Ready to be delivered.
    pub ready: Option<u64>,
    /// With a consumer.
    pub unacknowledged: Option<u64>,
    /// On their way to where they are dead-lettered at least once.
    pub dead_lettering: Option<u64>,
}

/// A queue.
#[derive(Clone, Debug)]
pub struct Queue {
    /// Its name.
    pub name: String,
    /// Its type.
    pub kind: QueueKind,
    /// It outlives its broker.
    pub durable: bool,
    /// It belongs to one connection.
    pub exclusive: bool,
    /// It goes with its last consumer.
    pub auto_delete: bool,
    /// Those it was declared with.
    pub arguments: Map<String, Value>,
    /// The policy in force.
    pub policy: Option<String>,
    /// The operator policy in force, where the broker says it.
    pub operator_policy: Option<String>,
    /// What both come to, where the broker says it; [`None`] before RabbitMQ 4.1.
    pub effective: Option<Map<String, Value>>,
    /// How many messages it holds.
    pub totals: Totals,
}

impl Queue {
    /// Reads a row of the API; `None` without a name.
    #[must_use]
    pub fn of(row: &Value) -> Option<Self> {
        let arguments = object(&row["arguments"]).unwrap_or_default();
        let kind = row["type"]
            .as_str()
            .or_else(|| arguments.get("x-queue-type").and_then(Value::as_str));
        Some(Self {
            name: row["name"].as_str()?.to_owned(),
            kind: match kind {
                Some("quorum" | "rabbit_quorum_queue") => QueueKind::Quorum,
                Some("stream" | "rabbit_stream_queue") => QueueKind::Stream,
                Some("classic" | "rabbit_classic_queue") | None => QueueKind::Classic,
                Some(_) => QueueKind::Other,
            },
            durable: row["durable"].as_bool().unwrap_or(true),
            exclusive: row["exclusive"] == true,
            auto_delete: row["auto_delete"] == true,
            policy: name(&row["policy"]),
            operator_policy: name(&row["operator_policy"]),
            // An empty one is written as a list by some versions.
            effective: match &row["effective_policy_definition"] {
                Value::Array(_) => Some(Map::new()),
                other => object(other),
            },
            totals: Totals {
                ready: row["messages_ready"].as_u64(),
                unacknowledged: row["messages_unacknowledged"].as_u64(),
                // `messages_dlx` is among the statistics, which are not asked for.
                dead_lettering: dead_lettering(row),
            },
            arguments,
        })
    }
}

fn dead_lettering(row: &Value) -> Option<u64> {
    let count = |name: &str| row[name].as_u64();
    let others = count("messages_ready")?.checked_add(count("messages_unacknowledged")?)?;
    count("messages")?.checked_sub(others)
}

/// An exchange.
#[derive(Clone, Debug)]
pub struct Exchange {
    /// Its name.
    pub name: String,
    /// Its type, such as `topic`.
    pub kind: String,
    /// Where it passes on what it has no binding for.
    pub alternate: Option<String>,
    /// The policy in force.
    pub policy: Option<String>,
}

impl Exchange {
    pub(super) fn of(row: &Value) -> Option<Self> {
        let alternate = &row["arguments"]["alternate-exchange"];
        Some(Self {
            name: row["name"].as_str()?.to_owned(),
            kind: row["type"].as_str()?.to_owned(),
            alternate: name(alternate),
            policy: name(&row["policy"]),
        })
    }
}

/// A binding.
#[derive(Clone, Debug)]
pub struct Binding {
    /// The queue or exchange it leads to.
    pub destination: String,
    /// It leads to a queue.
    pub is_to_queue: bool,
    /// Its routing key.
    pub key: String,
}

impl Binding {
    pub(super) fn of(row: &Value) -> Option<Self> {
        Some(Self {
            destination: row["destination"].as_str()?.to_owned(),
            is_to_queue: row["destination_type"] != "exchange",
            key: row["routing_key"].as_str().unwrap_or_default().to_owned(),
        })
    }
}

/// A consumer.
#[derive(Clone, Debug)]
pub struct Consumer {
    /// The queue it consumes.
    pub queue: String,
    /// Its tag.
    pub tag: String,
    /// The name of its channel.
    pub channel: String,
    /// The user it has logged in as, where the broker says it.
    pub user: Option<String>,
    /// It acknowledges; without, the broker takes for done what it has sent.
    pub acknowledges: bool,
    /// How many messages may be with it; 0 is no bound.
    pub prefetch: u64,
    /// How long one may be with it, as it asked for.
    pub timeout: Option<Duration>,
}

impl Consumer {
    pub(super) fn of(row: &Value) -> Option<Self> {
        let channel = &row["channel_details"];
        Some(Self {
            queue: row["queue"]["name"].as_str()?.to_owned(),
            tag: row["consumer_tag"].as_str().unwrap_or_default().to_owned(),
            channel: channel["name"].as_str().unwrap_or_default().to_owned(),
            user: name(&channel["user"]),
            acknowledges: row["ack_required"].as_bool().unwrap_or(true),
            prefetch: row["prefetch_count"].as_u64().unwrap_or(0),
            timeout: row["arguments"]["x-consumer-timeout"]
                .as_u64()
                .map(Duration::from_millis),
        })
    }
}

/// A channel, as the metrics collector knows it.
#[derive(Clone, Debug)]
pub struct Channel {
    /// How many messages its consumers hold.
    pub unacknowledged: u64,
    /// How many it has acknowledged since it was opened.
    pub acknowledged: u64,
    /// Since when nothing has happened on it, as the broker writes it (UTC): `2026-11-22 22:00:00`, or RFC 3339.
    pub idle_since: Option<String>,
}

impl Channel {
    pub(super) fn of(row: &Value) -> Option<Self> {
        row.as_object()?;
        Some(Self {
            unacknowledged: row["messages_unacknowledged"].as_u64()?,
            acknowledged: row["message_stats"]["ack"].as_u64().unwrap_or(0),
            idle_since: name(&row["idle_since"]),
        })
    }
}

/// What a user may do in a virtual host: three regular expressions over names of queues and exchanges.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Permissions {
    /// Make, change and delete.
    pub configure: String,
    /// Publish and bind.
    pub write: String,
    /// Consume and look.
    pub read: String,
}

impl Permissions {
    pub(super) fn of(row: &Value) -> Option<Self> {
        let pattern = |name: &str| row[name].as_str().map(str::to_owned);
        Some(Self {
            configure: pattern("configure")?,
            write: pattern("write")?,
            read: pattern("read")?,
        })
    }
}

/// Whose policies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Those of the users. One at a time applies to a queue.
    Users,
    /// Those of the operators, which bound what users say.
    Operators,
}

impl Scope {
    pub(super) fn path(self) -> &'static str {
        match self {
            Self::Users => "policies",
            Self::Operators => "operator-policies",
        }
    }
}

/// A policy.
#[derive(Clone, Debug, PartialEq)]
pub struct Policy {
    /// Its name.
    pub name: String,
    /// The regular expression (PCRE) for the names it is for.
    pub pattern: String,
    /// For what: `queues`, `exchanges`, `all`, `classic_queues`, `quorum_queues`, `streams`.
    pub apply_to: String,
    /// The highest applies.
    pub priority: i64,
    /// What it says.
    pub definition: Map<String, Value>,
}

impl Policy {
    pub(super) fn of(row: &Value) -> Option<Self> {
        Some(Self {
            name: row["name"].as_str()?.to_owned(),
            pattern: row["pattern"].as_str()?.to_owned(),
            apply_to: row["apply-to"].as_str().unwrap_or("all").to_owned(),
            priority: row["priority"].as_i64().unwrap_or(0),
            definition: object(&row["definition"]).unwrap_or_default(),
        })
    }

    /// Whether it is for a queue of this name and type; `None` when the pattern cannot be read here.
    #[must_use]
    pub fn is_for(&self, queue: &Queue) -> Option<bool> {
        let kind_fits = match self.apply_to.as_str() {
            "all" | "queues" => true,
            "classic_queues" => queue.kind == QueueKind::Classic,
            "quorum_queues" => queue.kind == QueueKind::Quorum,
            "streams" => queue.kind == QueueKind::Stream,
            _ => false,
        };
        if !kind_fits {
            return Some(false);
        }
        // The broker reads PCRE; what this reader does not know (a look ahead, a back reference) stays unknown.
        let pattern = regex::RegexBuilder::new(&self.pattern)
            .size_limit(1 << 20)
            .build()
            .ok()?;
        Some(pattern.is_match(&queue.name))
    }
}

/// A deprecated feature in use.
#[derive(Clone, Debug)]
pub struct Deprecated {
    /// Its name, such as `transient_nonexcl_queues`.
    pub name: String,
    /// How far it is on its way out, such as `permitted_by_default`.
    pub phase: String,
    /// Where RabbitMQ explains it; may be empty.
    pub page: String,
}

impl Deprecated {
    pub(super) fn of(row: &Value) -> Option<Self> {
        let text = |name: &str| row[name].as_str().unwrap_or_default().to_owned();
        Some(Self {
            name: row["name"].as_str()?.to_owned(),
            phase: text("deprecation_phase"),
            page: text("doc_url"),
        })
    }
}

fn object(value: &Value) -> Option<Map<String, Value>> {
    value.as_object().cloned()
}

/// A name that is there: versions write none as null, as an empty text, or as `undefined`.
fn name(value: &Value) -> Option<String> {
    let text = value.as_str()?;
    (!text.is_empty() && text != "undefined").then(|| text.to_owned())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_queue_of_any_version_is_read() {
        let old = json!({"name": "q", "type": "quorum", "durable": true, "exclusive": null, "arguments": {}, "policy": null});
        let queue = Queue::of(&old).unwrap();
        assert_eq!(
            (queue.kind, queue.policy, queue.effective),
            (QueueKind::Quorum, None, None)
        );
        assert_eq!(queue.totals, Totals::default());
        let odd = json!({"name": "q", "arguments": "undefined", "effective_policy_definition": [], "messages_ready": "x", "policy": ""});
        let queue = Queue::of(&odd).unwrap();
        assert_eq!(
            (queue.kind, queue.effective),
            (QueueKind::Classic, Some(Map::new()))
        );
        assert!(Queue::of(&json!({"name": 7})).is_none());
    }

    #[test]
    fn versions_are_read_and_ordered() {
        assert_eq!(Version::read("4.3.6"), Some(Version(4, 3, 6)));
        assert_eq!(Version::read("4.1.0-rc.2"), Some(Version(4, 1, 0)));
        assert!(Version(3, 13, 7) < Version(4, 0, 0));
        assert_eq!(Version::read("unknown"), None);
    }

    #[test]
    fn a_pattern_that_only_the_broker_reads_is_unknown() {
        let queue = Queue::of(&json!({"name": "orders"})).unwrap();
        let policy = |pattern: &str, apply_to: &str| {
            Policy::of(&json!({"name": "p", "pattern": pattern, "apply-to": apply_to})).unwrap()
        };
        assert_eq!(policy("^ord", "queues").is_for(&queue), Some(true));
        assert_eq!(policy("^ord", "quorum_queues").is_for(&queue), Some(false));
        assert_eq!(policy("^x", "all").is_for(&queue), Some(false));
        assert_eq!(policy("^(?!x)", "all").is_for(&queue), None);
    }
}
