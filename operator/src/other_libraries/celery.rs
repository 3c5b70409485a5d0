//! Celery 4 and 5, and Kombu: a task that is rejected (`Reject(requeue=False)`, or any failure with `acks_late` and without
//! `acks_on_failure_or_timeout`) is dead-lettered by the broker. Celery adds nothing then; the headers of the task say which it was.
//!
//! The count of Celery's own retries is part of the task and stays: a task that had spent them gets one try more by a replay.
//!
//! Documented at <https://docs.celeryq.dev/en/stable/internals/protocol.html> (protocol 2).

use super::{
    raw_dead_letter::{
        DeadLetter, DeadLetterSource, Library, NAME, RawDeadLetter, ReplayedMessage,
    },
    value::{self, Headers},
    x_death,
};

/// The most that is shown of the arguments of a task, in bytes.
const ARGUMENTS: usize = 512;

/// A task: its name, and its arguments as Celery describes them, such as `shop.charge` and `(7,) {'currency': 'EUR'}`. `None` for
/// another message.
#[must_use]
pub fn task(headers: &Headers) -> Option<(String, String)> {
    let name = value::text(headers, "task", NAME)?;
    // Others may have a header of that name as well.
    let is_task = headers.contains_key("id")
        && (headers.contains_key("argsrepr") || headers.contains_key("root_id"));
    let described = ["argsrepr", "kwargsrepr"].map(|name| value::text(headers, name, ARGUMENTS));
    let arguments: Vec<String> = described.into_iter().flatten().collect();
    is_task.then(|| (name, arguments.join(" ")))
}

pub(crate) fn read(dead_letter: &RawDeadLetter<'_>) -> Option<DeadLetter> {
    let (task, _) = task(dead_letter.headers)?;
    let deaths = x_death::all(dead_letter);
    let died = x_death::decisive(dead_letter, &deaths)?;
    Some(DeadLetter {
        error: format!(
            "task {task} {}; the worker's log says more",
            died.how_a_task_died()
        ),
        reason: Some(died.reason.clone()),
        published: x_death::published(&deaths),
        failed_at: died.at,
        attempts: dead_letter
            .count("retries")
            .filter(|_| died.reason == "rejected")
            .map(|retries| retries + 1),
        message_type: Some(task),
        // Its headers are the task itself; `x-death` never travels with a replay.
        replay: ReplayedMessage::Without(Vec::new()),
        ..DeadLetter::of(Library::Celery, DeadLetterSource::Queue(died.queue.clone()))
    })
}
