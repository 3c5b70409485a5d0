//! A publisher that goes on while things are killed, and records what the broker has confirmed.

use crate::{DEADLINE, ledger::LoadLedger, load};
use retryrmq::Client;
use retryrmq_harness::eventually;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::task::JoinHandle;

/// How many messages are on their way together.
const BATCH: usize = 10;
/// Between two batches.
const PACE: Duration = Duration::from_millis(60);

/// Publishes until it is told to stop.
#[derive(Debug)]
pub struct Publisher {
    stop: Arc<AtomicBool>,
    task: JoinHandle<usize>,
}

impl Publisher {
    /// Begins to publish the load to a queue. A message that is not confirmed is published again, until it is.
    pub fn start(client: Client, queue: &str, load_ledger: LoadLedger) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let (stopped, queue) = (Arc::clone(&stop), queue.to_owned());
        let task = tokio::spawn(async move {
            let mut next = 0;
            while !stopped.load(Ordering::Relaxed) {
                let batch = (next..next + BATCH)
                    .map(|number| publish(&client, &queue, number, &load_ledger));
                futures_util::future::join_all(batch).await;
                next += BATCH;
                tokio::time::sleep(PACE).await;
            }
            next
        });
        Publisher { stop, task }
    }

    /// Stops; returns how many messages were published.
    ///
    /// # Panics
    /// When a message could not be published at all.
    pub async fn stop(self) -> usize {
        self.stop.store(true, Ordering::Relaxed);
        self.task.await.expect("all was published")
    }
}

/// Publishes one message of the load, and records it once it is confirmed.
///
/// # Panics
/// When it is never confirmed.
pub async fn publish(client: &Client, queue: &str, number: usize, load_ledger: &LoadLedger) {
    eventually(DEADLINE, "the message is confirmed", || async {
        client.publish(load::message(queue, number)).await
    })
    .await;
    load_ledger.published(&number.to_string());
}
