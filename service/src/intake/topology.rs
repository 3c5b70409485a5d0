//! The exchange and the queues of the intake.

use std::borrow::Cow;

use retryrmq::{Argument, Arguments, Item, Plan, QueueType};

use crate::queue_names::{DEAD_EXCHANGE, HANDOVER_QUEUE, INTAKE_PARKED, INTAKE_QUEUE};

/// What the service needs before it begins.
pub(crate) fn plan() -> Plan {
    let text = |text: &str| Argument::Text(text.to_owned());
    let arguments = [
        ("x-queue-type", text("quorum")),
        // A number, not -1 for "unlimited": 3.10 takes -1 for "none" and loses the message at the first return.
        ("x-delivery-limit", Argument::Number(1_000_000_000)),
        ("x-dead-letter-exchange", text("")),
        ("x-dead-letter-routing-key", text(INTAKE_PARKED)),
        ("x-dead-letter-strategy", text("at-least-once")),
        ("x-overflow", text("reject-publish")),
    ];
    let arguments: Arguments = arguments
        .into_iter()
        .map(|(name, value)| (Cow::Borrowed(name), value))
        .collect();
    Plan::new([
        Item::parking(INTAKE_QUEUE, QueueType::Quorum),
        Item::queue(
            INTAKE_QUEUE,
            arguments.clone(),
            "dead letters wait here for the service",
        ),
        Item::internal_exchange(
            DEAD_EXCHANGE,
            "fanout",
            "queues send their dead letters here",
        ),
        Item::binding(INTAKE_QUEUE, DEAD_EXCHANGE, ""),
        // The last one: where clients find it, the rest is there as well.
        Item::queue(
            HANDOVER_QUEUE,
            arguments,
            "failures that clients hand over wait here for the service",
        ),
    ])
}
