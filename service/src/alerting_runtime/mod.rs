//! The alerts and the watch of a running service: begun as the policy file says, and begun anew when it says something else.

mod alert_metrics;

use std::{
    collections::BTreeMap,
    fmt,
    future::pending,
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use alert_metrics::AlertMetrics;
use prometheus_client::registry::Registry;
use retryrmq::Client;
use retryrmq_operator::management::{Address, Management, vhost_of};
use tokio::{
    sync::{mpsc, watch},
    time::sleep,
};
use tracing::{info, warn};

use crate::{
    EventBus, ServiceEvent,
    alerts::{self, Alerting, BrokerStateStore, Counts, Handle, NotifierMode},
    queue_names::{
        DEAD_EXCHANGE, HANDOVER_QUEUE, HISTORY_STREAM, INTAKE_PARKED, INTAKE_QUEUE, REPORTS_QUEUE,
        STATE_QUEUE,
    },
    queue_watch::{self, Watch, WatchCounts},
};

/// The pause before alerts that could not begin are tried again.
const AGAIN: Duration = Duration::from_secs(15);

/// The sections of the policy file that are about telling people.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct AlertSections {
    pub(crate) alerts: Option<alerts::Configuration>,
    pub(crate) orphans: Option<queue_watch::Configuration>,
}

impl AlertSections {
    /// Whether anybody wants to be told. Whoever watches queues wants that, too: in the log at least.
    fn wants_anything(&self) -> bool {
        self.alerts.is_some() || self.orphans.as_ref().is_some_and(|watched| watched.enabled)
    }
}

/// Where the management API is, for the watch. `Debug` shows no URL: each may hold a password.
#[derive(Clone, Default)]
pub(crate) struct ManagementAccess {
    /// The broker's URL.
    pub(crate) url: String,
    /// The API's, where it is said.
    pub(crate) management: Option<String>,
    /// The certificates of its authority.
    pub(crate) management_ca: Option<PathBuf>,
}

impl fmt::Debug for ManagementAccess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ManagementAccess")
            .field("management_ca", &self.management_ca)
            .finish_non_exhaustive()
    }
}

/// Tells people, for as long as the service runs.
#[derive(Debug)]
pub(crate) struct AlertingRuntime {
    access: ManagementAccess,
    event_bus: EventBus,
    sections: watch::Receiver<AlertSections>,
    running: RunningTasks,
}

/// What runs now, for whoever counts.
#[derive(Clone, Debug, Default)]
pub(crate) struct RunningTasks(Arc<Mutex<Option<Supervisor>>>);

#[derive(Debug)]
struct Supervisor {
    handle: Handle,
    watch: Option<Watch>,
}

impl RunningTasks {
    /// The numbers of the alerts and of the watch; nothing where they are off.
    fn counts(&self) -> Option<(Counts, WatchCounts)> {
        let office = self.lock();
        let office = office.as_ref()?;
        let watched = office.watch.as_ref().map(Watch::counts);
        Some((office.handle.counts(), watched.unwrap_or_default()))
    }

    /// These numbers, for the metrics of the service.
    pub(crate) fn registry(&self) -> Registry {
        let mut registry = Registry::with_prefix("retryrmq_serve");
        registry.register_collector(Box::new(AlertMetrics(self.clone())));
        registry
    }

    /// Keeps quiet about something.
    ///
    /// # Errors
    /// A sentence: alerts are off, or what [`Handle::silence`] says.
    pub(crate) fn silence(&self, silence: alerts::Silence) -> Result<(), String> {
        self.with(|handle| handle.silence(silence)).unwrap_or_else(|| {
            Err("there is nothing to silence: the policy file has no [alerts], so nobody is told of anything".to_owned())
        })
    }

    /// Resolves the incident of a group.
    ///
    /// # Errors
    /// A sentence: alerts are off, or what [`Handle::resolve`] says.
    pub(crate) fn close_incident(&self, group: &str) -> Result<(), String> {
        self.with(|handle| handle.resolve(group))
            .unwrap_or_else(|| {
                Err("there is no incident to close: the policy file has no [alerts]".to_owned())
            })
    }

    /// The open incidents, if this replica is the one that notifies.
    pub(crate) fn incidents(&self) -> Vec<alerts::GroupView> {
        let mut groups = self.with(Handle::groups).unwrap_or_default();
        groups.retain(|group| group.incident.is_some());
        groups
    }

    /// The queues for which something is parked, where the watch sees all of them.
    pub(crate) fn parked(&self) -> Option<BTreeMap<String, u64>> {
        self.lock().as_ref()?.watch.as_ref()?.parked()
    }

    /// The silences in force, if this replica is the one that notifies.
    pub(crate) fn silences(&self) -> Vec<alerts::Silence> {
        self.with(Handle::silences).unwrap_or_default()
    }

    /// Asks the alerts, if there are any. Nobody has them for longer than that, so they can always be ended.
    fn with<T>(&self, ask: impl FnOnce(&Handle) -> T) -> Option<T> {
        self.lock().as_ref().map(|office| ask(&office.handle))
    }

    /// Stops: reports what was counted, and lets another replica notify.
    async fn stop(&self) {
        let office = self.lock().take();
        if let Some(Supervisor { handle, watch }) = office {
            drop(watch);
            handle.stop().await;
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<Supervisor>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl AlertingRuntime {
    pub(crate) fn new(
        access: ManagementAccess,
        event_bus: EventBus,
        sections: watch::Receiver<AlertSections>,
        running: RunningTasks,
    ) -> Self {
        Self {
            access,
            event_bus,
            sections,
            running,
        }
    }

    /// Begins, hands on what happens, and begins anew with other sections. Never ends; [`stop`](Self::stop) does.
    pub(crate) async fn run(&self, client: &Client) {
        let mut sections = self.sections.clone();
        let mut news = None;
        loop {
            let wanted = sections.borrow_and_update().clone();
            // What happens while they begin, or begin anew, waits.
            news = match wanted.wants_anything() {
                true => news.or_else(|| Some(self.event_bus.listen())),
                false => None,
            };
            let mut is_running = false;
            if wanted.wants_anything() {
                match self.begin(client, &wanted).await {
                    Ok(()) => is_running = true,
                    Err(why) => warn!(why, "the alerts cannot begin, and are tried again"),
                }
            }
            let mut no_events = None;
            let heard = if is_running {
                &mut news
            } else {
                &mut no_events
            };
            tokio::select! {
                () = self.hand_on(heard) => {}
                () = sleep(AGAIN), if wanted.wants_anything() && !is_running => {}
                () = async {
                    while sections.changed().await.is_ok() {
                        if *sections.borrow_and_update() != wanted {
                            return;
                        }
                    }
                    pending::<()>().await;
                } => info!("restarting alerts with the new configuration"),
            }
            self.stop().await;
        }
    }

    async fn begin(&self, client: &Client, wanted: &AlertSections) -> Result<(), String> {
        let configuration = wanted.alerts.clone().unwrap_or_default();
        let memory = Arc::new(BrokerStateStore::new(client.clone(), STATE_QUEUE));
        let mode = NotifierMode::Elected {
            client: client.clone(),
            queue: REPORTS_QUEUE.to_owned(),
        };
        let handle = Alerting::start(&configuration, memory, mode).await?;
        *self.running.lock() = Some(Supervisor {
            handle,
            watch: None,
        });
        if let Some(watched) = &wanted.orphans {
            match self.watch(client, watched) {
                Ok(watch) => {
                    if let Some(office) = &mut *self.running.lock() {
                        office.watch = Some(watch);
                    }
                }
                Err(why) => warn!(
                    why,
                    "queues are not watched; what is parked is told all the same"
                ),
            }
        }
        Ok(())
    }

    fn watch(
        &self,
        client: &Client,
        watched: &queue_watch::Configuration,
    ) -> Result<Watch, String> {
        let ManagementAccess {
            url,
            management,
            management_ca,
        } = &self.access;
        let vhost = vhost_of(url).map_err(|why| why.to_string())?;
        let said = management
            .as_deref()
            .map(str::trim)
            .filter(|said| !said.is_empty());
        // Prometheus, where it is said, lists the queues as well, and needs no plugin of the management.
        let listed = said.is_some() || watched.prometheus.is_empty() && watched.queues.is_empty();
        if listed {
            // What is wrong with the address is told now; files are read later.
            Address::new(url, said, None).map_err(|why| why.to_string())?;
        }
        let (url, said, authority) = (url.clone(), said.map(str::to_owned), management_ca.clone());
        let api = move || {
            Address::new(&url, said.as_deref(), authority.as_deref())
                .and_then(Management::new)
                .map_err(|why| why.to_string())
        };
        let management: Option<queue_watch::ManagementFactory> = match listed {
            true => Some(Box::new(api)),
            false => None,
        };
        let own = [
            HISTORY_STREAM,
            INTAKE_QUEUE,
            INTAKE_PARKED,
            HANDOVER_QUEUE,
            REPORTS_QUEUE,
            STATE_QUEUE,
            DEAD_EXCHANGE,
        ];
        // It is part of what runs, and must not keep it alive.
        let running = Arc::downgrade(&self.running.0);
        Watch::start(
            client.clone(),
            vhost,
            management,
            own.map(str::to_owned).to_vec(),
            watched,
            move |trouble| {
                let running = running.upgrade().map(RunningTasks);
                running
                    .and_then(|running| running.with(|handle| handle.report_queue_problem(trouble)))
                    == Some(true)
            },
        )
    }

    /// Never ends.
    async fn hand_on(&self, news: &mut Option<mpsc::Receiver<ServiceEvent>>) {
        loop {
            let service_event = next(news).await;
            self.running.with(|handle| handle.send(service_event));
        }
    }

    /// Stops: reports what was counted, and lets another replica notify.
    pub(crate) async fn stop(&self) {
        self.running.stop().await;
    }
}

/// The next one; never where nobody tells.
async fn next(events: &mut Option<mpsc::Receiver<ServiceEvent>>) -> ServiceEvent {
    match events {
        Some(receiver) => match receiver.recv().await {
            Some(service_event) => service_event,
            None => pending().await,
        },
        None => pending().await,
    }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::atomic::{AtomicBool, Ordering},
        thread,
    };

    use super::*;
    use crate::{ParkedReport, alerts::FileStateStore};

    #[tokio::test(flavor = "multi_thread")]
    async fn alerts_end_in_good_order_whoever_looks_at_them_meanwhile() {
        for _ in 0..10 {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("state");
            let memory = Arc::new(FileStateStore::new(&path));
            let alerts = alerts::Configuration::default();
            let handle = Alerting::start(&alerts, memory, NotifierMode::Alone)
                .await
                .unwrap();
            let running = RunningTasks::default();
            *running.lock() = Some(Supervisor {
                handle,
                watch: None,
            });
            let ended = Arc::new(AtomicBool::new(false));
            let look = || {
                let (running, ended) = (running.clone(), Arc::clone(&ended));
                thread::spawn(move || {
                    while !ended.load(Ordering::Relaxed) {
                        running.silences();
                        thread::sleep(Duration::from_micros(100)); // the others must come to run as well
                    }
                })
            };
            let looking = [look(), look(), look(), look()];
            let death = ParkedReport {
                fingerprint: "told-last".to_owned(),
                ..ParkedReport::default()
            };
            let told = ServiceEvent::Parked(Box::new(death));
            running.with(|handle| handle.send(told)).unwrap();
            running.stop().await;
            ended.store(true, Ordering::Relaxed);
            for looking in looking {
                looking.join().unwrap();
            }
            let state = std::fs::read_to_string(path).unwrap_or_default();
            assert!(state.contains("told-last"), "{state}");
        }
    }
}
