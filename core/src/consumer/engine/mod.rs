//! The engine of a consumer: the one task that owns its channel, its tokens and every settlement.

mod copies;
mod ending;
mod intake;
mod pausing;
mod reconnection;
mod settlement;

use std::{sync::Arc, time::Duration};

use lapin::types::ShortString;
use tokio::{
    sync::mpsc,
    time::{Instant, sleep_until, timeout, timeout_at},
};

use super::{
    Consumer, Delivery, Received, Token,
    agenda::Agenda,
    budget::Budget,
    inbox::{Ending, Inbox},
    memory::Memory,
    session::Session,
    slab::Slab,
};
use crate::{
    Client, Result,
    retry::{Counting, Origin, Stamp},
    telemetry::{Counters, Event, HOST},
    topology::{self, Mode, Plan, Target, Waits},
};

/// How often a copy is offered to the broker before its original goes back to the queue, the first time.
const TRIES: u32 = 8;
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// How long a message is held for its handler where there are no waiting queues: the broker's patience with a message
/// that is not settled ends after 30 minutes, and the prefetch is short of it.
const LONGEST_HOLD: Duration = Duration::from_secs(60);
const GOODBYE: Duration = Duration::from_secs(2);

/// A delivery that is not settled yet.
struct Entry {
    received: Arc<Received>,
    session: u64,
    tag: u64,
    phase: Phase,
}

enum Phase {
    /// In the inbox, or with a handler.
    Out,
    /// A suspect that waits until nothing else is outstanding.
    Suspect,
    /// Put off by its handler where there are no waiting queues: held here, and then given back.
    Held,
    /// Its copy is on its way to a waiting or parking queue.
    Copying(Box<Copying>),
}

/// A copy on its way.
#[derive(Clone)]
struct Copying {
    exchange: String,
    routing_key: String,
    properties: lapin::BasicProperties,
    mandatory: bool,
    /// What has happened once it is there.
    event: Event,
    tries: u32,
}

/// What comes back to the engine from outside its task.
enum Mail {
    Copied(Token, Result<()>),
    Session(Box<Result<Session>>),
}

/// Which messages the broker may send right now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Intake {
    Stopped,
    /// One at a time: after a start it is not known whether the next message is one that takes consumers down.
    Narrow,
    Wide,
}

pub(super) struct Engine {
    options: Consumer,
    client: Client,
    plan: Plan,
    wire_queue: ShortString,
    name: Arc<str>,
    counting: Counting,
    origin: Origin,
    waits: Arc<Waits>,
    inbox: Arc<Inbox>,
    counters: Counters,
    mail: mpsc::UnboundedSender<Mail>,
    mailbox: mpsc::UnboundedReceiver<Mail>,
    entries: Slab<Entry>,
    session: Option<Session>,
    sessions: u64,
    intake: Intake,
    agenda: Agenda,
    memory: Memory,
    budget: Option<Budget>,
    /// Until the first message that is no suspect, and while a probe decides about the end of a pause.
    cautious: bool,
    probing: bool,
    paused_until: Option<Instant>,
    suspect: Option<Token>,
    drain_until: Option<Instant>,
    /// Nobody waits for handlers any more.
    abandoned: bool,
    warned_without_dlx: bool,
    outcomes: Vec<(Token, Ending)>,
    arrivals: Vec<Delivery>,
}

impl Engine {
    /// Checks the options, prepares the broker and opens the first channel.
    pub(super) async fn subscribe(
        options: Consumer,
        client: Client,
        inbox: Arc<Inbox>,
        counters: Counters,
    ) -> Result<Self> {
        options.validate()?;
        let plan = options.plan()?;
        let wire_queue = topology::name(&options.queue)?;
        let queue_type = client.options().queue_type;
        if options.dlx {
            let target = Target {
                queue: &options.queue,
                rules: &options.rules,
                queue_type,
            };
            options
                .strategy
                .scheme()
                .check_server(client.server(), &target)?;
        }
        let mode = if options.declare && options.dlx {
            Mode::Apply
        } else {
            Mode::Require
        };
        let findings = client.examine(&plan, mode).await?;
        let waits = Waits::new(
            Arc::clone(client.address()),
            options.queue.clone(),
            queue_type,
            options.declare,
        );
        waits.note(&findings);
        let connection = client.consuming().connection().await?;
        let mut session = Session::open(connection, wire_queue.clone(), 1).await?;
        session.start(1).await?;
        let (mail, mailbox) = mpsc::unbounded_channel();
        Ok(Self {
            plan,
            wire_queue,
            name: options.queue.as_str().into(),
            counting: if options.dlx {
                options.strategy.scheme().counting(client.server())
            } else {
                Counting::Header
            },
            origin: Origin {
                host: HOST.clone(),
                app_version: client.options().app_version.clone(),
            },
            waits: Arc::new(waits),
            inbox,
            counters,
            mail,
            mailbox,
            entries: Slab::new(),
            session: Some(session),
            sessions: 1,
            intake: Intake::Narrow,
            agenda: Agenda::default(),
            memory: Memory::new(options.prefetch),
            budget: options.pause.map(Budget::new),
            cautious: true,
            probing: false,
            paused_until: None,
            suspect: None,
            drain_until: None,
            abandoned: false,
            warned_without_dlx: false,
            outcomes: Vec::new(),
            arrivals: Vec::new(),
            client,
            options,
        })
    }

    /// Runs until the end was asked for and everything is settled.
    pub(super) async fn run(mut self) {
        loop {
            let closing = self.inbox.is_closing() && self.drain_until.is_none();
            if closing {
                self.drain_until = Some(Instant::now() + self.options.drain_timeout);
                self.inbox.end();
            }
            if self.inbox.is_abandoned() && !self.abandoned {
                self.abandoned = true;
                let soon = Instant::now() + GOODBYE;
                self.drain_until = Some(self.drain_until.map_or(soon, |until| until.min(soon)));
            }
            // A broker that does not answer must not hold up the end.
            match self.drain_until {
                None => self.turn().await,
                Some(until) => {
                    let turn = async {
                        if closing {
                            self.return_the_unstarted().await;
                        }
                        self.turn().await;
                    };
                    if timeout_at(until, turn).await.is_err() {
                        break;
                    }
                }
            }
            if self.is_done() {
                break;
            }
            self.wait().await;
        }
        if let Some(mut session) = self.session.take() {
            // The broker redelivers what it does not hear of.
            let _ = timeout(GOODBYE, session.flush(true)).await;
            session.close().await;
        }
        self.counters
            .outstanding
            .dec_by(i64::try_from(self.entries.len()).unwrap_or(0));
        self.inbox.end();
    }

    /// Everything that can be done without waiting for anybody.
    async fn turn(&mut self) {
        let now = Instant::now();
        if self.paused_until.is_some_and(|until| now >= until) {
            self.paused_until = None;
            (self.probing, self.cautious) = (true, true);
        }
        self.arrive().await;
        while let Ok(mail) = self.mailbox.try_recv() {
            self.receive(mail).await;
        }
        let mut outcomes = std::mem::take(&mut self.outcomes);
        self.inbox.outcomes(&mut outcomes);
        for (token, ending) in outcomes.drain(..) {
            match ending {
                Ending::Settled(outcome) => self.settle(token, outcome).await,
                Ending::Unstarted => self.take_back(token).await,
            }
        }
        self.outcomes = outcomes;
        while let Some((token, task)) = self.agenda.due(now) {
            self.perform(token, task).await;
        }
        self.adjust_intake().await;
        self.release_suspect();
        self.inbox.deliver(&mut self.arrivals);
        if let Some(session) = &mut self.session {
            let flushed = session.flush(self.drain_until.is_some()).await;
            self.survive(flushed);
        }
    }

    /// Waits for whatever comes next.
    async fn wait(&mut self) {
        let deadline = [
            self.agenda.next(),
            self.session.as_ref().and_then(Session::deadline),
            self.paused_until,
            self.drain_until,
        ]
        .into_iter()
        .flatten()
        .min();
        let arrival = async {
            match &mut self.session {
                Some(session) => session.next().await,
                None => std::future::pending().await,
            }
        };
        let event = tokio::select! {
            biased;
            () = self.inbox.knock() => return,
            Some(mail) = self.mailbox.recv() => Some(mail),
            next = arrival => {
                self.take(next).await;
                return;
            }
            () = sleep_until(deadline.unwrap_or_else(Instant::now)), if deadline.is_some() => None,
        };
        if let Some(mail) = event {
            self.receive(mail).await;
        }
    }

    fn is_done(&self) -> bool {
        let Some(until) = self.drain_until else {
            return false;
        };
        let done = if self.abandoned {
            // Copies that are on their way: their originals would come again as duplicates.
            !self
                .entries
                .iter()
                .any(|(_, entry)| matches!(entry.phase, Phase::Copying(_)))
        } else {
            self.entries.len() == 0
        };
        done || Instant::now() >= until
    }

    fn happened(&self, event: &Event) {
        match event {
            Event::Retried { .. } => self.counters.retried.inc(),
            Event::Deferred { .. } => self.counters.deferred.inc(),
            Event::Parked { .. } => self.counters.parked.inc(),
            Event::Detoured { .. } => self.counters.detoured.inc(),
            _ => 0,
        };
        self.options.listener.tell(|| event.clone());
    }

    fn set_phase(&mut self, token: Token, phase: Phase) {
        if let Some(entry) = self.entries.get_mut(token) {
            entry.phase = phase;
        }
    }

    fn stamp<'a>(&'a self, received: &'a Received) -> Stamp<'a> {
        Stamp {
            origin: &self.origin,
            properties: &received.properties,
            exchange: received.exchange(),
            routing_key: received.routing_key(),
            state: &received.state,
            now: now(),
        }
    }

    fn queue(&self) -> String {
        self.name.to_string()
    }
}

/// Seconds since 1970, the resolution of AMQP's timestamps.
fn now() -> u64 {
    std::time::SystemTime::UNIX_EPOCH
        .elapsed()
        .map_or(0, |since| since.as_secs())
}
