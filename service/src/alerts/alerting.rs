//! What the program starts, and tells what happened.

use std::{
    mem,
    sync::{Arc, PoisonError, atomic::Ordering},
    thread,
    time::Duration,
};

use jiff::Timestamp;
use serde_json::Value;
use tokio::{
    sync::{mpsc, watch},
    task::JoinHandle,
    time::timeout,
};

use super::{
    Configuration, Counts, GroupView, NotifierMode, Silence, StateStore,
    notifier::Notifier,
    report::{OperatorRequest, ReportEntry},
    report_publisher::ReportPublisher,
    rule::RuleSet,
    shared_state::{NotifierView, SharedState},
};
use crate::{QueueProblemReport, ServiceEvent, memory_budget::weigh};

/// Events that wait for the rules.
const TOLD: usize = 10_000;
/// Entries that wait to be reported.
const ENTRIES: usize = 1_000;
/// Bytes of bodies and headers that wait for the rules, roughly. What is beyond is told without.
const BYTES: usize = 64 << 20;
/// How long the end waits for what was told.
const FAREWELL: Duration = Duration::from_secs(10);

/// Starts alerts.
#[derive(Debug)]
pub struct Alerting;

/// What the thread of the rules receives.
enum RuleInput {
    Happened(Box<ServiceEvent>, usize),
    Asked(OperatorRequest),
}

impl Alerting {
    /// Checks the configuration, and starts. In a runtime of tokio only.
    ///
    /// To change the configuration, [`stop`](Handle::stop) it and start another one with the same memory: it goes on where this one was.
    ///
    /// # Errors
    /// What [`Configuration::check`] says, or why the queue of reports cannot be made.
    pub async fn start(
        configuration: &Configuration,
        memory: Arc<dyn StateStore>,
        mode: NotifierMode,
    ) -> Result<Handle, String> {
        // Conditions are compiled by threads, and files are read.
        let configuration = configuration.clone();
        let ready = tokio::task::spawn_blocking(move || configuration.ready())
            .await
            .unwrap_or_else(|_| Err("the configuration of the alerts cannot be read".to_owned()))?;
        let shared = Arc::new(SharedState {
            channels: ready
                .lines
                .keys()
                .map(|name| (name.clone(), Arc::default()))
                .collect(),
            ..SharedState::default()
        });
        let (report_sender, intake) = mode.open().await?;
        let (inputs, waiting) = mpsc::channel(TOLD);
        let (entries, judged) = mpsc::channel(ENTRIES);
        let (closing, is_closing) = watch::channel(false);
        let rule_counts = Arc::clone(&shared);
        let rule_set = ready.rule_set;
        thread::Builder::new()
            .name("alert-rules".to_owned())
            .spawn(move || evaluate_all(rule_set, waiting, &entries, &rule_counts))
            .map_err(|why| format!("there is no thread for the alert rules: {why}"))?;
        let reporter = ReportPublisher::new(report_sender, ready.tick, Arc::clone(&shared));
        let reporting = tokio::spawn(reporter.run(judged));
        let office = Notifier::new(
            ready.settings,
            ready.lines,
            ready.channel_timeouts,
            ready.tick,
            memory,
            Arc::clone(&shared),
            intake.client(),
        );
        let is_leader = tokio::spawn(office.run(intake, is_closing));
        Ok(Handle {
            inputs,
            shared,
            reads_bodies: ready.reads_bodies,
            closing,
            tasks: vec![reporting, is_leader],
        })
    }
}

/// On a thread of its own, because a condition may take half a second. Ends when nobody tells anything any more.
fn evaluate_all(
    mut rule_set: RuleSet,
    mut waiting: mpsc::Receiver<RuleInput>,
    entries: &mpsc::Sender<ReportEntry>,
    shared: &SharedState,
) {
    while let Some(input) = waiting.blocking_recv() {
        let entry = match input {
            RuleInput::Asked(request) => Some(ReportEntry::Asked(request)),
            RuleInput::Happened(service_event, weight) => {
                let entry = ReportEntry::of(&service_event, &mut rule_set, Timestamp::now());
                shared.bytes.fetch_sub(weight, Ordering::Relaxed);
                let unevaluated = mem::take(&mut rule_set.unevaluated);
                shared.unevaluated.fetch_add(unevaluated, Ordering::Relaxed);
                entry
            }
        };
        if let Some(entry) = entry
            && entries.blocking_send(entry).is_err()
        {
            return;
        }
    }
}

/// The running alerts of this replica. Dropped, they end without a farewell; what was not reported yet is lost.
#[derive(Debug)]
pub struct Handle {
    inputs: mpsc::Sender<RuleInput>,
    shared: Arc<SharedState>,
    reads_bodies: bool,
    closing: watch::Sender<bool>,
    tasks: Vec<JoinHandle<()>>,
}

impl Handle {
    /// Tells what happened. Never waits, never fails: what there is no room for is counted as dropped, and the leader says so.
    pub fn send(&self, mut service_event: ServiceEvent) {
        if matches!(
            service_event,
            ServiceEvent::Retried(_) | ServiceEvent::Dropped { .. }
        ) {
            return; // nobody is told of it
        }
        self.shared.received.fetch_add(1, Ordering::Relaxed);
        let mut weight = 0;
        if let ServiceEvent::Parked(death) = &mut service_event {
            if !self.reads_bodies {
                death.body = None;
            }
            weight = weigh(&death.headers) + death.body.as_deref().map_or(0, weigh);
            let waiting = self.shared.bytes.fetch_add(weight, Ordering::Relaxed);
            if waiting.saturating_add(weight) > BYTES {
                self.shared.bytes.fetch_sub(weight, Ordering::Relaxed);
                weight = 0;
                (death.body, death.headers) = (None, Value::Null);
            }
        }
        let input = RuleInput::Happened(Box::new(service_event), weight);
        if self.inputs.try_send(input).is_err() {
            self.shared.bytes.fetch_sub(weight, Ordering::Relaxed);
            self.shared.dropped.fetch_add(1, Ordering::Relaxed);
            self.shared.unmentioned.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Tells that a queue is in trouble, or out of it. Never waits. `false`: there is no room, so tell it again later. It leaves half of the
    /// room to what [`send`](Self::send) hears, which is told once.
    pub fn report_queue_problem(&self, trouble: QueueProblemReport) -> bool {
        let input = RuleInput::Happened(Box::new(ServiceEvent::Troubled(trouble)), 0);
        let is_taken = self.inputs.capacity() > TOLD / 2 && self.inputs.try_send(input).is_ok();
        let received = u64::from(is_taken);
        self.shared.received.fetch_add(received, Ordering::Relaxed);
        is_taken
    }

    /// Keeps quiet about something. One with the same id is replaced. On whatever replica: the leader hears of it.
    ///
    /// # Errors
    /// What [`Silence::check`] says, or that there is no room just now.
    pub fn silence(&self, silence: Silence) -> Result<(), String> {
        silence.check()?;
        if silence.id.is_empty() || silence.id.len() > 100 {
            return Err("the `id` of a silence must have 1 to 100 characters".to_owned());
        }
        self.ask(OperatorRequest::Silence(silence))
    }

    /// Ends a silence that was made with [`silence`](Self::silence).
    ///
    /// # Errors
    /// There is no room just now.
    pub fn end_silence(&self, id: impl Into<String>) -> Result<(), String> {
        self.ask(OperatorRequest::Lift(id.into()))
    }

    /// A person says that a group is fixed: its incident is over. If it fails again, that is `again`.
    ///
    /// # Errors
    /// There is no room just now.
    pub fn resolve(&self, group: impl Into<String>) -> Result<(), String> {
        self.ask(OperatorRequest::Resolve(group.into()))
    }

    fn ask(&self, request: OperatorRequest) -> Result<(), String> {
        self.inputs
            .try_send(RuleInput::Asked(request))
            .map_err(|_| "too much is told at this moment; try again".to_owned())
    }

    /// The numbers, for metrics.
    #[must_use]
    pub fn counts(&self) -> Counts {
        let mut counts = self.view(|view| view.counts.clone());
        counts.received = self.shared.received.load(Ordering::Relaxed);
        counts.dropped = self.shared.dropped.load(Ordering::Relaxed);
        counts.unevaluated = self.shared.unevaluated.load(Ordering::Relaxed);
        let channels = self.shared.channels.iter().map(|(name, channel)| {
            let counted = *channel.lock().unwrap_or_else(PoisonError::into_inner);
            (name.clone(), counted)
        });
        counts.channels = channels.collect();
        counts
    }

    /// The groups that the leader knows, those with an incident first; nothing on a replica that is silent. About a second old.
    #[must_use]
    pub fn groups(&self) -> Vec<GroupView> {
        self.view(|view| view.groups.clone())
    }

    /// The silences that the leader knows; nothing on a replica that is silent. About a second old.
    #[must_use]
    pub fn silences(&self) -> Vec<Silence> {
        self.view(|view| view.silences.clone())
    }

    fn view<T>(&self, read: impl FnOnce(&NotifierView) -> T) -> T {
        read(
            &self
                .shared
                .view
                .lock()
                .unwrap_or_else(PoisonError::into_inner),
        )
    }

    /// Ends: what was told is reported, the state is kept, and another replica speaks. Takes ten seconds at most.
    pub async fn stop(mut self) {
        let tasks = mem::take(&mut self.tasks);
        let closing = self.closing.clone();
        drop(self); // the thread of the rules ends when nobody can tell it anything
        let mut tasks = tasks.into_iter();
        if let Some(mut reporting) = tasks.next()
            && timeout(FAREWELL / 2, &mut reporting).await.is_err()
        {
            tracing::warn!("some alerts could not be reported before the end");
            reporting.abort();
        }
        closing.send_replace(true);
        for mut task in tasks {
            if timeout(FAREWELL / 2, &mut task).await.is_err() {
                task.abort();
            }
        }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{QueueProblemState, alerts::FileStateStore};

    #[tokio::test]
    async fn troubles_wait_for_room_and_leave_some_to_what_is_told_once() {
        let folder = tempfile::tempdir().unwrap();
        let memory = Arc::new(FileStateStore::new(folder.path().join("state")));
        let configuration = Configuration::default();
        let alerting = Alerting::start(&configuration, memory, NotifierMode::Alone);
        let alerting = alerting.await.unwrap();
        let tell_one = || {
            alerting.report_queue_problem(QueueProblemReport {
                vhost: "/".to_owned(),
                queue: "orders".to_owned(),
                kind: "no_consumer",
                text: "nobody consumes it".to_owned(),
                state: QueueProblemState::Over,
            })
        };
        let mut taken = 0;
        while tell_one() {
            taken += 1;
            assert!(taken < TOLD as u64);
        }
        for _ in 0..TOLD / 2 - 1_000 {
            alerting.send(ServiceEvent::Parked(Box::default()));
        }
        let counts = alerting.counts();
        assert_eq!((counts.received, counts.dropped), (taken + 4_000, 0));
        while !tell_one() {
            tokio::task::yield_now().await;
        }
    }
}
