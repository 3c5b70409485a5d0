//! Acknowledgements, combined: one `basic.ack` with `multiple` for a settled prefix of delivery tags.
//!
//! Acknowledging each message alone costs three times the CPU. Waiting for a prefix alone would let one slow handler hold back everything
//! behind it. So a prefix is acknowledged as one, and what is settled behind a slow handler is acknowledged one by one after a while. Each
//! tag is acknowledged exactly once, and tag 0 (which means all) never.

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use super::engine_time::EngineTime;

/// How long a settled message may wait for its acknowledgement.
const TIME_LIMIT: Duration = Duration::from_millis(3);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tag {
    /// The broker has sent it, and it has not arrived yet: deliveries of several consumers can overtake each other.
    Unseen,
    /// With a handler, or on its way to a waiting queue.
    Outstanding,
    /// To be acknowledged.
    Settled,
    /// Acknowledged or rejected.
    Done,
}

impl Tag {
    /// Whether an acknowledgement must not cover it.
    fn is_open(self) -> bool {
        matches!(self, Self::Unseen | Self::Outstanding)
    }
}

/// How many settled deliveries are acknowledged without waiting for more: a quarter of the prefetch, so that the broker always has room to
/// send, and at most sixteen, because a quorum queue sends the next ones only after a round of its own.
fn batch(prefetch: u16) -> usize {
    usize::from(prefetch / 4).clamp(1, 16)
}

/// How many tags leave the row at a time when most of them are done. Otherwise a handler that never ends would make the row, and each scan
/// of it, longer with each message.
#[cfg(not(test))]
const PART: usize = 512;
/// Small, so that tests reach it.
#[cfg(test)]
const PART: usize = 8;

/// More than can be open at a time: most of a row this long is done.
const LONGEST: usize = 2 * 65_536;

/// One `basic.ack`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ack {
    pub(super) tag: u64,
    pub(super) multiple: bool,
}

/// The delivery tags of one channel.
#[derive(Debug)]
pub(super) struct AckWindow {
    /// The tags before `base` that are not done: those of slow handlers. It is never scanned, because there may be many.
    left: BTreeMap<u64, Tag>,
    /// The settled tags among `left`.
    late: Vec<u64>,
    /// The first tag in `tags`.
    base: u64,
    tags: VecDeque<Tag>,
    /// How many are settled and not acknowledged.
    settled: usize,
    /// When the oldest of those was settled.
    since: Option<EngineTime>,
    /// How many are acknowledged without waiting for more.
    batch: usize,
}

impl AckWindow {
    /// For a channel with this prefetch. A quarter of it may be settled and unacknowledged.
    pub(super) fn new(prefetch: u16) -> Self {
        Self {
            left: BTreeMap::new(),
            late: Vec::new(),
            base: 1,
            tags: VecDeque::new(),
            settled: 0,
            since: None,
            batch: batch(prefetch),
        }
    }

    pub(super) fn set_prefetch(&mut self, prefetch: u16) {
        self.batch = batch(prefetch);
    }

    /// A delivery.
    pub(super) fn delivered(&mut self, tag: u64) {
        let next = self.base + self.tags.len() as u64;
        for _ in next..tag {
            self.tags.push_back(Tag::Unseen);
        }
        if tag >= next {
            self.tags.push_back(Tag::Outstanding);
        } else if let Some(state @ Tag::Unseen) = self.get_mut(tag) {
            *state = Tag::Outstanding;
        }
    }

    /// The message is to be acknowledged.
    pub(super) fn settle(&mut self, tag: u64, now: EngineTime) {
        let Some(state @ Tag::Outstanding) = self.get_mut(tag) else {
            return;
        };
        *state = Tag::Settled;
        if tag < self.base {
            self.late.push(tag);
        }
        self.settled += 1;
        self.since.get_or_insert(now);
    }

    /// The message was rejected. Returns whether this tag was still outstanding, so that it may be rejected.
    pub(super) fn reject(&mut self, tag: u64) -> bool {
        let Some(state @ Tag::Outstanding) = self.get_mut(tag) else {
            return false;
        };
        *state = Tag::Done;
        if self.left.remove(&tag).is_none() {
            self.trim();
        }
        true
    }

    /// How many are settled and not acknowledged yet.
    pub(super) fn held_back(&self) -> usize {
        self.settled
    }

    /// When [`flush`](Self::flush) must run, if nothing else happens.
    pub(super) fn deadline(&self) -> Option<EngineTime> {
        self.since.map(|since| since + TIME_LIMIT)
    }

    /// Sends the acknowledgements that are due; with `all`, every one.
    pub(super) fn flush(&mut self, now: EngineTime, all: bool, mut send: impl FnMut(Ack)) {
        let due = all
            || self.settled >= self.batch
            || self.deadline().is_some_and(|deadline| now >= deadline);
        if self.settled == 0 || !due {
            return;
        }
        self.late.sort_unstable();
        for tag in self.late.drain(..) {
            self.left.remove(&tag);
            send(Ack {
                tag,
                multiple: false,
            });
        }
        // Tags in `left` are open, so nothing behind them may be acknowledged as a prefix.
        let prefix = if self.left.is_empty() {
            self.tags.iter().position(|tag| tag.is_open())
        } else {
            Some(0)
        };
        let prefix = prefix.unwrap_or(self.tags.len());
        let settled = |tag: &Tag| *tag == Tag::Settled;
        let settled_in_prefix = self.tags.iter().take(prefix).filter(|tag| settled(tag));
        let settled_in_prefix = settled_in_prefix.count();
        if let Some(last) = self.tags.iter().take(prefix).rposition(settled) {
            send(Ack {
                tag: self.base + last as u64,
                multiple: settled_in_prefix > 1,
            });
        }
        for (offset, tag) in self.tags.iter_mut().enumerate() {
            if *tag == Tag::Settled {
                if offset >= prefix {
                    send(Ack {
                        tag: self.base + offset as u64,
                        multiple: false,
                    });
                }
                *tag = Tag::Done;
            }
        }
        self.settled = 0;
        self.since = None;
        self.trim();
    }

    fn get_mut(&mut self, tag: u64) -> Option<&mut Tag> {
        match tag.checked_sub(self.base) {
            Some(offset) => self.tags.get_mut(usize::try_from(offset).ok()?),
            None => self.left.get_mut(&tag),
        }
    }

    fn trim(&mut self) {
        while self.tags.front() == Some(&Tag::Done) {
            self.tags.pop_front();
            self.base += 1;
        }
        while self.tags.len() > 2 * PART {
            let is_left = |tag: &&Tag| **tag != Tag::Done;
            let left = self.tags.iter().take(PART).filter(is_left).count();
            // If most tags are open, the row is long because many were taken, and a prefix will shorten it.
            if left > PART / 2 && self.tags.len() <= LONGEST {
                return;
            }
            for state in self.tags.drain(..PART) {
                match state {
                    Tag::Done => {}
                    state => {
                        if state == Tag::Settled {
                            self.late.push(self.base);
                        }
                        self.left.insert(self.base, state);
                    }
                }
                self.base += 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn flush(window: &mut AckWindow, now: EngineTime, all: bool) -> Vec<Ack> {
        let mut acks = Vec::new();
        window.flush(now, all, |ack| acks.push(ack));
        acks
    }

    #[test]
    fn what_was_overtaken_is_not_covered() {
        let now = EngineTime::ZERO;
        let mut window = AckWindow::new(4);
        window.delivered(1);
        window.delivered(3);
        window.settle(1, now);
        window.settle(3, now);
        let alone = |tag| Ack {
            tag,
            multiple: false,
        };
        assert_eq!(flush(&mut window, now, true), [alone(1), alone(3)]);
        window.delivered(2);
        window.settle(2, now);
        assert_eq!(flush(&mut window, now, true), [alone(2)]);
    }

    #[test]
    fn a_prefix_goes_as_one_and_stragglers_alone() {
        let now = EngineTime::ZERO;
        let mut window = AckWindow::new(16);
        (1..=10).for_each(|tag| window.delivered(tag));
        for tag in [1, 2, 3] {
            window.settle(tag, now);
        }
        assert_eq!(
            flush(&mut window, now, false),
            [],
            "a quarter of 16 is not reached"
        );
        window.settle(5, now);
        assert_eq!(
            flush(&mut window, now, false),
            [
                Ack {
                    tag: 3,
                    multiple: true
                },
                Ack {
                    tag: 5,
                    multiple: false
                }
            ]
        );
        window.settle(4, now);
        assert_eq!(
            flush(&mut window, now, true),
            [Ack {
                tag: 4,
                multiple: false
            }]
        );
        assert_eq!(flush(&mut window, now, true), []);
    }

    #[test]
    fn nothing_waits_for_ever() {
        let now = EngineTime::ZERO;
        let mut window = AckWindow::new(100);
        window.delivered(1);
        window.settle(1, now);
        assert_eq!(flush(&mut window, now, false), []);
        let due = window.deadline().unwrap();
        assert_eq!(
            flush(&mut window, due, false),
            [Ack {
                tag: 1,
                multiple: false
            }]
        );
        assert_eq!(window.deadline(), None);
    }

    #[test]
    fn a_handler_that_never_ends_leaves_one_tag_behind() {
        let now = EngineTime::ZERO;
        let mut window = AckWindow::new(64);
        window.delivered(1);
        for tag in 2..10_000 {
            window.delivered(tag);
            window.settle(tag, now);
            let alone = Ack {
                tag,
                multiple: false,
            };
            assert_eq!(flush(&mut window, now, true), [alone]);
        }
        assert_eq!(window.left.len(), 1);
        assert!(window.tags.len() <= 2 * PART, "{}", window.tags.len());
        window.settle(1, now);
        assert_eq!(flush(&mut window, now, true).len(), 1);
        assert!(window.left.is_empty() && window.tags.is_empty());
    }

    proptest! {
        /// Compared with a broker that knows what is unacknowledged: no tag twice, no unknown tag, none that is outstanding, and in the end
        /// all.
        #[test]
        fn the_broker_never_complains(steps in prop::collection::vec((0u8..5, any::<u16>()), 0..300), prefetch in 1u16..64) {
            let now = EngineTime::ZERO;
            let mut window = AckWindow::new(prefetch);
            let mut unacked = BTreeSet::new();
            let mut outstanding = Vec::new();
            let mut next = 1u64;
            let check = |unacked: &mut BTreeSet<u64>, outstanding: &[u64], acks: Vec<Ack>| {
                for ack in acks {
                    prop_assert!(ack.tag > 0);
                    let covered: Vec<u64> = if ack.multiple { unacked.range(..=ack.tag).copied().collect() } else { vec![ack.tag] };
                    prop_assert!(!covered.is_empty());
                    for tag in covered {
                        prop_assert!(unacked.remove(&tag), "tag {} is not unacknowledged", tag);
                        prop_assert!(!outstanding.contains(&tag), "tag {} is outstanding", tag);
                    }
                }
                Ok(())
            };
            for (step, pick) in steps {
                let at = |list: &Vec<u64>| usize::from(pick) % list.len().max(1);
                match step {
                    0 | 1 => {
                        window.delivered(next);
                        unacked.insert(next);
                        outstanding.push(next);
                        next += 1;
                    }
                    2 if !outstanding.is_empty() => {
                        let tag = outstanding.swap_remove(at(&outstanding));
                        window.settle(tag, now);
                        window.settle(tag, now);
                    }
                    3 if !outstanding.is_empty() => {
                        let tag = outstanding.swap_remove(at(&outstanding));
                        prop_assert!(window.reject(tag));
                        prop_assert!(!window.reject(tag));
                        unacked.remove(&tag);
                    }
                    _ => check(&mut unacked, &outstanding, flush(&mut window, now, pick % 2 == 0))?,
                }
            }
            for tag in std::mem::take(&mut outstanding) {
                window.settle(tag, now);
            }
            check(&mut unacked, &outstanding, flush(&mut window, now, true))?;
            prop_assert!(unacked.is_empty());
        }
    }
}
