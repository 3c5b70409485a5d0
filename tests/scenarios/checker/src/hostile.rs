//! Hostile messages with their name in the scenario on them.
//!
//! The harness knows the bytes; what is added here is the header `scenario-id`, because a message whose id nobody can
//! read could not be judged.

use retryrmq_harness::hostile::{self, Hostile, RawPublisher, flag};

use crate::scenario::{HostileKind, ID_HEADER, Message};

/// Publishes a hostile message into a queue, byte for byte. It blocks.
pub fn publish(url: &str, queue: &str, message: &Message, hostility: HostileKind) {
    RawPublisher::connect(url).publish(
        &marked(of_harness(hostility), &message.id),
        queue,
        &message.bytes(),
    );
}

fn of_harness(hostility: HostileKind) -> Hostile {
    let property = |name: &str| {
        let found = Hostile::properties()
            .into_iter()
            .find(|hostile| hostile.name == name);
        found.unwrap_or_else(|| panic!("the harness knows no hostile {name}"))
    };
    match hostility {
        HostileKind::NestedTables => Hostile::nested_tables(1_000),
        HostileKind::NestedArrays => Hostile::nested_arrays(2_000),
        HostileKind::HeaderKey => Hostile::header_key(),
        HostileKind::InnerHeaderKey => Hostile::inner_header_key(),
        HostileKind::RoutingKey => Hostile::routing_key(),
        HostileKind::ContentType => property("content_type"),
        HostileKind::CorrelationId => property("correlation_id"),
        HostileKind::MessageId => property("message_id"),
        HostileKind::Type => property("type"),
        HostileKind::AppId => property("app_id"),
    }
}

/// The same message with the header that names it, in its table or in one of its own.
fn marked(mut message: Hostile, id: &str) -> Hostile {
    let mark = hostile::entry(ID_HEADER.as_bytes(), b'S', &hostile::long(id.as_bytes()));
    let (flags, list) = message.properties.split_at(2);
    let flags = u16::from_be_bytes([flags[0], flags[1]]);
    let list = if flags & flag::HEADERS == 0 {
        let headers = hostile::long(&mark);
        // properties stand in the order of their flags
        let before = flags & (flag::CONTENT_TYPE | flag::CONTENT_ENCODING) != 0;
        if before {
            [list, &headers[..]].concat()
        } else {
            [&headers[..], list].concat()
        }
    } else {
        let (_, table) = list.split_at(4);
        hostile::long(&[table, &mark[..]].concat())
    };
    message.properties = hostile::properties(flags | flag::HEADERS, &list);
    message
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mark_stands_in_the_table_or_in_its_place() {
        let id = b"\x0bscenario-idS\0\0\0\x01a";
        let in_table = marked(of_harness(HostileKind::HeaderKey), "a").properties;
        assert!(in_table.ends_with(id));
        assert_eq!(
            usize::from(in_table[5]),
            in_table.len() - 6,
            "the table's length counts it"
        );
        let before = marked(of_harness(HostileKind::MessageId), "a").properties;
        assert!(before.ends_with(b"\x04a\xff\xfeb") && before[6..].starts_with(id));
        let after = marked(of_harness(HostileKind::ContentType), "a").properties;
        assert!(after.ends_with(id) && after[2..].starts_with(b"\x04a\xff\xfeb"));
    }
}
