//! The leader: the one replica that tells people.
//!
//! RabbitMQ elects it. All replicas consume the queue of reports, which has a single active consumer; whoever is given a
//! message is the leader. Nobody tells a replica that its turn is over, so it falls silent by itself when it hears nothing for three ticks,
//! and its clock is moved by messages alone: without them no timer fires.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use jiff::Timestamp;
use retryrmq::{Argument, Attempt, BasicProperties, Client, Event, Messages, Publish};
use tokio::{
    sync::{mpsc, watch},
    task::JoinHandle,
    time::{Instant, sleep, sleep_until, timeout},
};

use super::{
    Notice, StateStore,
    channels::{ChannelTimeouts, ChannelWorker, NoticeDone, OpenChannel},
    engine::{Engine, Input, Settings},
    report::Report,
    shared_state::{NotifierView, SharedState},
    topology,
};
use crate::parked_depths::without_parked;

/// Reports that wait for a leader at most; then the oldest go. The leader counts them.
const MOST_REPORTS: i64 = 100_000;
/// A report that took down so many leaders is dropped by the broker.
const MOST_DELIVERIES: i64 = 100;
/// Counts are kept at least so often; whatever people are told is kept before they are told.
const SAVED: Duration = Duration::from_secs(5);
/// Ticks without a message.
const LEASE: u32 = 3;
/// Between two tries to read or keep the state, or to consume.
const PAUSE: Duration = Duration::from_secs(1);
/// Between two questions for what is parked.
const ASKED: Duration = Duration::from_secs(10);
/// How long the answer may take.
const TIME_LIMIT: Duration = Duration::from_secs(60);
/// Queues that are asked for at a time.
const MOST_ASKED: usize = 1_000;
/// How long the end waits for channels that are at work.
const FAREWELL: Duration = Duration::from_secs(3);

/// How the leader is found.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum NotifierMode {
    /// There is one replica, and it speaks.
    Alone,
    /// Replicas that use the same queue have one leader among them.
    Elected {
        /// The client of the service.
        client: Client,
        /// The queue of reports, which is made when it is missing: quorum, with a single active consumer.
        queue: String,
    },
}

/// Where reports go.
pub(super) enum ReportSender {
    Alone(mpsc::Sender<Report>),
    Queue(Client, String),
}

/// Where reports come from.
pub(super) enum ReportReceiver {
    Alone(mpsc::Receiver<Report>),
    Queue {
        client: Client,
        queue: String,
        messages: Option<Messages>,
        /// How often its channel was lost. What it had delivered is back in the queue, and may be another one's.
        losses: Arc<AtomicU64>,
    },
}

impl NotifierMode {
    pub(super) async fn open(self) -> Result<(ReportSender, ReportReceiver), String> {
        match self {
            Self::Alone => {
                let (sender, receiver) = mpsc::channel(16);
                Ok((ReportSender::Alone(sender), ReportReceiver::Alone(receiver)))
            }
            Self::Elected { client, queue } => {
                let arguments = [
                    ("x-queue-type", Argument::Text("quorum".to_owned())),
                    ("x-single-active-consumer", Argument::Flag(true)),
                    ("x-max-length", Argument::Number(MOST_REPORTS)),
                    ("x-overflow", Argument::Text("drop-head".to_owned())),
                    ("x-delivery-limit", Argument::Number(MOST_DELIVERIES)),
                ];
                topology::declare(&client, &queue, arguments).await?;
                let report_sender = ReportSender::Queue(client.clone(), queue.clone());
                let intake = ReportReceiver::Queue {
                    client,
                    queue,
                    messages: None,
                    losses: Arc::default(),
                };
                Ok((report_sender, intake))
            }
        }
    }
}

impl ReportSender {
    pub(super) async fn send(
        &self,
        report: &Report,
        lifetime: Option<Duration>,
    ) -> Result<(), String> {
        match self {
            Self::Alone(sender) => sender
                .send(report.clone())
                .await
                .map_err(|_| "the alerts have ended".to_owned()),
            Self::Queue(client, queue) => {
                let body = serde_json::to_vec(report).map_err(|why| why.to_string())?;
                let mut properties = BasicProperties::default()
                    .with_delivery_mode(2)
                    .with_content_type("application/json".into());
                if let Some(lifetime) = lifetime {
                    let expiration = lifetime.as_millis().max(1).to_string();
                    properties = properties.with_expiration(expiration.into());
                }
                let message = Publish::to_queue(queue, body).properties(properties);
                client.publish(message).await.map_err(|why| why.to_string())
            }
        }
    }
}

impl ReportReceiver {
    /// The next report, and what to acknowledge; waits forever where there is none. `None` at the end.
    async fn next(&mut self) -> Option<(Option<Report>, Option<Attempt>)> {
        match self {
            Self::Alone(receiver) => {
                let report = receiver.recv().await?;
                Some((Some(report), None))
            }
            Self::Queue {
                client,
                queue,
                messages,
                losses,
            } => loop {
                let open = match messages {
                    Some(open) => open,
                    None => {
                        let losses = Arc::clone(losses);
                        let consumer = client
                            .consumer(queue.as_str())
                            .dlx(false)
                            .prefetch(1)
                            // A copy would come behind later reports of its replica, and be taken for one that comes twice.
                            .requeue_unchanged(true)
                            .wait(false)
                            .on_event(move |event| {
                                if matches!(event, Event::Disconnected { .. }) {
                                    losses.fetch_add(1, Ordering::Relaxed);
                                }
                            });
                        match consumer.messages().await {
                            Ok(open) => messages.insert(open),
                            Err(why) => {
                                tracing::warn!(queue, %why, "reports of alerts cannot be consumed; trying again");
                                sleep(PAUSE).await;
                                continue;
                            }
                        }
                    }
                };
                if let Some(attempt) = open.next().await {
                    return Some((read(attempt.message().body()), Some(attempt)));
                }
                *messages = None;
                losses.fetch_add(1, Ordering::Relaxed);
                sleep(PAUSE).await;
            },
        }
    }

    /// Whom to ask how many messages a queue has.
    pub(super) fn client(&self) -> Option<Client> {
        match self {
            Self::Alone(_) => None,
            Self::Queue { client, .. } => Some(client.clone()),
        }
    }

    fn losses(&self) -> u64 {
        match self {
            Self::Alone(_) => 0,
            Self::Queue { losses, .. } => losses.load(Ordering::Relaxed),
        }
    }

    async fn close(self) {
        if let Self::Queue {
            messages: Some(messages),
            ..
        } = self
        {
            messages.close().await;
        }
    }
}

/// Where the leader sits, or would.
pub(super) struct Notifier {
    settings: Settings,
    lines: BTreeMap<String, Arc<OpenChannel>>,
    time_limit: ChannelTimeouts,
    tick: Duration,
    memory: Arc<dyn StateStore>,
    shared: Arc<SharedState>,
    /// Nobody can be asked how much is parked without.
    client: Option<Client>,
    lease: Option<NotifierLease>,
}

/// The replica that has it speaks.
struct NotifierLease {
    engine: Engine,
    workers: BTreeMap<String, ChannelWorker>,
    done: mpsc::UnboundedReceiver<NoticeDone>,
    saved: Instant,
    heard: Instant,
    ticked: Option<Instant>,
    /// When it was asked last how much is parked, and who asks now.
    asked: Option<Instant>,
    asking: Option<JoinHandle<BTreeSet<String>>>,
    /// Those of the intake when the lease was taken.
    losses: u64,
}

impl Notifier {
    pub(super) fn new(
        settings: Settings,
        lines: BTreeMap<String, OpenChannel>,
        time_limit: ChannelTimeouts,
        tick: Duration,
        memory: Arc<dyn StateStore>,
        shared: Arc<SharedState>,
        client: Option<Client>,
    ) -> Self {
        let lines = lines.into_iter();
        Self {
            settings,
            lines: lines.map(|(name, line)| (name, Arc::new(line))).collect(),
            time_limit,
            tick,
            memory,
            shared,
            client,
            lease: None,
        }
    }

    pub(super) async fn run(
        mut self,
        mut intake: ReportReceiver,
        mut closing: watch::Receiver<bool>,
    ) {
        let may_lapse = matches!(intake, ReportReceiver::Queue { .. });
        loop {
            let heard = self.lease.as_ref().map(|lease| lease.heard);
            let lapse = heard
                .filter(|_| may_lapse)
                .map(|heard| heard + self.tick * LEASE);
            tokio::select! {
                biased;
                done = next_done(&mut self.lease) => {
                    if let Some(lease) = &mut self.lease {
                        let NoticeDone { number, channel } = done;
                        lease.engine.on(Input::Delivered { number, channel }, Timestamp::now());
                    }
                },
                next = intake.next() => match next {
                    Some((report, attempt)) => {
                        let losses = intake.losses();
                        let is_redelivered = attempt.as_ref().is_some_and(|a| a.message().redelivered());
                        let is_stale = |lease: &NotifierLease| is_redelivered || lease.losses != losses;
                        if self.lease.as_ref().is_some_and(is_stale) {
                            self.release_lease(); // another one may have spoken meanwhile
                        }
                        // Otherwise it goes back to its queue.
                        if self.hear_at_last(&report, losses, &intake, &mut closing).await
                            && let Some(attempt) = attempt
                        {
                            attempt.ack();
                        }
                    }
                    None => break,
                },
                () = until(lapse) => self.release_lease(),
                () = closed(&mut closing), if may_lapse => break,
            }
        }
        self.end().await;
        intake.close().await;
    }

    /// Takes in a report as soon as the state can be kept. `false`: it is another one's by now, or this is the end.
    async fn hear_at_last(
        &mut self,
        report: &Option<Report>,
        losses: u64,
        intake: &ReportReceiver,
        closing: &mut watch::Receiver<bool>,
    ) -> bool {
        // Given back it would come again at once, and before RabbitMQ 4.3 each return counts towards the limit of deliveries.
        while intake.losses() == losses {
            match self.hear(report.clone(), losses).await {
                Ok(()) => return true,
                Err(why) => tracing::error!("alerts wait: {why}"),
            }
            self.release_lease();
            tokio::select! {
                () = sleep(PAUSE) => {}
                () = closed(closing) => return false,
            }
        }
        false
    }

    /// Takes in a report; after `Ok` it may be acknowledged.
    async fn hear(&mut self, report: Option<Report>, losses: u64) -> Result<(), String> {
        let mut notices = Vec::new();
        let mut lease = match self.lease.take() {
            Some(lease) => lease,
            None => {
                let lease = self.take_lease(losses).await?;
                // What the last leader could not deliver, perhaps for the second time.
                notices = lease.engine.outbox();
                lease
            }
        };
        let now = Timestamp::now();
        if let Some(report) = report {
            notices.extend(lease.engine.on(Input::Told(report), now));
        }
        let is_due = |ticked: Instant| ticked.elapsed() >= self.tick.min(PAUSE);
        if lease.ticked.is_none_or(is_due) {
            lease.ticked = Some(Instant::now());
            notices.extend(lease.engine.on(Input::Tick, now));
            self.show(&lease.engine, now);
        }
        if let Some(queues) = self.ask_for_parked(&mut lease, now).await {
            notices.extend(lease.engine.on(Input::NothingParked(queues), now));
        }
        let is_old = lease.saved.elapsed() >= SAVED;
        if lease.engine.has_decided() || is_old && lease.engine.has_changed() {
            let state = lease.engine.save();
            self.memory.save(state).await?;
            lease.saved = Instant::now();
        }
        for notice in notices {
            lease.say(notice);
        }
        lease.heard = Instant::now();
        self.lease = Some(lease);
        Ok(())
    }

    /// The queues whose incidents end because nothing is parked for them, once that is known. Nobody waits for it.
    async fn ask_for_parked(
        &self,
        lease: &mut NotifierLease,
        now: Timestamp,
    ) -> Option<BTreeSet<String>> {
        if let Some(asking) = lease.asking.take_if(|asking| asking.is_finished()) {
            return asking.await.ok();
        }
        if lease.asking.is_some() || lease.asked.is_some_and(|asked| asked.elapsed() < ASKED) {
            return None;
        }
        let queues = lease.engine.quiet_queues(now);
        if queues.is_empty() {
            return None;
        }
        let Some(client) = &self.client else {
            return Some(queues);
        };
        lease.asked = Some(Instant::now());
        lease.asking = Some(tokio::spawn(without_any(client.clone(), queues)));
        None
    }

    async fn take_lease(&self, losses: u64) -> Result<NotifierLease, String> {
        let settings = self.settings.clone();
        let engine = match self.memory.load().await? {
            None => Engine::new(settings, Timestamp::now()),
            Some(saved) => Engine::resume(settings.clone(), &saved).unwrap_or_else(|why| {
                tracing::error!("{why}; alerting starts afresh, and may send open incidents again");
                Engine::new(settings, Timestamp::now())
            }),
        };
        let (sender, done) = mpsc::unbounded_channel();
        let workers = self.lines.iter().map(|(name, line)| {
            let counts = self.shared.channels.get(name).cloned().unwrap_or_default();
            let line = Arc::clone(line);
            let worker =
                ChannelWorker::start(name.clone(), line, self.time_limit, counts, sender.clone());
            (name.clone(), worker)
        });
        tracing::info!(
            "this replica is the leader, and sends the notices of the alerts from now on"
        );
        Ok(NotifierLease {
            workers: workers.collect(),
            done,
            saved: Instant::now(),
            heard: Instant::now(),
            ticked: None,
            asked: None,
            asking: None,
            losses,
            engine,
        })
    }

    /// Falls silent.
    fn release_lease(&mut self) {
        if self.lease.take().is_some() {
            tracing::info!(
                "this replica is no longer the leader, and sends no notices of the alerts"
            );
        }
        // Also when the lease was lost while the state was kept.
        *self.view() = NotifierView::default();
    }

    fn show(&self, engine: &Engine, now: Timestamp) {
        let mut view = self.view();
        view.counts.is_leader = true;
        engine.counts(&mut view.counts);
        view.groups = engine.groups(now);
        view.silences = engine.silences();
    }

    fn view(&self) -> std::sync::MutexGuard<'_, NotifierView> {
        let view = self.shared.view.lock();
        view.unwrap_or_else(PoisonError::into_inner)
    }

    /// Channels that are at work may finish, and the state is kept.
    async fn end(&mut self) {
        if let Some(lease) = &mut self.lease {
            let finished = async {
                while !lease.engine.outbox().is_empty() {
                    let Some(NoticeDone { number, channel }) = lease.done.recv().await else {
                        return;
                    };
                    let delivered = Input::Delivered { number, channel };
                    lease.engine.on(delivered, Timestamp::now());
                }
            };
            let _ = timeout(FAREWELL, finished).await; // the rest is in the outbox
            if lease.engine.has_changed() {
                let state = lease.engine.save();
                if let Err(why) = self.memory.save(state).await {
                    tracing::error!("the last state of the alerts is lost: {why}");
                }
            }
        }
        self.release_lease();
    }
}

impl NotifierLease {
    fn say(&mut self, notice: Notice) {
        for channel in &notice.channels {
            let is_taken = self
                .workers
                .get(channel)
                .is_some_and(|worker| worker.send(notice.clone()));
            // A channel that the configuration no longer has, or with too many notices before it.
            if !is_taken {
                tracing::error!(
                    channel,
                    incident = notice.incident,
                    summary = notice.summary,
                    "an alert is given up: the channel is gone, or too much waits for it"
                );
                let given_up = Input::Delivered {
                    number: notice.number,
                    channel: channel.clone(),
                };
                self.engine.on(given_up, Timestamp::now());
            }
        }
    }
}

/// Some of these queues at a time: others have their turn later.
async fn without_any(client: Client, queues: BTreeSet<String>) -> BTreeSet<String> {
    let mut queues: Vec<String> = queues.into_iter().collect();
    fastrand::shuffle(&mut queues);
    queues.truncate(MOST_ASKED);
    let without = without_parked(&client, &queues, TIME_LIMIT).await;
    without.into_iter().collect()
}

fn read(body: &[u8]) -> Option<Report> {
    match serde_json::from_slice(body) {
        Ok(report) => Some(report),
        Err(why) => {
            tracing::warn!(%why, "dropped a message of the report queue that is no report");
            None
        }
    }
}

async fn next_done(lease: &mut Option<NotifierLease>) -> NoticeDone {
    match lease {
        Some(lease) => match lease.done.recv().await {
            Some(done) => done,
            None => std::future::pending().await,
        },
        None => std::future::pending().await,
    }
}

async fn closed(closing: &mut watch::Receiver<bool>) {
    let _ = closing.wait_for(|closing| *closing).await; // who asks for the end is gone: that is the end, too
}

async fn until(instant: Option<Instant>) {
    match instant {
        Some(instant) => sleep_until(instant).await,
        None => std::future::pending().await,
    }
}
