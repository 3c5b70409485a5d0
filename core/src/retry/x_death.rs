//! One death of a message, as the broker writes it into `x-death`.

use std::time::{Duration, SystemTime};

use lapin::types::FieldTable;

use super::headers;

/// From which queue the broker dead-lettered a message, and why (one entry of `x-death`).
///
/// Only the newest entry is always the broker's own. Before RabbitMQ 4.0, older entries may come from a publisher that wrote an `x-death`
/// header itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct XDeath {
    /// The queue the message left.
    pub queue: String,
    /// The reason, in RabbitMQ's words: `rejected`, `expired`, `maxlen` or `delivery_limit`.
    pub reason: String,
    /// How often the message died in this queue for this reason.
    pub count: u32,
    /// The exchange through which it came to this queue; empty for the default exchange.
    pub exchange: String,
    /// The routing key with which it came to this queue; the first, if there were several.
    pub routing_key: String,
    /// When it died, in whole seconds.
    pub at: Option<SystemTime>,
    /// The message's own `expiration` in ms, which the broker removes when it dies.
    pub expiration: Option<String>,
}

impl XDeath {
    /// All deaths in the headers, newest first. A value that is not a list of tables counts as empty. A field that is missing or has the
    /// wrong type is left empty.
    #[must_use]
    pub fn all(table: &FieldTable) -> Vec<Self> {
        let deaths = headers::deaths(table).into_iter();
        deaths.map(Self::read).collect()
    }

    fn read(death: &FieldTable) -> Self {
        let text = |name| headers::string(death, name);
        Self {
            queue: text("queue").unwrap_or_default(),
            reason: text("reason").unwrap_or_default(),
            count: headers::count(death, "count").ok().flatten().unwrap_or(0),
            exchange: text("exchange").unwrap_or_default(),
            routing_key: headers::first_routing_key(death).unwrap_or_default(),
            at: headers::timestamp(death, "time")
                .ok()
                .flatten()
                .map(|seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)),
            expiration: text("original-expiration"),
        }
    }
}

#[cfg(test)]
mod tests {
    use lapin::types::{AMQPValue, FieldArray};

    use super::*;

    fn long(text: &str) -> AMQPValue {
        AMQPValue::LongString(text.into())
    }

    fn headers_with(deaths: Vec<AMQPValue>) -> FieldTable {
        let mut table = FieldTable::default();
        table.insert(
            "x-death".into(),
            AMQPValue::FieldArray(FieldArray::from(deaths)),
        );
        table
    }

    #[test]
    fn a_death_is_read_whole() {
        let mut death = FieldTable::default();
        for (name, value) in [
            ("queue", long("orders")),
            ("reason", long("rejected")),
            ("count", AMQPValue::LongLongInt(3)),
            ("exchange", long("shop")),
            (
                "routing-keys",
                AMQPValue::FieldArray(FieldArray::from(vec![long("eu.de"), long("cc")])),
            ),
            ("time", AMQPValue::Timestamp(1_800_000_000)),
            ("original-expiration", long("5000")),
        ] {
            death.insert(name.into(), value);
        }
        let read = XDeath::all(&headers_with(vec![AMQPValue::FieldTable(death)]));
        let expected = XDeath {
            queue: "orders".to_owned(),
            reason: "rejected".to_owned(),
            count: 3,
            exchange: "shop".to_owned(),
            routing_key: "eu.de".to_owned(),
            at: Some(SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000)),
            expiration: Some("5000".to_owned()),
        };
        assert_eq!(read, [expected]);
    }

    #[test]
    fn whatever_stands_there_is_read() {
        let mut odd = FieldTable::default();
        odd.insert("queue".into(), AMQPValue::LongLongInt(7));
        odd.insert("count".into(), AMQPValue::LongLongInt(-1));
        odd.insert("time".into(), long("noon"));
        let read = XDeath::all(&headers_with(vec![
            long("no table"),
            AMQPValue::FieldTable(odd),
        ]));
        assert_eq!(read, [XDeath::default()]);
        let mut table = FieldTable::default();
        table.insert("x-death".into(), long("none"));
        assert_eq!(XDeath::all(&table), []);
        assert_eq!(XDeath::all(&FieldTable::default()), []);
    }
}
