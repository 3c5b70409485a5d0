//! Whether a waiting queue may be looked at. A client makes none that may not, but its name is all that shows whose it is.

use lapin::{
    options::QueueDeclareOptions,
    types::{AMQPValue, FieldTable, ShortString},
};
use tokio::time::{Instant, sleep};

use super::supply::PUT_BACK;
use crate::{
    Error, ErrorKind, Result,
    connection::{Connection, Doing, Kind, ask, kind_of, look},
    visible,
};

/// Makes sure that a look leaves a waiting queue as it is, and says whether it is a classic queue, which counts no deliveries. What may
/// not be asked counts as fine.
///
/// # Errors
/// [`ErrorKind::Mismatch`] for an auto-delete queue, which goes with the look, and for a stream; those of a lost connection.
pub(crate) async fn is_classic(connection: &Connection, waiting: &ShortString) -> Result<bool> {
    let channel = connection.channel().await?;
    let kind = match kind_of(connection, channel.lapin(), waiting.clone()).await {
        Err(error) if error.is_transient() => return Err(error),
        answer => answer.ok().flatten(),
    };
    let shown = visible::line(waiting.as_str());
    let refused = |why: String| Err(Error::new(ErrorKind::Mismatch, why));
    match kind {
        Some(Kind::Stream) => refused(format!(
            "`{shown}` is a stream: what is taken out of it stays in it, and nothing comes back from it; nothing was read from it"
        )),
        _ if is_auto_delete(connection, waiting).await? => refused(format!(
            "`{shown}` is an auto-delete queue: RabbitMQ deletes it, with everything in it, as soon as its last reader leaves, and a \
             look is a reader; nothing was read from it, and what waits there comes back by itself"
        )),
        kind => Ok(kind == Some(Kind::Classic)),
    }
}

/// Whether it goes with its last consumer, which shows only in what a declaration is refused for: that it is durable, or this. The
/// declaration has an argument that no queue has, so that it makes none where this one has gone meanwhile.
async fn is_auto_delete(connection: &Connection, waiting: &ShortString) -> Result<bool> {
    let mut impossible = FieldTable::default();
    impossible.insert(
        ShortString::from("x-message-ttl"),
        AMQPValue::LongString("never".into()),
    );
    for durable in [true, false] {
        let options = QueueDeclareOptions {
            durable,
            ..QueueDeclareOptions::default()
        };
        let channel = connection.channel().await?;
        let declared = channel
            .lapin()
            .queue_declare(waiting.clone(), options, impossible.clone());
        match ask(Doing::Declaring(waiting.as_str()), declared).await {
            Err(error) if error.is_transient() => return Err(error),
            Err(error) if error.to_string().contains("inequivalent arg 'auto_delete'") => {
                return Ok(true);
            }
            _ => {}
        }
    }
    Ok(false)
}

/// How many consume a waiting queue: only somebody who looks does. One who has just left is counted for a moment longer.
pub(crate) async fn others(connection: &Connection, waiting: &ShortString) -> Result<u32> {
    let channel = connection.channel().await?;
    let deadline = Instant::now() + PUT_BACK;
    loop {
        let found = look(channel.lapin(), waiting.clone()).await?;
        let others = found.consumer_count();
        if others == 0 || Instant::now() >= deadline {
            channel.close().await;
            return Ok(others);
        }
        sleep(PUT_BACK / 20).await;
    }
}
