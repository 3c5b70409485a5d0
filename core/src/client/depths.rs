//! How many messages are parked, for the metrics.
//!
//! A quorum queue without a leader is taken for empty by the broker, and to find out takes a question that may hand out a message
//! (`basic.get`), and keeps it from others for a moment. So it is asked only where messages were parked a moment ago, and now are not; without an
//! answer no number is shown. Not at the first look: each consumer that starts would touch what is parked.

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
    connection::{Addresses, Census, Connection, Link, Looks, OpenChannel, is_doubtful, look},
    telemetry::Depth,
    topology::{name, parking_queue},
};

/// A look costs the broker a channel and a question for each queue: no more often than this, however often the metrics are read.
const FRESH: Duration = Duration::from_secs(5);

/// The parking queues of a client's consumers.
pub(super) struct Depths {
    depth: Depth,
    addresses: Arc<Addresses>,
    looks: Arc<Looks>,
    state: Mutex<State>,
    /// Metrics are read by threads of every kind.
    runtime: Handle,
}

#[derive(Default)]
struct State {
    /// The work queues whose parking queue is looked at.
    queues: BTreeSet<String>,
    /// What is known of those that were looked at, and were not empty or missing.
    known: BTreeMap<String, Known>,
    /// Those whose last look cost its connection a channel for good: they were missing, or their node was away.
    costly: BTreeSet<String>,
    looked: Option<Instant>,
    is_looking: bool,
}

/// What is known of a queue.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Known {
    /// It had messages when it was looked at last.
    Filled,
    /// It seems empty, and this user may not read it, which would prove it.
    Unreadable,
}

impl Depths {
    /// In a runtime only.
    pub(super) fn new(depth: Depth, addresses: &Arc<Addresses>, looks: &Arc<Looks>) -> Arc<Self> {
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

    /// The parking queue of this one from now on, too.
    pub(super) fn watch(self: &Arc<Self>, queue: &str, link: &Arc<Link>) {
        {
            let mut state = self.state();
            if !state.queues.insert(queue.to_owned()) {
                return;
            }
            state.looked = None;
        }
        self.refresh(link);
    }

    /// Looks, in the background, unless that was done just now.
    pub(super) fn refresh(self: &Arc<Self>, link: &Arc<Link>) {
        let mut state = self.state();
        let is_fresh = state.looked.is_some_and(|looked| looked.elapsed() < FRESH);
        if state.queues.is_empty() || state.is_looking || is_fresh {
            return;
        }
        state.is_looking = true;
        drop(state);
        let (depths, link) = (Arc::clone(self), Arc::downgrade(link));
        self.runtime.spawn(async move {
            // Also when this task is dropped with its runtime.
            let looking = Looking(&depths);
            if let Err(error) = depths.look(&link).await {
                debug!(%error, "how many messages are parked is not known");
            }
            drop(looking);
        });
    }

    /// A number that is not known is not shown: an old one would be wrong.
    async fn look(&self, link: &Weak<Link>) -> Result<()> {
        let mut queues = self.state().queues.clone();
        let looked = self.look_at(&mut queues, link).await;
        for queue in &queues {
            self.depth.unknown(queue);
        }
        looked
    }

    /// Looks at one after the other, and leaves those that it does not come to.
    async fn look_at(&self, queues: &mut BTreeSet<String>, link: &Weak<Link>) -> Result<()> {
        let mut channel: Option<OpenChannel> = None;
        while let Some(queue) = queues.pop_first() {
            self.depth.unknown(&queue);
            // One that is lost at this moment is not waited for: the others have old numbers.
            let Some(connection) = connected(link) else {
                return Ok(());
            };
            let connection = connection?;
            // Not on the connection that consumes, which would end with its last channel.
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
            match look(open.lapin(), name(&parking_queue(&queue))?).await {
                Ok(parked) => {
                    let parked = match self.known(&queue) {
                        // What keeps this one from being counted, as a limit of connections, says nothing of the others.
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
                // It would be refused again, with a line in the broker's log each time.
                Err(error) if error.kind() == ErrorKind::AccessRefused => {
                    self.state().queues.remove(&queue);
                }
                Err(error) if error.kind() == ErrorKind::QueueNotFound => {
                    self.remember(&queue, None);
                    self.state().costly.insert(queue);
                }
                // Only its own node is away.
                Err(error) if error.kind() == ErrorKind::Timeout && !open.is_open() => {
                    self.state().costly.insert(queue);
                }
                // Of another connection than that of the others.
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

    /// How many are parked where the broker says that there are none: it says so of a queue without a leader as well. None where
    /// nobody knows.
    async fn counted(&self, queue: &str) -> Result<Option<u32>> {
        // Not the connection that consumes: the question for its type costs a channel for good.
        let connection = Connection::open(&self.addresses, "depths").await?;
        let census = Census::hasty(&self.addresses);
        let count = census.of(&connection, &name(&parking_queue(queue))?).await;
        census.close().await;
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

struct Looking<'a>(&'a Depths);

impl Drop for Looking<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state();
        state.is_looking = false;
        state.looked = Some(Instant::now());
    }
}
