//! Moves what AMQP 0-9-1 cannot carry from a queue to the queue for such messages.

use std::time::{Duration, SystemTime};

use tokio::time::{sleep, timeout};
use tracing::warn;

use crate::{
    Client, Error, ErrorKind, Plan, Result,
    amqp10::{Failure, Found, Message},
    connection::{Connection, Session10},
    topology::{SAFE_AGE, unreadable, unreadable_queue},
};

/// How many messages the broker sends at a time.
const BATCH: u32 = 64;
/// The most bytes of messages that are kept at a time. What is behind them is moved the next time.
const MOST_BYTES: usize = 64 * 1024 * 1024;
/// How long a look may take.
pub(super) const LONGEST: Duration = Duration::from_secs(60);

/// What a look found and moved.
#[derive(Debug, Default)]
pub(crate) struct Moved {
    /// Why each of them cannot be delivered.
    pub(crate) causes: Vec<String>,
}

impl Moved {
    /// Logs what was moved from the queue `from`, a queue of the family of `work`.
    pub(crate) fn tell(&self, work: &str, from: &str) {
        if let Some(cause) = self.causes.first() {
            warn!(
                queue = from,
                to = unreadable_queue(work),
                count = self.causes.len(),
                cause,
                "messages that RabbitMQ cannot deliver over AMQP 0-9-1 were moved out of the way: it closed the connection for each; `retryrmq \
                 unreadable ls {work}` shows them, and their publishers should send other types"
            );
        }
    }
}

/// Reads up to `most` messages of a queue, in their order. They are back in it when the session ends, unless they are accepted. `each` returns
/// how many bytes it keeps.
///
/// # Errors
/// Those of [`failure`].
pub(super) async fn read(
    session: &mut Session10,
    queue: &str,
    most: u32,
    mut each: impl FnMut(u32, Vec<u8>) -> usize,
) -> Result<()> {
    let said = |why| failure(queue, &why);
    let link = session.read_from(queue).await.map_err(said)?;
    let (mut seen, mut kept) = (0, 0);
    while seen < most && kept < MOST_BYTES {
        let asked = BATCH.min(most - seen);
        let batch = session.drain(link, asked).await.map_err(said)?;
        let came = u32::try_from(batch.len()).unwrap_or(u32::MAX);
        seen += came;
        for delivery in batch {
            kept += each(delivery.number, delivery.payload);
        }
        if came < asked {
            break;
        }
    }
    Ok(())
}

/// Moves each of the first `most` messages of the queue `from` that RabbitMQ cannot deliver over AMQP 0-9-1. `declares`: the queue for them
/// may be created.
///
/// # Errors
/// Those of connecting, of creating the queue, and of [`failure`]. Nothing is lost: an original is removed when its copy is safe.
pub(crate) async fn set_aside(
    client: &Client,
    connection: &Connection,
    work: &str,
    from: &str,
    most: u32,
    declares: bool,
) -> Result<Moved> {
    let moving = async {
        let mut session = connection.amqp10(client.addresses()).await?;
        let leaves_out_odd_numbers = connection.server().capabilities().leaves_out_odd_numbers;
        let mut found = Vec::new();
        read(&mut session, from, most, |number, payload| {
            let size = payload.len();
            let Some(message) = Message::read(payload) else {
                return 0;
            };
            let Some(cause) = message.obstacle(leaves_out_odd_numbers) else {
                return 0;
            };
            found.push((number, message, cause));
            size
        })
        .await?;
        if !found.is_empty() {
            let to = unreadable_queue(work);
            if declares {
                let item = unreadable(work, client.options().queue_type);
                client.apply_plan(&Plan::new([item])).await?;
            }
            move_to(&mut session, from, &to, &found).await?;
            client.has_moved();
        }
        session.close().await.map_err(|why| failure(from, &why))?;
        let causes = found.into_iter().map(|(.., cause)| cause).collect();
        Ok(Moved { causes })
    };
    timeout(LONGEST, moving)
        .await
        .unwrap_or_else(|_| Err(late(from)))
}

async fn move_to(
    session: &mut Session10,
    from: &str,
    to: &str,
    found: &[(u32, Message, String)],
) -> Result<()> {
    let link = session
        .publish_to(to)
        .await
        .map_err(|why| failure(to, &why))?;
    let now = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
    for (_, message, cause) in found {
        let found = Found {
            queue: from,
            at: i64::try_from(now.as_millis()).unwrap_or(i64::MAX),
            cause,
        };
        let copy = message.set_aside(&found);
        let published = session.publish(link, &copy).await;
        published.map_err(|why| failure(to, &why))?;
    }
    // A queue that was created just now loses confirmed messages if its broker is killed. If it is, the originals are not removed either.
    sleep(SAFE_AGE).await;
    for (number, ..) in found {
        let accepted = session.accept(*number).await;
        accepted.map_err(|why| failure(from, &why))?;
    }
    Ok(())
}

pub(super) fn late(queue: &str) -> Error {
    Error::new(
        ErrorKind::Timeout,
        format!("`{queue}` was not read over AMQP 1.0 in time"),
    )
}

/// The error for the end of a session.
pub(super) fn failure(queue: &str, why: &Failure) -> Error {
    let said = why.to_string();
    let kind = match why {
        Failure::Io(_) => ErrorKind::ConnectionLost,
        Failure::Refused(said) if said.starts_with("amqp:not-found") => ErrorKind::QueueNotFound,
        Failure::Refused(said) if said.starts_with("amqp:unauthorized") => ErrorKind::AccessRefused,
        Failure::Refused(_) | Failure::Garbled(_) => ErrorKind::Broker,
    };
    Error::new(
        kind,
        format!("`{queue}` cannot be used over AMQP 1.0: {said}"),
    )
}
