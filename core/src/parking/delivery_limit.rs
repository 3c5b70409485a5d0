//! Decides when a message that is only looked at must be replaced by a fresh copy.
//!
//! A quorum queue counts how often a message was requeued, even when a walk's process is killed, and drops it above a limit. That limit may
//! be an argument, a default, or a policy that no client can see. So the count must not grow. A message that was requeued once is renewed
//! before it is requeued again: a confirmed copy goes to the tail, then the original is acknowledged. One that was requeued twice, which
//! happens only after walks that were killed, is renewed before it is shown.
//!
//! The copies go to the tail. With up to [`NEAR`] messages all of them are renewed together, before anything else, which keeps their order.
//! A message with a count that comes behind others, such as a dead letter that arrives counted, is renewed as soon as it comes: no message
//! with a count is ever shown or held. With more messages that would take too long. Then only the messages shown are renewed, at the end;
//! those that do not fit into memory until then are renewed before they are shown. The walk then continues on another channel
//! (`Source::part`).

use lapin::{BasicProperties, message::Delivery};

use super::copy_marker::DeliverySource;
use crate::{
    mutants::{self, Mutant},
    retry::headers,
};

/// Up to this number of messages a walk keeps their order, whatever it renews.
pub(crate) const NEAR: u32 = 2_000;

/// What a delivery says about its past.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DeliveryHistory<'a> {
    pub(crate) redelivered: bool,
    pub(crate) properties: &'a BasicProperties,
}

impl<'a> From<&'a Delivery> for DeliveryHistory<'a> {
    fn from(delivery: &'a Delivery) -> Self {
        Self {
            redelivered: delivery.redelivered,
            properties: &delivery.properties,
        }
    }
}

/// What a walk does with the next message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WalkMove {
    /// Replace it by a fresh copy first.
    Renew,
    /// Hold it until the end, and do not show it.
    PassOver,
    /// Show it.
    Show,
}

/// What applies to one walk.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DeliveryLimit {
    /// The queue counts requeues, as far as can be seen.
    counts: bool,
    near: bool,
    /// The walk already keeps as many messages as it may that must be renewed at its end.
    full: bool,
}

impl DeliveryLimit {
    /// For a queue that is known to be classic, or may be a quorum queue, with this many messages ready.
    pub(crate) fn of(classic: bool, total: u32) -> Self {
        Self {
            counts: !classic && !mutants::has(Mutant::TrustsTheLimit),
            near: total <= NEAR,
            full: false,
        }
    }

    /// Whether a look can use up anything.
    pub(crate) fn counts(self) -> bool {
        self.counts
    }

    /// Whether the walk must keep the order of the queue.
    pub(crate) fn keeps_order(self) -> bool {
        self.near
    }

    /// Whether the whole queue is renewed, if this is its first message. Requeued messages come first.
    pub(crate) fn all_at_once<'a>(self, first: impl Into<DeliveryHistory<'a>>) -> bool {
        self.near && self.at_the_end(first)
    }

    /// Sets whether the walk keeps as many messages as it may that must be renewed at its end.
    pub(crate) fn holds(&mut self, full: bool) {
        self.full = full;
    }

    /// Whether it is renewed before it is shown. In a queue of moderate size that costs little, and a limit may be 1.
    pub(crate) fn at_once<'a>(self, delivery: impl Into<DeliveryHistory<'a>>) -> bool {
        self.counts && returns(delivery.into()) >= if self.near || self.full { 1 } else { 2 }
    }

    /// What to do with a message from this source. `expected`: whether some of the messages that were ready at first are still to come.
    pub(crate) fn next_move<'a>(
        self,
        seen: impl Into<DeliveryHistory<'a>>,
        source: DeliverySource,
        expected: bool,
    ) -> WalkMove {
        match source {
            // Held until the end, so that it does not come round again.
            DeliverySource::Replayed => WalkMove::PassOver,
            _ if self.at_once(seen) => WalkMove::Renew,
            DeliverySource::Elsewhere if !expected => WalkMove::PassOver,
            DeliverySource::Renewed | DeliverySource::Elsewhere => WalkMove::Show,
        }
    }

    /// Whether it is renewed instead of requeued.
    pub(crate) fn at_the_end<'a>(self, delivery: impl Into<DeliveryHistory<'a>>) -> bool {
        self.counts && returns(delivery.into()) >= 1
    }
}

/// Whether a message may be acknowledged now. `stored`: whether its copy is stored, once that is known.
pub(crate) fn may_go(stored: Option<bool>) -> bool {
    stored == Some(true) || mutants::has(Mutant::LetsGoFirst)
}

/// How often it was requeued. On a first delivery the header is whatever its publisher wrote.
fn returns(seen: DeliveryHistory<'_>) -> u32 {
    let table = seen.properties.headers().as_ref();
    table
        .filter(|_| seen.redelivered)
        .and_then(|table| {
            headers::count(table, headers::DELIVERY_COUNT)
                .ok()
                .flatten()
        })
        .unwrap_or(0)
}
