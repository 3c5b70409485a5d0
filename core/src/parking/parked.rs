//! The parking queue of a work queue.

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
}

impl Parked {
    pub(crate) fn new(client: Client, queue: String) -> Self {
        Self { client, queue }
    }

    /// The parking queue's name.
    #[must_use]
    pub fn name(&self) -> String {
        parking_queue(&self.queue)
    }

    /// Goes through the parked messages, oldest first. What is neither replayed nor dropped stays parked, in its place, if the
    /// walk is [closed](Browse::close) and no other goes on at the same time; past a hundred thousand messages that are
    /// looked at again and again a quorum queue may change their order.
    ///
    /// # Errors
    /// [`QueueNotFound`](crate::ErrorKind::QueueNotFound) where nothing was ever parked, and those of a lost
    /// connection.
    pub async fn browse(&self) -> Result<Browse> {
        Browse::open(&self.client, &self.queue).await
    }
}
