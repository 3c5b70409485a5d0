//! Alerts and orphans, with real HTTP and mail servers and real brokers.

mod channels;
mod mail;
mod orphans;
mod replicas;
mod server;

use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use futures_util::future::BoxFuture;
use retryrmq_harness::eventually;
use retryrmq_serve::{
    ParkedReport, ServiceEvent,
    alerts::{Alerting, Configuration, FileStateStore, Handle, NotifierMode, StateStore},
};

const DEADLINE: Duration = Duration::from_secs(120);

fn configuration(text: &str) -> Configuration {
    channels::lines(); // from the first line on
    let whole = format!("tick = \"200ms\"\nretry_after = \"100ms\"\n{text}");
    toml::from_str(&whole).expect("a configuration")
}

/// Alerting without other replicas, with its state in that folder.
async fn alone(text: &str, folder: &Path) -> Handle {
    let memory = Arc::new(FileStateStore::new(folder.join("state")));
    Alerting::start(&configuration(text), memory, NotifierMode::Alone)
        .await
        .expect("it starts")
}

/// A memory that fails when it is told to.
struct FailingStateStore<M> {
    inner: M,
    loads: AtomicBool,
    saves: AtomicBool,
    failed: AtomicU64,
}

impl<M: StateStore> FailingStateStore<M> {
    fn new(inner: M, works: bool) -> Arc<Self> {
        Arc::new(Self {
            inner,
            loads: works.into(),
            saves: works.into(),
            failed: AtomicU64::new(0),
        })
    }

    /// Waits until it has failed so many times more.
    async fn has_failed(&self, times: u64) {
        let before = self.failed.load(Ordering::Relaxed);
        eventually(DEADLINE, "the memory fails", || async {
            self.failed.load(Ordering::Relaxed) >= before + times
        })
        .await;
    }

    fn check(&self, works: &AtomicBool) -> Result<(), String> {
        if works.load(Ordering::Relaxed) {
            return Ok(());
        }
        self.failed.fetch_add(1, Ordering::Relaxed);
        Err("the state cannot be kept now".to_owned())
    }
}

impl<M: StateStore> StateStore for FailingStateStore<M> {
    fn load(&self) -> BoxFuture<'_, Result<Option<Vec<u8>>, String>> {
        Box::pin(async {
            self.check(&self.loads)?;
            self.inner.load().await
        })
    }

    fn save(&self, value: Vec<u8>) -> BoxFuture<'_, Result<(), String>> {
        Box::pin(async {
            self.check(&self.saves)?;
            self.inner.save(value).await
        })
    }
}

const WAKE: &str = "[[rules]]\nname = \"all\"\nseverity = \"wake\"\n";

fn parked(fingerprint: &str) -> ServiceEvent {
    parked_in("orders", fingerprint)
}

fn parked_in(queue: &str, fingerprint: &str) -> ServiceEvent {
    let death = ParkedReport {
        queue: queue.to_owned(),
        reason: "exhausted".to_owned(),
        fingerprint: fingerprint.to_owned(),
        error: format!("no answer of {fingerprint}"),
        error_type: "db.Timeout".to_owned(),
        ..ParkedReport::default()
    };
    ServiceEvent::Parked(Box::new(death))
}
