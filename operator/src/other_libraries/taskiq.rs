//! taskiq with `taskiq-aio-pika`: it acknowledges a task that fails, also after its last retry. Only the broker gives a task up, mostly because its
//! worker died with it again and again, and dead-letters it to `taskiq.dead_letter` or the queue that the program chose.
//!
//! Measured with taskiq 0.13 and taskiq-aio-pika 0.6; the fixture is in `tests/fixtures/taskiq`.

use super::{
    body_counter,
    raw_dead_letter::{DeadLetter, DeadLetterSource, Library, NAME, RawDeadLetter},
    x_death,
};

pub(crate) fn read(dead_letter: &RawDeadLetter<'_>) -> Option<DeadLetter> {
    let task = dead_letter.text("task_name", NAME)?;
    if !dead_letter.has("task_id") {
        return None;
    }
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
        attempts: dead_letter.count("_retries").map(|retries| retries + 1),
        message_type: Some(task),
        replay: body_counter::replay(dead_letter.body, "labels", "_retries"),
        ..DeadLetter::of(Library::Taskiq, DeadLetterSource::Queue(died.queue.clone()))
    })
}
