//! A lane for every queue that messages go to: one stuck queue does not stop the others.

use std::{
    collections::HashMap,
    hash::{BuildHasher, RandomState},
    sync::{Arc, Mutex, PoisonError},
};

use tokio::sync::{Semaphore, mpsc, oneshot};

use super::{Job, Publish, lane};
use crate::{Error, ErrorKind, Result, client::Link};

/// Lanes, and with them channels, that a client may have. Targets beyond that share them. A quorum queue without a leader
/// confirms nothing, and holds up every other confirm of its channel: a rung that came back dead from a crash of its
/// broker would stop whatever shares its lane.
const LANES: usize = 64;

/// Messages that callers of [`Publisher::publish`] may have outstanding together. Copies of a consumer's messages are
/// bounded by its prefetch instead: they must not wait behind an application that publishes without end.
const OUTSTANDING: usize = 4_096;

/// Publishes on its own connection.
pub(crate) struct Publisher {
    lanes: Vec<mpsc::UnboundedSender<Job>>,
    /// Which lane a target has, by the target's hash. At most [`LANES`] entries.
    assigned: Mutex<HashMap<u64, usize>>,
    choice: RandomState,
    room: Semaphore,
}

impl Publisher {
    pub(crate) fn new(link: &Arc<Link>) -> Self {
        let lanes = (0..LANES)
            .map(|_| {
                let (sender, jobs) = mpsc::unbounded_channel();
                tokio::spawn(lane::run(Arc::clone(link), jobs));
                sender
            })
            .collect();
        Self {
            lanes,
            assigned: Mutex::default(),
            choice: RandomState::new(),
            room: Semaphore::new(OUTSTANDING),
        }
    }

    /// Hands a job to its lane. The job's `done` is called once, whatever happens.
    pub(crate) fn submit(&self, job: Job) {
        let lane = self.lane(job.exchange.as_str(), job.routing_key.as_str());
        if let Err(mpsc::error::SendError(job)) = self.lanes[lane].send(job) {
            (job.done)(Err(Error::new(ErrorKind::Closed, "the client was closed")));
        }
    }

    /// Routing keys of an exchange can be any number, so that an exchange has one lane for all of them.
    fn lane(&self, exchange: &str, routing_key: &str) -> usize {
        let target = if exchange.is_empty() { routing_key } else { "" };
        let hash = self.choice.hash_one((exchange, target));
        let mut assigned = self.assigned.lock().unwrap_or_else(PoisonError::into_inner);
        let next = assigned.len();
        if next < LANES {
            *assigned.entry(hash).or_insert(next)
        } else {
            let shared = usize::try_from(hash % LANES as u64).unwrap_or(0);
            assigned.get(&hash).copied().unwrap_or(shared)
        }
    }

    /// Publishes and waits for the confirm.
    pub(crate) async fn publish(&self, message: Publish) -> Result<()> {
        let _room = self.room.acquire().await.map_err(|why| {
            Error::new(ErrorKind::Closed, "the client was closed").with_source(why)
        })?;
        let (done, answer) = oneshot::channel();
        self.submit(message.into_job(Box::new(move |result| {
            // Whoever asked may have gone; the message is published all the same.
            let _ = done.send(result);
        }))?);
        answer
            .await
            .unwrap_or_else(|_| Err(Error::new(ErrorKind::Closed, "the client was closed")))
    }
}
