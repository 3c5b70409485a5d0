//! The queues and exchanges of messages with a delay.

use std::borrow::Cow;

use retryrmq::{Argument, Item, Plan, QueueType, parking_queue};

use super::DelayedSections;
use crate::queue_names::DELAYED_QUEUE;

/// What is declared for these sections.
pub(super) fn plan(sections: &DelayedSections) -> Plan {
    let text = |text: &str| Argument::Text(text.to_owned());
    let arguments = [
        ("x-queue-type", text("quorum")),
        // A number, not -1 for "unlimited": 3.10 takes -1 for "none" and loses the message at the first return.
        ("x-delivery-limit", Argument::Number(1_000_000_000)),
        ("x-dead-letter-exchange", text("")),
        (
            "x-dead-letter-routing-key",
            text(&parking_queue(DELAYED_QUEUE)),
        ),
        ("x-dead-letter-strategy", text("at-least-once")),
        ("x-overflow", text("reject-publish")),
    ];
    let arguments = arguments
        .into_iter()
        .map(|(name, value)| (Cow::Borrowed(name), value));
    let queues = [
        Item::parking(DELAYED_QUEUE, QueueType::Quorum),
        Item::queue(
            DELAYED_QUEUE,
            arguments.collect(),
            "messages with a delay come here",
        ),
    ];
    let exchanges = sections.iter().flat_map(|(exchange, section)| {
        [
            Item::exchange(
                exchange,
                section.kind.as_str(),
                "messages with a delay are published here",
            ),
            Item::binding(DELAYED_QUEUE, exchange, "#"),
        ]
    });
    Plan::new(queues.into_iter().chain(exchanges))
}
