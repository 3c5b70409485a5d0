//! Deaths: what brokers write down when a message leaves a queue for its dead-letter exchange.
//!
//! 3.10 counts in the header `x-death` of the message itself, so whoever publishes can forge it; 4.x keeps its own counts
//! and writes the header when it delivers.

use crate::Name;
use crate::message::End;
use lapin::types::{AMQPValue, FieldArray, FieldTable};

/// Of what a message died.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Reason {
    Rejected,
    Expired,
    MaxLength,
    DeliveryLimit,
}

impl Reason {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Reason::Rejected => "rejected",
            Reason::Expired => "expired",
            Reason::MaxLength => "maxlen",
            Reason::DeliveryLimit => "delivery_limit",
        }
    }
}

/// One kind of death in one queue.
#[derive(Clone, Debug)]
struct Death {
    queue: Name,
    reason: Reason,
    count: i64,
    exchange: Name,
    routing_keys: Vec<Name>,
    time: u64,
    original_expiration: Option<String>,
}

/// The deaths of a message on 4.x, the newest first.
#[derive(Clone, Debug, Default)]
pub(crate) struct Deaths {
    newest_first: Vec<Death>,
    first: Option<(Reason, Name, Name)>,
    last: Option<(Reason, Name, Name)>,
}

impl Deaths {
    pub(crate) fn record(
        &mut self,
        end: &End<'_>,
        exchange: &Name,
        keys: &[Name],
        expiration: Option<String>,
    ) {
        let known = self
            .newest_first
            .iter()
            .position(|death| death.queue == *end.queue && death.reason == end.reason);
        let mut death = known.map_or_else(
            || Death {
                queue: end.queue.clone(),
                reason: end.reason,
                count: 0,
                exchange: exchange.clone(),
                routing_keys: keys.to_vec(),
                time: end.time,
                original_expiration: expiration,
            },
            |index| self.newest_first.remove(index),
        );
        death.count += 1;
        self.newest_first.insert(0, death);
        let event = (end.reason, end.queue.clone(), exchange.clone());
        self.first.get_or_insert_with(|| event.clone());
        self.last = Some(event);
    }

    /// The target is among the deaths, and since then nobody has rejected it.
    pub(crate) fn is_cycle(&self, target: &str) -> bool {
        let Some(index) = (self.newest_first.iter()).position(|death| *death.queue == *target)
        else {
            return false;
        };
        self.newest_first[..=index]
            .iter()
            .all(|death| death.reason != Reason::Rejected)
    }

    pub(crate) fn write(&self, headers: &mut FieldTable) {
        let entries: Vec<AMQPValue> = self.newest_first.iter().map(Death::entry).collect();
        headers.insert(
            "x-death".into(),
            AMQPValue::FieldArray(FieldArray::from(entries)),
        );
        for (which, event) in [("first", &self.first), ("last", &self.last)] {
            if let Some((reason, queue, exchange)) = event {
                write_event(headers, which, *reason, queue, exchange);
            }
        }
    }
}

impl Death {
    fn entry(&self) -> AMQPValue {
        let mut fields = FieldTable::default();
        fields.insert("count".into(), AMQPValue::LongLongInt(self.count));
        fields.insert("exchange".into(), text(&self.exchange));
        fields.insert("queue".into(), text(&self.queue));
        fields.insert("reason".into(), text(self.reason.as_str()));
        fields.insert("routing-keys".into(), texts(&self.routing_keys));
        fields.insert("time".into(), AMQPValue::Timestamp(self.time));
        if let Some(expiration) = &self.original_expiration {
            fields.insert("original-expiration".into(), text(expiration));
        }
        AMQPValue::FieldTable(fields)
    }
}

/// What 3.10 makes of the headers of a message that dies. A forged `x-death` is counted on; one that is no array is
/// replaced.
pub(crate) fn die_in_headers(
    headers: &FieldTable,
    end: &End<'_>,
    exchange: &Name,
    keys: &[Name],
    expiration: Option<String>,
) -> FieldTable {
    let mut headers = headers.clone();
    let new = Death {
        queue: end.queue.clone(),
        reason: end.reason,
        count: 1,
        exchange: exchange.clone(),
        routing_keys: keys.to_vec(),
        time: end.time,
        original_expiration: expiration,
    };
    let entries = match headers.inner().get("x-death") {
        None => {
            write_event(&mut headers, "first", end.reason, end.queue, exchange);
            vec![new.entry()]
        }
        Some(AMQPValue::FieldArray(known)) => {
            let (same, others): (Vec<_>, Vec<_>) = regrouped(known.as_slice())
                .into_iter()
                .partition(|entry| is_of(entry, end.queue, end.reason.as_str()));
            let newest = same.first().map_or_else(|| new.entry(), counted_once_more);
            std::iter::once(newest).chain(others).collect()
        }
        Some(_) => vec![new.entry()],
    };
    headers.insert(
        "x-death".into(),
        AMQPValue::FieldArray(FieldArray::from(entries)),
    );
    headers
}

/// As [`Deaths::is_cycle`], on 3.10.
pub(crate) fn is_cycle_in_headers(headers: Option<&FieldTable>, target: &str) -> bool {
    let Some(AMQPValue::FieldArray(deaths)) = headers.and_then(|all| all.inner().get("x-death"))
    else {
        return false;
    };
    let deaths = deaths.as_slice();
    let found = deaths
        .iter()
        .position(|entry| field_is(entry, "queue", target));
    found.is_some_and(|index| {
        let rejected = |entry: &AMQPValue| field_is(entry, "reason", "rejected");
        !deaths[..=index]
            .iter()
            .any(|entry| rejected(entry) || !matches!(entry, AMQPValue::FieldTable(_)))
    })
}

/// 3.10 groups what it finds by queue and reason, and turns it around on the way when there is more than one. So its
/// deaths are in no order that means anything, and one rejection may keep it from ever seeing a circle.
fn regrouped(known: &[AMQPValue]) -> Vec<AMQPValue> {
    if known.len() < 2 {
        return known.to_vec();
    }
    let mut groups: Vec<AMQPValue> = Vec::with_capacity(known.len());
    for entry in known {
        if !groups.iter().any(|group| are_alike(group, entry)) {
            groups.push(entry.clone());
        }
    }
    groups.reverse();
    groups
}

fn are_alike(one: &AMQPValue, other: &AMQPValue) -> bool {
    match (one, other) {
        (AMQPValue::FieldTable(one), AMQPValue::FieldTable(other)) => ["queue", "reason"]
            .iter()
            .all(|field| one.inner().get(*field) == other.inner().get(*field)),
        _ => false,
    }
}

fn is_of(entry: &AMQPValue, queue: &str, reason: &str) -> bool {
    field_is(entry, "queue", queue) && field_is(entry, "reason", reason)
}

fn field_is(entry: &AMQPValue, name: &str, expected: &str) -> bool {
    let AMQPValue::FieldTable(fields) = entry else {
        return false;
    };
    matches!(fields.inner().get(name), Some(AMQPValue::LongString(text)) if text.as_bytes() == expected.as_bytes())
}

fn counted_once_more(entry: &AMQPValue) -> AMQPValue {
    let AMQPValue::FieldTable(fields) = entry else {
        return entry.clone();
    };
    let count = match fields.inner().get("count") {
        Some(AMQPValue::LongLongInt(count)) => count.wrapping_add(1),
        Some(AMQPValue::LongInt(count)) => i64::from(*count) + 1,
        _ => 1,
    };
    let mut fields = fields.clone();
    fields.insert("count".into(), AMQPValue::LongLongInt(count));
    AMQPValue::FieldTable(fields)
}

fn write_event(headers: &mut FieldTable, which: &str, reason: Reason, queue: &str, exchange: &str) {
    let fields = [
        ("reason", reason.as_str()),
        ("queue", queue),
        ("exchange", exchange),
    ];
    for (field, value) in fields {
        headers.insert(
            format!("x-{which}-death-{field}").as_str().into(),
            text(value),
        );
    }
}

fn text(value: &str) -> AMQPValue {
    AMQPValue::LongString(value.into())
}

fn texts(values: &[Name]) -> AMQPValue {
    let values: Vec<AMQPValue> = values.iter().map(|value| text(value)).collect();
    AMQPValue::FieldArray(FieldArray::from(values))
}
