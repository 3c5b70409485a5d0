//! The names of all queues and exchanges of retryrmq: those that belong to a work queue, and those of the service.

use std::time::Duration;

/// A routing key that no queue has.
pub(crate) const UNROUTABLE_KEY: &str = "retryrmq.nobody";

/// The internal exchange of a service (`retryrmq serve`), as a dead-letter exchange of other queues. No client may publish to it.
pub const DEAD_EXCHANGE: &str = "retryrmq.dead";

/// The queue in which a service receives dead letters. The service declares it.
pub const INTAKE_QUEUE: &str = "retryrmq.intake";

/// The queue in which a service receives failed messages of consumers with [`Strategy::Service`](crate::Strategy::Service). The service
/// declares it.
pub const HANDOVER_QUEUE: &str = "retryrmq.handover";

/// The name of the queue in which messages of `queue` wait for `delay`: `<queue>.retry.<ms>`.
#[must_use]
pub fn waiting_queue(queue: &str, delay: Duration) -> String {
    format!("{queue}.retry.{}", delay.as_millis())
}

/// The name of the queue in which messages of `queue` are parked: `<queue>.parked`.
#[must_use]
pub fn parking_queue(queue: &str) -> String {
    format!("{queue}.parked")
}

/// The name of the queue for messages of `queue` that RabbitMQ cannot deliver over AMQP 0-9-1: `<queue>.unreadable`.
#[must_use]
pub fn unreadable_queue(queue: &str) -> String {
    format!("{queue}.unreadable")
}

/// The name of the queue in which messages of `queue` that an operator dropped are kept for a while: `<queue>.parked.dropped`.
#[must_use]
pub fn dropped_queue(queue: &str) -> String {
    format!("{queue}.parked.dropped")
}

/// How long a message would wait in the queue that is a clock, if it were a waiting queue: longer than any delay.
const NO_DELAY: Duration = Duration::from_millis(80_000_000_000);

/// The name of the queue that tells whether queues of `queue` are young: it expires two seconds after one was created (`core/PROTOCOL.md`,
/// section 2). No message is ever in it.
#[must_use]
pub fn clock_queue(queue: &str) -> String {
    waiting_queue(queue, NO_DELAY)
}

/// The work queue that a queue of retryrmq's belongs to, by its name: `orders` for `orders.parked`, `orders.parked.dropped`,
/// `orders.unreadable` and `orders.retry.1000`. `None` for other names.
#[must_use]
pub fn work_queue_of(name: &str) -> Option<&str> {
    let suffixes = [".parked", ".parked.dropped", ".unreadable"];
    let of_one = suffixes
        .into_iter()
        .find_map(|suffix| name.strip_suffix(suffix));
    let work = of_one.or_else(|| {
        name.rsplit_once(".retry.")
            .filter(|(_, ms)| !ms.is_empty() && ms.bytes().all(|digit| digit.is_ascii_digit()))
            .map(|(work, _)| work)
    });
    work.filter(|work| !work.is_empty())
}

/// How long messages of `queue` wait in the queue `name`; `None` if it is not a waiting queue of `queue`.
pub(crate) fn waits_for(queue: &str, name: &str) -> Option<Duration> {
    let ms = name.strip_prefix(queue)?.strip_prefix(".retry.")?;
    ms.parse().ok().map(Duration::from_millis)
}
