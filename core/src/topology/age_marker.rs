//! The marker of a queue: a durable, internal exchange of its name, bound to it. RabbitMQ deletes the binding with the queue, so a bound marker
//! is about this very queue (`docs/broker-facts.md`, 87). It is not auto-delete: RabbitMQ 4.3.6 loses the virtual host of an auto-delete
//! exchange that is bound and deleted at the same moment (fact 96).
//!
//! ```text
//!            declared             bound               clock gone
//!  no marker ────────► not bound ──────► bound, young ──────────► bound, old
//!      ▲                 │    ▲               │                      │
//!      └─ somebody looked┘    └───────── queue deleted ──────────────┘
//! ```
//!
//! Only the binding counts: the exchange stays when the queue is deleted, and would make the next queue of its name look old. A queue is
//! marked as soon as it is created, and no client may live until it is old. So its broker keeps the time: the clock is a queue that is declared
//! before the marker is bound, and expires when the other is old (`docs/broker-facts.md`, 95).

use super::{Finding, SAFE_AGE, Status, plan::name};
use crate::{
    Error, ErrorKind, Result,
    connection::{Connection, OpenChannel, Operation, ask},
    queue_names::{clock_queue, parking_queue, waits_for, work_queue_of},
};
use lapin::{
    ExchangeKind,
    options::{
        ExchangeDeclareOptions, ExchangeDeleteOptions, QueueBindOptions, QueueDeclareOptions,
    },
    types::{AMQPValue, FieldTable, ShortString},
};
use tokio::time::timeout;
use tracing::debug;

/// The answer for a marker that is bound, without the names of the queue and the virtual host.
const IN_USE: &str = "PRECONDITION_FAILED - exchange '' in vhost '' in use";

/// Whether the marker of a queue is bound. An exchange of its name that is not bound is deleted, unless it is somebody else's.
///
/// # Errors
/// [`ErrorKind::AccessRefused`], [`ErrorKind::Mismatch`] if the exchange is somebody else's, and those of [`Connection::channel`].
pub(crate) async fn is_marked(connection: &Connection, queue: &str) -> Result<bool> {
    let wire = wire_name(connection, queue)?;
    let channel = connection.channel().await?;
    // It compares all properties, so what is deleted next is a marker.
    declare(&channel, &wire, queue).await?;
    let looked = delete_if_unbound(&channel, wire, queue).await;
    let is_bound = match looked {
        Ok(()) => Ok(false),
        Err(error) if is_in_use(&error) => Ok(true),
        Err(error) => Err(error),
    };
    channel.close().await;
    is_bound
}

/// What the marker of a queue tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MarkerAge {
    /// Nothing: it has none.
    Unknown,
    /// Its clock runs.
    Young,
    Old,
}

/// How old a queue of this work queue is by its marker.
///
/// # Errors
/// As of [`is_marked`].
pub(crate) async fn age(connection: &Connection, work: &str, queue: &str) -> Result<MarkerAge> {
    if !is_marked(connection, queue).await? {
        return Ok(MarkerAge::Unknown);
    }
    // A clock has a marker as well. Whatever else has its name is not asked.
    let runs = is_marked(connection, &clock_queue(work)).await?;
    Ok(if runs {
        MarkerAge::Young
    } else {
        MarkerAge::Old
    })
}

/// Starts the clock, or starts it again.
///
/// # Errors
/// [`ErrorKind::AccessRefused`], [`ErrorKind::Mismatch`] if a queue of its name is somebody else's, and those of [`Connection::channel`] and
/// [`mark`].
pub(crate) async fn start_clock(connection: &Connection, work: &str) -> Result<()> {
    let clock = clock_queue(work);
    let wire = wire_name(connection, &clock)?;
    let channel = connection.channel().await?;
    let options = QueueDeclareOptions {
        durable: true,
        ..QueueDeclareOptions::default()
    };
    let mut arguments = FieldTable::default();
    let expires = i64::try_from(SAFE_AGE.as_millis()).unwrap_or(i64::MAX);
    arguments.insert("x-expires".into(), AMQPValue::LongLongInt(expires));
    arguments.insert(
        "x-queue-type".into(),
        AMQPValue::LongString("classic".into()),
    );
    let declared = channel.lapin().queue_declare(wire, options, arguments);
    let declared = ask(Operation::Declaring(&clock), declared).await;
    channel.close().await;
    declared?;
    mark(connection, &clock).await
}

/// Marks those queues that were created just now. Its client may not live until they are old. When they are, there is no need for it any more.
pub(crate) async fn mark_new(connection: &Connection, findings: &[Finding]) {
    let marked = timeout(SAFE_AGE, mark_each(connection, findings)).await;
    if let Ok(Err(error)) = marked {
        debug!(%error, "queues are not marked before they are old");
    }
}

/// # Errors
/// Those of [`start_clock`], and [`ErrorKind::AccessRefused`].
async fn mark_each(connection: &Connection, findings: &[Finding]) -> Result<()> {
    let is_new =
        |finding: &&Finding| finding.status == Status::Created && !finding.item.is_work_queue();
    let mut clocks = Vec::new();
    for finding in findings.iter().filter(is_new) {
        let queue = finding.item.name();
        let Some(work) = work_queue_of(queue).filter(|work| is_markable(work, queue)) else {
            continue;
        };
        if !clocks.contains(&work) {
            start_clock(connection, work).await?;
            clocks.push(work);
        }
        match mark(connection, queue).await {
            // An exchange of its name is somebody else's, or somebody else looks at the same time.
            Err(error)
                if !matches!(error.kind(), ErrorKind::Mismatch | ErrorKind::QueueNotFound) =>
            {
                return Err(error);
            }
            _ => {}
        }
    }
    Ok(())
}

/// Whether a queue of this name has a marker that tells how old it is.
pub(crate) fn is_markable(work: &str, queue: &str) -> bool {
    let waits = waits_for(work, queue).is_some() && queue != clock_queue(work);
    waits || queue == parking_queue(work)
}

/// Sets the marker of a queue that is old, or whose clock was started before.
///
/// # Errors
/// As of [`is_marked`], and [`ErrorKind::QueueNotFound`] if the queue has gone, or if another client looked at the same moment.
pub(crate) async fn mark(connection: &Connection, queue: &str) -> Result<()> {
    let wire = wire_name(connection, queue)?;
    let channel = connection.channel().await?;
    declare(&channel, &wire, queue).await?;
    let bound = channel.lapin().queue_bind(
        wire.clone(),
        wire.clone(),
        ShortString::default(),
        QueueBindOptions::default(),
        FieldTable::default(),
    );
    let bound = ask(Operation::Binding(queue), bound).await;
    let is_refused = bound.is_err() && !channel.is_open();
    channel.close().await;
    if is_refused && let Ok(channel) = connection.channel().await {
        let _ = delete_if_unbound(&channel, wire, queue).await;
        channel.close().await;
    }
    bound
}

fn wire_name(connection: &Connection, queue: &str) -> Result<ShortString> {
    let is_known = connection.server().is_rabbitmq();
    if !is_known || !connection.limits().names().can_say(IN_USE, queue) {
        let why = format!("the queue `{queue}` has no marker");
        return Err(Error::new(ErrorKind::AccessRefused, why));
    }
    name(queue)
}

async fn declare(channel: &OpenChannel, wire: &ShortString, queue: &str) -> Result<()> {
    let options = ExchangeDeclareOptions {
        durable: true,
        internal: true,
        ..ExchangeDeclareOptions::default()
    };
    let declared = channel.lapin().exchange_declare(
        wire.clone(),
        ExchangeKind::Fanout,
        options,
        FieldTable::default(),
    );
    ask(Operation::Exchange(queue), declared).await
}

async fn delete_if_unbound(channel: &OpenChannel, wire: ShortString, queue: &str) -> Result<()> {
    let options = ExchangeDeleteOptions {
        if_unused: true,
        ..ExchangeDeleteOptions::default()
    };
    let deleted = channel.lapin().exchange_delete(wire, options);
    ask(Operation::Exchange(queue), deleted).await
}

/// Whether an exchange was not deleted because it is bound: `PRECONDITION_FAILED - exchange 'q' in vhost '/' in use`.
fn is_in_use(error: &Error) -> bool {
    error.kind() == ErrorKind::Broker && error.to_string().ends_with("' in use")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{MAX_DELAY, delay_step, topology::waiting_queue};

    #[test]
    fn every_queue_that_a_message_can_wait_in_has_a_marker() {
        for delay in [1, 1_000, 31_536_000_000].map(std::time::Duration::from_millis) {
            assert!(is_markable("orders", &waiting_queue("orders", delay)));
        }
        let longest = delay_step(MAX_DELAY);
        assert!(longest >= MAX_DELAY);
        assert!(is_markable("orders", &waiting_queue("orders", longest)));
        assert!(is_markable("orders", "orders.parked"));
        for other in ["orders", "orders.unreadable", &clock_queue("orders")] {
            assert!(!is_markable("orders", other), "{other}");
        }
    }
}
