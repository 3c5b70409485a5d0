//! What clients see, in a form in which the model and a real broker can be compared.

use retryrmq_model::lapin::BasicProperties;
use retryrmq_model::lapin::types::{AMQPValue, FieldArray, FieldTable};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// What one life of a channel has seen.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct ChannelObservation {
    /// Deliveries by their tags.
    pub(crate) deliveries: BTreeMap<u64, Seen>,
    /// Consumers that have ended, by our wish or not.
    pub(crate) ended: BTreeSet<String>,
    /// Whether the broker has closed the channel.
    pub(crate) closed: bool,
    /// Whether its client has closed it.
    pub(crate) left: bool,
}

/// A delivery.
#[derive(Clone, PartialEq)]
pub(crate) struct Seen {
    pub(crate) consumer: String,
    pub(crate) redelivered: bool,
    pub(crate) exchange: String,
    pub(crate) routing_key: String,
    pub(crate) body: String,
    pub(crate) properties: BasicProperties,
}

impl Seen {
    /// Without what a clock has written.
    pub(crate) fn timeless(mut self) -> Self {
        if let Some(headers) = self.properties.headers().clone() {
            let headers = table_without_times(&headers);
            self.properties = self.properties.with_headers(headers);
        }
        self
    }
}

impl fmt::Debug for Seen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let headers = self.properties.headers().clone().unwrap_or_default();
        let plain = self.properties.clone().with_headers(FieldTable::default());
        let expiration = plain.expiration().as_ref().map(|text| text.as_str());
        write!(
            f,
            "{:?} to {:?}, redelivered {}, from {:?}/{:?}, expiration {expiration:?}, {}",
            self.body,
            self.consumer,
            self.redelivered,
            self.exchange,
            self.routing_key,
            words(&AMQPValue::FieldTable(headers)),
        )
    }
}

fn table_without_times(table: &FieldTable) -> FieldTable {
    let mut timeless = FieldTable::default();
    for (name, value) in table.inner() {
        timeless.insert(name.clone(), without_times(value));
    }
    timeless
}

fn without_times(value: &AMQPValue) -> AMQPValue {
    match value {
        AMQPValue::Timestamp(_) => AMQPValue::Timestamp(0),
        AMQPValue::FieldTable(table) => AMQPValue::FieldTable(table_without_times(table)),
        AMQPValue::FieldArray(values) => {
            let values: Vec<AMQPValue> = values.as_slice().iter().map(without_times).collect();
            AMQPValue::FieldArray(FieldArray::from(values))
        }
        other => other.clone(),
    }
}

/// A header in few words, with its type where that is not plain.
fn words(value: &AMQPValue) -> String {
    match value {
        AMQPValue::FieldTable(table) => {
            let fields = table.inner().iter();
            let fields: Vec<String> = fields
                .map(|(name, value)| format!("{name}: {}", words(value)))
                .collect();
            format!("{{{}}}", fields.join(", "))
        }
        AMQPValue::FieldArray(values) => {
            let values: Vec<String> = values.as_slice().iter().map(words).collect();
            format!("[{}]", values.join(", "))
        }
        AMQPValue::LongString(text) => format!("{:?}", String::from_utf8_lossy(text.as_bytes())),
        AMQPValue::LongLongInt(number) => number.to_string(),
        AMQPValue::Timestamp(_) => "time".into(),
        other => format!("{other:?}"),
    }
}

/// What is seen after a step.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Observation {
    /// By the number of the channel's life.
    pub(crate) channels: BTreeMap<usize, ChannelObservation>,
    /// How many messages are ready in `work` and `next`; `None` where there is no such queue.
    pub(crate) depths: [Option<u32>; 2],
}

/// What a step gives back to whoever does it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Nothing,
    Stored,
    Refused,
    Returned,
    Purged(u32),
}

/// The differences in words; empty when there are none.
pub(crate) fn differences(model: &Observation, real: &Observation) -> String {
    let mut text = String::new();
    if model.depths != real.depths {
        let (model, real) = (model.depths, real.depths);
        text +=
            &format!("  depths of [work, next]: the model says {model:?}, the broker {real:?}\n");
    }
    let nothing = ChannelObservation::default();
    let lives: BTreeSet<usize> = model
        .channels
        .keys()
        .chain(real.channels.keys())
        .copied()
        .collect();
    for life in lives {
        let one = model.channels.get(&life).unwrap_or(&nothing);
        let other = real.channels.get(&life).unwrap_or(&nothing);
        if one.closed != other.closed {
            text += &format!(
                "  channel life {life} closed: the model says {}, the broker {}\n",
                one.closed, other.closed
            );
        }
        if one.ended != other.ended {
            text += &format!(
                "  channel life {life}, consumers that ended: the model says {:?}, the broker {:?}\n",
                one.ended, other.ended
            );
        }
        let tags: BTreeSet<u64> = one
            .deliveries
            .keys()
            .chain(other.deliveries.keys())
            .copied()
            .collect();
        for tag in tags {
            let (one, other) = (one.deliveries.get(&tag), other.deliveries.get(&tag));
            if one != other {
                text += &format!(
                    "  channel life {life}, delivery {tag}:\n    model:  {one:?}\n    broker: {other:?}\n"
                );
            }
        }
    }
    text
}
