//! NServiceBus 5 to 9 with its RabbitMQ transport: after immediate and delayed retries a message goes to `error`, as it was and
//! with headers of the failure. Values are text, numbers and times as well.
//!
//! Documented at <https://docs.particular.net/nservicebus/messaging/headers#error-forwarding-headers>.

use super::{
    raw_dead_letter::{
        DeadLetter, DeadLetterSource, ERROR, Library, NAME, RawDeadLetter, ReplayedMessage, STACK,
    },
    time,
};

/// What forwarding to `error` adds, and the counts of retries that are spent.
const ADDED: [&str; 8] = [
    "NServiceBus.FailedQ",
    "NServiceBus.TimeOfFailure",
    "NServiceBus.ExceptionInfo.*",
    "NServiceBus.Retries",
    "NServiceBus.Retries.*",
    "NServiceBus.FLRetries",
    "NServiceBus.DelayedRetries",
    "NServiceBus.DelayedRetries.*",
];

pub(crate) fn read(dead_letter: &RawDeadLetter<'_>) -> Option<DeadLetter> {
    if !dead_letter.has("NServiceBus.FailedQ")
        && !dead_letter.has("NServiceBus.ExceptionInfo.ExceptionType")
    {
        return None;
    }
    let endpoint = || dead_letter.text("NServiceBus.ProcessingEndpoint", NAME);
    let source = match dead_letter.text("NServiceBus.FailedQ", NAME) {
        Some(queue) => DeadLetterSource::Queue(queue),
        None => DeadLetterSource::Unknown(match endpoint() {
            Some(endpoint) => {
                format!("it has no `NServiceBus.FailedQ`; the endpoint was {endpoint}")
            }
            None => "it has no `NServiceBus.FailedQ`".to_owned(),
        }),
    };
    let message = dead_letter.text("NServiceBus.ExceptionInfo.Message", ERROR);
    let first = |types: String| {
        types
            .split([',', ';'])
            .next()
            .unwrap_or_default()
            .to_owned()
    };
    Some(DeadLetter {
        error: message.unwrap_or_default(),
        error_type: dead_letter
            .text("NServiceBus.ExceptionInfo.ExceptionType", NAME)
            .unwrap_or_default(),
        stack: dead_letter.text("NServiceBus.ExceptionInfo.StackTrace", STACK),
        message_type: dead_letter
            .text("NServiceBus.EnclosedMessageTypes", 1024)
            .map(first),
        failed_at: dead_letter
            .text("NServiceBus.TimeOfFailure", 64)
            .and_then(|text| time::nservicebus(&text)),
        // NServiceBus does not record immediate retries.
        attempts: None,
        replay: ReplayedMessage::Without(dead_letter.names(&ADDED)),
        ..DeadLetter::of(Library::NServiceBus, source)
    })
}
