//! The parking queue of a work queue, or a dead-letter queue of somebody else's.

use super::Browse;
use crate::{Client, Result, topology::parking_queue};

/// The messages parked for one queue.
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
    /// `queue` is the dead-letter queue itself.
    itself: bool,
}

impl Parked {
    pub(crate) fn new(client: Client, queue: String) -> Self {
        Self {
            client,
            queue,
            itself: false,
        }
    }

    pub(crate) fn dead_letters(client: Client, queue: String) -> Self {
        Self {
            client,
            queue,
            itself: true,
        }
    }

    pub(super) fn client(&self) -> &Client {
        &self.client
    }

    pub(super) fn queue(&self) -> &str {
        &self.queue
    }

    /// The name of the queue that is walked through.
    #[must_use]
    pub fn name(&self) -> String {
        if self.itself {
            self.queue.clone()
        } else {
            parking_queue(&self.queue)
        }
    }

    /// Walks through the parked messages, in the order of the queue: oldest first, except for messages with a priority. What is
    /// neither replayed nor dropped stays parked, in its place, if the walk is [closed](Browse::close) and no other walk runs at
    /// the same time. Beyond two thousand messages a quorum queue may change their order when they are looked at again and again, or when a walk is killed.
    ///
    /// Looking loses no message, whatever the delivery limit, and however a walk ends: what was given back before is put back as a
    /// fresh, confirmed copy before it is held again. That takes the right to publish to queues. There are four exceptions:
    ///
    /// - a delivery limit of 0;
    /// - beyond two thousand messages, a limit of 1 and a walk that is killed;
    /// - as many walks as the limit (beyond two thousand messages one less), each killed in the moment between the delivery of a share
    ///   and its renewal;
    /// - a walk that is killed while it puts messages back into a full queue that drops its head (`max-length` or `max-length-bytes`
    ///   without `reject-publish`): originals and copies are more than the queue may hold, and it drops others, which have no copy.
    ///
    /// While the broker is short of memory or disk and takes no copies, this waits, and holds nothing meanwhile.
    ///
    /// # Errors
    /// [`QueueNotFound`](crate::ErrorKind::QueueNotFound) where nothing was ever parked,
    /// [`AccessRefused`](crate::ErrorKind::AccessRefused) without the right to read or to publish,
    /// [`Mismatch`](crate::ErrorKind::Mismatch) for an auto-delete queue, which goes with its last reader, and for a stream;
    /// [`Timeout`](crate::ErrorKind::Timeout) for a queue without a leader, which the broker takes for empty, and for one whose node is
    /// away; and those of a lost connection. Nothing was held then.
    pub async fn browse(&self) -> Result<Browse> {
        Browse::open(&self.client, &self.queue, &self.name()).await
    }
}
