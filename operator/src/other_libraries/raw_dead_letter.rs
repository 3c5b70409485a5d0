//! What goes into a reader, and what comes out.

use std::{fmt, time::SystemTime};

use super::{Headers, Value, value};

/// Bytes of an error's text that are kept.
pub(crate) const ERROR: usize = 1024;
/// Bytes of a stack that are kept.
pub(crate) const STACK: usize = 16 * 1024;
/// Bytes that a name may have on the wire.
pub(crate) const NAME: usize = 255;

/// A message as it stands in a dead-letter queue.
#[derive(Clone, Copy, Debug)]
pub struct RawDeadLetter<'a> {
    /// The queue that it stands in.
    pub queue: &'a str,
    /// Its headers.
    pub headers: &'a Headers,
    /// The property `type`.
    pub kind: Option<&'a str>,
    /// The body.
    pub body: &'a [u8],
    /// Whether the broker dead-lettered it out of the work queue whose parking queue it stands in. Then what a library wrote on it is of
    /// an earlier life, or was written by its publisher.
    pub died_in_own_queue: bool,
}

impl RawDeadLetter<'_> {
    /// Text of a header, cut to so many bytes; `None` where it is absent, empty or no text.
    pub(crate) fn text(&self, name: &str, most: usize) -> Option<String> {
        value::text(self.headers, name, most)
    }

    pub(crate) fn count(&self, name: &str) -> Option<u32> {
        self.headers.get(name).and_then(Value::count)
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.headers.contains_key(name)
    }

    /// The names that one of these rules fits: a whole name, or the beginning of one that ends with `*`.
    pub(crate) fn names(&self, rules: &[&str]) -> Vec<String> {
        let fits = |name: &str| {
            rules.iter().any(|rule| match rule.strip_suffix('*') {
                Some(start) => name.starts_with(start),
                None => name == *rule,
            })
        };
        let names = self.headers.keys();
        names.filter(|name| fits(name)).cloned().collect()
    }
}

/// Who left a dead letter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Library {
    /// RabbitMQ itself, by `x-death`.
    Broker,
    /// MassTransit (.NET).
    MassTransit,
    /// NServiceBus (.NET).
    NServiceBus,
    /// Spring AMQP and Spring Cloud Stream (Java).
    Spring,
    /// EasyNetQ (.NET).
    EasyNetQ,
    /// Symfony Messenger (PHP).
    Symfony,
    /// Celery and Kombu (Python).
    Celery,
    /// Dramatiq (Python).
    Dramatiq,
    /// taskiq (Python).
    Taskiq,
    /// Watermill (Go).
    Watermill,
    /// Moleculer Channels (Node).
    Moleculer,
}

impl Library {
    /// Its name in JSON: one lower-case word.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Broker => "rabbitmq",
            Self::MassTransit => "masstransit",
            Self::NServiceBus => "nservicebus",
            Self::Spring => "spring",
            Self::EasyNetQ => "easynetq",
            Self::Symfony => "symfony",
            Self::Celery => "celery",
            Self::Dramatiq => "dramatiq",
            Self::Taskiq => "taskiq",
            Self::Watermill => "watermill",
            Self::Moleculer => "moleculer",
        }
    }
}

/// Its name for people.
impl fmt::Display for Library {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Broker => "the broker",
            Self::MassTransit => "MassTransit",
            Self::NServiceBus => "NServiceBus",
            Self::Spring => "Spring AMQP",
            Self::EasyNetQ => "EasyNetQ",
            Self::Symfony => "Symfony Messenger",
            Self::Celery => "Celery",
            Self::Dramatiq => "Dramatiq",
            Self::Taskiq => "taskiq",
            Self::Watermill => "Watermill",
            Self::Moleculer => "Moleculer",
        })
    }
}

/// Where a dead letter came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeadLetterSource {
    /// This queue, which a replay goes to.
    Queue(String),
    /// Nobody wrote that down; a sentence fragment that helps to find it, such as "Spring names no queue, only …".
    Unknown(String),
}

impl DeadLetterSource {
    /// The queue, if it is known.
    #[must_use]
    pub fn queue(&self) -> Option<&str> {
        match self {
            Self::Queue(queue) => Some(queue),
            Self::Unknown(_) => None,
        }
    }
}

/// Properties of a message that were taken out of an envelope: those that are set.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Properties {
    /// `content_type`
    pub content_type: Option<String>,
    /// `content_encoding`
    pub content_encoding: Option<String>,
    /// `priority`
    pub priority: Option<u8>,
    /// `correlation_id`
    pub correlation_id: Option<String>,
    /// `reply_to`
    pub reply_to: Option<String>,
    /// `message_id`
    pub message_id: Option<String>,
    /// `timestamp`, seconds since 1970
    pub timestamp: Option<u64>,
    /// `type`
    pub kind: Option<String>,
    /// `app_id`
    pub app_id: Option<String>,
    /// `cluster_id`
    pub cluster_id: Option<String>,
    /// The headers.
    pub headers: Headers,
}

/// What a replay publishes.
#[derive(Clone, Debug, PartialEq)]
pub enum ReplayedMessage {
    /// The message as it stands, without these headers: the library wrote them when it gave up.
    Without(Vec<String>),
    /// The message as it stands, with this body: a counter in it begins again.
    Recounted(Vec<u8>),
    /// The original, which was wrapped.
    Original {
        /// Its body.
        body: Vec<u8>,
        /// Its properties.
        properties: Box<Properties>,
    },
    /// Nothing: it would not be what its consumer expects, or would be lost at its next failure. The sentence says why, and what
    /// to do instead.
    Never(String),
}

/// What is known of a dead letter.
#[derive(Clone, Debug, PartialEq)]
pub struct DeadLetter {
    /// Who left it.
    pub library: Library,
    /// Where it came from.
    pub source: DeadLetterSource,
    /// The exchange and routing key that it was first published with, where they were written down.
    pub published: Option<(String, String)>,
    /// The reason: in RabbitMQ's words rejected, expired, `maxlen` or `delivery_limit`; `exhausted` where a library gave it up
    /// after its own retries; `None` where it never ran.
    pub reason: Option<String>,
    /// One line for people, at most 1 KiB; empty where nobody wrote one.
    pub error: String,
    /// The error's class, at most 255 bytes; empty where unknown.
    pub error_type: String,
    /// The stack, at most 16 KiB.
    pub stack: Option<String>,
    /// The type of the message or the name of the task.
    pub message_type: Option<String>,
    /// When it failed for the last time.
    pub failed_at: Option<SystemTime>,
    /// Attempts that were made, where they were counted.
    pub attempts: Option<u32>,
    /// What a replay publishes.
    pub replay: ReplayedMessage,
}

impl DeadLetter {
    /// Of this library, after a failure, with nothing else known.
    pub(crate) fn of(library: Library, source: DeadLetterSource) -> Self {
        Self {
            library,
            source,
            published: None,
            reason: Some("exhausted".to_owned()),
            error: String::new(),
            error_type: String::new(),
            stack: None,
            message_type: None,
            failed_at: None,
            attempts: None,
            replay: ReplayedMessage::Without(Vec::new()),
        }
    }
}
