//! The gauge of parked messages, for the metrics.
//!
//! The count comes from a passive `queue.declare`. The broker answers 0 for a quorum queue without a leader, so a count of 0 is checked
//! with `basic.get`, which may take a message out for a moment. To disturb as little as possible, the check runs only if the queue had
//! messages at the previous look, and never at the first one: otherwise each consumer that starts would touch the parked messages. If the
//! check gives no answer, no number is shown.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::{Duration, Instant},
};

use futures_util::FutureExt;
use tokio::runtime::Handle;
use tracing::debug;

use crate::{
    ErrorKind, Result,
    connection::{
        Addresses, Connection, Link, OpenChannel, ProbeConnection, ReadyCounter, is_doubtful,
        passive_declare,
    },
    telemetry::ParkedDepth,
    topology::{name, parking_queue},
};

/// The shortest time between two looks. A look takes a channel, and one question per queue, however often the metrics are read.
const FRESH: Duration = Duration::from_secs(5);

/// The parking queues of a client's consumers.
pub(super) struct ParkedGauge {
    depth: ParkedDepth,
    addresses: Arc<Addresses>,
    looks: Arc<ProbeConnection>,
    state: Mutex<State>,
    /// The metrics may be read from a thread outside any runtime.
    runtime: Handle,
}

#[derive(Default)]
struct State {
    /// The work queues whose parking queues are counted.
    queues: BTreeSet<String>,
    /// What the last look found, for queues that were neither empty nor missing.
    known: BTreeMap<String, Known>,
    /// Queues that were missing, or whose node was away, at the last look. Such a look uses up a channel number for good.
    costly: BTreeSet<String>,
    looked: Option<Instant>,
    is_looking: bool,
}

/// What the last look found.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Known {
    /// It had messages when it was looked at last.
    Filled,
    /// It looks empty, and this user lacks the permission to read it, which would prove it.
    Unreadable,
}

impl ParkedGauge {
    /// MUST be called inside a runtime.
    pub(super) fn new(
        depth: ParkedDepth,
        addresses: &Arc<Addresses>,
        looks: &Arc<ProbeConnection>,
    ) -> Arc<Self> {
        Arc::new(Self {
            depth,
            addresses: Arc::clone(addresses),
            looks: Arc::clone(looks),
            state: Mutex::default(),
            runtime: Handle::current(),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts this queue's parking queue from the next look on. It does not look now: the first who reads the metrics would get a number as old
    /// as the consumer.
    pub(super) fn watch(&self, queue: &str) {
        let mut state = self.state();
        if state.queues.insert(queue.to_owned()) {
            state.looked = None;
        }
    }

    /// Looks in the background, unless the last look was a moment ago.
    pub(super) fn refresh(self: &Arc<Self>, link: &Arc<Link>) {
        let mut state = self.state();
        let is_fresh = state.looked.is_some_and(|looked| looked.elapsed() < FRESH);
        if state.queues.is_empty() || state.is_looking || is_fresh {
            return;
        }
        state.is_looking = true;
        drop(state);
        let (parked_gauge, link) = (Arc::clone(self), Arc::downgrade(link));
        self.runtime.spawn(async move {
            // Dropped even when this task is dropped with its runtime.
            let looking = RefreshGuard(&parked_gauge);
            if let Err(error) = parked_gauge.update(&link).await {
                debug!(%error, "how many messages are parked is not known");
            }
            drop(looking);
        });
    }

    /// Removes the number of each queue that could not be counted: an old number would be wrong.
    async fn update(&self, link: &Weak<Link>) -> Result<()> {
        let mut queues = self.state().queues.clone();
        let looked = self.count(&mut queues, link).await;
        for queue in &queues {
            self.depth.unknown(queue);
        }
        looked
    }

    /// Looks at the queues one after the other. What is left in `queues` at the end was not looked at.
    async fn count(&self, queues: &mut BTreeSet<String>, link: &Weak<Link>) -> Result<()> {
        let mut channel: Option<OpenChannel> = None;
        while let Some(queue) = queues.pop_first() {
            self.depth.unknown(&queue);
            // Do not wait for a lost connection: the other queues would keep old numbers meanwhile.
            let Some(connection) = connected(link) else {
                return Ok(());
            };
            let connection = connection?;
            // A look that uses up a channel number does not go over the consuming connection, which would end once all numbers are used up.
            let costly = self.state().costly.contains(&queue);
            let open = if costly {
                match self.looks.channel().await {
                    Ok(open) => open,
                    Err(error) => {
                        debug!(queue, %error, "how many messages are parked is not known");
                        continue;
                    }
                }
            } else {
                match channel.take().filter(OpenChannel::is_open) {
                    Some(open) => open,
                    None => connection.channel().await?,
                }
            };
            match passive_declare(&open, name(&parking_queue(&queue))?).await {
                Ok(parked) => {
                    let parked = match self.known(&queue) {
                        // Whatever prevents this count, such as a limit on connections, says nothing about the other queues.
                        Some(Known::Filled) if is_doubtful(&parked) => {
                            self.counted(&queue).await.unwrap_or_else(|error| {
                                debug!(queue, %error, "how many messages are parked is not known");
                                None
                            })
                        }
                        Some(Known::Unreadable) if is_doubtful(&parked) => None,
                        _ => Some(parked.message_count()),
                    };
                    if let Some(parked) = parked {
                        self.depth.is(&queue, parked);
                        self.remember(&queue, (parked > 0).then_some(Known::Filled));
                    }
                    if costly {
                        self.state().costly.remove(&queue);
                    }
                }
                // It would be refused again, and the broker log each refusal.
                Err(error)
                    if matches!(error.kind(), ErrorKind::AccessRefused | ErrorKind::TooLarge) =>
                {
                    self.state().queues.remove(&queue);
                }
                Err(error) if error.kind() == ErrorKind::QueueNotFound => {
                    self.remember(&queue, None);
                    self.state().costly.insert(queue);
                }
                // Only this queue's node is away.
                Err(error) if error.kind() == ErrorKind::Timeout && !open.is_open() => {
                    self.state().costly.insert(queue);
                }
                // This look had a connection of its own; the other queues are not affected.
                Err(error) if costly => {
                    debug!(queue, %error, "how many messages are parked is not known");
                }
                Err(error) => return Err(error),
            }
            if costly {
                open.close().await;
            } else {
                channel = Some(open);
            }
        }
        if let Some(channel) = channel {
            channel.close().await;
        }
        Ok(())
    }

    fn known(&self, queue: &str) -> Option<Known> {
        self.state().known.get(queue).copied()
    }

    fn remember(&self, queue: &str, known: Option<Known>) {
        let mut state = self.state();
        match known {
            Some(known) => state.known.insert(queue.to_owned(), known),
            None => state.known.remove(queue),
        };
    }

    /// Counts a queue that looks empty, because the broker also answers 0 for a queue without a leader. `None` if the count cannot be
    /// known.
    async fn counted(&self, queue: &str) -> Result<Option<u32>> {
        // A connection of its own: finding out the queue's type uses up a channel number for good.
        let connection = Connection::open(&self.addresses, "depths").await?;
        let counter = ReadyCounter::hasty(&self.addresses);
        let count = counter.of(&connection, &name(&parking_queue(queue))?).await;
        counter.close().await;
        connection.close().await;
        match count {
            Ok(count) if count.doubt.is_some() => {
                self.remember(queue, Some(Known::Unreadable));
                Ok(None)
            }
            Ok(count) => Ok(Some(count.found.message_count())),
            Err(error) if error.kind() == ErrorKind::Timeout => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// The connection, unless it is lost.
fn connected(link: &Weak<Link>) -> Option<Result<Arc<Connection>>> {
    let link = link.upgrade().filter(|link| link.health().is_ok())?;
    link.connection().now_or_never()
}

struct RefreshGuard<'a>(&'a ParkedGauge);

impl Drop for RefreshGuard<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state();
        state.is_looking = false;
        state.looked = Some(Instant::now());
    }
}
