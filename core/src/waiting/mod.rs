//! What waits for its retry, seen from outside: counted, looked at, brought back at once, or taken out.
//!
//! Each move is a copy that is confirmed before the original is acknowledged. While a message is held here it does not come
//! back by itself, so a move and its time cannot meet.

mod look;
mod rungs;
mod waiter;

pub use look::Look;
pub use rungs::{Rung, Swept};
pub use waiter::Waiter;

use crate::Client;

/// The waiting queues of one work queue.
///
/// ```no_run
/// # async fn example(rmq: retryrmq::Client) -> retryrmq::Result<()> {
/// let waiting = rmq.waiting("orders");
/// for rung in waiting.rungs([]).await? {
///     println!("{} messages wait for {:?}", rung.messages, rung.delay);
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Waiting {
    client: Client,
    queue: String,
}

impl Waiting {
    pub(crate) fn new(client: Client, queue: String) -> Self {
        Self { client, queue }
    }
}
