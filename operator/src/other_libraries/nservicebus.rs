//! NServiceBus 5 to 9 with its RabbitMQ transport: after immediate and delayed retries a message goes to `error`, as it was and
//! with headers of the failure. Values are text, numbers and times as well.
//!
//! Documented at <https://docs.particular.net/nservicebus/messaging/headers#error-forwarding-headers>.

use super::{
    raw_dead_letter::{DeadLetter, ERROR, Letter, Library, NAME, Replay, STACK, Source},
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

pub(crate) fn read(letter: &Letter<'_>) -> Option<DeadLetter> {
    if !letter.has("NServiceBus.FailedQ") && !letter.has("NServiceBus.ExceptionInfo.ExceptionType")
    {
        return None;
    }
    let endpoint = || letter.text("NServiceBus.ProcessingEndpoint", NAME);
    let source = match letter.text("NServiceBus.FailedQ", NAME) {
        Some(queue) => Source::Queue(queue),
        None => Source::Unknown(match endpoint() {
            Some(endpoint) => {
                format!("it has no `NServiceBus.FailedQ`; the endpoint was {endpoint}")
            }
            None => "it has no `NServiceBus.FailedQ`".to_owned(),
        }),
    };
    let message = letter.text("NServiceBus.ExceptionInfo.Message", ERROR);
    let first = |types: String| {
        types
            .split([',', ';'])
            .next()
            .unwrap_or_default()
            .to_owned()
    };
    Some(DeadLetter {
        error: message.unwrap_or_default(),
        error_type: letter
            .text("NServiceBus.ExceptionInfo.ExceptionType", NAME)
            .unwrap_or_default(),
        stack: letter.text("NServiceBus.ExceptionInfo.StackTrace", STACK),
        message_type: letter
            .text("NServiceBus.EnclosedMessageTypes", 1024)
            .map(first),
        failed_at: letter
            .text("NServiceBus.TimeOfFailure", 64)
            .and_then(|text| time::nservicebus(&text)),
        // Of immediate retries nothing is written down.
        attempts: None,
        replay: Replay::Without(letter.names(&ADDED)),
        ..DeadLetter::of(Library::NServiceBus, source)
    })
}
