//! Spring AMQP 2 and 3: `RepublishMessageRecoverer` publishes what failed to an exchange or queue of its owner's choice, as it
//! was and with `x-exception-…` and `x-original-…` headers. So does Spring Cloud Stream with `republishToDlq`, into `GROUP.dlq`.
//!
//! Documented at <https://docs.spring.io/spring-amqp/reference/amqp/resilience-recovering-from-errors-and-broker-failures.html> and
//! <https://docs.spring.io/spring-cloud-stream/reference/rabbit/rabbit_dlq_processing.html>.

use super::{
    raw_dead_letter::{
        DeadLetter, DeadLetterSource, ERROR, Library, NAME, RawDeadLetter, ReplayedMessage, STACK,
    },
    x_death,
};

/// What republishing adds.
const ADDED: [&str; 6] = [
    "x-exception-message",
    "x-exception-stacktrace",
    "x-original-exchange",
    "x-original-routingKey",
    "x-original-deliveryMode",
    "x-original-expiration",
];

/// Spring Cloud Stream's own.
const SUFFIX: &str = ".dlq";

pub(crate) fn read(dead_letter: &RawDeadLetter<'_>) -> Option<DeadLetter> {
    if !dead_letter.has("x-exception-stacktrace") && !dead_letter.has("x-exception-message") {
        return None;
    }
    let stack = dead_letter.text("x-exception-stacktrace", STACK);
    let whole = |name| {
        dead_letter
            .headers
            .get(name)
            .and_then(|value| value.text(NAME))
    };
    let published = whole("x-original-exchange").zip(whole("x-original-routingKey"));
    let deaths = x_death::all(dead_letter);
    let died = x_death::decisive(dead_letter, &deaths);
    let source = match (&published, dead_letter.queue.strip_suffix(SUFFIX), died) {
        // The default exchange routes by the name of the queue.
        (Some((exchange, queue)), ..) if exchange.is_empty() && !queue.is_empty() => {
            DeadLetterSource::Queue(queue.clone())
        }
        (_, Some(queue), _) if !queue.is_empty() => DeadLetterSource::Queue(queue.to_owned()),
        (Some((exchange, key)), ..) => DeadLetterSource::Unknown(format!(
            "Spring names no queue, only the exchange `{exchange}` and the routing key `{key}` that it was published with"
        )),
        (None, ..) => DeadLetterSource::Unknown("Spring names no queue".to_owned()),
    };
    let (class, cause) = stack.as_deref().map(innermost).unwrap_or_default();
    let message = dead_letter.text("x-exception-message", ERROR);
    Some(DeadLetter {
        error: message.or(cause).unwrap_or_default(),
        error_type: class.unwrap_or_default(),
        failed_at: died.and_then(|death| death.at),
        published: published.or_else(|| x_death::published(&deaths)),
        stack,
        replay: ReplayedMessage::Without(dead_letter.names(&ADDED)),
        ..DeadLetter::of(Library::Spring, source)
    })
}

/// The class and the message of what the listener threw, which Spring wraps: that is the first cause.
fn innermost(stack: &str) -> (Option<String>, Option<String>) {
    let causes = || {
        stack
            .lines()
            .filter_map(|line| line.strip_prefix("Caused by: "))
    };
    let line = causes().next().or_else(|| stack.lines().next());
    let (class, message) = match line.map(|line| line.split_once(": ").unwrap_or((line, ""))) {
        Some(split) => split,
        None => return (None, None),
    };
    let is_class = !class.is_empty()
        && class.len() <= NAME
        && class
            .chars()
            .all(|c| c.is_alphanumeric() || "._$".contains(c));
    let owned = |text: &str| (!text.is_empty()).then(|| super::value::cut(text, ERROR));
    (is_class.then(|| class.to_owned()), owned(message))
}
