//! Celery 4 and 5, and Kombu: a task that is rejected (`Reject(requeue=False)`, or any failure with `acks_late` and without
//! `acks_on_failure_or_timeout`) is dead-lettered by the broker. Celery adds nothing then; the headers of the task say which it was.
//!
//! The count of Celery's own retries is part of the task and stays: a task that had spent them gets one try more by a replay.
//!
//! Documented at <https://docs.celeryq.dev/en/stable/internals/protocol.html> (protocol 2).

use super::{
    raw_dead_letter::{DeadLetter, Letter, Library, NAME, Replay, Source},
    x_death,
};

pub(crate) fn read(letter: &Letter<'_>) -> Option<DeadLetter> {
    let task = letter.text("task", NAME)?;
    // Others may have a header of that name as well.
    if !letter.has("id") || !(letter.has("argsrepr") || letter.has("root_id")) {
        return None;
    }
    let deaths = x_death::all(letter);
    let died = x_death::decisive(letter, &deaths)?;
    let how = match died.reason.as_str() {
        "rejected" => "was rejected by its worker",
        "expired" => "expired before a worker took it",
        "maxlen" => "found its queue full",
        "delivery_limit" => "was delivered too often: its worker died with it, or gave it back",
        _ => "was dead-lettered",
    };
    Some(DeadLetter {
        error: format!("task {task} {how}; the worker's log says more"),
        reason: Some(died.reason.clone()),
        published: x_death::published(&deaths),
        failed_at: died.at,
        attempts: letter
            .count("retries")
            .filter(|_| died.reason == "rejected")
            .map(|retries| retries + 1),
        message_type: Some(task),
        // Its headers are the task itself; `x-death` never travels with a replay.
        replay: Replay::Without(Vec::new()),
        ..DeadLetter::of(Library::Celery, Source::Queue(died.queue.clone()))
    })
}
