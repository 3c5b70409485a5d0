//! Symfony Messenger 5 to 7 with its AMQP transport: what has spent its retries is sent to the failure transport, with stamps of
//! the failure: as headers in JSON with the `Serializer`, within the body with PHP's own serialization, which is the default.
//!
//! Documented at <https://symfony.com/doc/current/messenger.html#saving-retrying-failed-messages>; the stamps are classes of
//! `Symfony\Component\Messenger\Stamp`.

use serde::Deserialize;

use super::{
    php,
    raw_dead_letter::{
        DeadLetter, DeadLetterSource, ERROR, Library, NAME, RawDeadLetter, ReplayedMessage, STACK,
    },
    time,
    value::cut,
};

const STAMPS: &str = "X-Message-Stamp-Symfony\\Component\\Messenger\\Stamp\\";

/// Without these Symfony drops the message when it fails again: it takes it for one that failed in the failure transport.
const ADDED: [&str; 4] = [
    "SentToFailureTransportStamp",
    "ErrorDetailsStamp",
    "RedeliveryStamp",
    "DelayStamp",
];

pub(crate) fn read(dead_letter: &RawDeadLetter<'_>) -> Option<DeadLetter> {
    let stamp = |name: &str| dead_letter.text(&format!("{STAMPS}{name}"), 256 * 1024);
    let (sent, details) = (
        stamp("SentToFailureTransportStamp"),
        stamp("ErrorDetailsStamp"),
    );
    if sent.is_none() && details.is_none() {
        return serialized(dead_letter);
    }
    let details: Option<Details> = details.as_deref().and_then(last);
    let sent: Option<Sent> = sent.as_deref().and_then(last);
    let redelivered: Option<Redelivered> = stamp("RedeliveryStamp").as_deref().and_then(last);
    let details = details.unwrap_or_default();
    let flat = details.flatten_exception.unwrap_or_default();
    let added = ADDED.map(|name| format!("{STAMPS}{name}"));
    let added: Vec<&str> = added.iter().map(String::as_str).collect();
    Some(DeadLetter {
        error: details
            .exception_message
            .map(|text| cut(&text, ERROR))
            .unwrap_or_default(),
        error_type: details
            .exception_class
            .map(|name| cut(&name, NAME))
            .unwrap_or_default(),
        stack: flat
            .trace_as_string
            .filter(|trace| !trace.is_empty())
            .or_else(|| Some(format!("{}:{}", flat.file?, flat.line?)))
            .map(|trace| cut(&trace, STACK)),
        message_type: dead_letter.text("type", NAME),
        failed_at: redelivered
            .and_then(|stamp| stamp.redelivered_at)
            .and_then(|text| time::iso(&text)),
        replay: ReplayedMessage::Without(dead_letter.names(&added)),
        ..DeadLetter::of(
            Library::Symfony,
            unknown(sent.and_then(|stamp| stamp.original_receiver_name)),
        )
    })
}

/// Symfony writes down its own name of the transport, which its configuration maps to queues.
fn unknown(transport: Option<String>) -> DeadLetterSource {
    DeadLetterSource::Unknown(match transport {
        Some(name) => format!(
            "it came from Symfony's transport `{}`, whose queue messenger.yaml names",
            cut(&name, NAME)
        ),
        None => "Symfony writes down no queue".to_owned(),
    })
}

/// The body is the envelope in PHP's own serialization, stamps included. Those cannot be taken off here.
fn serialized(dead_letter: &RawDeadLetter<'_>) -> Option<DeadLetter> {
    let envelope = php::Envelope::find(dead_letter.body)?;
    let of = |class: &str, property: &str, most| envelope.text(class, property, most);
    let transport = of("SentToFailureTransportStamp", "originalReceiverName", NAME)?;
    Some(DeadLetter {
        error: of("ErrorDetailsStamp", "exceptionMessage", ERROR).unwrap_or_default(),
        error_type: of("ErrorDetailsStamp", "exceptionClass", NAME).unwrap_or_default(),
        message_type: None,
        replay: ReplayedMessage::Never(
            "its body is Symfony's envelope, marked as sent to the failure transport, so that Symfony would drop it at its next \
             failure: use `bin/console messenger:failed:retry` or consume the failure transport"
                .to_owned(),
        ),
        ..DeadLetter::of(Library::Symfony, unknown(Some(transport)))
    })
}

/// The newest of the stamps of one class.
fn last<'a, T: Deserialize<'a>>(json: &'a str) -> Option<T> {
    serde_json::from_str::<Vec<T>>(json).ok()?.pop()
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Details {
    exception_class: Option<String>,
    exception_message: Option<String>,
    flatten_exception: Option<Flat>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Flat {
    trace_as_string: Option<String>,
    file: Option<String>,
    line: Option<u32>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Sent {
    original_receiver_name: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Redelivered {
    redelivered_at: Option<String>,
}
