//! The marker of a queue: a durable, auto-delete, internal exchange of its name, bound to it once it is old. RabbitMQ deletes it with the
//! queue, so a bound marker tells every client that this very queue is old (`docs/broker-facts.md`, 87).
//!
//! ```text
//!            declared             bound
//!  no marker ────────► not bound ──────► bound
//!      ▲  ▲                │               │
//!      │  └─ somebody looked               │
//!      └────────────────────── queue deleted
//! ```
//!
//! Only the binding counts: an exchange that is not bound stays when the queue is deleted, and would make the next queue of its name look
//! old.

use lapin::{
    ExchangeKind,
    options::{ExchangeDeclareOptions, ExchangeDeleteOptions, QueueBindOptions},
    types::{FieldTable, ShortString},
};

use super::plan::name;
use crate::{
    Error, ErrorKind, Result,
    connection::{Connection, Doing, OpenChannel, ask},
};

/// Longer names that are not ASCII cost the connection in some refusals.
const LONGEST_NOT_ASCII: usize = 200;

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

/// Sets the marker of a queue that is old.
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
    let bound = ask(Doing::Binding(queue), bound).await;
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
    if !is_known || (!queue.is_ascii() && queue.len() > LONGEST_NOT_ASCII) {
        let why = format!("the queue `{queue}` has no marker");
        return Err(Error::new(ErrorKind::AccessRefused, why));
    }
    name(queue)
}

async fn declare(channel: &OpenChannel, wire: &ShortString, queue: &str) -> Result<()> {
    let options = ExchangeDeclareOptions {
        durable: true,
        auto_delete: true,
        internal: true,
        ..ExchangeDeclareOptions::default()
    };
    let declared = channel.lapin().exchange_declare(
        wire.clone(),
        ExchangeKind::Fanout,
        options,
        FieldTable::default(),
    );
    ask(Doing::Exchange(queue), declared).await
}

async fn delete_if_unbound(channel: &OpenChannel, wire: ShortString, queue: &str) -> Result<()> {
    let options = ExchangeDeleteOptions {
        if_unused: true,
        ..ExchangeDeleteOptions::default()
    };
    let deleted = channel.lapin().exchange_delete(wire, options);
    ask(Doing::Exchange(queue), deleted).await
}

/// Whether an exchange was not deleted because it is bound: `PRECONDITION_FAILED - exchange 'q' in vhost '/' in use`.
fn is_in_use(error: &Error) -> bool {
    error.kind() == ErrorKind::Broker && error.to_string().ends_with("' in use")
}
