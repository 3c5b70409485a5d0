//! MassTransit 8 (the same names since 3): a consumer that fails after its retries has its message moved to `QUEUE_error`, one
//! that nobody consumes to `QUEUE_skipped`, as it was and with `MT-` headers of the failure.
//!
//! Documented at <https://masstransit.io/documentation/concepts/exceptions#error-queue>; the names stand in `MessageHeaders` of
//! MassTransit.Abstractions.

use super::{
    raw_dead_letter::{
        DeadLetter, DeadLetterSource, ERROR, Library, NAME, RawDeadLetter, ReplayedMessage, STACK,
    },
    time,
};

/// What moving a message adds. `MT-Fault-Address` is not of these: its sender asked for faults there.
const ADDED: [&str; 14] = [
    "MT-Reason",
    "MT-Fault-ExceptionType",
    "MT-Fault-InputAddress",
    "MT-Fault-Message",
    "MT-Fault-MessageType",
    "MT-Fault-ConsumerType",
    "MT-Fault-Timestamp",
    "MT-Fault-StackTrace",
    "MT-Fault-RetryCount",
    "MT-Fault-RedeliveryCount",
    // Its delayed redeliveries are spent, and would stay so.
    "MT-Redelivery-Count",
    "MT-Forwarder-Address",
    // The host that moved it.
    "MT-Host-*",
    "MT-Fault-Data-*",
];

pub(crate) fn read(dead_letter: &RawDeadLetter<'_>) -> Option<DeadLetter> {
    let reason = dead_letter.text("MT-Reason", NAME);
    let is_fault =
        dead_letter.has("MT-Fault-ExceptionType") || dead_letter.has("MT-Fault-InputAddress");
    if reason.is_none() && !is_fault {
        return None;
    }
    let address = dead_letter.text("MT-Fault-InputAddress", 1024);
    let by_name = || {
        let suffixes = ["_error", "_skipped"];
        let queue = suffixes
            .iter()
            .find_map(|end| dead_letter.queue.strip_suffix(end))?;
        (!queue.is_empty()).then(|| queue.to_owned())
    };
    let source = match address.as_deref().and_then(queue_of).or_else(by_name) {
        Some(queue) => DeadLetterSource::Queue(queue),
        None => DeadLetterSource::Unknown("it has no `MT-Fault-InputAddress`".to_owned()),
    };
    let skipped = "no consumer takes this type of message (MT-Reason: dead-letter)";
    let error = dead_letter.text("MT-Fault-Message", ERROR);
    let retries = dead_letter.count("MT-Fault-RetryCount");
    Some(DeadLetter {
        reason: is_fault.then(|| "exhausted".to_owned()),
        error: error.unwrap_or_else(|| match reason.as_deref() {
            Some("dead-letter") => skipped.to_owned(),
            _ => String::new(),
        }),
        error_type: dead_letter
            .text("MT-Fault-ExceptionType", NAME)
            .unwrap_or_default(),
        stack: dead_letter.text("MT-Fault-StackTrace", STACK),
        message_type: dead_letter.text("MT-Fault-MessageType", NAME),
        failed_at: dead_letter
            .text("MT-Fault-Timestamp", 64)
            .and_then(|text| time::iso(&text)),
        attempts: retries.map(|retries| retries + 1),
        replay: ReplayedMessage::Without(dead_letter.names(&ADDED)),
        ..DeadLetter::of(Library::MassTransit, source)
    })
}

/// The queue at the end of an address such as `rabbitmq://host/vhost/orders?durable=true`, or of its short form `queue:orders`. A queue's
/// own name may have colons.
fn queue_of(address: &str) -> Option<String> {
    let address = address.split(['?', '#']).next()?;
    let name = match address.split_once("://") {
        Some((_, path)) => path.rsplit_once('/')?.1,
        None => address.strip_prefix("queue:")?,
    };
    let name = percent_decoded(name)?;
    (!name.is_empty() && name.len() <= NAME).then_some(name)
}

fn percent_decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'%' => {
                let digit = |byte: Option<u8>| char::from(byte?).to_digit(16);
                let number = digit(rest.next())? * 16 + digit(rest.next())?;
                u8::try_from(number).ok()?
            }
            byte => byte,
        });
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_queue_is_the_end_of_the_address() {
        for (address, queue) in [
            ("rabbitmq://localhost/orders", Some("orders")),
            (
                "rabbitmq://user@host:5671/vhost/submit-order?durable=false",
                Some("submit-order"),
            ),
            ("rabbitmq://localhost/%2f/a%20b", Some("a b")),
            ("queue:orders", Some("orders")),
            (
                "rabbitmq://localhost/billing:orders",
                Some("billing:orders"),
            ),
            ("queue:billing:orders", Some("billing:orders")),
            ("rabbitmq://localhost/", None),
            ("rabbitmq://localhost:5672", None),
            ("orders", None),
            ("rabbitmq://localhost/a%", None),
            ("", None),
        ] {
            assert_eq!(queue_of(address).as_deref(), queue, "{address}");
        }
    }
}
