//! The shell around an [`Engine`]: the one task that owns its channel, passes events to it and carries out its commands.

mod broker_requirements;
mod channel;
mod copies;
mod prefetch_slots;
mod reopen;
mod startup_warnings;
mod subscribe;

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use futures_util::FutureExt;
use lapin::types::ShortString;
use tokio::{
    sync::mpsc,
    time::{Instant, sleep_until, timeout},
};

use self::{
    broker_requirements::BrokerRequirements,
    channel::{Channel, ChannelEvent},
    copies::{Copies, Stored},
    reopen::OpenedChannel,
};
use super::{
    Token,
    delivery_queue::{DeliveryQueue, HandlerEnd},
    engine::{Command, Commands, Engine, Input, Now},
};
use crate::{
    Client, Error, Result,
    connection::{GOODBYE, is_crash, is_internal_error, is_one_consumer_too_many},
    telemetry::{Counters, Event, Listener},
    topology::{DelayQueues, Plan, QueueType},
    unreadable::InternalErrors,
};

/// The most channel events taken in a row. Not all at once, so that acknowledgements go out evenly: acking a whole window at once starves
/// the quorum queue.
const BURST: usize = 32;

/// How long a quietly settled outcome may wait.
const QUIETLY: Duration = Duration::from_millis(100);

/// Messages from other tasks to the shell.
enum ShellEvent {
    /// The result of a copy: stored, and from when on it survives a crash of its broker; or an error.
    Copied(Token, Stored),
    Opened(u64, Result<OpenedChannel>),
    /// The waiting queue to which messages of this session are rejected is old.
    IsOld(u64),
    /// The broker refuses our login.
    Refused(Error),
    /// Messages that cannot be delivered were moved.
    Moved(Event),
    /// It must not consume, because the broker would close its connection again.
    Stopped(String),
}

/// A consumer that runs.
pub(super) struct Shell {
    engine: Engine,
    /// Commands of the engine that were not carried out yet.
    wanted: Commands,
    client: Client,
    declare: bool,
    /// Whether a queue may be created for messages that cannot be delivered.
    may_set_aside: bool,
    /// Its prefetch.
    window: u16,
    /// The type of the work queue, if it is known.
    kind: Option<QueueType>,
    requirements: Arc<BrokerRequirements>,
    plan: Plan,
    wire_queue: ShortString,
    listener: Listener,
    counters: Counters,
    waits: Arc<DelayQueues>,
    priority: Option<i32>,
    delivery_queue: Arc<DeliveryQueue>,
    channel: Option<Box<Channel>>,
    mail: mpsc::UnboundedSender<ShellEvent>,
    mailbox: mpsc::UnboundedReceiver<ShellEvent>,
    copies: Copies,
    outcomes: Vec<(Token, HandlerEnd)>,
    /// Whether the queue has messages that close our connections.
    internal_errors: InternalErrors,
    /// The session that was lost last, and whether by an error of the broker.
    last_lost: Option<(u64, bool)>,
    /// Whether it does not consume because of them.
    is_stopped: bool,
    /// When the current channel was opened.
    opened: Instant,
    /// When the engine's time began.
    began: Instant,
    told_to_close: bool,
    told_to_abandon: bool,
}

impl Shell {
    /// Runs until it was asked to end and everything is settled.
    pub(super) async fn run(mut self) {
        loop {
            self.wait_for_end();
            self.gather();
            self.turn();
            if self.engine.is_finished(self.now()) {
                break;
            }
            if self.write().await {
                self.wait().await;
            }
        }
        self.engine.requeue_remaining(&mut self.wanted);
        for command in std::mem::take(&mut self.wanted.list) {
            self.perform(command);
        }
        if let Some(mut channel) = self.channel.take() {
            // What the broker does not hear, it delivers again.
            let _ = timeout(GOODBYE, channel.write(true)).await;
            channel.close().await;
        }
        let delivery_queue = Arc::clone(&self.delivery_queue);
        drop(self); // whoever waits for the end finds nothing outstanding
        delivery_queue.end();
    }

    fn now(&self) -> Now {
        Now {
            at: self.began.elapsed(),
            unix: SystemTime::UNIX_EPOCH
                .elapsed()
                .map_or(0, |since| since.as_secs()),
        }
    }

    fn feed(&mut self, input: Input) {
        let now = self.now();
        self.engine.on(input, now, &mut self.wanted);
    }

    /// Whether it is newly asked to end.
    fn wait_for_end(&mut self) -> bool {
        let close =
            self.delivery_queue.is_closing() && !std::mem::replace(&mut self.told_to_close, true);
        if close {
            self.feed(Input::Close);
        }
        let abandon = self.delivery_queue.is_abandoned()
            && !std::mem::replace(&mut self.told_to_abandon, true);
        if abandon {
            self.feed(Input::Abandon);
        }
        close || abandon
    }

    /// A channel that ends because its client was closed, or during the drain, has not failed.
    fn hear_the_end_of_the_client(&mut self) {
        self.wait_for_end();
        if is_closed(&self.client) {
            self.feed(Input::Abandon);
        }
    }

    /// Passes all events to the engine, without waiting for more.
    fn gather(&mut self) {
        // The publishing connection is re-made independently of the consuming one.
        self.engine.set_header_room(self.client.header_room());
        if self.engine.watches_copies() {
            self.engine.set_stalled(self.copies.are_stalled());
        }
        let now = self.now();
        for _ in 0..BURST {
            let Some(channel_event) = self.channel.as_mut().and_then(|channel| channel.next_now())
            else {
                break;
            };
            self.happened_at(channel_event, now);
        }
        while let Ok(mail) = self.mailbox.try_recv() {
            self.receive(mail);
        }
        let mut outcomes = std::mem::take(&mut self.outcomes);
        loop {
            self.delivery_queue.outcomes(&mut outcomes);
            for (token, ending) in outcomes.drain(..) {
                self.engine
                    .on(Input::Ended { token, ending }, now, &mut self.wanted);
            }
            // Whoever closes and then gives back may have done both since the last look: what is given back would come again at once.
            // And what was settled before a newly heard end must not come after it.
            if !self.wait_for_end() {
                break;
            }
        }
        self.outcomes = outcomes;
    }

    /// Lets the engine decide, and carries out its commands, which may cause further events.
    fn turn(&mut self) {
        loop {
            let now = self.now();
            self.engine.turn(now, &mut self.wanted);
            self.delivery_queue.deliver(&mut self.wanted.deliveries);
            if self.wanted.list.is_empty() {
                return;
            }
            let mut list = std::mem::take(&mut self.wanted.list);
            for command in list.drain(..) {
                self.perform(command);
            }
            if self.wanted.list.is_empty() {
                self.wanted.list = list; // reuse its memory
            }
        }
    }

    fn perform(&mut self, command: Command) {
        match command {
            Command::Open { session, pause } => self.open(session, pause),
            Command::Drop { session } => {
                self.channel.take_if(|channel| channel.session == session);
            }
            Command::Consume {
                session,
                consumer,
                prefetch,
            } => self.on_channel(session, |channel| channel.consume(consumer, prefetch)),
            Command::Cancel { session, consumer } => {
                self.on_channel(session, |channel| channel.cancel(consumer));
            }
            Command::Ack {
                session,
                tag,
                multiple,
            } => self.on_channel(session, |channel| channel.ack(tag, multiple)),
            Command::Return { session, tag, how } => {
                self.on_channel(session, |channel| channel.give_back(tag, how));
            }
            Command::Sync { session, number } => {
                self.on_channel(session, |channel| channel.sync(number));
            }
            Command::Publish {
                token,
                copy,
                at_once,
            } => {
                if let Some(body) = self.engine.body(token) {
                    let queue = self.engine.name();
                    self.copies.publish(token, *copy, at_once, body, queue);
                }
            }
            Command::Withdraw { token } => self.copies.withdraw(token),
            Command::Recall => {
                let unstarted = self.delivery_queue.take_back();
                let tokens = unstarted.into_iter().map(|delivery| delivery.token);
                self.feed(Input::Recalled(tokens.collect()));
            }
            Command::RecallThese { tokens } => {
                let unstarted = self.delivery_queue.recall_tokens(&tokens);
                self.feed(Input::Recalled(unstarted));
            }
            Command::Skip { token } => self.delivery_queue.skip(token),
            Command::EndIntake => self.delivery_queue.end(),
            Command::Tell(event) => self.report_event(&event),
        }
    }

    fn report_event(&self, event: &Event) {
        // Counted events have been reported before.
        self.listener.notify(|| event.clone());
        self.counters.note(event);
    }

    fn on_channel(&mut self, session: u64, act: impl FnOnce(&mut Channel)) {
        if let Some(channel) = &mut self.channel
            && channel.session == session
        {
            act(channel);
        }
    }

    fn happened(&mut self, channel_event: ChannelEvent) {
        let now = self.now();
        self.happened_at(channel_event, now);
    }

    fn happened_at(&mut self, channel_event: ChannelEvent, now: Now) {
        let Some(channel) = &self.channel else {
            return;
        };
        let session = channel.session;
        if let ChannelEvent::Lost(why) = &channel_event {
            self.suspect(session, why.as_ref());
            if why.as_ref().is_some_and(is_one_consumer_too_many) {
                self.client.allow_one_consumer();
                self.keep_to_one_consumer();
            }
            self.hear_the_end_of_the_client();
        }
        let input = match channel_event {
            ChannelEvent::Arrived(consumer, arrival) => Input::Delivered {
                session,
                consumer,
                arrival,
            },
            ChannelEvent::Consuming(consumer) => Input::Consuming { session, consumer },
            ChannelEvent::Cancelled(consumer) => Input::Cancelled { session, consumer },
            ChannelEvent::CancelledByBroker(consumer) => {
                Input::CancelledByBroker { session, consumer }
            }
            ChannelEvent::Synced(number) => Input::Synced { session, number },
            ChannelEvent::Lost(why) => Input::Lost { session, why },
        };
        self.engine.on(input, now, &mut self.wanted);
    }

    /// If the broker allows one consumer on a channel. Only a queue that is known to be a quorum queue survives without a consumer: others
    /// may be deleted with their last one.
    fn keep_to_one_consumer(&mut self) {
        if self.client.allows_one_consumer() {
            let may_go = self.kind == Some(QueueType::Quorum);
            self.engine.set_one_consumer(may_go);
        }
    }

    fn receive(&mut self, mail: ShellEvent) {
        match mail {
            ShellEvent::Copied(token, stored) => {
                let began = self.began;
                let moment = |instant: Instant| instant.saturating_duration_since(began);
                let input = self.copies.answered(token, stored, moment);
                self.feed(input);
            }
            ShellEvent::Opened(session, Ok(opened)) => {
                let (server, kind) = (opened.server, opened.kind);
                self.is_stopped = false;
                // During the end as well: it is then closed with everything else.
                self.channel = Some(opened.channel);
                self.engine.take_one_by_one(opened.one_by_one);
                let capabilities = server.capabilities();
                self.engine.set_broker(
                    self.requirements.counting(&server),
                    capabilities.nack_is_uncounted,
                    capabilities.queues_sleep,
                    kind == Some(QueueType::Classic),
                );
                self.kind = kind;
                self.opened = Instant::now();
                self.keep_to_one_consumer();
                self.feed(Input::Opened { session });
            }
            ShellEvent::IsOld(session) => self.feed(Input::QueuesAreOld { session }),
            ShellEvent::Refused(error) => {
                let queue = self.engine.name().to_owned();
                let error = error.to_string();
                self.listener
                    .notify(|| Event::LoginRefused { queue, error });
            }
            ShellEvent::Moved(event) => self.report_event(&event),
            ShellEvent::Stopped(error) => {
                // Not again for each try.
                if !std::mem::replace(&mut self.is_stopped, true) {
                    let queue = self.engine.name().to_owned();
                    self.report_event(&Event::ConsumingStopped { queue, error });
                }
            }
            ShellEvent::Opened(session, Err(error)) => {
                self.internal_errors.failed();
                self.feed(Input::OpenFailed { session, error });
            }
        }
    }

    /// Takes note of why a channel was lost. Each consumer on it may tell of that, and the reason may come last.
    fn suspect(&mut self, session: u64, why: Option<&Error>) {
        let by_error = why.is_some_and(is_crash);
        let is_foreseen = !by_error && why.is_some_and(is_internal_error);
        if self
            .last_lost
            .is_some_and(|(last, had_error)| last == session && (had_error || !by_error))
        {
            if is_foreseen {
                self.internal_errors.note_foreseen();
            }
            return;
        }
        self.last_lost = Some((session, by_error));
        let (lived, reasons) = (self.opened.elapsed(), self.client.reasons());
        let one_by_one = self.engine.one_by_one();
        self.internal_errors
            .lost(by_error, lived, reasons, one_by_one);
        if is_foreseen {
            self.internal_errors.note_foreseen();
        }
    }

    /// Drives the settlements on their way. Returns whether there is time to wait for new events. A broker that does not take settlements
    /// must not hold up the end.
    async fn write(&mut self) -> bool {
        let Some(channel) = &mut self.channel else {
            return true;
        };
        let session = channel.session;
        let mut has_engine_work = false;
        let written = match channel.write(false).now_or_never() {
            Some(written) => written,
            None => loop {
                let end = self.engine.ends_at().map(|end| self.began + end);
                let Some(channel) = &mut self.channel else {
                    return false;
                };
                tokio::select! {
                    biased;
                    written = channel.write(false) => break written,
                    // Outcomes of handlers are collected afterwards.
                    () = self.delivery_queue.wait_for_engine_work() => {
                        has_engine_work = true;
                        if self.wait_for_end() {
                            return false;
                        }
                    }
                    () = sleep_until(end.unwrap_or_else(Instant::now)), if end.is_some() => {
                        return false;
                    }
                }
            },
        };
        if let Err(why) = written {
            self.suspect(session, Some(&why));
            self.hear_the_end_of_the_client();
            let why = Some(why);
            self.feed(Input::Lost { session, why });
            return false;
        }
        !has_engine_work
    }

    /// Waits for whatever comes next.
    async fn wait(&mut self) {
        let mut due = self.engine.wake_at().map(|due| self.began + due);
        if self.engine.outstanding() > 0 {
            // A worker may have settled quietly before a handler that blocks.
            let latest = Instant::now() + QUIETLY;
            due = Some(due.map_or(latest, |due| due.min(latest)));
        }
        let channel_event = async {
            match &mut self.channel {
                Some(channel) => channel.next().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            () = self.delivery_queue.wait_for_engine_work() => {}
            Some(mail) = self.mailbox.recv() => self.receive(mail),
            channel_event = channel_event => self.happened(channel_event),
            () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => {
                // The worker that should wake the next one may be in a handler that blocks its thread.
                self.delivery_queue.wake_for_the_rest();
            }
        }
    }
}

/// Whether the client was closed, or ended by itself.
fn is_closed(client: &Client) -> bool {
    let connection = client.consuming().connection().now_or_never();
    matches!(connection, Some(Err(_)))
}

impl Drop for Shell {
    /// Also where a defect ends its task: other consumers of the queue count on.
    fn drop(&mut self) {
        let left = i64::try_from(self.engine.outstanding()).unwrap_or(0);
        self.counters.outstanding.dec_by(left);
    }
}
