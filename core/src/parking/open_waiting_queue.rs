//! Whether a waiting queue may be looked at. A client never creates one that may not, but only the name shows whose queue it is.

use std::sync::Arc;

use lapin::types::ShortString;
use tokio::time::{Instant, sleep};

use super::source::{PUT_BACK, Source};
use crate::{
    Error, ErrorKind, Result,
    connection::{
        Addresses, Connection, ProbedQueueType, QueueCount, ReadyCounter, is_auto_delete, kind_of,
        passive_declare,
    },
    terminal_escape,
    topology::name,
};

/// A waiting queue to look through, on a connection of its own. No message is held yet.
pub(crate) struct OpenWaitingQueue {
    pub(crate) connection: Connection,
    pub(crate) source: Source,
    /// It is known to be a classic queue, which counts no deliveries.
    pub(crate) classic: bool,
    /// How many other consumers it has.
    pub(crate) others: u32,
}

/// Opens a waiting queue.
///
/// # Errors
/// [`ErrorKind::QueueNotFound`] if it is gone, [`ErrorKind::AccessRefused`] without permission to read it, [`ErrorKind::Mismatch`] for an
/// auto-delete queue, which the look would delete, and for a stream; [`ErrorKind::Timeout`] if it has no leader, or its node is away; and
/// those of a lost connection.
pub(crate) async fn open(addresses: &Arc<Addresses>, waiting: &str) -> Result<OpenWaitingQueue> {
    let wire = name(waiting)?;
    let connection = Connection::open(addresses, "waiting").await?;
    match entered(addresses, &connection, &wire).await {
        Ok((source, classic, others)) => Ok(OpenWaitingQueue {
            connection,
            source,
            classic,
            others,
        }),
        Err(error) => {
            connection.close().await;
            Err(error)
        }
    }
}

async fn entered(
    addresses: &Arc<Addresses>,
    connection: &Connection,
    wire: &ShortString,
) -> Result<(Source, bool, u32)> {
    let channel = connection.channel().await?;
    let counter = ReadyCounter::new(addresses);
    let found = count(&counter, connection, wire).await;
    counter.close().await;
    let found = found.and_then(QueueCount::read)?;
    // An empty queue is not read.
    let classic = found.message_count() > 0 && is_classic(connection, wire).await?;
    let source = Source::new(wire.clone(), channel, found.message_count());
    Ok((source, classic, found.consumer_count()))
}

/// Checks that a look changes nothing in a waiting queue, and returns whether it is a classic queue, which counts no deliveries. If this
/// user may not ask, or the broker could not say, the queue counts as fine.
///
/// # Errors
/// [`ErrorKind::Mismatch`] for an auto-delete queue, which the look would delete, and for a stream; those of a lost connection.
async fn is_classic(connection: &Connection, waiting: &ShortString) -> Result<bool> {
    let channel = connection.channel().await?;
    let kind = match kind_of(connection, channel.lapin(), waiting.clone()).await {
        Err(error) if error.is_transient() => return Err(error),
        answer => answer.ok().flatten(),
    };
    let shown = terminal_escape::line(waiting.as_str());
    let refused = |why: String| Err(Error::new(ErrorKind::Mismatch, why));
    match kind {
        Some(ProbedQueueType::Stream) => refused(format!(
            "`{shown}` is a stream: what is taken out of it stays in it, and nothing comes back from it; nothing was read from it"
        )),
        // A quorum queue cannot be auto-delete.
        Some(ProbedQueueType::Quorum) => Ok(false),
        _ if is_auto_delete(connection, waiting).await? => refused(format!(
            "`{shown}` is an auto-delete queue: RabbitMQ deletes it, with everything in it, as soon as its last reader leaves, and a \
             look is a reader; nothing was read from it, and what waits there comes back by itself"
        )),
        kind => Ok(kind == Some(ProbedQueueType::Classic)),
    }
}

/// Counts a waiting queue. Its only consumers are looks, and one that has just ended counts for a moment longer. When it is no longer
/// counted, its messages are back.
pub(crate) async fn count(
    counter: &ReadyCounter,
    connection: &Connection,
    waiting: &ShortString,
) -> Result<QueueCount> {
    let count = counter.of(connection, waiting).await?;
    if count.found.consumer_count() == 0 {
        return Ok(count);
    }
    let channel = connection.channel().await?;
    let deadline = Instant::now() + PUT_BACK;
    while Instant::now() < deadline {
        sleep(PUT_BACK / 20).await;
        let found = passive_declare(&channel, waiting.clone()).await?;
        if found.consumer_count() == 0 {
            break;
        }
    }
    channel.close().await;
    counter.of(connection, waiting).await
}
