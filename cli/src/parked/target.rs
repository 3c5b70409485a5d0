//! Which queue is read: the parking queue of a work queue, or a dead-letter queue itself.

use retryrmq::{Client, ErrorKind, Parked, dropped_queue, work_queue_of};

use crate::error::CliError;

/// The queue to walk through.
pub(super) fn parked(client: &Client, queue: &str, dlq: bool) -> Parked {
    if let Some(work) = before_the_drop(queue).filter(|_| dlq) {
        return client.parked(work).dropped();
    }
    match family(queue, dlq) {
        Some(work) => client.parked(work),
        None => client.dead_letters(queue),
    }
}

/// The queue that `--dlq` names, where that is the queue of dropped messages itself: the one that they were dropped from.
pub(super) fn before_the_drop(dlq: &str) -> Option<&str> {
    let work = work_queue_of(dlq)?;
    (dropped_queue(work) == dlq).then_some(work)
}

/// The work queue that it belongs to; none for a dead-letter queue that is not one of ours.
pub(super) fn family(queue: &str, dlq: bool) -> Option<&str> {
    if !dlq {
        return Some(queue);
    }
    // One of ours, by its own name.
    queue
        .strip_suffix(".parked")
        .filter(|work| !work.is_empty())
}

/// The error of a walk that could not begin. Who knows nothing of parking queues has named the queue with the dead letters.
pub(super) fn absent(error: retryrmq::Error, dlq: bool) -> CliError {
    let hint = !dlq && error.kind() == ErrorKind::QueueNotFound;
    let cli_error = CliError::from(error);
    if hint {
        cli_error.after("to read a dead-letter queue itself, pass --dlq")
    } else {
        cli_error
    }
}
