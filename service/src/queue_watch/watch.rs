//! The watch: looks again and again, and tells.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use retryrmq::{Client, parking_queue, work_queue_of};
use retryrmq_operator::management::Management;
use tokio::{
    sync::Mutex as Turn,
    task::JoinHandle,
    time::{MissedTickBehavior, interval, timeout},
};

use super::{
    Configuration, Engine, Snapshot,
    source::{self, Prometheus},
};
use crate::{QueueProblemReport, QueueProblemState};

/// One look may take so long; then it has failed.
const TIME_LIMIT: Duration = Duration::from_secs(120);

/// How long the files with login and authorities of the management API may take.
const FILES: Duration = Duration::from_secs(5);

/// Makes a client of the management API: anew for each look, because the password may be in a file that somebody keeps fresh. It may stand
/// still for as long as that file does.
pub type ManagementFactory = Box<dyn Fn() -> Result<Management, String> + Send + Sync>;

/// Makes such clients on a thread that may stand still, one at a time.
struct ClientMaker {
    api: Arc<ManagementFactory>,
    turn: Arc<Turn<()>>,
    time_limit: Duration,
}

impl ClientMaker {
    fn new(api: ManagementFactory, time_limit: Duration) -> Self {
        Self {
            api: Arc::new(api),
            time_limit,
            turn: Arc::default(),
        }
    }

    async fn make(&self) -> Result<Management, String> {
        let slow = || {
            "a file with the login of the management API, or with its authorities, does not answer"
                .to_owned()
        };
        // The thread of one that never answers stands still for good. No other one joins it.
        let turn = Arc::clone(&self.turn)
            .try_lock_owned()
            .map_err(|_| slow())?;
        let api = Arc::clone(&self.api);
        let made = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            api()
        });
        match timeout(self.time_limit, made).await {
            Ok(made) => made.unwrap_or_else(|why| Err(why.to_string())),
            Err(_) => Err(slow()),
        }
    }
}

/// A running watch. Dropped, it ends.
#[derive(Debug)]
pub struct Watch {
    counts: Arc<WatchState>,
    task: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct WatchState {
    looks: AtomicU64,
    failed: AtomicU64,
    queues: AtomicU64,
    raised: AtomicU64,
    parked: Mutex<Option<BTreeMap<String, u64>>>,
}

/// The numbers of a watch, as plain as a metric wants them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct WatchCounts {
    /// Looks that succeeded.
    pub looks: u64,
    /// Looks that failed: nothing was concluded from them.
    pub failed: u64,
    /// Queues that the last look saw.
    pub queues: u64,
    /// Troubles that were told, reminders among them.
    pub raised: u64,
}

impl Watch {
    /// Starts watching the queues of a virtual host, that of the client. Every replica may: what several tell is one page.
    ///
    /// `management` lists the queues where it is there; otherwise the Prometheus endpoints of the configuration do, and without those
    /// only the queues that it names are watched. `own` are the queues of the service itself. `tell` hears of each
    /// trouble, and says whether it took it: one that it did not take is told again at the next look. It must not block.
    ///
    /// # Errors
    /// What [`Configuration::check`] says.
    pub fn start(
        client: Client,
        vhost: impl Into<String>,
        management: Option<ManagementFactory>,
        own: Vec<String>,
        configuration: &Configuration,
        report: impl Fn(QueueProblemReport) -> bool + Send + Sync + 'static,
    ) -> Result<Self, String> {
        configuration.check()?;
        let counts = Arc::new(WatchState::default());
        if !configuration.enabled {
            return Ok(Self { counts, task: None });
        }
        let vhost = vhost.into();
        let prometheus = match configuration.prometheus.is_empty() {
            true => None,
            false => Some(Prometheus::new(
                &configuration.prometheus,
                configuration.ca.as_deref(),
            )?),
        };
        let post = WatchSource {
            client,
            vhost: vhost.clone(),
            management: management.map(|api| ClientMaker::new(api, FILES)),
            prometheus,
            configuration: configuration.clone(),
        };
        let mut engine = Engine::new(configuration.clone(), vhost, own);
        let counted = Arc::clone(&counts);
        let every = configuration.every.0;
        let task = tokio::spawn(async move {
            let mut ticks = interval(every);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            loop {
                ticks.tick().await;
                let look = timeout(TIME_LIMIT, post.read_snapshot()).await;
                let look =
                    look.unwrap_or_else(|_| Err("it takes more than two minutes".to_owned()));
                match look {
                    Ok(snapshot) => {
                        counted.looks.fetch_add(1, Ordering::Relaxed);
                        let queues = snapshot.queues.len() as u64;
                        counted.queues.store(queues, Ordering::Relaxed);
                        *lock(&counted.parked) = parked(&snapshot);
                        engine.on(&snapshot, Instant::now(), |trouble| {
                            let raised = u64::from(trouble.state == QueueProblemState::Begun);
                            let is_taken = report(trouble);
                            if is_taken {
                                counted.raised.fetch_add(raised, Ordering::Relaxed);
                            }
                            is_taken
                        });
                    }
                    Err(why) => {
                        counted.failed.fetch_add(1, Ordering::Relaxed);
                        *lock(&counted.parked) = None;
                        tracing::warn!(why, "the queues cannot be watched at this moment");
                    }
                }
            }
        });
        Ok(Self {
            counts,
            task: Some(task),
        })
    }

    /// The work queues for which the last look saw parked messages, and how many. [`None`] where the looks do not see all queues.
    #[must_use]
    pub fn parked(&self) -> Option<BTreeMap<String, u64>> {
        lock(&self.counts.parked).clone()
    }

    /// The numbers, for metrics.
    #[must_use]
    pub fn counts(&self) -> WatchCounts {
        let read = |number: &AtomicU64| number.load(Ordering::Relaxed);
        WatchCounts {
            looks: read(&self.counts.looks),
            failed: read(&self.counts.failed),
            queues: read(&self.counts.queues),
            raised: read(&self.counts.raised),
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How many messages are parked, by work queue, where every queue was seen, and how many messages it has.
fn parked(snapshot: &Snapshot) -> Option<BTreeMap<String, u64>> {
    let mut parked = BTreeMap::new();
    for (name, view) in snapshot.queues.iter().filter(|_| snapshot.complete) {
        let work = work_queue_of(name).filter(|work| parking_queue(work) == *name);
        if let Some(work) = work {
            let count = view.ready? + view.unacknowledged.unwrap_or(0);
            parked.insert(work.to_owned(), count);
        }
    }
    snapshot.complete.then_some(parked)
}

impl Drop for Watch {
    fn drop(&mut self) {
        if let Some(task) = &self.task {
            task.abort();
        }
    }
}

/// Where the queues are seen from.
struct WatchSource {
    client: Client,
    vhost: String,
    management: Option<ClientMaker>,
    prometheus: Option<Prometheus>,
    configuration: Configuration,
}

impl WatchSource {
    async fn read_snapshot(&self) -> Result<Snapshot, String> {
        let mut snapshot = match (&self.management, &self.prometheus) {
            (Some(management), _) => source::list(&management.make().await?, &self.vhost).await?,
            (None, Some(prometheus)) => prometheus.list(&self.vhost).await?,
            (None, None) => Snapshot::default(),
        };
        // Only Prometheus knows who acknowledges.
        if let (Some(_), Some(prometheus)) = (&self.management, &self.prometheus) {
            match prometheus.list(&self.vhost).await {
                Ok(other) => {
                    for (queue, view) in &mut snapshot.queues {
                        if let Some(other) = other.queues.get(queue) {
                            *view = view.or(*other);
                        }
                    }
                }
                Err(why) => tracing::warn!(why, "who acknowledges is not known at this moment"),
            }
        }
        let named = self.configuration.queues.iter();
        let mut names: Vec<String> = named.cloned().collect();
        // What the list does not say of them is asked by AMQP.
        for (name, view) in &snapshot.queues {
            let is_unknown = view.consumers.is_none() || view.ready.is_none();
            if is_unknown && !view.temporary && self.configuration.watches(name) {
                names.push(name.clone());
            }
        }
        names.sort_unstable();
        names.dedup();
        let asked = source::ask(&self.client, &names).await?;
        for (queue, view) in asked.queues {
            let known = snapshot.queues.entry(queue).or_default();
            // A queue without a leader says 0 by AMQP.
            *known = known.or(view);
        }
        for queue in asked.gone {
            snapshot.queues.remove(&queue);
            snapshot.gone.insert(queue);
        }
        Ok(snapshot)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_file_that_never_answers_holds_up_one_thread_and_nobody_else() {
        let (open, opened) = std::sync::mpsc::channel::<()>();
        let opened = std::sync::Mutex::new(opened);
        let started = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&started);
        let api = move || {
            counted.fetch_add(1, Ordering::Relaxed);
            let _ = opened.lock().map(|opened| opened.recv());
            Err("opened".to_owned())
        };
        let maker = ClientMaker::new(Box::new(api), Duration::from_millis(50));
        for _ in 0..3 {
            let why = maker.make().await.err().unwrap();
            assert!(why.contains("does not answer"), "{why}");
        }
        assert_eq!(started.load(Ordering::Relaxed), 1);
        drop(open);
        while maker.make().await.err().unwrap() != "opened" {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}
