//! A retrier for each work queue, made when its first message dies.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
};

use retryrmq::{Client, Result, Retrier};

/// For more queues than this what is known of their waiting queues is forgotten, and looked up again.
const MOST: usize = 4_096;

#[derive(Debug)]
pub(crate) struct RetrierCache {
    client: Client,
    by_queue: Mutex<HashMap<String, Retrier>>,
}

impl RetrierCache {
    pub(crate) fn new(client: Client) -> Self {
        Self {
            client,
            by_queue: Mutex::default(),
        }
    }

    /// The one of `queue`.
    ///
    /// # Errors
    /// Those of [`Client::retrier`]: for a name from which no waiting queue can be made.
    pub(crate) fn of(&self, queue: &str) -> Result<Retrier> {
        let mut all = self.by_queue.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(retrier) = all.get(queue) {
            return Ok(retrier.clone());
        }
        if all.len() >= MOST {
            all.clear();
        }
        let retrier = self.client.retrier(queue)?;
        all.insert(queue.to_owned(), retrier.clone());
        Ok(retrier)
    }
}
