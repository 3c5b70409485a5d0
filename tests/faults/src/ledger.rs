//! The ledger of a load: what was published against what was handled, what is parked and what is still in a queue.

use crate::{DEADLINE, load};
use retryrmq_harness::{Amqp, Broker, Ledger, Report, eventually};
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::time::sleep;

/// How long a message may be on its way between two queues.
const MOVING: Duration = Duration::from_secs(120);

/// The ledger of one queue's load. Clones write into the same.
#[derive(Clone, Debug)]
pub struct LoadLedger {
    ledger: Ledger,
    queue: Arc<str>,
    published: Arc<Mutex<BTreeSet<String>>>,
    handled: Arc<Mutex<BTreeSet<String>>>,
}

impl LoadLedger {
    /// An empty ledger for the messages of a queue.
    pub fn new(queue: &str) -> Self {
        LoadLedger {
            ledger: Ledger::new(),
            queue: queue.into(),
            published: Arc::default(),
            handled: Arc::default(),
        }
    }

    /// The broker has confirmed this message.
    pub fn published(&self, id: &str) {
        self.ledger.published(id);
        lock(&self.published).insert(id.to_owned());
    }

    /// A handler has succeeded with this message.
    pub fn handled(&self, id: &str) {
        self.ledger.handled(id);
        lock(&self.handled).insert(id.to_owned());
    }

    /// How many different messages were handled.
    pub fn handled_count(&self) -> usize {
        lock(&self.handled).len()
    }

    /// Waits until every message was handled or is parked. To be called when nothing is published any more.
    ///
    /// # Panics
    /// When that does not happen: a message is lost, or the consumer hangs.
    pub async fn settled(&self, amqp: &Amqp) {
        let parking = format!("{}.parked", self.queue);
        let doomed = lock(&self.published)
            .iter()
            .filter(|id| load::is_doomed(id))
            .count();
        eventually(
            DEADLINE,
            "every message was handled or is parked",
            || async {
                let missing = {
                    let handled = lock(&self.handled);
                    let published = lock(&self.published);
                    let awaited = published.iter().filter(|id| !load::is_doomed(id));
                    awaited
                        .filter(|id| !handled.contains(*id))
                        .take(5)
                        .cloned()
                        .collect::<Vec<_>>()
                };
                let parked = amqp.depth(&parking).await.unwrap_or(0) as usize;
                if missing.is_empty() && parked >= doomed {
                    Ok(())
                } else {
                    Err(format!(
                        "{} handled, {parked} of {doomed} parked, not yet handled: {missing:?} …",
                        self.handled_count()
                    ))
                }
            },
        )
        .await;
    }

    /// Looks into every queue that may still hold a message, and balances.
    ///
    /// # Panics
    /// When a message was lost, when one was parked that should not have been, or one was handled that cannot succeed.
    pub async fn balance(&self, broker: &Broker, vhost: &str, amqp: &Amqp, what: &str) -> Report {
        // A message that moves from one queue to the next while they are looked into, one after the other, is in none of
        // them. What is lost stays lost, so looking again finds out.
        let mut parked = BTreeSet::new();
        let deadline = Instant::now() + MOVING;
        loop {
            self.look_into_all(broker, vhost, amqp, what, &mut parked)
                .await;
            if self.ledger.report().lost.is_empty() || Instant::now() > deadline {
                break;
            }
            sleep(Duration::from_millis(100)).await;
        }
        let report = self.ledger.assert_nothing_lost(what);
        let innocent: Vec<_> = parked.iter().filter(|id| !load::is_doomed(id)).collect();
        assert!(
            innocent.is_empty(),
            "{what}: parked although an attempt succeeds: {innocent:?}"
        );
        report
    }

    async fn look_into_all(
        &self,
        broker: &Broker,
        vhost: &str,
        amqp: &Amqp,
        what: &str,
        parked: &mut BTreeSet<String>,
    ) {
        let queues = broker.management().queues(vhost).await;
        for queue in queues.expect("the management interface answers") {
            let name = queue.name().to_owned();
            if name == format!("{}.parked", self.queue) {
                for message in amqp.drain(&name).await {
                    let reason = message.header_text("x-retry-parked-reason");
                    assert_eq!(
                        reason.as_deref(),
                        Some("exhausted"),
                        "{what}: {} was parked",
                        message.text()
                    );
                    parked.insert(message.text().to_owned());
                    self.ledger.parked(message.text());
                }
            } else if name == *self.queue || name.starts_with(&format!("{}.retry.", self.queue)) {
                for message in amqp.drain(&name).await {
                    self.ledger.queued(message.text());
                }
            }
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
