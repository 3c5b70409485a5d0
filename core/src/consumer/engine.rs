//! The engine of a consumer: the one task that owns its channel, its tokens and every settlement.

use std::{sync::Arc, time::Duration};

use lapin::{message::Delivery as Arrival, types::ShortString};
use tokio::{
    sync::mpsc,
    time::{Instant, sleep_until, timeout, timeout_at},
};
use tracing::{error, info, warn};

use super::{
    Consumer, Delivery, Message, Received, Token,
    agenda::{Agenda, Task},
    budget::Budget,
    inbox::Inbox,
    memory::Memory,
    session::{Next, Return, Session},
    slab::Slab,
};
use crate::{
    Error, ErrorKind, Result,
    publish::Job,
    retry::{
        Action, Admission, Counting, Failure, Origin, Outcome, ParkReason, RetryState, Stamp,
        admit, decide,
    },
    telemetry::{Counters, Event, HOST},
    topology::{self, Mode, Plan, Route, Target, Wait, Waits, parking_queue},
};

/// How often a copy is offered to the broker before its original goes back to the queue, the first time.
const TRIES: u32 = 8;
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
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
    warned_without_dlx: bool,
    outcomes: Vec<(Token, Outcome)>,
    arrivals: Vec<Delivery>,
}

impl Engine {
    /// Checks the options, prepares the broker and opens the first channel.
    pub(super) async fn subscribe(
        options: Consumer,
        inbox: Arc<Inbox>,
        counters: Counters,
    ) -> Result<Self> {
        options.validate()?;
        let client = options.client.clone();
        let plan = options.plan()?;
        let wire_queue = topology::name(&options.queue)?;
        let queue_type = client.options().queue_type;
        if options.dlx {
            // The name of the longest queue that this consumer may ever make on the fly.
            topology::name(&topology::waiting_queue(&options.queue, crate::MAX_DELAY))?;
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
            warned_without_dlx: false,
            outcomes: Vec::new(),
            arrivals: Vec::new(),
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
        for (token, outcome) in outcomes.drain(..) {
            self.settle(token, outcome).await;
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
        self.entries.len() == 0 || Instant::now() >= until
    }

    // ---- intake -----------------------------------------------------------------------------------------------------

    /// Takes every delivery that is there already.
    async fn arrive(&mut self) {
        for _ in 0..self.options.prefetch {
            let Some(next) = self.session.as_mut().and_then(Session::next_now) else {
                break;
            };
            self.take(next).await;
        }
    }

    async fn take(&mut self, next: Next) {
        match next {
            Next::Arrived(arrival) => self.admit(*arrival).await,
            Next::Lost => self.lose_session(),
            Next::Cancelled => {
                warn!(queue = %self.name, "the broker cancelled the consumer: the queue was deleted or moved");
                self.lose_session();
            }
        }
    }

    async fn admit(&mut self, arrival: Arrival) {
        let Some(session) = &mut self.session else {
            return;
        };
        let tag = arrival.delivery_tag;
        session.delivered(tag);
        let mended = session.mended(tag);
        let state = RetryState::read(
            &self.name,
            self.counting,
            arrival.redelivered,
            &arrival.properties,
        );
        for (header, why) in &state.distrusted {
            warn!(queue = %self.name, header, why, "a header is not believed and counts as absent");
        }
        let received = Arc::new(Received {
            queue: Arc::clone(&self.name),
            body: arrival.data,
            properties: arrival.properties,
            exchange: arrival.exchange,
            routing_key: arrival.routing_key,
            redelivered: arrival.redelivered,
            state,
            mended,
        });
        self.counters.delivered.inc();
        self.counters.outstanding.inc();
        let entry = Entry {
            received: Arc::clone(&received),
            session: session.id,
            tag,
            phase: Phase::Out,
        };
        if self.memory.knows(&received) {
            let token = self.entries.insert(entry);
            self.counters.already_handled.inc();
            let (queue, message_id) = (self.queue(), received.message_id());
            self.options
                .listener
                .tell(|| Event::AlreadyHandled { queue, message_id });
            self.release(token);
            return;
        }
        let token = self.entries.insert(entry);
        if self.drain_until.is_some() || self.paused_until.is_some() {
            self.give_back(token, Return::Unstarted).await;
            return;
        }
        let admission = if self.options.dlx {
            admit(&received.state, &self.options.limits)
        } else {
            Admission::Run
        };
        match admission {
            Admission::Run => {
                if !self.probing {
                    self.cautious = false;
                }
                self.arrivals.push(Delivery {
                    token,
                    message: Message(received),
                });
            }
            // Not back to the queue: that would count as a crash, and a suspect that often waits for others would be
            // parked for it.
            Admission::RunAlone if self.suspect.is_some() => {
                self.detour(token, received.state.crashes);
            }
            Admission::RunAlone => {
                self.set_phase(token, Phase::Suspect);
                self.suspect = Some(token);
            }
            Admission::Detour { crashes } => self.detour(token, crashes),
            Admission::Park(reason) => {
                let error = format!(
                    "it was with a consumer {} times when that went away",
                    received.state.crashes
                );
                self.park(token, reason, &Failure::new(error)).await;
            }
        }
    }

    /// Opens or closes the tap, so that the broker sends what may be sent now.
    async fn adjust_intake(&mut self) {
        let want = if self.drain_until.is_some()
            || self.paused_until.is_some()
            || self.suspect.is_some()
        {
            Intake::Stopped
        } else if self.cautious && self.options.prefetch > 1 {
            Intake::Narrow
        } else {
            Intake::Wide
        };
        let Some(session) = &mut self.session else {
            return;
        };
        if want == self.intake && (want == Intake::Stopped) != session.is_consuming() {
            return;
        }
        let stopped = session.stop().await;
        self.intake = Intake::Stopped;
        let late = match stopped {
            Ok(late) => late,
            Err(error) => return self.survive(Err(error)),
        };
        for arrival in late {
            self.admit(arrival).await;
        }
        let prefetch = match want {
            // A suspect may have been among the late ones; the next turn sees to it.
            _ if self.suspect.is_some() => return,
            Intake::Stopped => return,
            Intake::Narrow => 1,
            Intake::Wide => self.options.prefetch,
        };
        let Some(session) = &mut self.session else {
            return;
        };
        match session.start(prefetch).await {
            Ok(()) => self.intake = want,
            Err(error) => self.survive(Err(error)),
        }
    }

    /// Hands the suspect out, once nothing else is outstanding.
    fn release_suspect(&mut self) {
        let Some(token) = self.suspect else { return };
        // What an earlier channel brought is the broker's again, and no crash can count against it.
        let current = self.session.as_ref().map(|session| session.id);
        let others =
            |(other, entry): (Token, &Entry)| other != token && Some(entry.session) == current;
        if self.intake != Intake::Stopped || self.entries.iter().any(others) {
            return;
        }
        match self.entries.get_mut(token) {
            Some(entry) if matches!(entry.phase, Phase::Suspect) => {
                entry.phase = Phase::Out;
                let message = Message(Arc::clone(&entry.received));
                info!(queue = %self.name, crashes = message.state().crashes, "a message that may take consumers down runs alone");
                self.arrivals.push(Delivery { token, message });
            }
            Some(_) => {}
            None => (self.suspect, self.cautious) = (None, true),
        }
    }

    /// Gives back what no handler has begun with.
    async fn return_the_unstarted(&mut self) {
        for token in self.take_back_the_unstarted() {
            self.give_back(token, Return::Unstarted).await;
        }
    }

    fn take_back_the_unstarted(&mut self) -> Vec<Token> {
        let mut unstarted: Vec<Token> = self
            .inbox
            .take_back()
            .into_iter()
            .chain(self.arrivals.drain(..))
            .map(|delivery| delivery.token)
            .collect();
        let suspects = self
            .entries
            .iter()
            .filter(|(_, entry)| matches!(entry.phase, Phase::Suspect));
        unstarted.extend(suspects.map(|(token, _)| token));
        unstarted
    }

    // ---- connection -------------------------------------------------------------------------------------------------

    fn survive(&mut self, result: Result<()>) {
        if let Err(error) = result {
            warn!(queue = %self.name, %error, "the channel failed");
            self.lose_session();
        }
    }

    /// The channel is gone: what was not begun will come again, what runs may finish, and a new channel is opened.
    fn lose_session(&mut self) {
        let Some(session) = self.session.take() else {
            return;
        };
        drop(session);
        self.intake = Intake::Stopped;
        let queue = self.queue();
        self.options.listener.tell(|| Event::Disconnected { queue });
        // Copies on their way are still of interest: once stored, their originals need not run again. So is what handlers
        // hold: a success counts when the message comes again, and the end waits for all of them.
        for token in self.take_back_the_unstarted() {
            self.forget(token);
        }
        (self.suspect, self.cautious) = (None, true);
        if self.drain_until.is_none() {
            self.open_session(Duration::ZERO);
        }
    }

    /// Opens the next session in the background; it arrives as mail.
    fn open_session(&mut self, pause: Duration) {
        self.sessions += 1;
        let (client, plan, queue, id) = (
            self.options.client.clone(),
            self.plan.clone(),
            self.wire_queue.clone(),
            self.sessions,
        );
        let mode = if self.options.declare && self.options.dlx {
            Mode::Apply
        } else {
            Mode::Require
        };
        let (mail, waits) = (self.mail.clone(), Arc::clone(&self.waits));
        tokio::spawn(async move {
            tokio::time::sleep(pause).await;
            let opened = async {
                let connection = client.consuming().connection().await?;
                // Queues may have been deleted, or lost with their broker, in the meantime.
                waits.note(&client.examine(&plan, mode).await?);
                let mut session = Session::open(connection, queue, id).await?;
                session.start(1).await?;
                Ok(session)
            };
            let _ = mail.send(Mail::Session(Box::new(opened.await)));
        });
    }

    async fn receive(&mut self, mail: Mail) {
        match mail {
            Mail::Copied(token, result) => self.copied(token, result),
            Mail::Session(opened) => match *opened {
                Ok(session) if self.drain_until.is_some() => session.close().await,
                Ok(session) => {
                    self.session = Some(session);
                    self.intake = Intake::Narrow;
                    self.counters.reconnects.inc();
                    let queue = self.queue();
                    self.options.listener.tell(|| Event::Reconnected { queue });
                }
                Err(error) if error.kind() == ErrorKind::Closed => {
                    self.drain_until.get_or_insert_with(Instant::now);
                    self.inbox.close();
                    self.inbox.end();
                }
                Err(error) => {
                    error!(queue = %self.name, %error, "cannot consume; trying again");
                    self.open_session(if error.is_transient() {
                        FIRST_PAUSE * 5
                    } else {
                        LONGEST_PAUSE
                    });
                }
            },
        }
    }

    // ---- settlement -------------------------------------------------------------------------------------------------

    async fn settle(&mut self, token: Token, outcome: Outcome) {
        let Some(entry) = self.entries.get_mut(token) else {
            self.counters.stale.inc();
            return;
        };
        if !matches!(entry.phase, Phase::Out) {
            self.counters.stale.inc();
            return;
        }
        if self.session.as_ref().map(|session| session.id) != Some(entry.session) {
            // The message comes again. If it is known by then that it was handled, it does not run again.
            if outcome == Outcome::Ack {
                self.release(token);
            } else {
                self.counters.stale.inc();
                self.forget(token);
            }
            return;
        }
        let received = Arc::clone(&entry.received);
        match outcome {
            Outcome::Ack => {
                self.counters.acked.inc();
                self.release(token);
                self.note_attempt(false).await;
            }
            Outcome::Defer { .. } if self.options.dlx => {
                self.follow(token, &received, &outcome).await
            }
            outcome => {
                self.counters.failed.inc();
                if self.options.dlx {
                    self.follow(token, &received, &outcome).await;
                } else {
                    self.reject(token, &received, &outcome).await;
                }
                self.note_attempt(true).await;
            }
        }
    }

    /// Without retries: the queue's own dead-lettering decides.
    async fn reject(&mut self, token: Token, received: &Received, outcome: &Outcome) {
        let failure = failure_of(outcome);
        if !self.warned_without_dlx {
            self.warned_without_dlx = true;
            warn!(
                queue = %self.name,
                error = failure.error,
                "a message failed and dlx is off: it is rejected, and dropped unless its queue dead-letters"
            );
        }
        self.counters.rejected.inc();
        let (queue, message_id, error) = (self.queue(), received.message_id(), failure.error);
        self.options.listener.tell(|| Event::Rejected {
            queue,
            message_id,
            error,
        });
        self.give_back(token, Return::Reject).await;
    }

    /// Decides what follows from a failed or deferred attempt, and does it.
    async fn follow(&mut self, token: Token, received: &Arc<Received>, outcome: &Outcome) {
        let failure = failure_of(outcome);
        let headers = received.properties.headers().as_ref();
        let policy = self
            .options
            .rules
            .policy(received.routing_key(), headers, &failure);
        let state = &received.state;
        let mut action = decide(
            state,
            outcome,
            policy,
            &self.options.limits,
            now(),
            fastrand::u64(..),
        );
        if received.mended.is_some() && matches!(action, Action::Retry { .. }) {
            action = Action::Park(ParkReason::Undecodable);
        }
        let stamp = self.stamp(received);
        let (queue, message_id) = (self.queue(), received.message_id());
        match action {
            Action::Ack => self.release(token),
            Action::Retry {
                retry,
                delay,
                chosen,
            } => {
                let wait = if chosen {
                    Wait::Ladder(delay)
                } else {
                    Wait::Policy(delay)
                };
                let event = Event::Retried {
                    queue,
                    message_id,
                    attempt: state.attempt(),
                    delay,
                    error: failure.error.clone(),
                };
                let route = self.options.strategy.scheme().route(&self.name, wait);
                let properties = stamp.retry(retry, &failure, expiration(&route));
                self.wait_by(token, route, properties, event).await;
            }
            Action::Defer { deferral, delay } => {
                let event = Event::Deferred {
                    queue,
                    message_id,
                    delay,
                };
                let route = self
                    .options
                    .strategy
                    .scheme()
                    .route(&self.name, Wait::Ladder(delay));
                let properties = stamp.deferral(deferral, expiration(&route));
                self.wait_by(token, route, properties, event).await;
            }
            Action::Park(reason) => {
                let failure = match outcome {
                    Outcome::Defer { .. } => {
                        Failure::new(format!("it was deferred {} times", state.deferrals))
                    }
                    _ => failure,
                };
                self.park(token, reason, &failure).await;
            }
        }
    }

    /// Sends a message to where it waits.
    async fn wait_by(
        &mut self,
        token: Token,
        route: Route,
        properties: lapin::BasicProperties,
        event: Event,
    ) {
        match route {
            Route::Copy {
                exchange,
                routing_key,
                mandatory,
                delay_header,
                ..
            } => {
                let properties = match delay_header {
                    Some(ms) => with_delay(properties, ms),
                    None => properties,
                };
                self.copy(
                    token,
                    Copying {
                        exchange,
                        routing_key,
                        properties,
                        mandatory,
                        event,
                        tries: 0,
                    },
                );
            }
            Route::DeadLetter => {
                self.happened(&event);
                self.give_back(token, Return::DeadLetter).await;
            }
            Route::Requeue => {
                self.happened(&event);
                self.give_back(token, Return::Requeue).await;
            }
        }
    }

    fn detour(&mut self, token: Token, crashes: u32) {
        let Some(entry) = self.entries.get_mut(token) else {
            return;
        };
        let received = Arc::clone(&entry.received);
        let event = Event::Detoured {
            queue: self.queue(),
            message_id: received.message_id(),
            crashes,
        };
        let Route::Copy {
            exchange,
            routing_key,
            expiration,
            mandatory,
            ..
        } = topology::detour(
            &self.name,
            self.options.rules.otherwise.delays().first().copied(),
        )
        else {
            return;
        };
        let properties = self.stamp(&received).detour(crashes, expiration);
        self.copy(
            token,
            Copying {
                exchange,
                routing_key,
                properties,
                mandatory,
                event,
                tries: 0,
            },
        );
    }

    async fn park(&mut self, token: Token, reason: ParkReason, failure: &Failure) {
        let Some(entry) = self.entries.get_mut(token) else {
            return;
        };
        let received = Arc::clone(&entry.received);
        let event = Event::Parked {
            queue: self.queue(),
            message_id: received.message_id(),
            attempt: received.state.attempt(),
            reason,
            error: failure.error.clone(),
        };
        if !self.options.park {
            warn!(queue = %self.name, %reason, error = failure.error, "a message is given up and dropped, because `park` is off");
            self.happened(&event);
            self.release(token);
            return;
        }
        let properties = self.stamp(&received).parked(reason, failure);
        let routing_key = parking_queue(&self.name);
        self.copy(
            token,
            Copying {
                exchange: String::new(),
                routing_key,
                properties,
                mandatory: true,
                event,
                tries: 0,
            },
        );
    }

    // ---- copies -----------------------------------------------------------------------------------------------------

    /// Publishes a copy; its original stays unacknowledged until the copy is confirmed.
    fn copy(&mut self, token: Token, copying: Copying) {
        let Some(entry) = self.entries.get_mut(token) else {
            return;
        };
        let received = Arc::clone(&entry.received);
        entry.phase = Phase::Copying(Box::new(copying.clone()));
        let (mail, client, waits) = (
            self.mail.clone(),
            self.options.client.clone(),
            Arc::clone(&self.waits),
        );
        let done = {
            let mail = mail.clone();
            Box::new(move |result| {
                let _ = mail.send(Mail::Copied(token, result));
            })
        };
        let known = !copying.exchange.is_empty() || waits.safe_from(&copying.routing_key).is_some();
        let job = (|| {
            Ok(Job {
                exchange: topology::name(&copying.exchange)?,
                routing_key: topology::name(&copying.routing_key)?,
                properties: copying.properties,
                body: received,
                mandatory: copying.mandatory,
                done,
            })
        })();
        match job {
            Ok(job) if known => client.publisher().submit(job),
            Ok(job) => {
                tokio::spawn(async move {
                    match waits.ensure(&copying.routing_key).await {
                        Ok(_) => client.publisher().submit(job),
                        Err(error) => (job.done)(Err(error)),
                    }
                });
            }
            Err(error) => {
                let _ = mail.send(Mail::Copied(token, Err(error)));
            }
        }
    }

    fn copied(&mut self, token: Token, result: Result<()>) {
        let Some(entry) = self.entries.get_mut(token) else {
            return;
        };
        let Phase::Copying(copying) = &mut entry.phase else {
            return;
        };
        let current = self
            .session
            .as_ref()
            .is_some_and(|session| session.id == entry.session);
        match result {
            Ok(()) => {
                let event = copying.event.clone();
                let safe = self
                    .waits
                    .safe_from(&copying.routing_key)
                    .filter(|safe| *safe > Instant::now());
                self.happened(&event);
                match safe {
                    Some(safe) if current => self.agenda.add(safe, token, Task::Release),
                    Some(_) => self.forget(token), // what took the connection may have emptied the young queue
                    None => self.release(token),
                }
            }
            Err(_) if !current => self.forget(token), // its original comes again, and with it another copy
            Err(error) => {
                copying.tries += 1;
                let tries = copying.tries;
                // Only once: RabbitMQ 4 drops what was returned twenty times, and on older ones it would be parked as
                // what takes consumers down. After that it is held here for as long as it takes.
                let received = Arc::clone(&entry.received);
                let returned = received.redelivered || received.state.own_crashes > 0;
                if error.kind() == ErrorKind::Unroutable {
                    self.waits.forget(&copying.routing_key);
                }
                self.complain(error, received.message_id());
                let pause = (FIRST_PAUSE * 2u32.pow(tries.min(8)))
                    .min(LONGEST_PAUSE)
                    .mul_f64(0.75 + fastrand::f64() / 2.0);
                let task = if tries >= TRIES && !returned {
                    Task::Requeue
                } else {
                    Task::Resubmit
                };
                self.agenda.add(Instant::now() + pause, token, task);
            }
        }
    }

    fn complain(&self, error: Error, message_id: Option<String>) {
        warn!(queue = %self.name, %error, "a copy could not be stored; its original is kept, and it is tried again");
        self.counters.publish_failures.inc();
        let (queue, error) = (self.queue(), error.to_string());
        self.options.listener.tell(|| Event::PublishFailed {
            queue,
            message_id,
            error,
        });
    }

    async fn perform(&mut self, token: Token, task: Task) {
        let Some(entry) = self.entries.get_mut(token) else {
            return;
        };
        let current = self
            .session
            .as_ref()
            .is_some_and(|session| session.id == entry.session);
        match task {
            Task::Release if current => self.release(token),
            Task::Resubmit if current => {
                if let Phase::Copying(copying) = &entry.phase {
                    let copying = (**copying).clone();
                    self.copy(token, copying);
                }
            }
            Task::Requeue if current => {
                let message_id = entry.received.message_id();
                let queue = self.queue();
                self.options
                    .listener
                    .tell(|| Event::Requeued { queue, message_id });
                self.give_back(token, Return::Requeue).await;
            }
            // The original comes again. Not remembered as done: a copy in a young queue may have gone with the broker.
            Task::Release | Task::Resubmit | Task::Requeue => self.forget(token),
        }
    }

    // ---- the end of a delivery --------------------------------------------------------------------------------------

    /// Done: acknowledged with the next flush, and remembered in case the acknowledgement gets lost.
    fn release(&mut self, token: Token) {
        let Some(entry) = self.entries.remove(token) else {
            return;
        };
        self.counters.outstanding.dec();
        // A detour's copy is the same attempt of the same message: remembered, its redelivery would never run.
        if !matches!(&entry.phase, Phase::Copying(copying) if matches!(copying.event, Event::Detoured { .. }))
        {
            self.memory.remember(&entry.received);
        }
        self.suspect_ended(token);
        match &mut self.session {
            Some(session) if session.id == entry.session => session.ack(entry.tag),
            _ => {
                self.counters.stale.inc();
            }
        }
    }

    /// Back to the queue, or to its dead-letter route.
    async fn give_back(&mut self, token: Token, how: Return) {
        let Some(entry) = self.entries.remove(token) else {
            return;
        };
        self.counters.outstanding.dec();
        self.suspect_ended(token);
        if matches!(how, Return::Requeue | Return::Unstarted) {
            self.counters.requeued.inc();
        }
        if let Some(session) = &mut self.session
            && session.id == entry.session
        {
            let given = session.give_back(entry.tag, how).await;
            self.survive(given);
        }
    }

    /// Belongs to a lost channel: the broker sends it again.
    fn forget(&mut self, token: Token) {
        if self.entries.remove(token).is_some() {
            self.counters.outstanding.dec();
            self.suspect_ended(token);
        }
    }

    fn suspect_ended(&mut self, token: Token) {
        if self.suspect == Some(token) {
            (self.suspect, self.cautious) = (None, true);
        }
    }

    // ---- the retry budget -------------------------------------------------------------------------------------------

    async fn note_attempt(&mut self, failed: bool) {
        let Some(budget) = &mut self.budget else {
            return;
        };
        let pause = budget.pause();
        if self.probing {
            self.probing = false;
            budget.reset();
            if !failed {
                self.cautious = false;
                info!(queue = %self.name, "the probe succeeded; taking messages again");
                let queue = self.queue();
                self.options.listener.tell(|| Event::Resumed { queue });
                return;
            }
        } else if self.paused_until.is_some() || !budget.note(failed) {
            return;
        }
        if let Some(budget) = &mut self.budget {
            budget.reset();
        }
        warn!(queue = %self.name, ?pause, "too many attempts fail; pausing");
        self.counters.pauses.inc();
        self.paused_until = Some(Instant::now() + pause);
        let queue = self.queue();
        self.options
            .listener
            .tell(|| Event::Paused { queue, pause });
        self.return_the_unstarted().await;
    }

    // ---- small things -----------------------------------------------------------------------------------------------

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

fn failure_of(outcome: &Outcome) -> Failure {
    match outcome {
        Outcome::Retry { failure, .. } | Outcome::Park { failure, .. } => failure.clone(),
        Outcome::Defer { .. } => Failure::new("deferred"),
        Outcome::Ack => Failure::default(),
    }
}

fn expiration(route: &Route) -> Option<u64> {
    match route {
        Route::Copy { expiration, .. } => *expiration,
        Route::DeadLetter | Route::Requeue => None,
    }
}

fn with_delay(properties: lapin::BasicProperties, ms: i64) -> lapin::BasicProperties {
    let mut headers = properties.headers().clone().unwrap_or_default();
    headers.insert(
        ShortString::from("x-delay"),
        lapin::types::AMQPValue::LongLongInt(ms),
    );
    properties.with_headers(headers)
}

/// Seconds since 1970, the resolution of AMQP's timestamps.
fn now() -> u64 {
    std::time::SystemTime::UNIX_EPOCH
        .elapsed()
        .map_or(0, |since| since.as_secs())
}
