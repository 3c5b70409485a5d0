//! The waiting queues that are known to exist, and since when they are a safe place.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use tokio::time::Instant;

use super::{Finding, Item, Mode, Plan, QueueType, Status, apply, plan};
use crate::{
    Result,
    client::{Address, Connection},
};

/// A quorum queue younger than about a second comes back empty when its broker is killed, confirmed messages included.
const SAFE_AGE: Duration = Duration::from_secs(2);

/// The waiting queues of one consumer.
pub(crate) struct Waits {
    address: Arc<Address>,
    queue: String,
    queue_type: QueueType,
    declare: bool,
    /// By queue name, the time from which it is a safe place.
    safe_from: Mutex<HashMap<String, Instant>>,
    /// One at a time: a burst of failures asks for the same rung many times over.
    making: tokio::sync::Mutex<()>,
}

impl Waits {
    pub(crate) fn new(
        address: Arc<Address>,
        queue: String,
        queue_type: QueueType,
        declare: bool,
    ) -> Self {
        let (safe_from, making) = (Mutex::default(), tokio::sync::Mutex::default());
        Self {
            address,
            queue,
            queue_type,
            declare,
            safe_from,
            making,
        }
    }

    /// Takes note of what a plan found or made.
    pub(crate) fn note(&self, findings: &[Finding]) {
        let now = Instant::now();
        for finding in findings {
            let mut known = self.lock();
            let name = finding.item.name().to_owned();
            if finding.status == Status::Created {
                known.insert(name, now + SAFE_AGE); // also when one of that name was known before
            } else {
                known.entry(name).or_insert(now);
            }
        }
    }

    /// Forgets a queue that turned out to be missing.
    pub(crate) fn forget(&self, name: &str) {
        self.lock().remove(name);
    }

    /// From when on a message in the queue `name` survives a crash of the broker; `None` if the queue is not known.
    pub(crate) fn safe_from(&self, name: &str) -> Option<Instant> {
        self.lock().get(name).copied()
    }

    /// Makes sure that the waiting or parking queue `name` exists.
    ///
    /// # Errors
    /// As [`apply`] and [`Connection::open`].
    pub(crate) async fn ensure(&self, name: &str) -> Result<Instant> {
        let _one = self.making.lock().await;
        if let Some(safe) = self.safe_from(name) {
            return Ok(safe);
        }
        let item = self.item(name);
        let connection = Connection::open(&self.address, "topology").await?;
        let mode = if self.declare {
            Mode::Apply
        } else {
            Mode::Require
        };
        let findings = apply(&connection, &Plan { items: vec![item] }, mode).await;
        connection.close().await;
        self.note(&findings?);
        Ok(self.safe_from(name).unwrap_or_else(Instant::now))
    }

    fn item(&self, name: &str) -> Item {
        let delay = name
            .strip_prefix(self.queue.as_str())
            .and_then(|rest| rest.strip_prefix(".retry."))
            .and_then(|ms| ms.parse().ok());
        match delay {
            Some(ms) => plan::waiting(&self.queue, Duration::from_millis(ms), self.queue_type),
            None => plan::parking(&self.queue, self.queue_type),
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<String, Instant>> {
        self.safe_from
            .lock()
            .unwrap_or_else(|poison| poison.into_inner())
    }
}
