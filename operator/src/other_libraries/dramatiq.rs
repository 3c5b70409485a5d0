//! Dramatiq 1 and 2: a message that has spent its retries is rejected, and its queue dead-letters it to `QUEUE.XQ`. The body is as it was enqueued
//! for its last attempt. So it has the traceback of the attempt before that one, and no trace of the last failure.
//!
//! Measured with Dramatiq 2.2 and its JSON encoder; the fixtures are in `tests/fixtures/dramatiq`.

use serde::{Deserialize, de::IgnoredAny};

use super::{
    body_counter,
    raw_dead_letter::{DeadLetter, DeadLetterSource, ERROR, Library, NAME, RawDeadLetter, STACK},
    value::cut,
    x_death,
};

pub(crate) fn read(dead_letter: &RawDeadLetter<'_>) -> Option<DeadLetter> {
    let deaths = x_death::all(dead_letter);
    let died = x_death::decisive(dead_letter, &deaths)?;
    let message: Message = serde_json::from_slice(dead_letter.body).ok()?;
    let actor = cut(&message.actor_name, NAME);
    let retries = message.options.retries.unwrap_or_default();
    let traceback = message.options.traceback.filter(|text| !text.is_empty());
    let (error_type, error) = match traceback.as_deref().and_then(raised) {
        Some((class, text)) => (cut(class, NAME), cut(text, ERROR)),
        None => (
            String::new(),
            format!(
                "actor {actor} {}; the worker's log says more",
                died.how_a_task_died()
            ),
        ),
    };
    Some(DeadLetter {
        error,
        error_type,
        stack: traceback.map(|text| cut(&text, STACK)),
        reason: Some(died.reason.clone()),
        published: x_death::published(&deaths),
        failed_at: died.at,
        attempts: (died.reason == "rejected").then(|| retries.saturating_add(1)),
        message_type: Some(actor),
        replay: body_counter::replay(dead_letter.body, "options", "retries"),
        ..DeadLetter::of(
            Library::Dramatiq,
            DeadLetterSource::Queue(died.queue.clone()),
        )
    })
}

/// The class and the text of the exception, which follow the last frame. The text may have indented lines of its own.
fn raised(traceback: &str) -> Option<(&str, &str)> {
    let frame = traceback.rfind("\n  File \"").map_or(0, |at| at + 1);
    let after = &traceback[frame..];
    let start = after
        .lines()
        .find(|line| !line.is_empty() && !line.starts_with(' '))?;
    let at = start.as_ptr().addr() - traceback.as_ptr().addr();
    let raised = traceback[at..].trim_end();
    let (class, text) = raised.split_once(": ").unwrap_or((raised, ""));
    (!class.contains('\n')).then_some((class, text))
}

#[derive(Deserialize)]
#[expect(
    dead_code,
    reason = "a message has all of these; that is how it is recognised"
)]
struct Message {
    actor_name: String,
    queue_name: IgnoredAny,
    args: IgnoredAny,
    kwargs: IgnoredAny,
    message_id: IgnoredAny,
    message_timestamp: IgnoredAny,
    options: Options,
}

#[derive(Deserialize)]
struct Options {
    retries: Option<u32>,
    traceback: Option<String>,
}
