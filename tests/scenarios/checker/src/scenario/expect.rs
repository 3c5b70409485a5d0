//! What must be seen.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer};
use serde_json::Value;

use super::Span;

/// Fields and what they must be, in the notation of the matcher.
pub type FieldMatchers = BTreeMap<String, Value>;

/// Everything a scenario expects.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Expect {
    /// When all of it must have been seen.
    #[serde(default = "patience")]
    pub within: Span,
    /// Message by message, by id or pattern. Every message published is named here.
    #[serde(default)]
    pub messages: BTreeMap<String, MessageExpect>,
    /// The ids of all runs of the handler, in the order in which they began.
    pub order: Option<Vec<String>>,
    /// The largest number of runs in progress at one time.
    pub together: Option<Count>,
    /// All queues that exist at the end, and what the broker says of each; null: it only exists.
    pub queues: Option<BTreeMap<String, Value>>,
    /// Events that the driver reports, at least once each.
    #[serde(default)]
    pub events: Vec<EventExpect>,
    /// Lines of the library's log, at least once each: a level, and what the line holds.
    #[serde(default)]
    pub log: Vec<String>,
    /// The consumer is refused at subscribe.
    pub refused: Option<Refusal>,
    /// How often the driver died of an `exit` step and was started again.
    #[serde(default)]
    pub restarts: Count,
}

/// A driver that dies is started again up to ten times, which takes minutes where others want the processors as well.
fn patience() -> Span {
    Span(Duration::from_secs(600))
}

/// An event: its name, or its name with fields and what they must be.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub enum EventExpect {
    /// Any event of this name.
    Named(String),
    /// One that says this as well.
    Saying(BTreeMap<String, FieldMatchers>),
}

impl EventExpect {
    /// The names, each with the fields that matter.
    pub fn named(&self) -> Vec<(&str, FieldMatchers)> {
        match self {
            Self::Named(name) => vec![(name, FieldMatchers::new())],
            Self::Saying(all) => all
                .iter()
                .map(|(name, fields)| (name.as_str(), fields.clone()))
                .collect(),
        }
    }
}

/// What is expected of one message.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MessageExpect {
    /// How often the handler ran.
    pub runs: Count,
    /// The attempt number that each run was told.
    pub attempts: Option<Vec<u64>>,
    /// Least time between the end of a run and the start of the next.
    #[serde(default)]
    pub spacing: Vec<Span>,
    /// Least time between publication and the first run.
    pub not_before: Option<Span>,
    /// What runs saw: by number, `last`, or `each`.
    #[serde(default)]
    pub sees: BTreeMap<String, FieldMatchers>,
    /// What each of its replays was shown, in order; not judged when it is empty.
    #[serde(default)]
    pub replayed: Vec<FieldMatchers>,
    /// Where the message is in the end.
    pub ends: End,
    /// Queues that hold one more copy each, because the publisher's routing put it there.
    #[serde(default)]
    pub also_in: Vec<String>,
}

/// Where a message is when all is over.
#[derive(Clone, Debug, PartialEq)]
pub enum End {
    /// In no queue, and its last run was a success.
    Handled,
    /// In no queue.
    Gone,
    /// In the queue for what cannot be delivered, where only its number is known.
    Unreadable,
    /// Still in the work queue, where it cannot be read either.
    Stuck,
    /// In the parking queue.
    Parked {
        /// `x-retry-parked-reason`; none for a message that the broker dead-lettered by itself.
        reason: Option<String>,
        /// What the parked message shows.
        record: FieldMatchers,
    },
    /// In another queue.
    In {
        /// Its name.
        queue: String,
        /// What the message shows there.
        record: FieldMatchers,
    },
}

#[derive(Deserialize)]
#[serde(untagged, deny_unknown_fields)]
enum WrittenEnd {
    Word(String),
    Parked {
        parked: Option<String>,
        #[serde(default)]
        record: FieldMatchers,
    },
    In {
        r#in: String,
        #[serde(default)]
        record: FieldMatchers,
    },
}

impl<'de> Deserialize<'de> for End {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = Value::deserialize(deserializer)?;
        let parked = value.get("parked").is_some();
        match serde_json::from_value(value).map_err(|_| {
            D::Error::custom("a message ends as handled, gone, unreadable, stuck, {parked: REASON, record: …} or {in: QUEUE, record: …}")
        })? {
            WrittenEnd::Word(word) if word == "handled" => Ok(Self::Handled),
            WrittenEnd::Word(word) if word == "gone" => Ok(Self::Gone),
            WrittenEnd::Word(word) if word == "unreadable" => Ok(Self::Unreadable),
            WrittenEnd::Word(word) if word == "stuck" => Ok(Self::Stuck),
            WrittenEnd::Word(word) => Err(D::Error::custom(format!("'{word}' is no end of a message"))),
            WrittenEnd::Parked { parked: reason, record } if parked => Ok(Self::Parked { reason, record }),
            WrittenEnd::Parked { .. } => Err(D::Error::custom("an end names 'parked' or 'in'")),
            WrittenEnd::In { r#in: queue, record } => Ok(Self::In { queue, record }),
        }
    }
}

/// A number, or bounds of one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// The least.
    pub at_least: usize,
    /// The most.
    pub at_most: usize,
}

impl Count {
    /// Whether a number is within the bounds.
    pub fn allows(self, number: usize) -> bool {
        (self.at_least..=self.at_most).contains(&number)
    }
}

impl fmt::Display for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self { at_least, at_most } if at_least == at_most => write!(f, "{at_least}"),
            Self {
                at_least,
                at_most: usize::MAX,
            } => write!(f, "at least {at_least}"),
            Self { at_least, at_most } => write!(f, "{at_least} to {at_most}"),
        }
    }
}

#[derive(Deserialize)]
#[serde(untagged, deny_unknown_fields)]
enum WrittenCount {
    Exactly(usize),
    Between {
        at_least: Option<usize>,
        at_most: Option<usize>,
    },
}

impl<'de> Deserialize<'de> for Count {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(match WrittenCount::deserialize(deserializer)? {
            WrittenCount::Exactly(number) => Self {
                at_least: number,
                at_most: number,
            },
            WrittenCount::Between { at_least, at_most } => Self {
                at_least: at_least.unwrap_or(0),
                at_most: at_most.unwrap_or(usize::MAX),
            },
        })
    }
}

/// How a consumer is refused.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Refusal {
    /// The error's stable code.
    pub code: Option<String>,
    /// Words that its text contains.
    #[serde(default)]
    pub says: Vec<String>,
}
