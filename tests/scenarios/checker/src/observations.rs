//! Everything that was seen of one run: the only thing that is judged.

use std::collections::BTreeMap;

use lapin::BasicProperties;
use lapin::types::{AMQPValue, FieldTable};
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::line::{Attempt, Line};
use crate::matcher::{self, Seen as Sighting};
use crate::scenario::{EventExpect, FieldMatchers, ID_HEADER};

/// What a driver told and what the broker held in the end.
#[derive(Clone, Debug, Default)]
pub struct Observations {
    /// When each message was published, in milliseconds since 1970.
    pub published: BTreeMap<String, u64>,
    /// Every call of the handler, in the order in which they were printed.
    pub attempts: Vec<Attempt>,
    /// When each run of the handler ended, where the driver said so.
    pub settled: BTreeMap<(String, usize), u64>,
    /// The events that the driver reported: their names, and what they say.
    pub events: Vec<(String, Value)>,
    /// The lines of the library's log, with their levels.
    pub log: Vec<(String, String)>,
    /// What each replay showed of the message that it was about, with the message's id, in order.
    pub replayed: Vec<(String, Value)>,
    /// Code and text of the refusal, if the subscription was refused.
    pub refused: Option<(String, String)>,
    /// How often the driver was started again after an `exit` step.
    pub restarts: usize,
    /// What went wrong outside of what a scenario can expect: a driver that died, a line that is none, ….
    pub problems: Vec<String>,
    /// How many messages are in each queue that is not read in the end, because that would close the connection.
    pub unread: BTreeMap<String, u32>,
    /// The messages in each queue in the end, head first.
    pub left: BTreeMap<String, Vec<RemainingMessage>>,
    /// Every queue that exists in the end, and what the broker says of it.
    pub queues: BTreeMap<String, Value>,
}

/// A message in a queue in the end.
#[derive(Clone, Debug)]
pub struct RemainingMessage {
    /// Its properties, headers among them.
    pub properties: BasicProperties,
    /// The exchange it was last published to.
    pub exchange: String,
    /// The routing key it was last published with.
    pub routing_key: String,
    /// Length of its body.
    pub body_bytes: u64,
    /// SHA-256 of its body.
    pub body_sha256: String,
}

impl RemainingMessage {
    /// Which message of the scenario it is, as far as it says so.
    pub fn id(&self) -> Option<String> {
        let mark = self
            .properties
            .headers()
            .as_ref()
            .and_then(|headers| headers.inner().get(ID_HEADER));
        match mark {
            Some(AMQPValue::LongString(id)) => Some(id.to_string()),
            _ => self
                .properties
                .message_id()
                .as_ref()
                .map(ToString::to_string),
        }
    }

    /// Its headers, an empty table when there are none.
    pub fn headers(&self) -> FieldTable {
        self.properties.headers().clone().unwrap_or_default()
    }
}

impl Observations {
    /// Whether a line of the log has this level and holds what follows it.
    pub fn logged(&self, wanted: &str) -> bool {
        let (wanted_level, held) = wanted.split_once(' ').unwrap_or((wanted, ""));
        self.log
            .iter()
            .any(|(level, text)| level == wanted_level && text.contains(held))
    }

    /// What is wrong with the events of a name, unless one of them is as expected.
    pub fn told(&self, wanted: &EventExpect) -> Vec<String> {
        let of = |name: &str, fields: &FieldMatchers| -> Vec<String> {
            let differences =
                self.events
                    .iter()
                    .filter(|(told, _)| told == name)
                    .map(|(_, said)| {
                        let each = fields.iter().flat_map(|(field, expected)| {
                            let place = format!("event {name}, {field}");
                            matcher::differences(
                                &place,
                                expected,
                                said.get(field).map(Sighting::Told),
                            )
                        });
                        each.collect::<Vec<_>>()
                    });
            let closest = differences.min_by_key(Vec::len);
            closest.unwrap_or_else(|| {
                let names: Vec<_> = self.events.iter().map(|(name, _)| name).collect();
                vec![format!("expected the event '{name}', saw {names:?}")]
            })
        };
        let all = wanted.named().into_iter();
        all.flat_map(|(name, fields)| of(name, &fields)).collect()
    }

    /// Takes in a line of the driver.
    pub fn note(&mut self, line: Line) {
        match line {
            Line::Attempt(attempt) => self.attempts.push(attempt),
            Line::Settled { id, run, at_ms } => {
                self.settled.insert((id, run), at_ms);
            }
            Line::Event { kind, rest } => self.events.push((kind, Value::Object(rest))),
            Line::Log { level, text } => self.log.push((level, text)),
            Line::Parked { id, record } => self.replayed.push((id, Value::Object(record))),
            Line::Refused { code, message } => self.refused = Some((code, message)),
            Line::Published { id, at_ms } => {
                self.published.insert(id, at_ms);
            }
            Line::Ready {} | Line::Done {} | Line::Driver { .. } => {}
        }
    }

    /// The runs of a message.
    pub fn runs<'a>(&'a self, id: &'a str) -> impl Iterator<Item = &'a Attempt> {
        self.attempts.iter().filter(move |attempt| attempt.id == id)
    }

    /// How often the handler ran, message by message.
    pub fn run_counts(&self) -> BTreeMap<String, usize> {
        let mut counts = BTreeMap::new();
        for attempt in &self.attempts {
            *counts.entry(attempt.id.clone()).or_default() += 1;
        }
        counts
    }
}

/// SHA-256 in lower-case hexadecimal digits.
pub fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes)
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}
