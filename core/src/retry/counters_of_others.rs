//! The counters that other libraries keep in headers. A message that is replayed counts from the start for them, too: with an old counter, its
//! consumer gives up at once.

use std::collections::BTreeMap;

use lapin::types::{AMQPValue, FieldTable, ShortString};

/// Headers that are nothing but a counter, or the history that one is read from.
const COUNTERS: [&str; 6] = [
    // MassTransit
    "MT-Redelivery-Count",
    // NServiceBus, before and since its version 6
    "NServiceBus.Retries",
    "NServiceBus.FLRetries",
    "NServiceBus.DelayedRetries",
    // Symfony Messenger
    "X-Message-Stamp-Symfony\\Component\\Messenger\\Stamp\\RedeliveryStamp",
    // Moleculer Channels
    "x-redelivered-count",
];

/// Counters within a header that is a table, with others beside them.
const WITHIN: [(&str, &str); 2] = [
    // By queue: how often it was republished, and whether it is to be rejected at once.
    ("rascal", "recovery"),
    ("laravel", "attempts"),
];

/// The counter of Celery, in a header of a common name; these others show that the message is a task.
const CELERY: (&str, [&str; 2]) = ("retries", ["task", "root_id"]);

/// Removes all counters of other libraries.
pub(super) fn reset(headers: &mut BTreeMap<ShortString, AMQPValue>) {
    for name in COUNTERS {
        headers.remove(name);
    }
    for (name, counter) in WITHIN {
        if let Some(AMQPValue::FieldTable(table)) = headers.get_mut(name)
            && table.contains_key(counter)
        {
            *table = without(table, counter);
        }
    }
    let (counter, of_a_task) = CELERY;
    if of_a_task.iter().all(|name| headers.contains_key(*name))
        && let Some(retries) = headers.get_mut(counter)
    {
        *retries = AMQPValue::LongLongInt(0);
    }
}

/// A finished table cannot lose an entry.
fn without(table: &FieldTable, name: &str) -> FieldTable {
    let mut rest = FieldTable::default();
    for (other, value) in table.inner() {
        if other.as_str() != name {
            rest.insert(other.clone(), value.clone());
        }
    }
    rest
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(entries: &[(&str, AMQPValue)]) -> AMQPValue {
        let mut table = FieldTable::default();
        for (name, value) in entries {
            table.insert((*name).into(), value.clone());
        }
        AMQPValue::FieldTable(table)
    }

    fn number(number: i64) -> AMQPValue {
        AMQPValue::LongLongInt(number)
    }

    #[test]
    fn counters_are_gone_and_what_stands_beside_them_stays() {
        let recovery = table(&[(
            "orders",
            table(&[("immediateNack", AMQPValue::Boolean(true))]),
        )]);
        let mut headers = BTreeMap::from([
            (
                "rascal".into(),
                table(&[("recovery", recovery), ("originalQueue", number(1))]),
            ),
            ("laravel".into(), table(&[("attempts", number(2))])),
            ("MT-Redelivery-Count".into(), number(3)),
            ("x-redelivered-count".into(), number(2)),
            ("retries".into(), number(4)),
            ("tenant".into(), number(5)),
        ]);
        reset(&mut headers);
        let expected = BTreeMap::from([
            ("rascal".into(), table(&[("originalQueue", number(1))])),
            ("laravel".into(), table(&[])),
            ("retries".into(), number(4)),
            ("tenant".into(), number(5)),
        ]);
        assert_eq!(headers, expected);
    }

    #[test]
    fn a_task_of_celery_has_had_no_retries() {
        let mut headers = BTreeMap::from([
            ("task".into(), number(0)),
            ("root_id".into(), number(0)),
            ("retries".into(), number(3)),
        ]);
        reset(&mut headers);
        assert_eq!(headers["retries"], number(0));
    }
}
