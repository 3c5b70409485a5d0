//! What happened, as small events in a stream of RabbitMQ: audit, history, and what the page is made of.
//!
//! ```text
//!  EventBus ─► Recorder ─► stream `retryrmq.serve.history` ─► reader ─► Index   (the same on every replica)
//!  jobs of the page ──────────────▲   ▲
//!  retryrmq parked … --audit-stream
//! ```
//!
//! Nobody waits for it: what the recorder has no room for is dropped and counted, and a retry goes on. Only a job writes its events down
//! before it acts. No event holds a body.

mod configuration;
mod event;
mod index;
mod policy_drift;
mod recorder;

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use jiff::Timestamp;
use prometheus_client::{metrics::counter::Counter, registry::Registry};
use retryrmq::{Client, StreamEntry, StreamFrom, doubling_pause::DoublingPause};
use tokio::{
    sync::watch,
    time::{Instant, sleep, timeout, timeout_at},
};
use tracing::{debug, info, warn};

pub use configuration::Configuration;
pub(crate) use event::{Event, HistoryAction};
pub(crate) use index::{Group, Index, IntervalCounts, QueueSummary};

use crate::EventBus;
use policy_drift::PolicyDrift;
use recorder::Recorder;

/// The pause before what failed is tried again.
const AGAIN: Duration = Duration::from_secs(5);
const LONGEST_PAUSE: Duration = Duration::from_secs(300);
/// How long the end of the service waits for what was told last.
const FAREWELL: Duration = Duration::from_secs(5);

/// How long the entry that was read last may take to come again. What is made anew has none.
const MEETING: Duration = Duration::from_secs(20);

/// The entry that was read last.
struct LastEntry {
    offset: u64,
    body: Vec<u8>,
    /// This reader has come by it: the stream is the same.
    is_met: bool,
}

impl LastEntry {
    fn of(entry: &StreamEntry) -> Self {
        Self {
            offset: entry.offset,
            body: entry.body.clone(),
            is_met: true,
        }
    }
}

/// What a service writes and reads of the history. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct History {
    configuration: Configuration,
    index: Arc<Index>,
    policy_drift: Arc<PolicyDrift>,
    written: Counter,
    dropped: Counter,
    /// Events that are on their way to the stream.
    pending: watch::Sender<usize>,
}

impl History {
    pub(crate) fn new(configuration: Configuration) -> Self {
        Self {
            index: Arc::new(Index::new(configuration.records)),
            configuration,
            policy_drift: Arc::default(),
            written: Counter::default(),
            dropped: Counter::default(),
            pending: watch::Sender::new(0),
        }
    }

    /// What is known of the last day.
    pub(crate) fn index(&self) -> &Arc<Index> {
        &self.index
    }

    /// Whether anything is written and read.
    pub(crate) fn is_on(&self) -> bool {
        self.configuration.enabled
    }

    /// How many parked messages are known by name at most.
    pub(crate) fn records(&self) -> usize {
        self.configuration.records
    }

    /// Its numbers.
    pub(crate) fn registry(&self) -> Registry {
        let mut registry = Registry::with_prefix("retryrmq_serve");
        registry.register(
            "history_written",
            "Events that the stream of the history took",
            self.written.clone(),
        );
        registry.register(
            "history_dropped",
            "Events that were dropped because the stream did not take them in time",
            self.dropped.clone(),
        );
        if self.configuration.enabled {
            registry.register(
                "policies_differ",
                "1 while another service in this virtual host uses a different policy, for a minute at least",
                self.policy_drift.differ.clone(),
            );
        }
        registry.register_collector(Box::new(index::IndexMetrics(Arc::clone(&self.index))));
        registry
    }

    /// Writes what the feed tells and by which policy this service decides, and follows the stream. Never ends.
    pub(crate) async fn run(
        &self,
        client: &Client,
        event_bus: &EventBus,
        policy_digest: watch::Receiver<String>,
    ) {
        if !self.configuration.enabled {
            return std::future::pending().await;
        }
        let recorder = Recorder::new(
            self.written.clone(),
            self.dropped.clone(),
            self.pending.clone(),
        );
        // From the first moment on: what happens while the stream is made waits.
        let news = event_bus.listen();
        let stream = &self.configuration.stream;
        let (made, is_made) = watch::channel(false);
        let follow = async {
            self.make(client).await;
            made.send_replace(true);
            tokio::join!(self.follow(client), self.compare(client, policy_digest));
        };
        tokio::join!(recorder.run(client, stream, news, is_made), follow);
    }

    /// Writes events down, and returns when they are confirmed.
    ///
    /// # Errors
    /// A sentence: the stream may lack some of them.
    pub(crate) async fn write(&self, client: &Client, events: &[Event]) -> Result<(), String> {
        if !self.configuration.enabled {
            return Ok(());
        }
        let stream = &self.configuration.stream;
        recorder::publish(client, stream, events).await?;
        self.written.inc_by(events.len() as u64);
        Ok(())
    }

    /// Says by which policy this service decides, and looks whether the others decide alike. Never ends.
    async fn compare(&self, client: &Client, mut policy_digest: watch::Receiver<String>) {
        loop {
            let digest = policy_digest.borrow_and_update().clone();
            let events = [self.policy_drift.says(&digest)];
            self.policy_drift.compare();
            let said = recorder::publish(client, &self.configuration.stream, &events);
            if let Ok(Err(why)) = timeout(policy_drift::BEAT, said).await {
                debug!(
                    why,
                    "the others do not hear by which policy this service decides"
                );
            }
            tokio::select! {
                Ok(()) = policy_digest.changed() => {}
                () = sleep(policy_drift::BEAT) => {}
            }
        }
    }

    /// Waits a moment for what was told last; while [`run`](Self::run) goes on.
    pub(crate) async fn settle(&self) {
        let mut pending = self.pending.subscribe();
        let settled = async {
            tokio::task::yield_now().await; // what was told is taken first
            let _ = pending.wait_for(|count| *count == 0).await;
        };
        let _ = timeout(FAREWELL, settled).await; // it is in the stream, or it is not
    }

    async fn make(&self, client: &Client) {
        let Configuration {
            stream,
            keep,
            max_bytes,
            ..
        } = &self.configuration;
        let mut pause = DoublingPause::new(AGAIN, LONGEST_PAUSE);
        loop {
            match client.stream(stream, keep.0, *max_bytes).await {
                Ok(()) => return,
                Err(error) => {
                    warn!(%error, "the stream of the history cannot be made; what happens is not written down yet");
                }
            }
            sleep(pause.next_pause()).await;
        }
    }

    /// Fills the index with the last day, and with what comes.
    async fn follow(&self, client: &Client) {
        let stream = &self.configuration.stream;
        let mut last: Option<LastEntry> = None;
        'anew: loop {
            // With the last one itself: a stream that somebody has made anew counts from 0, and has nothing to send behind it for long.
            let from = match last.as_ref().and_then(|last| last.offset.checked_sub(1)) {
                Some(offset) => StreamFrom::After(offset),
                None => StreamFrom::Time(
                    SystemTime::now()
                        .checked_sub(index::SPAN)
                        .unwrap_or(SystemTime::UNIX_EPOCH),
                ),
            };
            let error = match client.read_stream(stream, from).await {
                Ok(mut reader) => {
                    // Others write to another one as well, so it is not the silence that counts.
                    let meeting = Instant::now() + MEETING;
                    loop {
                        // Until the first one has come it is not known whether the stream is the same.
                        let next = match &last {
                            Some(last) if !last.is_met => timeout_at(meeting, reader.next()).await,
                            _ => Ok(reader.next().await),
                        };
                        let Ok(next) = next else {
                            warn!(
                                stream,
                                "the stream of the history is another one, and read from its beginning"
                            );
                            last = None;
                            continue 'anew;
                        };
                        match next {
                            Ok(entry) => {
                                if let Some(known) = &mut last
                                    && !known.is_met
                                    && entry.offset <= known.offset
                                {
                                    if entry.offset == known.offset {
                                        known.is_met = known.body == entry.body;
                                        if !known.is_met {
                                            last = None;
                                            continue 'anew;
                                        }
                                    }
                                    continue;
                                }
                                last = Some(LastEntry::of(&entry));
                                // Anybody who may write to the stream may write anything.
                                if let Ok(event) = serde_json::from_slice::<Event>(&entry.body) {
                                    self.index.add(&event, Timestamp::now());
                                    self.policy_drift.hear(&event, Timestamp::now());
                                }
                            }
                            Err(error) => break error,
                        }
                    }
                }
                Err(error) => error,
            };
            if let Some(last) = &mut last {
                last.is_met = false;
            }
            info!(%error, "the history is read on in a moment");
            // Deleted meanwhile, it begins anew.
            if error.kind() == retryrmq::ErrorKind::QueueNotFound {
                last = None;
                self.make(client).await;
            }
            sleep(AGAIN).await;
        }
    }
}

/// Who a service is, in its events.
pub(crate) fn who() -> String {
    let host = gethostname::gethostname();
    format!("retryrmq-serve@{}", host.to_string_lossy())
}
