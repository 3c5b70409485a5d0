//! A delivery between its arrival and its settlement.

use std::sync::Arc;

use super::{
    super::Received,
    super::moment::Moment,
    command::{Copy, Return},
};
use crate::telemetry::Event;

/// A delivery that is not settled yet.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) received: Arc<Received>,
    /// The channel on which it came: on any other its tag is somebody else's.
    pub(super) session: u64,
    pub(super) consumer: u64,
    pub(super) tag: u64,
    /// When it came.
    pub(super) since: Moment,
    pub(super) phase: Phase,
    /// The suspect waits for its end.
    pub(super) awaited: bool,
    /// Its detour is on its way, and nothing that may take the consumer down runs before it has left.
    pub(super) on_detour: bool,
    /// It will take its place in the prefetch for long, and is left out of account there.
    pub(super) takes_its_place: bool,
    /// No handler has it, and it cannot be stored.
    pub(super) is_stuck: bool,
    /// Its queue may have sent it to a consumer that was cancelled before it came.
    pub(super) returned_unseen: bool,
}

impl Entry {
    pub(super) fn is_spare(&mut self) -> bool {
        matches!(self.phase, Phase::Held(Held::Spare))
    }
}

#[derive(Debug)]
pub(super) enum Phase {
    /// Handed out: it waits for a handler, or is with one.
    Out,
    /// Kept here.
    Held(Held),
    /// A copy is on its way to a waiting, parking or work queue.
    Copying(Box<Copying>),
}

/// Why a delivery is kept.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Held {
    /// The one that the narrow consumer brings while nothing may run, and that keeps it from bringing more.
    Spare,
    /// The suspect, until nothing else is outstanding.
    Suspect,
    /// To go back to its queue once it would not come again at once.
    Returning,
    /// Put off by its handler where there are no waiting queues: this copy goes to the tail of its queue then.
    Deferred(Box<Copying>),
    /// Failed, and to be rejected as soon as the queue where it is to wait is a safe place.
    Rejecting(Box<Event>),
}

/// A copy on its way; its original is unacknowledged until it is confirmed.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::consumer) struct Copying {
    pub(in crate::consumer) copy: Copy,
    /// What has happened once it is there.
    pub(in crate::consumer) event: Event,
    pub(super) purpose: Purpose,
    pub(super) tries: u32,
    /// Whether an answer is awaited, rather than the time for another try.
    pub(super) under_way: bool,
    /// When it was published last.
    pub(super) published: Moment,
    /// It is there, in a queue that is not a safe place yet.
    pub(super) stored: bool,
}

impl Copying {
    /// One that has not been published yet.
    pub(super) fn new(copy: Copy, event: Event, purpose: Purpose) -> Self {
        Self {
            copy,
            event,
            purpose,
            tries: 0,
            under_way: false,
            published: Moment::ZERO,
            stored: false,
        }
    }

    pub(super) fn waits_for_another_try(&self) -> bool {
        !self.under_way && !self.stored && self.tries > 0
    }
}

/// What a copy is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::consumer) enum Purpose {
    /// The attempt is over: the copy waits for the next one, or is parked.
    Next,
    /// It never ran: the copy only carries its count of crashes.
    Detour,
    /// It never ran: the copy goes to its own queue, without a mark.
    PutBack,
    /// It was deferred where there are no waiting queues: the copy goes to its own queue.
    Deferral,
}

impl Purpose {
    /// Whether a redelivery of the original, after its copy is stored, would be the same attempt once more. A detour and its
    /// original are the same attempt too, but that has not run.
    pub(super) fn is_an_end(self) -> bool {
        matches!(self, Self::Next | Self::Deferral)
    }
}

/// What follows from an attempt, or from what a message says of its past.
#[derive(Debug)]
pub(in crate::consumer) enum Consequence {
    /// Acknowledge: done.
    Ack,
    /// Acknowledge, because there is nowhere for it to go.
    Drop(Event),
    /// Publish a copy, and acknowledge when it is confirmed.
    Copy(Box<Copying>),
    /// The same, after a while in which it is kept.
    Later(std::time::Duration, Box<Copying>),
    /// Let the broker do the rest.
    Return(Return, Event),
}

impl Consequence {
    /// What has happened by it, sooner or later.
    pub(super) fn event(&self) -> Option<&Event> {
        match self {
            Self::Ack => None,
            Self::Copy(copying) | Self::Later(_, copying) => Some(&copying.event),
            Self::Drop(event) | Self::Return(_, event) => Some(event),
        }
    }
}
