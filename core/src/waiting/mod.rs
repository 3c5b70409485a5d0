//! Waiting messages, seen from outside: counted, looked at, brought back early, or parked.
//!
//! Each move publishes a copy, and acknowledges the original after the confirm. While a message is held here it does not return by itself,
//! so it cannot be moved and return at the same time.

mod queues;
mod waiting_message;
mod walk;

pub use queues::{DeleteResult, WaitingQueue};
pub use waiting_message::WaitingMessage;
pub use walk::WaitingWalk;

use crate::Client;

/// The waiting queues of one work queue. [`Client::waiting`](crate::Client::waiting) makes it.
///
/// ```no_run
/// # async fn example(rmq: retryrmq::Client) -> retryrmq::Result<()> {
/// let waiting = rmq.waiting("orders");
/// for queue in waiting.queues([]).await? {
///     println!("{} messages wait for {:?}", queue.messages, queue.delay);
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Waiting {
    client: Client,
    queue: String,
}

impl Client {
    /// The messages of the work queue `queue` that wait for their next attempt. Nothing is sent to the broker yet.
    #[must_use]
    pub fn waiting(&self, queue: impl Into<String>) -> Waiting {
        Waiting::new(self.clone(), queue.into())
    }
}

impl Waiting {
    pub(crate) fn new(client: Client, queue: String) -> Self {
        Self { client, queue }
    }
}
