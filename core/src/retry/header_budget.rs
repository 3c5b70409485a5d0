//! Keeps the headers of a copy within one frame. A larger content header closes the connection (AMQP 501).

use std::collections::BTreeMap;

use lapin::types::{AMQPValue, FieldTable, ShortString};

use super::headers;

/// The bytes that a table takes on the wire, with its length prefix (AMQP 0-9-1, 4.2.5.5).
pub(crate) fn encoded_size(table: &FieldTable) -> usize {
    size_of(table.inner())
}

/// The bytes that these entries take as a table.
pub(super) fn size_of(entries: &BTreeMap<ShortString, AMQPValue>) -> usize {
    4 + entries
        .iter()
        .map(|(name, value)| 1 + name.as_str().len() + value_size(value))
        .sum::<usize>()
}

fn value_size(value: &AMQPValue) -> usize {
    1 + match value {
        AMQPValue::Boolean(_) | AMQPValue::ShortShortInt(_) | AMQPValue::ShortShortUInt(_) => 1,
        AMQPValue::ShortInt(_) | AMQPValue::ShortUInt(_) => 2,
        AMQPValue::LongInt(_) | AMQPValue::LongUInt(_) | AMQPValue::Float(_) => 4,
        AMQPValue::DecimalValue(_) => 5,
        AMQPValue::LongLongInt(_) | AMQPValue::Double(_) | AMQPValue::Timestamp(_) => 8,
        AMQPValue::ShortString(text) => 1 + text.as_str().len(),
        AMQPValue::LongString(text) => 4 + text.len(),
        AMQPValue::ByteArray(bytes) => 4 + bytes.len(),
        AMQPValue::FieldArray(items) => 4 + items.as_slice().iter().map(value_size).sum::<usize>(),
        AMQPValue::FieldTable(table) => encoded_size(table),
        AMQPValue::Void => 0,
    }
}

/// Makes headers fit. It removes, in this order: our stack trace, our history, part of our error text, and then the message's own headers,
/// largest first. `x-retry-headers-cut` says that the latter happened.
pub(super) fn fit(entries: &mut BTreeMap<ShortString, AMQPValue>, budget: usize) {
    let mut size = size_of(entries);
    for ours in [headers::ERROR_STACK, headers::HISTORY, headers::ERROR] {
        if size <= budget {
            return;
        }
        if entries.remove(ours).is_some() {
            size = size_of(entries);
        }
    }
    let mut over = size.saturating_sub(budget);
    if over > 0 {
        entries.insert(
            ShortString::from(headers::HEADERS_CUT),
            AMQPValue::Boolean(true),
        );
        over += 2 + headers::HEADERS_CUT.len() + 1;
        let mut sizes: Vec<(usize, ShortString)> = entries
            .iter()
            .filter(|(name, _)| !headers::is_ours(name.as_str()))
            .map(|(name, value)| (1 + name.as_str().len() + value_size(value), name.clone()))
            .collect();
        sizes.sort();
        while over > 0
            && let Some((size, name)) = sizes.pop()
        {
            entries.remove(&name);
            over = over.saturating_sub(size);
        }
        // A forged header with one of our names can be as large as any other.
        while size_of(entries) > budget
            && let Some(name) = entries
                .iter()
                .max_by_key(|(_, value)| value_size(value))
                .map(|(name, _)| name.clone())
        {
            entries.remove(&name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_look_like_ours_push_none_of_ours_out() {
        let mut table = BTreeMap::new();
        for number in 0..8_000 {
            let name = format!("x-retry-{number}");
            table.insert(name.into(), AMQPValue::Boolean(true));
        }
        let ours = [
            (headers::COUNT, AMQPValue::LongLongInt(3)),
            (headers::HANDOVER, AMQPValue::LongString("retry".into())),
            (headers::QUEUE, AMQPValue::LongString("orders".into())),
        ];
        for (name, value) in &ours {
            table.insert((*name).into(), value.clone());
        }
        let budget = 100_000;
        assert!(size_of(&table) > budget);
        fit(&mut table, budget);
        assert!(size_of(&table) <= budget);
        for (name, value) in &ours {
            assert_eq!(table.get(*name), Some(value), "{name}");
        }
    }
}
