//! The messages of a walk in the order of time, which is not always that of the queue: RabbitMQ 4 hands out first what has
//! a priority, and what was put back as a fresh copy stands at the tail.

use std::{collections::VecDeque, time::SystemTime};

use retryrmq::{Browse, Parked, Record, Resend};
use retryrmq_operator::other_libraries::DeadLetter;

use super::{foreign, other_consumers, target};
use crate::{error::CliError, shutdown::Shutdown};

/// The most messages that are sorted before the first is shown; the others have the order of the queue.
const SORTED: usize = 2_000;
/// Or as many as have so many bytes together.
const BYTES: usize = 64 * 1024 * 1024;

/// A walk whose messages have places: 1 is the oldest.
pub(super) struct SortedWalk {
    pub(super) browse: Browse,
    /// How many have been handed out: the place of the last.
    pub(super) place: usize,
    sorted: Option<VecDeque<Record>>,
    /// The queue that the messages were parked in, for whoever reads them.
    parking: String,
    name: String,
    shutdown: Shutdown,
    /// Something was still under way when we ended.
    is_cut: bool,
}

impl SortedWalk {
    /// Begins a walk; none when we are to end before that. `dlq`: there is nothing to say of --dlq where the queue is missing.
    pub(super) async fn open(
        parked: &Parked,
        dlq: bool,
        shutdown: Shutdown,
    ) -> Result<Option<Self>, CliError> {
        let Some(browse) = shutdown.unless_cut(parked.browse()).await else {
            return Ok(None);
        };
        Ok(Some(Self {
            browse: browse.map_err(|error| target::absent(error, dlq))?,
            place: 0,
            sorted: None,
            parking: parked.parking(),
            name: parked.name(),
            shutdown,
            is_cut: false,
        }))
    }

    /// Whether the order is that of time to the last message; the first of them have come then, and are held.
    pub(super) async fn is_of_time(&mut self) -> Result<bool, CliError> {
        if self.browse.remaining() as usize > SORTED {
            return Ok(false);
        }
        if self.sorted.is_none() {
            self.sorted = Some(self.sort().await?);
        }
        Ok(self.browse.remaining() == 0)
    }

    /// The queue that its messages were parked in.
    pub(super) fn parking(&self) -> &str {
        &self.parking
    }

    /// The queue that it goes through.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// What another library or the broker says of a message.
    pub(super) fn letter(&self, record: &Record) -> Option<DeadLetter> {
        foreign::of(record, &self.parking)
    }

    /// Whether somebody wants us to end.
    pub(super) fn is_stopped(&self) -> bool {
        self.shutdown.is_set()
    }

    /// Sends copies of messages, which stay parked as well until they are dropped. None where we are to end and a broker with an
    /// alarm does not answer: what became of them is not known then.
    pub(super) async fn send(&mut self, messages: &[Resend]) -> Option<Vec<retryrmq::Result<()>>> {
        let sent = self.shutdown.unless_cut(self.browse.send(messages)).await;
        self.is_cut |= sent.is_none();
        sent
    }

    /// Like [`send`](Self::send), for copies of messages and their records as they are.
    pub(super) async fn copy_to(
        &mut self,
        records: &[Record],
        queue: &str,
    ) -> Option<Vec<retryrmq::Result<()>>> {
        let copied = self.browse.copy_to(records, queue);
        let copied = self.shutdown.unless_cut(copied).await;
        self.is_cut |= copied.is_none();
        copied
    }

    /// Drops a message. Whether that was done: not where we are to end and a broker does not answer.
    pub(super) async fn drop(&mut self, record: &Record) -> retryrmq::Result<bool> {
        match self.shutdown.unless_cut(self.browse.drop(record)).await {
            Some(done) => done.map(|()| true),
            None => {
                self.is_cut = true;
                Ok(false)
            }
        }
    }

    /// [Ends](Self::close) the walk after what was done in it; tells of both where both failed.
    pub(super) async fn close_after<T>(self, done: Result<T, CliError>) -> Result<T, CliError> {
        match (done, self.close().await) {
            (Ok(done), closed) => closed.map(|()| done),
            (Err(cli_error), Ok(())) => Err(cli_error),
            (Err(cli_error), Err(later)) => Err(cli_error.then(later)),
        }
    }

    /// Ends the walk. Somebody who wants us to end does not wait for a broker with an alarm: it has back what is held when the
    /// connection goes, at the price of a delivery.
    pub(super) async fn close(self) -> Result<(), CliError> {
        if self.is_cut {
            return Ok(()); // what is under way would be done twice
        }
        match self.shutdown.unless_cut(self.browse.close()).await {
            Some(closed) => Ok(closed?),
            None => Ok(()),
        }
    }

    /// Waits until somebody does.
    pub(super) async fn stopped(&mut self) {
        self.shutdown.wait().await;
    }

    /// The next message and its place; none when we are to end.
    pub(super) async fn next(&mut self) -> Result<Option<(usize, Record)>, CliError> {
        if self.sorted.is_none() {
            self.sorted = Some(self.sort().await?);
        }
        if self.is_stopped() {
            return Ok(None);
        }
        let next = match self.sorted.as_mut().and_then(VecDeque::pop_front) {
            Some(record) => Some(record),
            None => self.come().await?,
        };
        Ok(next.map(|record| {
            self.place += 1;
            (self.place, record)
        }))
    }

    /// What comes next in the queue. What was looked at before is put back as a copy first, which takes as long as an alarm.
    async fn come(&mut self) -> Result<Option<Record>, CliError> {
        match self.shutdown.unless_cut(self.browse.next()).await {
            Some(next) => {
                let next = next.map_err(|error| other_consumers::refused(error, &self.parking))?;
                Ok(next.map(|mut record| {
                    foreign::fill(&mut record, &self.parking);
                    record
                }))
            }
            None => {
                self.is_cut = true;
                Ok(None)
            }
        }
    }

    async fn sort(&mut self) -> Result<VecDeque<Record>, CliError> {
        let (mut timed, mut bytes) = (Vec::new(), 0);
        let mut latest = SystemTime::UNIX_EPOCH;
        while timed.len() < SORTED
            && bytes < BYTES
            && !self.is_stopped()
            && let Some(record) = self.come().await?
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
