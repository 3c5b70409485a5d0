//! What a rule says.

use std::{fmt, str::FromStr};

/// What was found, by a code that never changes its meaning. Displayed and read as `RQ101` and so on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u16)]
pub enum Code {
    /// Rejected or expired messages of a queue are dropped.
    NoRoute = 101,
    /// A dead-letter exchange does not exist.
    MissingExchange = 102,
    /// Dead letters reach no queue.
    DeadEnd = 103,
    /// A circle of queues that messages leave by time alone, which the broker drops.
    TtlCycle = 104,
    /// A policy hides the dead-letter route of another.
    HiddenRoute = 105,
    /// Messages with times of their own wait behind each other.
    HeadOfLine = 106,
    /// What passes the delivery limit is dropped.
    LimitWithoutRoute = 107,
    /// At-least-once dead-lettering that the queue does not do.
    NotAtLeastOnce = 108,
    /// A waiting queue expires with what waits in it.
    WaitingExpires = 109,
    /// A parking queue loses what is parked.
    ParkingLimited = 110,
    /// Somebody else's policy changes our queues.
    ForeignPolicy = 111,
    /// Messages and no consumer.
    NoConsumer = 112,
    /// A waiting queue whose work queue is gone.
    WorkQueueGone = 113,
    /// A consumer that takes and never acknowledges.
    NeverAcknowledges = 114,
    /// The broker takes messages back while handlers still run.
    ShortTimeout = 115,
    /// A deprecated feature in use.
    Deprecated = 116,
    /// Something that the next version does otherwise.
    NextVersion = 117,
    /// What passes a limit goes round and is dropped.
    LimitInLoop = 118,
    /// A consumer for which sent is done.
    NoAcknowledgement = 119,
    /// A policy of `enable` that no longer fits what it was made from.
    EnableDrifted = 120,
    /// The default exchange without a routing key.
    RouteWithoutKey = 121,
    /// Dead letters that do not leave their queue.
    Held = 122,
    /// A policy that changes the delay of RabbitMQ's own delayed retry.
    DelayChanged = 123,
    /// Messages that AMQP 0-9-1 cannot carry.
    Unreadable = 124,
    /// A work queue that drops its oldest messages.
    DropsOldest = 125,
}

impl Code {
    /// All of them, in order.
    pub const ALL: [Self; 25] = [
        Self::NoRoute,
        Self::MissingExchange,
        Self::DeadEnd,
        Self::TtlCycle,
        Self::HiddenRoute,
        Self::HeadOfLine,
        Self::LimitWithoutRoute,
        Self::NotAtLeastOnce,
        Self::WaitingExpires,
        Self::ParkingLimited,
        Self::ForeignPolicy,
        Self::NoConsumer,
        Self::WorkQueueGone,
        Self::NeverAcknowledges,
        Self::ShortTimeout,
        Self::Deprecated,
        Self::NextVersion,
        Self::LimitInLoop,
        Self::NoAcknowledgement,
        Self::EnableDrifted,
        Self::RouteWithoutKey,
        Self::Held,
        Self::DelayChanged,
        Self::Unreadable,
        Self::DropsOldest,
    ];

    /// How grave it is.
    #[must_use]
    pub fn severity(self) -> Severity {
        match self {
            Self::MissingExchange
            | Self::DeadEnd
            | Self::TtlCycle
            | Self::HiddenRoute
            | Self::LimitWithoutRoute
            | Self::WaitingExpires
            | Self::ParkingLimited
            | Self::ForeignPolicy
            | Self::WorkQueueGone
            | Self::LimitInLoop
            | Self::RouteWithoutKey
            | Self::DelayChanged => Severity::Error,
            Self::Deprecated | Self::NextVersion => Severity::Notice,
            _ => Severity::Warning,
        }
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RQ{}", *self as u16)
    }
}

impl FromStr for Code {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wanted = text.trim().to_ascii_uppercase();
        let found = Self::ALL
            .into_iter()
            .find(|code| code.to_string() == wanted);
        found.ok_or_else(|| {
            format!(
                "there is no such code; they are {} to {}",
                Self::NoRoute,
                Self::DropsOldest
            )
        })
    }
}

/// How grave a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// It loses messages as soon as something fails.
    Error,
    /// It may lose, loop or block.
    Warning,
    /// It will matter later.
    Notice,
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Error => "error",
            Self::Warning => "warning",
            Self::Notice => "notice",
        })
    }
}

/// What a finding is about.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Subject {
    /// A queue.
    Queue(String),
    /// An exchange.
    Exchange(String),
    /// A policy.
    Policy(String),
    /// A feature of the broker.
    Feature(String),
}

impl Subject {
    /// Of which sort it is.
    #[must_use]
    pub fn sort(&self) -> &'static str {
        match self {
            Self::Queue(_) => "queue",
            Self::Exchange(_) => "exchange",
            Self::Policy(_) => "policy",
            Self::Feature(_) => "feature",
        }
    }

    /// Its name, as the broker has it.
    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            Self::Queue(name) | Self::Exchange(name) | Self::Policy(name) | Self::Feature(name) => {
                name
            }
        }
    }
}

/// Something that will lose, loop or block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// What was found.
    pub code: Code,
    /// How grave it is.
    pub severity: Severity,
    /// Where.
    pub subject: Subject,
    /// The queues it concerns, for who asks about certain queues. Empty: the whole broker.
    pub queues: Vec<String>,
    /// One sentence. Names in it are as the broker has them.
    pub sentence: String,
    /// What mends it, to be typed into a shell. Names in it are quoted, and none stands in a comment, which a line end would end.
    pub fix: String,
}

impl Finding {
    pub(super) fn of_queue(code: Code, queue: &str, sentence: String, fix: String) -> Self {
        Self {
            code,
            severity: code.severity(),
            subject: Subject::Queue(queue.to_owned()),
            queues: vec![queue.to_owned()],
            sentence,
            fix,
        }
    }

    /// The section of `docs/doctor.md` about it.
    #[must_use]
    pub fn page(&self) -> String {
        format!("docs/doctor.md#{}", self.code.to_string().to_lowercase())
    }
}
