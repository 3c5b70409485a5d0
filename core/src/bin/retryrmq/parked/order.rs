//! The messages of a walk in the order of time, which is not always that of the queue: RabbitMQ 4 hands out first what has
//! a priority, and what was put back as a fresh copy stands at the tail.

use std::{
    collections::VecDeque,
    time::{Duration, SystemTime},
};

use retryrmq::{Browse, Record};
use tokio::time::sleep;

use super::stop::Stop;
use crate::fault::Fault;

/// So many messages are put in order before the first is shown; what comes after them has the order of the queue.
const SORTED: usize = 2_000;
/// Or as many as have so many bytes together.
const BYTES: usize = 64 * 1024 * 1024;

/// How long the end may take once somebody wants it.
const GOODBYE: Duration = Duration::from_secs(5);

/// A walk whose messages have places: 1 is the oldest.
pub(super) struct Ordered {
    pub(super) browse: Browse,
    /// How many have been handed out: the place of the last.
    pub(super) place: usize,
    sorted: Option<VecDeque<Record>>,
    stop: Stop,
}

impl Ordered {
    pub(super) fn new(browse: Browse, stop: Stop) -> Self {
        Self {
            browse,
            place: 0,
            sorted: None,
            stop,
        }
    }

    /// Whether somebody wants us to end.
    pub(super) fn is_stopped(&self) -> bool {
        self.stop.is_set()
    }

    /// The walk, and who may want us to end.
    pub(super) fn parts(&mut self) -> (&mut Browse, &mut Stop) {
        (&mut self.browse, &mut self.stop)
    }

    /// Ends the walk. Somebody who wants us to end does not wait for a broker with an alarm: it has back what is held when the
    /// connection goes, at the price of a delivery.
    pub(super) async fn close(self) -> Result<(), Fault> {
        let Self {
            browse, mut stop, ..
        } = self;
        let stopped = async {
            stop.wait().await;
            sleep(GOODBYE).await;
        };
        tokio::select! {
            closed = browse.close() => Ok(closed?),
            () = stopped => Ok(()),
        }
    }

    /// Waits until somebody does.
    pub(super) async fn stopped(&mut self) {
        self.stop.wait().await;
    }

    /// The next message and its place; none when we are to end.
    pub(super) async fn next(&mut self) -> Result<Option<(usize, Record)>, Fault> {
        if self.sorted.is_none() {
            self.sorted = Some(self.sort().await?);
        }
        if self.is_stopped() {
            return Ok(None);
        }
        let next = match self.sorted.as_mut().and_then(VecDeque::pop_front) {
            Some(record) => Some(record),
            None => self.browse.next().await?,
        };
        Ok(next.map(|record| {
            self.place += 1;
            (self.place, record)
        }))
    }

    async fn sort(&mut self) -> Result<VecDeque<Record>, Fault> {
        let (mut timed, mut bytes) = (Vec::new(), 0);
        let mut latest = SystemTime::UNIX_EPOCH;
        while timed.len() < SORTED
            && bytes < BYTES
            && !self.is_stopped()
            && let Some(record) = self.browse.next().await?
        {
            bytes += record.message().body().len();
            // Of unknown age: as old as what came before it.
            latest = record.parked_at.unwrap_or(latest);
            timed.push((latest, record));
        }
        timed.sort_by_key(|(time, _)| *time);
        Ok(timed.into_iter().map(|(_, record)| record).collect())
    }
}
