//! How many messages are parked, for the metrics.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::{Duration, Instant},
};

use futures_util::FutureExt;
use tokio::runtime::Handle;
use tracing::debug;

use crate::{
    ErrorKind, Result,
    connection::{Link, OpenChannel, look},
    telemetry::Depth,
    topology::{name, parking_queue},
};

/// A look costs the broker a channel and a question for each queue: no more often than this, however often the metrics are read.
const FRESH: Duration = Duration::from_secs(5);

/// The parking queues of a client's consumers.
pub(super) struct Depths {
    depth: Depth,
    state: Mutex<State>,
    /// Metrics are read by threads of every kind.
    runtime: Handle,
}

#[derive(Default)]
struct State {
    /// The work queues whose parking queue is looked at.
    queues: BTreeSet<String>,
    looked: Option<Instant>,
    is_looking: bool,
}

impl Depths {
    /// In a runtime only.
    pub(super) fn new(depth: Depth) -> Arc<Self> {
        Arc::new(Self {
            depth,
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
            let open = match channel.take().filter(OpenChannel::is_open) {
                Some(open) => open,
                None => {
                    let Some(link) = link.upgrade().filter(|link| link.health().is_ok()) else {
                        return Ok(());
                    };
                    // One that is lost at this moment is not waited for: the others have old numbers.
                    let Some(connection) = link.connection().now_or_never() else {
                        return Ok(());
                    };
                    connection?.channel().await?
                }
            };
            match look(open.lapin(), name(&parking_queue(&queue))?).await {
                Ok(parked) => self.depth.is(&queue, parked.message_count()),
                // It would be refused again, with a line in the broker's log each time.
                Err(error) if error.kind() == ErrorKind::AccessRefused => {
                    self.state().queues.remove(&queue);
                }
                Err(error) if error.kind() == ErrorKind::QueueNotFound => {}
                Err(error) => return Err(error),
            }
            channel = Some(open);
        }
        if let Some(channel) = channel {
            channel.close().await;
        }
        Ok(())
    }
}

struct Looking<'a>(&'a Depths);

impl Drop for Looking<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state();
        state.is_looking = false;
        state.looked = Some(Instant::now());
    }
}
