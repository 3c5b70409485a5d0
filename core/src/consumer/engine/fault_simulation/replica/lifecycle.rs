//! How a replica starts and ends.

use std::{collections::VecDeque, time::Duration};

use retryrmq_model::{Broker, Method};

use super::{
    super::{PARKED, QUEUE, Simulation},
    Replica, Side, SimulatedConnection, lost,
    plan::{consumer, declarations},
};
use crate::{
    Error, ErrorKind, Strategy,
    consumer::engine::{Engine, Input, Setup},
    mutants::{self, Mutant},
    retry::{Counting, Origin},
    telemetry::Counters,
    topology::{HANDOVER_QUEUE, QueueAge, SAFE_AGE},
};

impl Simulation {
    pub(super) fn start(&mut self, at: usize) -> Result<(), String> {
        let setting = self.setting;
        let replica = &mut self.replicas[at];
        replica.seed = replica.seed.wrapping_add(1);
        let engine = Engine::new(Setup {
            options: consumer(&setting),
            origin: Origin::default(),
            counters: Counters::default(),
            counting: match setting.strategy {
                Strategy::DeadLetter => Counting::Deaths {
                    carried: setting.version == retryrmq_model::Version::V4_0,
                    looks_redelivered: setting.version >= retryrmq_model::Version::V4_3,
                    continues_foreign: setting.version == retryrmq_model::Version::V3_10,
                },
                Strategy::Native => Counting::Deliveries,
                Strategy::RetryQueues | Strategy::DelayedExchange | Strategy::Service => {
                    Counting::Header
                }
            },
            nack_is_uncounted: setting.version >= retryrmq_model::Version::V4_3,
            is_classic: setting.work == retryrmq_model::QueueType::Classic,
            queues_sleep: setting.version < retryrmq_model::Version::V4_0,
            header_room: crate::connection::USUAL_HEADER_ROOM,
            seed: replica.seed,
        });
        *replica = Replica {
            engine: Some(engine),
            starts: None,
            ..Replica::new(replica.number, replica.seed)
        };
        self.note(|| format!("replica {at} starts"));
        self.open(at, 1)
    }

    /// Checks the topology on a connection of its own, and opens a channel.
    pub(super) fn open(&mut self, at: usize, session: u64) -> Result<(), String> {
        let is_late = mutants::has(Mutant::ProbesLast);
        let opened = (is_late || self.may_rely_on_the_broker(at))
            && self.topology(at)
            && (!is_late || self.may_rely_on_the_broker(at))
            && self.connect(at);
        if !opened {
            if session == 1 {
                // A consumer that cannot subscribe ends, and is started again.
                self.replicas[at].engine = None;
                self.replicas[at].starts = Some(self.now + Duration::from_secs(1));
                return Ok(());
            }
            let error = Error::new(ErrorKind::Unreachable, "the broker is away");
            return self.feed(at, Input::OpenFailed { session, error });
        }
        match self.begin_scan(at, session) {
            Ok(true) => self.consume(at, session),
            Ok(false) => Ok(()),
            Err(error) => self.feed(at, Input::OpenFailed { session, error }),
        }
    }

    /// Opens a channel.
    pub(super) fn consume(&mut self, at: usize, session: u64) -> Result<(), String> {
        if !self.connect(at) {
            let error = lost();
            return self.feed(at, Input::OpenFailed { session, error });
        }
        let now = self.now;
        let replica = &mut self.replicas[at];
        replica.opened = now;
        replica.session = session;
        replica.channel += 1;
        replica.syncs.clear();
        replica.with_us.clear();
        let channel = replica.channel;
        replica
            .consuming
            .written
            .push_back((channel, Method::OpenChannel));
        self.replicas[at].marks = Some(self.now + SAFE_AGE);
        self.feed(at, Input::Opened { session })?;
        let is_old = |(name, age): (&String, &QueueAge<Duration>)| {
            !name.starts_with("orders.retry.") || age.safe_from() <= self.now
        };
        if self.setting.strategy == Strategy::DeadLetter
            && self.replicas[at].ages.iter().all(is_old)
        {
            self.feed(at, Input::QueuesAreOld { session })?;
        }
        Ok(())
    }

    pub(super) fn topology(&mut self, at: usize) -> bool {
        // It is the service's queue, and nobody else creates it.
        if self.setting.strategy == Strategy::Service
            && self.broker.queue_view(HANDOVER_QUEUE).is_none()
        {
            return false;
        }
        let Some(id) = self.broker.connect() else {
            return false;
        };
        self.broker.send(id, 1, Method::OpenChannel);
        let all = declarations(&self.setting);
        let names: Vec<String> = all
            .iter()
            .map(|declare| declare.queue.to_string())
            .collect();
        for declare in all {
            let taken_as_it_is = &*declare.queue == PARKED
                || (&*declare.queue == QUEUE
                    && matches!(
                        self.setting.strategy,
                        Strategy::RetryQueues | Strategy::Service
                    ));
            if !(taken_as_it_is && self.broker.queue_view(&declare.queue).is_some()) {
                self.broker.send(id, 1, Method::Declare(Box::new(declare)));
            }
        }
        self.broker.send(id, 1, Method::CloseConnection);
        for name in names.into_iter().chain([HANDOVER_QUEUE.to_owned()]) {
            let mut age = QueueAge::found(self.now);
            if self.may_mark(at, &name) {
                let is_marked = self.is_marked(&name);
                let is_old = is_marked && self.clock <= self.now;
                age.note_marker(is_old, self.now);
                let known = &mut self.replicas[at].marked_old;
                match is_old {
                    true => known.insert(name.clone()),
                    false => known.remove(&name),
                };
                if !is_marked && let Some(view) = self.broker.queue_view(&name) {
                    self.markers.insert(name.clone(), view.created);
                    if !mutants::has(Mutant::MarksTheNew) {
                        self.clock = self.now + SAFE_AGE;
                    }
                }
            }
            self.replicas[at].ages.insert(name, age);
        }
        true
    }

    /// Whether a client sets and believes the marker of this queue. One in three lacks the permission.
    pub(super) fn may_mark(&self, at: usize, queue: &str) -> bool {
        !self.setting.unmarked
            && at % 3 != 2
            && (queue == PARKED || queue.starts_with("orders.retry."))
    }

    /// A marker is bound to a queue, and the binding goes with the queue.
    fn is_marked(&self, queue: &str) -> bool {
        self.broker.queue_view(queue).is_some_and(|view| {
            (self.markers.get(queue)).is_some_and(|created| *created == view.created)
        })
    }

    /// Marks what has become old while the consuming connection lived.
    pub(super) fn mark(&mut self, at: usize) {
        self.replicas[at].marks = None;
        let consuming = self.replicas[at].consuming.connection;
        if !consuming.is_some_and(|id| self.broker.is_open(id)) {
            return;
        }
        let ages = std::mem::take(&mut self.replicas[at].ages);
        for (name, age) in &ages {
            if let Some(view) = self.broker.queue_view(name)
                && self.may_mark(at, name)
                && age.may_be_marked(self.now)
            {
                self.markers.insert(name.clone(), view.created);
            }
        }
        self.replicas[at].ages = ages;
    }

    pub(super) fn connect(&mut self, at: usize) -> bool {
        let open = |line: &SimulatedConnection, broker: &Broker| {
            line.connection.is_some_and(|id| broker.is_open(id))
        };
        if !open(&self.replicas[at].consuming, &self.broker) {
            let connection = self.broker.connect();
            let replica = &mut self.replicas[at];
            replica.losses += u32::from(connection.is_some() && replica.session > 0);
            self.replicas[at].consuming = SimulatedConnection {
                connection,
                written: VecDeque::new(),
            };
            self.replicas[at].channel = 0;
        }
        self.replicas[at].consuming.connection.is_some()
    }

    /// The process is killed.
    pub(in super::super) fn kill(&mut self, at: usize) {
        if self.replicas[at].engine.take().is_none() {
            return;
        }
        self.note(|| format!("replica {at} is killed"));
        self.forget_replica(at);
    }

    pub(super) fn forget_replica(&mut self, at: usize) {
        self.comes_again(at);
        self.drop_held_up(at);
        self.hit_running(at);
        if let Some(scan) = self.replicas[at].scan.take() {
            self.cancel_scan(&scan);
        }
        for side in [Side::Consuming, Side::Publishing] {
            if let Some(id) = self.replicas[at].line(side).connection.take() {
                self.broker.cut(id);
            }
        }
        let (number, seed) = (self.replicas[at].number, self.replicas[at].seed);
        let starts = Some(self.now + Duration::from_millis(self.random.u64(50..2_000)));
        self.replicas[at] = Replica {
            starts,
            ..Replica::new(number, seed)
        };
    }

    /// The process is asked to drain and end.
    pub(in super::super) fn stop(&mut self, at: usize) {
        if self.replicas[at].engine.is_none() || self.replicas[at].closing {
            return;
        }
        self.note(|| format!("replica {at} is to end"));
        self.replicas[at].closing = true;
        let _ = self.feed(at, Input::Close);
    }

    /// Everything is settled that will be: written frames arrive, and the connections are closed.
    pub(super) fn finish(&mut self, at: usize) {
        self.note(|| format!("replica {at} has ended"));
        for side in [Side::Consuming, Side::Publishing] {
            let line = std::mem::take(self.replicas[at].line(side));
            if let Some(id) = line.connection {
                for (channel, method) in line.written {
                    self.arrives(at, side, id, channel, method);
                }
            }
            self.replicas[at].line(side).connection = line.connection;
        }
        self.replicas[at].engine = None;
        self.forget_replica(at);
    }
}
