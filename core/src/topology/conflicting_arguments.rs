//! Arguments that a work queue's owner set, and that do not affect a strategy that needs arguments of its own there.
//!
//! AMQP does not show a queue's arguments. But a declaration that differs is refused with the first argument that differs, and its value
//! (406, `inequivalent arg`).

use crate::types::AMQPValue;

/// Arguments that a work queue may have besides those of a strategy. Arguments that make the broker drop or dead-letter messages are not
/// among them (`x-message-ttl`, `x-max-length`, `x-delivery-limit`, …): such messages would go round through the waiting queue without an
/// attempt, and RabbitMQ silently drops those (fact 8).
const HARMLESS: [&str; 10] = [
    "x-max-priority",
    "x-single-active-consumer",
    "x-queue-mode",
    "x-queue-version",
    "x-queue-leader-locator",
    "x-queue-master-locator",
    "x-quorum-initial-group-size",
    "x-quorum-target-group-size",
    "x-consumer-timeout",
    "x-expires",
];

/// Whether a work queue may have this argument, whatever the strategy.
pub(super) fn is_harmless(name: &str) -> bool {
    HARMLESS.contains(&name)
}

/// The argument that the queue has and the declaration lacked, if it is harmless.
pub(super) fn argument(refusal: &str) -> Option<(String, AMQPValue)> {
    missing_argument(refusal).filter(|(name, _)| is_harmless(name))
}

/// The argument that an existing queue has and the refused declaration lacked, with its value.
pub(crate) fn missing_argument(refusal: &str) -> Option<(String, AMQPValue)> {
    let (_, rest) = refusal.split_once("inequivalent arg '")?;
    let (name, rest) = rest.split_once('\'')?;
    let (_, rest) = rest.split_once("received none but current is the value '")?;
    let (value, rest) = rest.split_once("' of type '")?;
    let (kind, _) = rest.split_once('\'')?;
    let value = match kind {
        "longstr" => AMQPValue::LongString(value.into()),
        "bool" => AMQPValue::Boolean(value.parse().ok()?),
        // The broker compares numbers whatever their width.
        _ => AMQPValue::LongLongInt(value.parse().ok()?),
    };
    Some((name.to_owned(), value))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(name: &str, value: &str, kind: &str) -> String {
        format!(
            "PRECONDITION_FAILED - inequivalent arg '{name}' for queue 'orders' in vhost '/': received none but current is the value '{value}' of type '{kind}'"
        )
    }

    #[test]
    fn what_is_harmless_is_read() {
        for (name, value, kind, read) in [
            (
                "x-max-priority",
                "10",
                "signedint",
                AMQPValue::LongLongInt(10),
            ),
            ("x-expires", "60000", "long", AMQPValue::LongLongInt(60_000)),
            (
                "x-single-active-consumer",
                "true",
                "bool",
                AMQPValue::Boolean(true),
            ),
            (
                "x-queue-mode",
                "lazy",
                "longstr",
                AMQPValue::LongString("lazy".into()),
            ),
        ] {
            let found = argument(&said(name, value, kind));
            assert_eq!(found, Some((name.to_owned(), read)), "{name}");
        }
    }

    #[test]
    fn what_is_not_is_left_to_the_refusal() {
        for text in [
            "",
            "inequivalent arg '",
            &said("x-message-ttl", "1000", "signedint"),
            &said("x-max-length", "1", "signedint"),
            &said("x-max-priority", "many", "signedint"),
            "inequivalent arg 'x-dead-letter-exchange' for queue 'q' in vhost '/': received '' but current is 'dlx'",
        ] {
            assert_eq!(argument(text), None, "{text}");
        }
    }
}
