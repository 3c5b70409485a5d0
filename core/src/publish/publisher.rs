//! A few lanes, chosen by where a message goes: one stuck queue does not stop the others.

use std::{
    hash::{BuildHasher, RandomState},
    sync::Arc,
};

use tokio::sync::{Semaphore, mpsc, oneshot};

use super::{Job, Publish, lane};
use crate::{Error, ErrorKind, Result, client::Link};

const LANES: usize = 4;

/// Messages that callers of [`Publisher::publish`] may have outstanding together. Copies of a consumer's messages are
/// bounded by its prefetch instead: they must not wait behind an application that publishes without end.
const OUTSTANDING: usize = 4_096;

/// Publishes on its own connection.
pub(crate) struct Publisher {
    lanes: Vec<mpsc::UnboundedSender<Job>>,
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
            choice: RandomState::new(),
            room: Semaphore::new(OUTSTANDING),
        }
    }

    /// Hands a job to its lane. The job's `done` is called once, whatever happens.
    pub(crate) fn submit(&self, job: Job) {
        let hash = self
            .choice
            .hash_one((job.exchange.as_str(), job.routing_key.as_str()));
        let lane = usize::try_from(hash % LANES as u64).unwrap_or(0);
        if let Err(mpsc::error::SendError(job)) = self.lanes[lane].send(job) {
            (job.done)(Err(Error::new(ErrorKind::Closed, "the client was closed")));
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
