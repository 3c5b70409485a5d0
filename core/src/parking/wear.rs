//! When a message that is only looked at has to be put back as a fresh copy.
//!
//! A quorum queue counts how often a message was given back, also when a walk's process is killed, and drops it when that
//! passes a limit: an argument, a default, or a policy that no client can see. So the count may not grow. A message that
//! was given back once is renewed (a confirmed copy at the tail, then the original is acknowledged) before it is given
//! back again, and one that was given back twice, which only walks that died leave behind, before it is even shown.
//!
//! The copies go to the tail. Up to [`NEAR`] messages all of them are renewed together, before anything else, which keeps
//! their order. What was given back before and comes behind others, as a dead letter does that arrives counted, is renewed
//! as soon as it comes: nothing with a count is ever shown or held there. Beyond that it would take too long, and only what
//! was looked at is renewed: at the end, and what no longer fits into memory until then before it is shown. The walk then
//! goes on by another channel (`Supply::part`).

use lapin::{BasicProperties, message::Delivery};

use super::marks::Source;
use crate::{
    consumer::flaws::{self, Flaw},
    retry::headers,
};

/// Walks through so many messages keep their order whatever they renew.
pub(crate) const NEAR: u32 = 2_000;

/// What a delivery says of its past.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen<'a> {
    pub(crate) redelivered: bool,
    pub(crate) properties: &'a BasicProperties,
}

impl<'a> From<&'a Delivery> for Seen<'a> {
    fn from(delivery: &'a Delivery) -> Self {
        Self {
            redelivered: delivery.redelivered,
            properties: &delivery.properties,
        }
    }
}

/// What a walk does with the message that stands in front.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Move {
    /// Put it back as a fresh copy, before anything else.
    Renew,
    /// Hold it until the end, and do not show it.
    PassOver,
    /// Show it.
    Show,
}

/// What holds for one walk.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wear {
    /// The queue counts what it takes back, as far as can be seen.
    counts: bool,
    near: bool,
    /// The walk keeps as much as it may of what must be renewed at its end.
    full: bool,
}

impl Wear {
    /// Of a queue that is known to be classic or may be a quorum queue, with so many messages ready.
    pub(crate) fn of(classic: bool, total: u32) -> Self {
        Self {
            counts: !classic && !flaws::has(Flaw::TrustsTheLimit),
            near: total <= NEAR,
            full: false,
        }
    }

    /// Whether a look may spend anything at all.
    pub(crate) fn counts(self) -> bool {
        self.counts
    }

    /// Whether the walk keeps the order of the queue at any price.
    pub(crate) fn keeps_order(self) -> bool {
        self.near
    }

    /// Whether the whole queue is renewed, when this is its first message. What was given back comes first.
    pub(crate) fn all_at_once<'a>(self, first: impl Into<Seen<'a>>) -> bool {
        self.near && self.at_the_end(first)
    }

    /// Whether the walk keeps as much as it may of what must be renewed at its end.
    pub(crate) fn holds(&mut self, full: bool) {
        self.full = full;
    }

    /// Whether it is renewed before it is shown. In a queue of moderate size that costs little, and a limit may be 1.
    pub(crate) fn at_once<'a>(self, delivery: impl Into<Seen<'a>>) -> bool {
        self.counts && returns(delivery.into()) >= if self.near || self.full { 1 } else { 2 }
    }

    /// What to do with a message from there. `expected`: whether some of those are still to come that were there at first.
    pub(crate) fn next_move<'a>(
        self,
        seen: impl Into<Seen<'a>>,
        source: Source,
        expected: bool,
    ) -> Move {
        match source {
            // Held until the end, so that it cannot come round a second time.
            Source::Replayed => Move::PassOver,
            _ if self.at_once(seen) => Move::Renew,
            Source::Elsewhere if !expected => Move::PassOver,
            Source::Renewed | Source::Elsewhere => Move::Show,
        }
    }

    /// Whether it is renewed instead of given back.
    pub(crate) fn at_the_end<'a>(self, delivery: impl Into<Seen<'a>>) -> bool {
        self.counts && returns(delivery.into()) >= 1
    }
}

/// Whether a message may be acknowledged now: its copy is stored, which `stored` says as soon as that is known.
pub(crate) fn may_go(stored: Option<bool>) -> bool {
    stored == Some(true) || flaws::has(Flaw::LetsGoFirst)
}

/// How often it was given back. On a first delivery the header is whatever its publisher wrote.
fn returns(seen: Seen<'_>) -> u32 {
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
