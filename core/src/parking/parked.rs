//! The parking queue of a work queue, or a foreign dead-letter queue.

use super::Browse;
use crate::{
    Client, Result,
    topology::{dropped_queue, parking_queue},
};

/// The messages parked for one work queue. [`Client::parked`](crate::Client::parked) makes it.
///
/// ```no_run
/// # async fn example(rmq: retryrmq::Client) -> retryrmq::Result<()> {
/// let mut parked = rmq.parked("orders").browse().await?;
/// while let Some(record) = parked.next().await? {
///     println!("{} {}", record.fingerprint, record.error);
///     parked.replay(&record).await?;
/// }
/// parked.close().await
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Parked {
    client: Client,
    queue: String,
    /// `queue` itself is a dead-letter queue.
    itself: bool,
    /// Those that were dropped, and are kept for a while.
    dropped: bool,
}

impl Client {
    /// The messages parked for the work queue `queue`, in `<queue>.parked`. Nothing is sent to the broker yet.
    #[must_use]
    pub fn parked(&self, queue: impl Into<String>) -> Parked {
        Parked::new(self.clone(), queue.into())
    }

    /// The messages in `queue`, a dead-letter queue that the broker or another library fills. They are read as carefully as parked
    /// messages: see [`Parked::browse`]. A message whose `x-death` names no other queue has an empty [`Record::home`](crate::Record::home),
    /// and only [`Browse::replay_to`](crate::Browse::replay_to) can replay it. Nothing is sent to the broker yet.
    #[must_use]
    pub fn dead_letters(&self, queue: impl Into<String>) -> Parked {
        Parked::dead_letters(self.clone(), queue.into())
    }
}

impl Parked {
    pub(crate) fn new(client: Client, queue: String) -> Self {
        Self {
            client,
            queue,
            itself: false,
            dropped: false,
        }
    }

    pub(crate) fn dead_letters(client: Client, queue: String) -> Self {
        Self {
            client,
            queue,
            itself: true,
            dropped: false,
        }
    }

    pub(super) fn client(&self) -> &Client {
        &self.client
    }

    pub(super) fn queue(&self) -> &str {
        &self.queue
    }

    /// The messages that were dropped from here and are kept, in the queue [`dropped_queue`].
    #[must_use]
    pub fn dropped(&self) -> Self {
        Self {
            dropped: true,
            ..self.clone()
        }
    }

    /// Whether `queue` itself is a dead-letter queue, so that its messages come from elsewhere.
    pub(super) fn is_foreign(&self) -> bool {
        self.itself
    }

    pub(super) fn is_of_dropped(&self) -> bool {
        self.dropped
    }

    /// The name of the queue with the messages.
    #[must_use]
    pub fn name(&self) -> String {
        match self.dropped {
            true => dropped_queue(&self.queue),
            false => self.parking(),
        }
    }

    /// The name of the queue that the messages were parked in: of dropped ones, the one that they were dropped from.
    #[must_use]
    pub fn parking(&self) -> String {
        match self.itself {
            true => self.queue.clone(),
            false => parking_queue(&self.queue),
        }
    }

    /// Starts a walk through the parked messages (AMQP `basic.consume`). They come in the order of the queue: oldest first, except for
    /// messages with a priority.
    ///
    /// A message that is neither replayed nor dropped stays parked, in its place, if the walk is [closed](Browse::close) and no other walk
    /// runs at the same time. In a quorum queue with more than two thousand messages the order may change if they are looked at again and
    /// again, or if a walk is killed.
    ///
    /// Looking loses no message, whatever the delivery limit of the queue is and however the walk ends. A message that was requeued before
    /// is replaced by a confirmed copy before it is held again, which needs `write` permission on the default exchange. There are four
    /// exceptions:
    ///
    /// - a delivery limit of 0;
    /// - a limit of 1, more than two thousand messages, and a walk that is killed;
    /// - as many walks as the limit (one less with more than two thousand messages), each killed between the delivery of a batch and its
    ///   replacement;
    /// - a walk that is killed while it puts messages back into a full queue that drops its head (`max-length` or `max-length-bytes`
    ///   without `reject-publish`): there are more originals and copies than the queue holds, and it drops messages that have no copy.
    ///
    /// During a memory or disk alarm of the broker, which then accepts no copies, this call waits and holds no messages.
    ///
    /// # Errors
    /// - [`QueueNotFound`](crate::ErrorKind::QueueNotFound) if nothing was ever parked
    /// - [`AccessRefused`](crate::ErrorKind::AccessRefused) without permission to read the queue or to publish
    /// - [`Mismatch`](crate::ErrorKind::Mismatch) for an auto-delete queue, which would be deleted with its last consumer, and for a stream
    /// - [`Timeout`](crate::ErrorKind::Timeout) for a queue without a leader, which the broker reports as empty, and if the queue's node is
    ///   away
    /// - those of a lost connection
    ///
    /// Then no message was held.
    pub async fn browse(&self) -> Result<Browse> {
        Browse::open(self).await
    }
}
