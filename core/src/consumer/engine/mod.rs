//! The engine of a consumer, as a value: events go in, commands come out. It has no clock, no task, no channel and no socket, so a test can
//! play any interleaving to it, or one from a seed.
//!
//! ```text
//!   broker ── Input ──►  on(input, now)  ─┐                        ┌─ Command ──► broker
//! handlers ── Input ──►                   ├─► entries, intake, … ──┤
//!    timer ───────────►  turn(now)       ─┘                        └─ deliveries ─► handlers
//! ```
//!
//! [`on`](Engine::on) takes one event. [`turn`](Engine::turn) then decides what follows from all events and from the time: which consumers
//! there are, which message runs alone, what is acknowledged. The shell calls `on` for each event and `turn` once after them, and `turn`
//! again at [`wake_at`](Engine::wake_at).

mod ack_barrier;
mod action;
mod admission;
mod attempt_log;
mod attempts;
mod byte_budget;
mod circuit_breaker;
mod command;
mod consumer_timeout;
mod copies;
mod crash_isolation;
mod delivery_state;
mod drain;
mod early_redeliveries;
mod input;
mod prefetch_control;
mod publish_stall;
mod sessions;
mod settlement;
mod unstarted_deliveries;

use std::{collections::VecDeque, sync::Arc, time::Duration};

use tracing::warn;

pub(super) use action::AttemptContext;
pub use attempt_log::{AttemptLogLine, NextStep};
pub(super) use delivery_state::NextAction;

pub(crate) use super::engine_time::Now;
pub(crate) use command::{Command, Commands, Copy, Return};
#[cfg(test)]
pub(crate) use consumer_timeout::LONGEST_KEPT;
#[cfg(test)]
use drain::COPIES;
pub(crate) use input::{IncomingDelivery, Input};

use self::{
    ack_barrier::AckBarrier,
    byte_budget::ByteBudget,
    circuit_breaker::CircuitBreaker,
    consumer_timeout::ConsumerTimeout,
    crash_isolation::Suspect,
    delivery_state::{DeliveryState, Phase},
    drain::Drain,
    early_redeliveries::EarlyRedeliveries,
    prefetch_control::{ChannelStep, PrefetchControl, PrefetchMode, SingleConsumerPrefetch},
    sessions::Channel,
};
use super::{
    Consumer, Received, Token, acks::Ack, delivery_queue::HandlerEnd, engine_time::EngineTime,
    handled_dedup::HandledDedup, timers::Timers, tokens::Tokens,
};
use crate::{
    ErrorKind,
    connection::consumer_timeout,
    retry::{Counting, Origin},
    telemetry::{Counters, Event},
    unreadable::OneByOneProgress,
};

/// How long a message may take to come again after its queue had sent it to a cancelled consumer. The broker may be slow, and the message
/// behind others.
const RETURNS: Duration = Duration::from_secs(30);

/// What an engine is made from.
pub(crate) struct Setup {
    pub(crate) options: Consumer,
    pub(crate) origin: Origin,
    pub(crate) counters: Counters,
    /// Where the broker counts the retries.
    pub(crate) counting: Counting,
    /// Whether quorum queues do not count a `basic.nack`, as in RabbitMQ 4.3.
    pub(crate) nack_is_uncounted: bool,
    /// Whether the work queue is known to be a classic one, which counts no requeues.
    pub(crate) is_classic: bool,
    /// Whether a classic queue may not serve its next active consumer for a while, as in RabbitMQ 3.10.
    pub(crate) queues_sleep: bool,
    /// The most bytes that the headers and properties of a copy may take.
    pub(crate) header_room: usize,
    /// For jitter.
    pub(crate) seed: u64,
}

pub(crate) struct Engine {
    options: Consumer,
    name: Arc<str>,
    origin: Origin,
    counters: Counters,
    counting: Counting,
    nack_is_uncounted: bool,
    is_classic: bool,
    header_room: usize,
    draws: fastrand::Rng,
    entries: Tokens<DeliveryState>,
    channel: Option<Channel>,
    /// The number of channels so far, and of the newest one.
    sessions: u64,
    /// How many channels in a row were lost or could not be opened.
    failures: u32,
    /// How many sessions in a row ended soon after they began.
    short_sessions: u32,
    /// When the current session began.
    opened_at: Duration,
    /// From when on queues that existed when the channel was opened are a safe place.
    safe_from: EngineTime,
    /// The last reported reason why no channel could be consumed from, and when it was reported.
    warned: Option<(ErrorKind, Duration)>,
    prefetch_control: PrefetchControl,
    byte_budget: ByteBudget,
    timers: Timers,
    /// Sent copies in order, and when each will count as held up.
    ways: VecDeque<(EngineTime, Token)>,
    memory: HandledDedup,
    circuit_breaker: CircuitBreaker,
    /// Set until the first message that is not a suspect arrives. After a start nobody knows whether the next message crashes its consumer,
    /// and a crash counts against everything prefetched with it.
    cautious: bool,
    /// How many such messages it takes to end that.
    suspicion: u32,
    /// How many messages are still to be taken one at a time, however long each takes.
    one_by_one: u32,
    one_by_one_at_first: u32,
    suspect: Option<Suspect>,
    /// A suspect that still runs after its time alone, and until when other suspects keep away from it.
    lingering: Option<(Token, EngineTime)>,
    /// When the next message has kept a cautious consumer from others for too long.
    cautious_until: Option<EngineTime>,
    syncs: AckBarrier,
    drain: Option<Drain>,
    /// Messages that the narrow consumer brought while nothing might run.
    spares: Vec<Token>,
    /// Messages that are requeued as soon as they would not come again at once.
    returning: Vec<Token>,
    /// How many messages are on a detour.
    detours: usize,
    /// How many messages of this channel occupy their places in the prefetch for long.
    slots_taken: usize,
    /// At most how many messages the queue sent to a consumer of ours and took back when that was cancelled. The queue counted each requeue
    /// as it counts a crash.
    returned_unseen: usize,
    /// Until when those may still be coming back.
    returned_until: EngineTime,
    consumer_timeout: ConsumerTimeout,
    /// When handed-out messages are next looked at that no handler may have begun.
    unstarted_check: Option<EngineTime>,
    /// Whether publishing makes no progress, and when copies on their way are next looked at.
    stalled: bool,
    stall_check: Option<EngineTime>,
    /// Nothing is consumed until publishing works again.
    halted: bool,
    warned_without_dlx: bool,
    early: EarlyRedeliveries,
}

impl Engine {
    pub(crate) fn new(setup: Setup) -> Self {
        let Setup {
            options,
            origin,
            counters,
            counting,
            nack_is_uncounted,
            is_classic,
            queues_sleep,
            header_room,
            seed,
        } = setup;
        // If every retry is a redelivery, a known message may be one that still has to run.
        let remembers = counting == Counting::Header;
        Self {
            name: options.queue.as_str().into(),
            origin,
            counters,
            counting,
            nack_is_uncounted,
            is_classic,
            header_room,
            draws: fastrand::Rng::with_seed(seed),
            entries: Tokens::new(),
            channel: None,
            sessions: 1,
            failures: 0,
            short_sessions: 0,
            opened_at: Duration::ZERO,
            safe_from: EngineTime::ZERO,
            warned: None,
            prefetch_control: PrefetchControl::new(options.configured_prefetch(), queues_sleep),
            byte_budget: ByteBudget::new(options.prefetch_bytes, options.configured_prefetch()),
            timers: Timers::default(),
            ways: VecDeque::new(),
            memory: HandledDedup::new(if remembers {
                options.configured_prefetch()
            } else {
                0
            }),
            circuit_breaker: CircuitBreaker::new(options.pause),
            cautious: true,
            suspicion: 0,
            one_by_one: 0,
            one_by_one_at_first: 0,
            suspect: None,
            lingering: None,
            cautious_until: None,
            syncs: AckBarrier::default(),
            drain: None,
            spares: Vec::new(),
            returning: Vec::new(),
            detours: 0,
            slots_taken: 0,
            returned_unseen: 0,
            returned_until: EngineTime::ZERO,
            consumer_timeout: ConsumerTimeout::default(),
            unstarted_check: None,
            stalled: false,
            stall_check: None,
            halted: false,
            warned_without_dlx: false,
            early: EarlyRedeliveries::default(),
            options,
        }
    }

    /// Takes an event. It never fails: an event of a lost channel, or of a message that is settled, has no effect.
    pub(crate) fn on(&mut self, input: Input, now: Now, out: &mut Commands) {
        match input {
            Input::Opened { session } => self.opened(session, now),
            Input::QueuesAreOld { session } if self.is_current(session) => self.queues_are_old(now),
            Input::OpenFailed { session, error } => self.open_failed(session, &error, now, out),
            Input::Consuming { session, consumer } if self.is_current(session) => {
                self.consuming(session, consumer, out);
            }
            Input::Cancelled { session, consumer } if self.is_current(session) => {
                self.prefetch_control.gone(consumer);
            }
            Input::CancelledByBroker { session, consumer } if self.is_current(session) => {
                self.cancelled_by_broker(consumer, now, out);
            }
            Input::Delivered {
                session,
                consumer,
                arrival,
            } if self.is_current(session) => {
                self.delivered(session, consumer, *arrival, now, out);
            }
            Input::Lost { session, why } if self.is_current(session) => {
                if let Some(timeout) = why.as_ref().and_then(consumer_timeout) {
                    self.learn_timeout(timeout);
                }
                match why {
                    Some(error) if self.drain.is_some() => {
                        tracing::debug!(queue = %self.name, %error, "the channel went before the end");
                    }
                    Some(error) => warn!(queue = %self.name, %error, "the channel failed"),
                    None => {}
                }
                self.lost(now, out);
            }
            Input::Synced { session, number } if self.is_current(session) => {
                self.synced(number, now, out);
            }
            Input::Copied { token, stored } => self.copied(token, stored, now, out),
            Input::Ended { token, ending } => match ending {
                HandlerEnd::Settled(outcome) => self.ended(token, &outcome, now, out),
                HandlerEnd::Unstarted => self.not_begun(token),
            },
            Input::Recalled(tokens) => self.recalled(&tokens),
            Input::Close => self.close(now, out),
            Input::Abandon => self.abandon(now, out),
            // From a channel that is gone.
            Input::QueuesAreOld { .. }
            | Input::Consuming { .. }
            | Input::Cancelled { .. }
            | Input::CancelledByBroker { .. }
            | Input::Delivered { .. }
            | Input::Synced { .. }
            | Input::Lost { .. } => {}
        }
    }

    /// Decides what follows from all events so far and from the time.
    pub(crate) fn turn(&mut self, now: Now, out: &mut Commands) {
        self.run_due_timers(now, out);
        self.end_pause(now);
        self.expire_unconfirmed_copies(now);
        self.check_stalled_originals(now, out);
        self.requeue_expired_unstarted(now, out);
        self.release_suspect(now, out);
        self.sync_detours(now, out);
        self.readmit(now, out);
        self.check_drain_deadline(now);
        self.requeue_in_order(now, out);
        self.end_caution(now);
        self.review_budget();
        self.adjust_prefetch(now, out);
        self.flush(now, self.drain.is_some(), out);
    }

    /// When something is due for a kept message.
    pub(crate) fn next_timer(&self) -> Option<EngineTime> {
        [
            self.timers.next(),
            self.circuit_breaker.until(),
            self.suspect.as_ref().and_then(Suspect::deadline),
        ]
        .into_iter()
        .flatten()
        .min()
    }

    /// When the next [`turn`](Self::turn) is due, if nothing happens before.
    pub(crate) fn wake_at(&self) -> Option<EngineTime> {
        let acks = self
            .channel
            .as_ref()
            .filter(|_| !self.prefetch_control.is_changing())
            .and_then(|channel| channel.acks.deadline());
        [
            self.next_timer(),
            acks,
            self.cautious_until,
            self.unstarted_check,
            self.stall_check,
            self.ways.front().map(|(late, _)| *late),
            self.drain.as_ref().map(|drain| drain.until),
        ]
        .into_iter()
        .flatten()
        .min()
    }

    /// The next connection may have another frame size.
    pub(crate) fn set_header_room(&mut self, header_room: usize) {
        self.header_room = header_room;
    }

    /// The next channel may be on another version of the broker, and the queue of another type.
    pub(crate) fn set_broker(
        &mut self,
        counting: Counting,
        nack_is_uncounted: bool,
        queues_sleep: bool,
        is_classic: bool,
    ) {
        self.is_classic = is_classic;
        self.counting = counting;
        self.nack_is_uncounted = nack_is_uncounted;
        self.prefetch_control.set_queues_sleep(queues_sleep);
    }

    /// The broker allows one consumer on a channel. `may_go`: whether the queue survives without any.
    pub(crate) fn set_one_consumer(&mut self, may_go: bool) {
        self.prefetch_control.set_alone(Some(match may_go {
            true => SingleConsumerPrefetch::GoesFirst,
            false => SingleConsumerPrefetch::Stays,
        }));
    }

    /// Takes this many messages of the next session one at a time.
    pub(crate) fn take_one_by_one(&mut self, count: u32) {
        (self.one_by_one, self.one_by_one_at_first) = (count, count);
    }

    /// How far it came with them.
    pub(crate) fn one_by_one(&self) -> OneByOneProgress {
        OneByOneProgress {
            began: self.one_by_one_at_first > 0,
            is_unfinished: self.one_by_one > 0,
            has_taken: self.one_by_one < self.one_by_one_at_first,
        }
    }

    /// The queue's name.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// The body of an unsettled delivery, for its copy.
    pub(crate) fn body(&mut self, token: Token) -> Option<Arc<Received>> {
        let entry = self.entries.get_mut(token)?;
        Some(Arc::clone(&entry.received))
    }

    /// Whether a message is with the handlers.
    pub(crate) fn is_handed_out(&mut self, token: Token) -> bool {
        self.entries
            .get_mut(token)
            .is_some_and(|entry| matches!(entry.phase, Phase::Out))
    }

    /// How many deliveries are not settled.
    pub(crate) fn outstanding(&self) -> usize {
        self.entries.len()
    }

    /// All unsettled deliveries.
    #[cfg(test)]
    fn held(&self) -> impl Iterator<Item = (Token, &Received)> {
        self.entries
            .iter()
            .map(|(token, entry)| (token, &*entry.received))
    }

    /// Sends the acknowledgements that are due, or all.
    fn flush(&mut self, now: Now, all: bool, out: &mut Commands) {
        if self.prefetch_control.is_changing() && self.drain.is_none() {
            return;
        }
        if let Some(channel) = &mut self.channel {
            let session = channel.session;
            channel.acks.flush(now.at, all, |Ack { tag, multiple }| {
                out.list.push(Command::Ack {
                    session,
                    tag,
                    multiple,
                });
            });
        }
    }

    /// Whether messages may come only one at a time now.
    fn takes_one_by_one(&self) -> bool {
        self.cautious
            || self.one_by_one > 0
            || self.suspect.is_some()
            || !self.circuit_breaker.is_off()
            || self.byte_budget.is_exceeded()
    }

    /// Adjusts the consumers to what the broker may send now.
    fn adjust_prefetch(&mut self, now: Now, out: &mut Commands) {
        let Some(channel) = &self.channel else {
            return;
        };
        let session = channel.session;
        let goal = if self.drain.is_some() || self.halted {
            PrefetchMode::Nothing
        } else if self.takes_one_by_one() {
            PrefetchMode::One
        } else {
            PrefetchMode::Full
        };
        let crowded = !self.circuit_breaker.is_pausing()
            && self.slots_taken < self.most_slots_taken()
            && self.has_free_bytes();
        self.prefetch_control.set_wide(self.byte_budget.window());
        while let Some(step) = self.prefetch_control.next(goal, crowded) {
            out.add(match step {
                ChannelStep::Consume { consumer, prefetch } => Command::Consume {
                    session,
                    consumer,
                    prefetch,
                },
                ChannelStep::Cancel { consumer } => {
                    if !self.nack_is_uncounted {
                        self.returned_unseen += self.room_of(session, consumer);
                        self.returned_until = now.at + RETURNS;
                    }
                    Command::Cancel { session, consumer }
                }
            });
        }
        if let Some(channel) = &mut self.channel {
            channel.acks.set_prefetch(self.prefetch_control.width());
        }
    }

    /// How many messages may be on their way to a consumer that is cancelled. None for a narrow one: its only place is occupied then.
    fn room_of(&self, session: u64, consumer: u64) -> usize {
        let prefetch = usize::from(self.prefetch_control.prefetch_of(consumer));
        if prefetch <= 1 {
            return 0;
        }
        let held = self
            .entries
            .iter()
            .filter(|(_, entry)| entry.session == session && entry.consumer == consumer)
            .count();
        let held_back = self
            .channel
            .as_ref()
            .map_or(0, |channel| channel.acks.held_back());
        prefetch.saturating_sub(held + held_back)
    }

    /// The most messages beyond the prefetch that are held because they cannot be stored. Those behind them must run, but memory must not
    /// grow without end.
    fn most_slots_taken(&self) -> usize {
        let prefetch = usize::from(self.options.configured_prefetch());
        prefetch + prefetch.max(64)
    }

    fn is_current(&self, session: u64) -> bool {
        self.channel
            .as_ref()
            .is_some_and(|channel| channel.session == session)
    }

    fn case<'a>(&'a self, received: &'a Received, now: Now) -> AttemptContext<'a> {
        AttemptContext {
            options: &self.options,
            origin: &self.origin,
            received,
            header_room: self.header_room,
            now: now.unix,
            copies: self.early.is_seen(),
        }
    }

    fn queue(&self) -> String {
        self.name.to_string()
    }

    fn set_phase(&mut self, token: Token, phase: Phase) {
        if let Some(entry) = self.entries.get_mut(token) {
            entry.phase = phase;
        }
    }

    fn emit(&self, event: Event, out: &mut Commands) {
        out.add(Command::Tell(event));
    }

    /// Adds jitter, so that consumers do not all try again at the same time.
    fn about(&mut self, pause: Duration) -> Duration {
        pause.mul_f64(0.75 + self.draws.f64() / 2.0)
    }
}

#[cfg(test)]
mod fault_simulation;
#[cfg(test)]
mod scenario_tests;
#[cfg(test)]
mod service_equivalence_tests;
