//! A delivery between its arrival and its settlement.

use std::sync::Arc;

use super::{
    super::Received,
    super::{engine_time::EngineTime, handled_dedup::AttemptHash},
    command::{Copy, Return},
};
use crate::telemetry::Event;

/// A delivery that is not settled yet.
#[derive(Debug)]
pub(super) struct DeliveryState {
    pub(super) received: Arc<Received>,
    /// The size of its body, while that is kept.
    pub(super) bytes: u64,
    /// Its mark, if its body is not kept.
    pub(super) mark: Option<AttemptHash>,
    /// The channel on which it came. On another channel its tag belongs to another message.
    pub(super) session: u64,
    pub(super) consumer: u64,
    pub(super) tag: u64,
    /// When it came.
    pub(super) since: EngineTime,
    pub(super) phase: Phase,
    /// The suspect waits for its end.
    pub(super) awaited: bool,
    /// It is on a detour. Nothing that may crash the consumer runs before the broker has read that.
    pub(super) on_detour: bool,
    /// It will occupy its place in the prefetch for long, and is not counted there.
    pub(super) takes_its_place: bool,
    /// No handler has it, and it cannot be stored.
    pub(super) is_stuck: bool,
    /// Its copy was not stored in time: an alarm, a full queue.
    pub(super) is_held_up: bool,
    /// Its queue may have sent it to a consumer that was cancelled before it arrived.
    pub(super) returned_unseen: bool,
    /// Its handler has it from a lost channel, and it is done by a delivery that came later.
    pub(super) is_answered: bool,
}

impl DeliveryState {
    pub(super) fn is_spare(&mut self) -> bool {
        matches!(self.phase, Phase::Held(HoldReason::Spare))
    }
}

#[derive(Debug)]
pub(super) enum Phase {
    /// Handed out: it waits for a handler, or is with one.
    Out,
    /// Kept here.
    Held(HoldReason),
    /// A copy is on its way to a waiting, parking or work queue.
    Copying(Box<PendingCopy>),
}

/// Why a delivery is kept.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum HoldReason {
    /// It came while nothing might run, and keeps the narrow consumer from bringing more.
    Spare,
    /// The suspect, until nothing else is unsettled.
    Suspect,
    /// It is requeued once it would not come again at once.
    Returning,
    /// Deferred by its handler without waiting queues: this copy then goes to the tail of its queue.
    Deferred(Box<PendingCopy>),
    /// It failed, and is rejected as soon as its waiting queue is a safe place.
    Rejecting(Box<Event>),
}

/// A copy on its way. Its original is unacknowledged until it is confirmed.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::consumer) struct PendingCopy {
    pub(in crate::consumer) copy: Copy,
    /// The event once it is stored.
    pub(in crate::consumer) event: Event,
    pub(super) purpose: Purpose,
    pub(super) tries: u32,
    /// Whether an answer is awaited; otherwise the next try is.
    pub(super) under_way: bool,
    /// When it was last published.
    pub(super) published: EngineTime,
    /// It was stored in a queue that was not a safe place yet.
    pub(super) is_young: bool,
}

impl PendingCopy {
    /// A copy that was not published yet.
    pub(super) fn new(copy: Copy, event: Event, purpose: Purpose) -> Self {
        Self {
            copy,
            event,
            purpose,
            tries: 0,
            under_way: false,
            published: EngineTime::ZERO,
            is_young: false,
        }
    }

    pub(super) fn waits_for_another_try(&self) -> bool {
        !self.under_way && !self.is_young && self.tries > 0
    }
}

/// What a copy is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::consumer) enum Purpose {
    /// The attempt is over: the copy waits for the next one, or is parked.
    Next,
    /// It never ran: the copy only carries its crashes.
    Detour,
    /// It never ran: the copy goes to its own queue, unmarked.
    PutBack,
    /// It was deferred without waiting queues: the copy goes to its own queue.
    Deferral,
}

impl Purpose {
    /// Whether a redelivery of the original, after its copy is stored, would repeat the same attempt. A detour and its original are the
    /// same attempt as well, but it has not run.
    pub(super) fn is_an_end(self) -> bool {
        matches!(self, Self::Next | Self::Deferral)
    }
}

/// What follows from an attempt, or from a message's past.
#[derive(Debug)]
pub(in crate::consumer) enum NextAction {
    /// Acknowledge: done.
    Ack,
    /// Acknowledge it, because `park` is off.
    Drop(Event),
    /// Publish a copy, and acknowledge the original after the confirm.
    Copy(Box<PendingCopy>),
    /// The same, after it was held for a while.
    Later(std::time::Duration, Box<PendingCopy>),
    /// Requeue it, or reject it.
    Return(Return, Event),
}

impl NextAction {
    /// The event that it leads to.
    pub(super) fn event(&self) -> Option<&Event> {
        match self {
            Self::Ack => None,
            Self::Copy(pending_copy) | Self::Later(_, pending_copy) => Some(&pending_copy.event),
            Self::Drop(event) | Self::Return(_, event) => Some(event),
        }
    }
}
