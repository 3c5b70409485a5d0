//! Whole lives of consumers against a model of the broker, everything from one seed: replicas that start, drain and are
//! killed, brokers that die and forget, connections that are cut between any two frames, handlers that succeed, fail, hang and
//! take their process along.
//!
//! ```text
//!  publisher ─► model of the broker ◄─ frames, one at a time ─► shell ─► Engine
//!                      ▲                                          ▲
//!                   faults ────────────── seed ──────────────► handlers
//! ```
//!
//! A run fails with its seed and the end of its trace. `RETRYRMQ_SIMULATE_SEED` plays one seed alone,
//! `RETRYRMQ_SIMULATE_SECONDS` says how long to go on (`make simulate`); without it the seeds are always the same.

mod faults;
mod ledger;
mod operator;
mod publisher;
mod replica;
mod runs;
mod service;

use std::{
    collections::{BTreeMap, VecDeque},
    fmt,
    time::Duration,
};

use retryrmq_model::{Broker, ConnectionId, Declare, Profile, Publish, QueueType, Seeded, Version};

use self::{
    faults::Faults, ledger::Ledger, operator::Operator, replica::Replica, service::ServiceModel,
};
use crate::{Policy, Strategy, types::AMQPValue};

const QUEUE: &str = "orders";
const PARKED: &str = "orders.parked";
const UNREADABLE: &str = "orders.unreadable";
/// A pattern for waiting queues.
const WAITING: &str = "orders.retry.*";

/// Why waiting queues would dead-letter at most once, until somebody mends it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AtMostOnce {
    /// A policy with `overflow`.
    Policy,
    OperatorPolicy,
    /// The feature flag `stream_queue` is missing, which 3.10 can do without.
    FeatureFlag,
}

/// Whether messages that AMQP 0-9-1 cannot carry can be moved out of the way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unreadable {
    Movable,
    /// They can, and are behind others that AMQP 1.0 cannot carry.
    Hidden,
    /// The consumers' user lacks a permission until faults stop.
    Stuck,
    /// The queue for them has no room until faults stop.
    Full,
}

/// The setting of a run, besides its seed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Setting {
    version: Version,
    work: QueueType,
    waiting: QueueType,
    replicas: usize,
    prefetch: u16,
    /// The most bytes of bodies that a replica is to hold.
    prefetch_bytes: Option<u64>,
    concurrency: usize,
    /// The most messages that a handler takes at once; those of a batch end together.
    batch: usize,
    messages: u32,
    single_active: bool,
    auto_delete: bool,
    strategy: Strategy,
    /// How many operators walk through the parking queue.
    operators: usize,
    /// A delivery limit on the parking queue, set by a policy.
    parking_limit: Option<i64>,
    priorities: bool,
    /// Many messages come with as many crashes as a suspect can have.
    suspects: bool,
    /// The first message hangs its handler for more than half an hour.
    hangs: bool,
    /// How long consumers pause when many attempts fail.
    pause: Option<Duration>,
    /// The broker refuses parked copies as they are, until faults stop.
    refused: bool,
    /// The broker is killed while its queues are young.
    loses_young_queues: bool,
    /// Replicas notice some seconds late that the broker was killed.
    dies_silently: bool,
    /// Nobody may set or look for markers.
    unmarked: bool,
    /// The service starts late and then creates its queue, which is later deleted whenever it is empty.
    service_away: bool,
    /// Consumers without `dlx`: there are no waiting queues for what they put off.
    plain: bool,
    /// How long the broker lets a delivery be unsettled, if not for half an hour.
    consumer_timeout: Option<Duration>,
    /// An alarm lasts for longer than the broker's patience with what is not settled.
    long_alarm: bool,
    /// All that fails in it has room aside, so others must be handled meanwhile.
    served_in_alarm: bool,
    /// How many channels a connection may have, if there is a limit.
    channels: Option<u16>,
    careless: Option<AtMostOnce>,
    /// Some messages come over AMQP 1.0 with types that AMQP 0-9-1 lacks.
    unreadable: Option<Unreadable>,
    /// Replicas are killed within two seconds of each start, when their queues are old and marked.
    crash_loops: bool,
    faults: Faults,
}

/// A run that broke a promise.
pub(super) struct FailedRun {
    seed: u64,
    setting: Setting,
    why: String,
    trace: Vec<String>,
}

impl fmt::Display for FailedRun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "seed {}: {}\n{:?}", self.seed, self.why, self.setting)?;
        for line in &self.trace {
            writeln!(f, "  {line}")?;
        }
        Ok(())
    }
}

struct Simulation {
    random: fastrand::Rng,
    setting: Setting,
    now: Duration,
    broker: Broker,
    replicas: Vec<Replica>,
    operators: Vec<Operator>,
    /// For each marker of a queue, when the queue was created to which it is bound.
    markers: BTreeMap<String, Duration>,
    /// Until when queues may be young whose markers are bound.
    clock: Duration,
    /// The service that gets handed-over failures.
    service: ServiceModel,
    /// How often walks were interrupted; each uses up a delivery.
    interruptions: i64,
    publisher: Option<ConnectionId>,
    /// Unconfirmed publishes on this connection, by the number of the confirm.
    unconfirmed: BTreeMap<u64, u32>,
    publishes: u64,
    published: u32,
    ledger: Ledger,
    faults_until: Duration,
    next_fault: Duration,
    harm_has_stopped: bool,
    /// A message that may be published again, completely equal.
    published_before: Option<(u32, Publish)>,
    was_alarmed: bool,
    next_publish: Duration,
    broker_returns: Option<Duration>,
    /// When the waiting queues can dead-letter at least once.
    mended_at: Option<Duration>,
    /// When replicas notice that the broker is gone, if it went without a word.
    noticed_at: Option<Duration>,
    /// Until when the broker does not read from publishers, and until when the work queue is full.
    alarm_ends: Option<Duration>,
    /// When all that can be handled in the alarm must be.
    served_by: Option<Duration>,
    /// Faults during the alarm that may have taken messages from their consumers.
    taken_in_alarm: u32,
    cap_ends: Option<Duration>,
    trace: VecDeque<String>,
    steps: u64,
}

/// How long the end may take once the faults have ended. A dead letter that could not be stored is tried again after three minutes, and an
/// unsettled delivery is taken back after thirty.
const BOUND: Duration = Duration::from_secs(4 * 3600);
/// How far replicas start from each other whose broker dies young.
const APART: Duration = Duration::from_millis(200);
const MOST_STEPS: u64 = 2_000_000;
const TRACE: usize = 100;

impl Setting {
    /// How long the end may take: each attempt may fail as the probe that renews a pause.
    fn bound(&self) -> Duration {
        BOUND + self.pause.unwrap_or_default() * 4 * self.messages
    }

    /// What the consumer's strategy needs.
    fn policy(&self) -> Policy {
        let text = match self.strategy {
            Strategy::RetryQueues | Strategy::DelayedExchange | Strategy::Service => {
                "list(100ms, 1s)"
            }
            Strategy::DeadLetter => "fixed(1s, retries=2)",
            Strategy::Native => "fixed(100ms, retries=2)",
        };
        text.parse().expect("the policy can be read")
    }

    /// Whether a crash after a rejection can be told from the retry. Not on a classic queue of 4.3, where both look the same.
    fn sees_crashes_after_deaths(&self) -> bool {
        self.strategy == Strategy::DeadLetter
            && (self.work != QueueType::Classic || self.version < Version::V4_3)
    }

    fn work_queue(&self) -> Declare {
        let mut work = match self.strategy {
            Strategy::RetryQueues | Strategy::DelayedExchange | Strategy::Service => {
                Declare::durable(QUEUE, self.work)
            }
            Strategy::DeadLetter | Strategy::Native => replica::declarations(self)
                .into_iter()
                .find(|declare| &*declare.queue == QUEUE)
                .expect("the plan holds the work queue"),
        };
        work.auto_delete = self.auto_delete;
        if self.single_active {
            work = work.with_value("x-single-active-consumer", AMQPValue::Boolean(true));
        }
        work
    }
}

impl Simulation {
    fn new(seed: u64, setting: Setting) -> Self {
        let mut random = fastrand::Rng::with_seed(seed);
        let chance = Seeded::new(random.u64(..), Duration::from_millis(random.u64(0..30)));
        let profile = Profile {
            channel_max: setting.channels,
            stream_queue: setting.careless != Some(AtMostOnce::FeatureFlag),
            ..Profile::new(setting.version)
        };
        let mut broker = Broker::new(profile, chance);
        let _ = broker.make_queue(&setting.work_queue());
        if setting.consumer_timeout.is_some() {
            broker.set_consumer_timeout(setting.consumer_timeout);
        }
        if setting.strategy == Strategy::Service && !setting.service_away {
            let _ = broker.make_queue(&service::queue());
        }
        if setting.faults.full_parking {
            let _ = broker.make_queue(&faults::full_parking());
        }
        let mut markers = BTreeMap::new();
        let is_marked = setting.crash_loops && random.bool();
        if setting.crash_loops {
            for declare in replica::declarations(&setting) {
                let _ = broker.make_queue(&declare);
                // Or no consumer has ever lived for long enough.
                if is_marked {
                    markers.insert(declare.queue.to_string(), broker.now());
                }
            }
        }
        // They existed for long: a killed broker keeps them.
        broker.advance(Duration::from_secs(10));
        // A message that is to be held up must have failed before.
        let first_fault =
            Duration::from_millis(match (setting.long_alarm, setting.loses_young_queues) {
                (true, _) => random.u64(5_000..30_000),
                (_, true) => random.u64(300..1_500),
                _ => random.u64(300..4_000),
            });
        let service = match setting.service_away {
            true => {
                ServiceModel::who_comes_at(broker.now() + Duration::from_secs(random.u64(1..90)))
            }
            false => ServiceModel::default(),
        };
        let replicas = (0..setting.replicas)
            .map(|number| {
                let replica = Replica::new(number, random.u64(..));
                // Who comes later finds what others have marked, and before the broker is killed.
                match u32::try_from(number) {
                    Ok(number) if setting.loses_young_queues => {
                        replica.starting(broker.now() + APART * number)
                    }
                    _ => replica,
                }
            })
            .collect();
        Self {
            now: broker.now(),
            faults_until: broker.now() + Duration::from_secs(60),
            next_fault: broker.now() + first_fault,
            harm_has_stopped: false,
            published_before: None,
            was_alarmed: false,
            next_publish: broker.now(),
            random,
            setting,
            broker,
            replicas,
            markers,
            clock: Duration::ZERO,
            operators: (0..setting.operators)
                .map(|_| Operator::default())
                .collect(),
            service,
            interruptions: 0,
            publisher: None,
            unconfirmed: BTreeMap::new(),
            publishes: 0,
            published: 0,
            ledger: Ledger::default(),
            broker_returns: None,
            mended_at: None,
            noticed_at: None,
            alarm_ends: None,
            served_by: None,
            taken_in_alarm: 0,
            cap_ends: None,
            trace: VecDeque::new(),
            steps: 0,
        }
    }

    fn note(&mut self, line: impl FnOnce() -> String) {
        if self.trace.len() == TRACE {
            self.trace.pop_front();
        }
        let line = format!("{:>10.3?} {}", self.now, line());
        self.trace.push_back(line);
    }

    /// Plays it to the end: `Ok` with the number of steps, or what was broken.
    fn play(mut self, seed: u64) -> Result<u64, Box<FailedRun>> {
        let why = loop {
            self.steps += 1;
            if let Err(why) = self.step() {
                break why;
            }
            if self.is_over() {
                let quiet = self.setting.faults.are_quiet();
                let replayed = self.setting.operators > 0;
                match self.ledger.balance(&mut self.broker, quiet, replayed) {
                    Ok(()) => return Ok(self.steps),
                    Err(why) => break why,
                }
            }
            if self.now > self.faults_until + self.setting.bound() || self.steps > MOST_STEPS {
                break format!(
                    "it does not come to an end: {}; {}",
                    self.ledger.left(),
                    self.filled()
                );
            }
        };
        Err(Box::new(FailedRun {
            seed,
            setting: self.setting,
            why,
            trace: self.trace.into(),
        }))
    }

    /// What the queues hold.
    fn filled(&self) -> String {
        let counts = self.broker.queue_names().map(|name| {
            let count = self.broker.messages(name).count();
            format!("{name} has {count}")
        });
        counts.collect::<Vec<_>>().join(", ")
    }

    fn is_over(&self) -> bool {
        self.published == self.setting.messages
            && self.unconfirmed.is_empty()
            && self.now >= self.faults_until
            && self.ledger.is_settled()
            && self.operators.iter().all(Operator::is_away)
            && self.broker.is_running()
            && self.service_is_idle()
            && self.mended_at.is_none()
            && [QUEUE].into_iter().all(|queue| {
                self.broker
                    .queue_view(queue)
                    .is_some_and(|view| view.ready + view.unsettled + view.delayed + view.dead == 0)
            })
            && !self.broker.is_in_transit()
            && self
                .broker
                .queue_names()
                .filter(|name| name.starts_with("orders.retry."))
                .all(|name| self.broker.messages(name).next().is_none())
    }

    /// One step: a frame arrives at one of its ends, or time passes until the next one can.
    fn step(&mut self) -> Result<(), String> {
        let mut choices = std::mem::take(&mut self.ledger.choices);
        choices.clear();
        for at in 0..self.replicas.len() {
            let concurrency = self.setting.concurrency;
            self.replicas[at].choices(&self.broker, at, concurrency, &mut choices);
        }
        for (at, operator) in self.operators.iter().enumerate() {
            operator.choices(&self.broker, at, &mut choices);
        }
        let idle = choices.is_empty() || self.random.u8(..) < 8;
        let choice = (!idle).then(|| choices[self.random.usize(..choices.len())]);
        self.ledger.choices = choices;
        match choice {
            Some(choice) => self.replica_step(choice)?,
            None => self.pass_time(!self.ledger.choices.is_empty()),
        }
        self.look_at_clocks()?;
        self.publisher_hears();
        Ok(())
    }

    /// Time passes until something happens by itself; while frames are on their way, hardly any.
    fn pass_time(&mut self, hardly: bool) {
        let mut next = vec![
            self.broker.next_event_at(),
            self.broker_returns,
            self.mended_at,
            self.noticed_at,
            self.alarm_ends,
            self.served_by,
            self.cap_ends,
            (self.published < self.setting.messages).then_some(self.next_publish),
            (self.now < self.faults_until).then_some(self.next_fault.min(self.faults_until)),
        ];
        next.push(self.service_wakes_at());
        next.extend(self.replicas.iter().map(Replica::wakes_at));
        let until = self.faults_until;
        next.extend(self.operators.iter().map(|one| one.wakes_at(until)));
        let soonest = next.into_iter().flatten().min();
        let soonest = soonest.unwrap_or(self.now + Duration::from_secs(1));
        let soonest = if hardly {
            soonest.min(self.now + Duration::from_micros(self.random.u64(0..3_000)))
        } else {
            soonest
        };
        self.now = soonest.max(self.now);
        self.broker.advance(self.now);
    }

    fn look_at_clocks(&mut self) -> Result<(), String> {
        if self.noticed_at.take_if(|at| *at <= self.now).is_some() {
            self.cut_all();
        }
        if self.broker_returns.is_some_and(|at| at <= self.now) {
            self.broker_returns = None;
            self.broker.start();
            self.note(|| "the broker is back".into());
        }
        if self.served_by.take_if(|at| *at <= self.now).is_some() {
            self.ledger.nobody_was_kept_from_a_first_run()?;
        }
        self.end_faults();
        if self.now < self.faults_until && self.next_fault <= self.now {
            self.do_harm();
        } else if self.now >= self.faults_until {
            self.stop_harm()?;
        }
        if self.published < self.setting.messages && self.next_publish <= self.now {
            self.publish();
        }
        for at in 0..self.replicas.len() {
            self.replica_clock(at)?;
        }
        for at in 0..self.operators.len() {
            self.operator_clock(at)?;
        }
        self.service_clock();
        Ok(())
    }
}
