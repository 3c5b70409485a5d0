//! Brings messages back on time: one task for a whole store, whatever the number of messages.
//!
//! It claims what is due, hands each message to the [`Sink`], and deletes it once that has succeeded. Then it sleeps until the store
//! says that the next one is due. It goes by the store's time and by time that has passed, never by the clock of this machine.

mod destination_state;
mod in_flight;
mod metrics;
mod scheduling;

use std::{future::Future, sync::Arc, time::Duration};

use tokio::time::Instant;
use tracing::{info, warn};

use self::in_flight::InFlight;
pub use self::metrics::DispatcherMetrics;
use super::{Sink, Store};

/// The longest sleep: as late a message may be that another replica keeps, and then dies before it brings it back itself.
pub(super) const IDLE: Duration = Duration::from_millis(250);

/// The pause after the store, or the broker, has refused.
const AWAY: Duration = Duration::from_secs(1);

/// Claims, publishes and deletes, until it is told to stop.
pub struct DueDispatcher<S, O> {
    store: Arc<S>,
    sink: Arc<O>,
    dispatcher_metrics: Arc<DispatcherMetrics>,
}

impl<S: Store, O: Sink> DueDispatcher<S, O> {
    /// A dispatcher for this store.
    #[must_use]
    pub fn new(store: Arc<S>, sink: Arc<O>) -> Self {
        Self {
            store,
            sink,
            dispatcher_metrics: Arc::default(),
        }
    }

    /// A dispatcher in place of one that has failed: it goes on with its metrics.
    #[must_use]
    pub(crate) fn counting_in(mut self, dispatcher_metrics: Arc<DispatcherMetrics>) -> Self {
        self.dispatcher_metrics = dispatcher_metrics;
        self
    }

    /// What it has done so far.
    #[must_use]
    pub fn dispatcher_metrics(&self) -> Arc<DispatcherMetrics> {
        Arc::clone(&self.dispatcher_metrics)
    }

    /// Runs until `stop` is ready. Then it claims no more, waits at most `drain` for what it has in hand, and leaves the
    /// rest to its leases.
    pub async fn run(self, stop: impl Future<Output = ()>, drain: Duration) {
        let mut stop = std::pin::pin!(stop);
        let mut in_flight = InFlight::new(self.store, self.sink, self.dispatcher_metrics);
        let mut away = false;
        loop {
            let settled = in_flight.settle().await;
            let sleep = match settled {
                Ok(()) => in_flight.claim().await,
                Err(why) => Err(why),
            };
            let sleep = match sleep {
                Ok(sleep) => {
                    if std::mem::take(&mut away) {
                        info!("the store answers again");
                    }
                    sleep
                }
                Err(why) => {
                    if !std::mem::replace(&mut away, true) {
                        warn!(%why, "the store does not answer; what is due comes later");
                    }
                    scheduling::ClaimWait::For(AWAY)
                }
            };
            tokio::select! {
                () = &mut stop => break,
                () = in_flight.rest(sleep, away) => {}
            }
        }
        in_flight.drain(Instant::now() + drain).await;
    }
}
