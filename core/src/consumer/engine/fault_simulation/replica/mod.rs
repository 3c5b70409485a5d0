//! A consumer in its process: the shell of an engine, on the model instead of on lapin.

mod commands;
mod handlers;
mod held_copies;
mod lanes;
mod lifecycle;
mod plan;
mod probe;
mod unreadable_scan;
mod wire;

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    time::Duration,
};

use retryrmq_model::{Broker, ConnectionId, Method};

pub(super) use commands::publishing;
pub(super) use plan::{consumer, declarations};

use self::{held_copies::HeldUp, lanes::Lanes, unreadable_scan::UnreadableScan};
use super::{
    Simulation,
    ledger::{HandlerScript, number},
    publisher::{LARGEST_BODY, body},
};
use crate::{
    Error, ErrorKind,
    consumer::{
        Delivery, Token,
        engine::{Command, Commands, Engine, Input, Now},
    },
    topology::QueueAge,
    unreadable::InternalErrors,
};

/// What can happen to a replica now.
#[derive(Clone, Copy, Debug)]
pub(super) enum ReplicaStep {
    /// Its oldest written method arrives at the broker.
    Writes(usize, Side),
    /// The oldest frame from the broker arrives.
    Reads(usize, Side),
    /// A handler takes a message.
    Begins(usize),
    /// The same two for an operator.
    OperatorWrites(usize, Side),
    OperatorReads(usize, Side),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Consuming,
    Publishing,
}

/// A connection, with the frames on their way to the broker.
#[derive(Debug, Default)]
struct SimulatedConnection {
    connection: Option<ConnectionId>,
    written: VecDeque<(u16, Method)>,
}

struct Running {
    /// Those of one handler have the same.
    batch: u64,
    token: Token,
    number: u32,
    kind: HandlerScript,
    earlier: u32,
    attempt: u32,
    deferrals: u32,
    ends_at: Duration,
}

struct Unconfirmed {
    token: Token,
    queue: String,
    number: u32,
    /// From when on its queue is a safe place, if it was not when the copy was published.
    safe_from: Option<Duration>,
    /// It did not wait for that.
    at_once: bool,
}

pub(super) struct Replica {
    number: usize,
    seed: u64,
    engine: Option<Engine>,
    wanted: Commands,
    consuming: SimulatedConnection,
    publishing: SimulatedConnection,
    /// The channel of the current session, and how many channels the connection had.
    session: u64,
    channel: u16,
    /// Questions asked on that channel.
    syncs: VecDeque<u64>,
    /// Messages of that channel whose settlements have not arrived at the broker, by tag.
    with_us: BTreeMap<u64, u32>,
    delivery_queue: VecDeque<Delivery>,
    running: Vec<Running>,
    /// How many batches its handlers have taken.
    batches: u64,
    /// Unconfirmed publishes, by their channel and number.
    unconfirmed: BTreeMap<(u16, u64), Unconfirmed>,
    lanes: Lanes,
    /// Whether the broker does not read from the publishing connection; and the copies that wait for that.
    is_blocked: bool,
    held_up: Vec<HeldUp>,
    /// How often a connection was made again after it was lost, and whether there was one to publish on.
    losses: u32,
    has_published: bool,
    /// Returned messages, until the confirm says which publish it was.
    returned: Vec<(String, u32)>,
    /// How old each queue is known to be.
    ages: BTreeMap<String, QueueAge<Duration>>,
    /// Whose markers tell that they are old, whatever it makes of that.
    marked_old: BTreeSet<String>,
    /// When it marks the queues that are old by then.
    marks: Option<Duration>,
    opens: Option<(u64, Duration)>,
    starts: Option<Duration>,
    closing: bool,
    /// How often the broker ran out of patience.
    timeouts: u32,
    /// Whether it knows that waiting queues dead-letter at least once.
    has_probed: bool,
    /// From when on a copy is safe of messages that came here last.
    safe: BTreeMap<u32, Duration>,
    /// What it thinks of its queue, when its channel was opened, and how often it has moved messages.
    internal_errors: InternalErrors,
    opened: Duration,
    moves: u64,
    scan: Option<UnreadableScan>,
}

impl Replica {
    pub(super) fn new(number: usize, seed: u64) -> Self {
        Self {
            number,
            seed,
            engine: None,
            wanted: Commands::default(),
            consuming: SimulatedConnection::default(),
            publishing: SimulatedConnection::default(),
            session: 0,
            channel: 0,
            syncs: VecDeque::new(),
            with_us: BTreeMap::new(),
            delivery_queue: VecDeque::new(),
            running: Vec::new(),
            batches: 0,
            unconfirmed: BTreeMap::new(),
            lanes: Lanes::default(),
            is_blocked: false,
            held_up: Vec::new(),
            losses: 0,
            has_published: false,
            returned: Vec::new(),
            ages: BTreeMap::new(),
            marked_old: BTreeSet::new(),
            marks: None,
            opens: None,
            starts: Some(Duration::ZERO),
            closing: false,
            timeouts: 0,
            has_probed: false,
            safe: BTreeMap::new(),
            internal_errors: InternalErrors::default(),
            opened: Duration::ZERO,
            moves: 0,
            scan: None,
        }
    }

    pub(super) fn starting(self, at: Duration) -> Self {
        let starts = Some(at);
        Self { starts, ..self }
    }

    pub(super) fn choices(
        &self,
        broker: &Broker,
        at: usize,
        concurrency: usize,
        choices: &mut Vec<ReplicaStep>,
    ) {
        if self.engine.is_none() {
            return;
        }
        for (side, line) in [
            (Side::Consuming, &self.consuming),
            (Side::Publishing, &self.publishing),
        ] {
            if !line.written.is_empty() {
                choices.push(ReplicaStep::Writes(at, side));
            }
            if line.connection.is_some_and(|id| broker.outbound(id) > 0) {
                choices.push(ReplicaStep::Reads(at, side));
            }
        }
        if !self.delivery_queue.is_empty() && !self.closing && self.handlers() < concurrency {
            choices.push(ReplicaStep::Begins(at));
        }
    }

    /// How many handlers run.
    fn handlers(&self) -> usize {
        let batches: BTreeSet<_> = self.running.iter().map(|running| running.batch).collect();
        batches.len()
    }

    pub(super) fn wakes_at(&self) -> Option<Duration> {
        let running = self.running.iter().map(|running| running.ends_at).min();
        [
            self.engine.as_ref().and_then(Engine::wake_at),
            running,
            self.opens.map(|(_, at)| at),
            self.starts,
            self.marks,
            self.scan.as_ref().map(UnreadableScan::until),
            self.held_up.iter().filter_map(HeldUp::due_at).min(),
        ]
        .into_iter()
        .flatten()
        .min()
    }

    /// The broker reads a settlement.
    fn settles(&mut self, method: &Method) {
        match method {
            Method::Ack { tag, multiple } | Method::Nack { tag, multiple, .. } if *multiple => {
                self.with_us = self.with_us.split_off(&(tag + 1));
            }
            Method::Ack { tag, .. } | Method::Nack { tag, .. } | Method::Reject { tag, .. } => {
                self.with_us.remove(tag);
            }
            _ => {}
        }
    }

    fn line(&mut self, side: Side) -> &mut SimulatedConnection {
        match side {
            Side::Consuming => &mut self.consuming,
            Side::Publishing => &mut self.publishing,
        }
    }
}

fn lost() -> Error {
    Error::new(ErrorKind::ConnectionLost, "the connection was lost")
}

impl Simulation {
    pub(super) fn now(&self) -> Now {
        Now {
            at: self.now,
            unix: self.broker.profile().epoch + self.now.as_secs(),
        }
    }

    /// A method of a replica arrives at the broker.
    fn arrives(&mut self, at: usize, side: Side, id: ConnectionId, channel: u16, method: Method) {
        let replica = &mut self.replicas[at];
        if side == Side::Consuming && channel == replica.channel && self.broker.is_open(id) {
            replica.settles(&method);
        }
        self.broker.send(id, channel, method);
    }

    pub(super) fn replica_step(&mut self, choice: ReplicaStep) -> Result<(), String> {
        match choice {
            ReplicaStep::Writes(at, side) => {
                let line = self.replicas[at].line(side);
                if let (Some(id), Some((channel, method))) =
                    (line.connection, line.written.pop_front())
                {
                    self.arrives(at, side, id, channel, method);
                }
                Ok(())
            }
            ReplicaStep::Reads(at, side) => {
                let Some(id) = self.replicas[at].line(side).connection else {
                    return Ok(());
                };
                match self.broker.receive(id) {
                    None => Ok(()),
                    Some((channel, frame)) if side == Side::Consuming => {
                        self.consumer_hears(at, channel, frame)
                    }
                    Some((channel, frame)) => self.publisher_of_copies_hears(at, channel, &frame),
                }
            }
            ReplicaStep::Begins(at) => self.begin(at),
            ReplicaStep::OperatorWrites(at, side) => self.operator_writes(at, side),
            ReplicaStep::OperatorReads(at, side) => self.operator_reads(at, side),
        }
    }

    pub(super) fn replica_clock(&mut self, at: usize) -> Result<(), String> {
        let replica = &mut self.replicas[at];
        if replica.starts.is_some_and(|starts| starts <= self.now) {
            replica.starts = None;
            return self.start(at);
        }
        if let Some((session, _)) = replica.opens.filter(|(_, opens)| *opens <= self.now) {
            replica.opens = None;
            self.open(at, session)?;
        }
        let is_over = |scan: &mut UnreadableScan| scan.until() <= self.now;
        if let Some(scan) = self.replicas[at].scan.take_if(is_over) {
            self.end_scan(at, scan)?;
        }
        while let Some(place) = self.replicas[at]
            .running
            .iter()
            .position(|running| running.ends_at <= self.now)
        {
            let batch = self.replicas[at].running[place].batch;
            self.end_batch(at, batch)?;
            if self.replicas[at].engine.is_none() {
                return Ok(());
            }
        }
        if self.replicas[at].marks.is_some_and(|due| due <= self.now) {
            self.mark(at);
        }
        let mut waiting = self.replicas[at].held_up.iter().filter_map(HeldUp::due_at);
        if waiting.any(|due| due <= self.now) {
            self.send_what_is_safe(at);
            self.turn(at)?;
        }
        let due = |engine: &Engine| engine.wake_at().is_some_and(|wake| wake <= self.now);
        if self.replicas[at].engine.as_ref().is_some_and(due) {
            self.turn(at)?;
        }
        Ok(())
    }

    fn feed(&mut self, at: usize, input: Input) -> Result<(), String> {
        let now = self.now();
        let replica = &mut self.replicas[at];
        let Some(engine) = &mut replica.engine else {
            return Ok(());
        };
        if let Input::OpenFailed { .. } = input {
            replica.internal_errors.failed();
        }
        engine.on(input, now, &mut replica.wanted);
        self.turn(at)
    }

    fn turn(&mut self, at: usize) -> Result<(), String> {
        loop {
            let now = self.now();
            let replica = &mut self.replicas[at];
            let Some(engine) = &mut replica.engine else {
                return Ok(());
            };
            engine.set_stalled(replica.is_blocked);
            engine.turn(now, &mut replica.wanted);
            let alone = engine.runs_alone();
            let mut given = replica.wanted.deliveries.iter();
            if alone.is_some() && given.any(|delivery| Some(delivery.token) != alone) {
                return Err(format!("replica {at} hands out a message beside a suspect"));
            }
            // Running messages may end, and be settled, at any moment.
            if alone.is_some()
                && !replica.wanted.deliveries.is_empty()
                && replica.with_us.len() > 1
                && engine.outstanding() == 1
            {
                return Err(format!(
                    "replica {at} hands out a suspect before the broker has read what was settled"
                ));
            }
            if engine.is_pausing() && !replica.wanted.deliveries.is_empty() {
                return Err(format!("replica {at} hands out a message in a pause"));
            }
            replica
                .delivery_queue
                .extend(replica.wanted.deliveries.drain(..));
            let most = 3 * usize::from(self.setting.prefetch) + 3 * 64 + 2;
            if engine.outstanding() > most {
                return Err(format!(
                    "replica {at} holds {} messages",
                    engine.outstanding()
                ));
            }
            // A larger message than the limit runs alone. One more waits, and another one where a narrow consumer replaces a narrow one.
            if let Some((limit, held, all)) = engine.held_bytes() {
                let (most, waits) = (limit.max(LARGEST_BODY), 2 * LARGEST_BODY);
                if held > most + waits || all > 3 * most + waits {
                    return Err(format!("replica {at} holds {held} bytes, {all} in all"));
                }
            }
            if engine.keeps_needlessly() {
                return Err(format!("replica {at} keeps a message that could run"));
            }
            let finished = engine.is_finished(now);
            let list = std::mem::take(&mut replica.wanted.list);
            if list.is_empty() {
                if finished {
                    // A copy may still be on its way.
                    for (_, received) in engine.held() {
                        self.ledger.may_be_doubled(number(&received.properties));
                    }
                    engine.requeue_remaining(&mut replica.wanted);
                    for command in std::mem::take(&mut replica.wanted.list) {
                        self.perform(at, command);
                    }
                    self.finish(at);
                }
                return Ok(());
            }
            for command in &list {
                if let Command::Publish { token, copy, .. } = command
                    && let Some(received) = engine.body(*token)
                    && received.body != body(number(&copy.properties))
                {
                    return Err(format!("replica {at} copies a message without its body"));
                }
            }
            for command in list {
                self.perform(at, command);
            }
        }
    }
}
