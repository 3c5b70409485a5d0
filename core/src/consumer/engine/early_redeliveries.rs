//! Messages that their queue is to delay (strategy `native`), and that come back before their time: a policy can take the delay of a queue
//! away, and AMQP does not show policies. Such a message did not wait, so it waits as a copy before its next attempt.

use std::{collections::HashMap, time::Duration};

use super::super::engine_time::EngineTime;

/// The most messages that are remembered.
const MOST: usize = 10_000;

/// A message that was requeued.
#[derive(Clone, Copy, Debug)]
struct RequeuedMessage {
    /// The retries when it was requeued.
    retries: u32,
    due: EngineTime,
    delay: Duration,
}

impl RequeuedMessage {
    /// How much earlier it may come: the leader of a queue may move to a node with another clock.
    fn tolerance(&self) -> Duration {
        (self.delay / 10).clamp(Duration::from_millis(20), Duration::from_secs(1))
    }
}

/// What this consumer requeued to wait, by a mark of each message that its redelivery has, too.
#[derive(Debug, Default)]
pub(super) struct EarlyRedeliveries {
    requeued: HashMap<u64, RequeuedMessage>,
    /// A message of this channel came back too early. Until there is another channel, copies wait instead.
    seen: bool,
}

impl EarlyRedeliveries {
    /// A message is requeued after `retries` retries, to come back after `delay`. Of messages that are all alike the first counts.
    pub(super) fn requeued(&mut self, mark: u64, retries: u32, delay: Duration, now: EngineTime) {
        if self.requeued.len() >= MOST {
            self.requeued.retain(|_, before| before.due > now);
        }
        if self.requeued.len() >= MOST {
            return;
        }
        let requeued = RequeuedMessage {
            retries,
            due: now + delay,
            delay,
        };
        let before = self.requeued.entry(mark).or_insert(requeued);
        if before.due <= now + before.tolerance() {
            *before = requeued;
        }
    }

    /// How much of its delay is left of a message that came back, if that is too much.
    pub(super) fn left(&self, mark: u64, retries: u32, now: EngineTime) -> Option<Duration> {
        let requeued = self.requeued.get(&mark)?;
        let left = requeued.due.checked_sub(now)?;
        (retries > requeued.retries && left > requeued.tolerance()).then_some(left)
    }

    /// Whether anything is expected.
    pub(super) fn expects(&self) -> bool {
        !self.requeued.is_empty()
    }

    /// One came too early. Whether it is the first of this channel.
    pub(super) fn saw(&mut self, mark: u64) -> bool {
        self.requeued.remove(&mark);
        !std::mem::replace(&mut self.seen, true)
    }

    /// Whether the queue cannot be relied on.
    pub(super) fn is_seen(&self) -> bool {
        self.seen
    }

    /// The policy may have been mended.
    pub(super) fn opened(&mut self) {
        self.seen = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn what_comes_back_before_its_time_has_the_rest_left() {
        let mut early = EarlyRedeliveries::default();
        assert!(!early.expects());
        early.requeued(7, 0, 5 * SECOND, SECOND);
        assert_eq!(early.left(7, 1, SECOND), Some(5 * SECOND));
        assert_eq!(early.left(7, 1, 3 * SECOND), Some(3 * SECOND));
        assert_eq!(early.left(7, 0, SECOND), None, "another one, or uncounted");
        assert_eq!(early.left(8, 1, SECOND), None, "another one");
        for on_time in [6 * SECOND, 7 * SECOND, 6 * SECOND - SECOND / 2] {
            assert_eq!(early.left(7, 1, on_time), None, "{on_time:?}");
        }
    }

    #[test]
    fn of_equal_messages_the_first_to_come_back_counts() {
        let mut early = EarlyRedeliveries::default();
        early.requeued(7, 0, 5 * SECOND, SECOND);
        early.requeued(7, 0, 5 * SECOND, 4 * SECOND);
        assert_eq!(early.left(7, 1, 6 * SECOND), None);
        early.requeued(7, 1, 5 * SECOND, 7 * SECOND);
        assert_eq!(early.left(7, 2, 7 * SECOND), Some(5 * SECOND));
    }

    #[test]
    fn the_first_of_each_channel_is_told() {
        let mut early = EarlyRedeliveries::default();
        assert!(early.saw(7) && !early.saw(8) && early.is_seen());
        early.opened();
        assert!(!early.is_seen() && early.saw(9));
    }

    #[test]
    fn it_does_not_grow_without_bound() {
        let mut early = EarlyRedeliveries::default();
        for mark in 0..2 * MOST as u64 {
            early.requeued(mark, 0, SECOND, Duration::ZERO);
        }
        assert_eq!(early.requeued.len(), MOST);
        early.requeued(u64::MAX, 0, SECOND, 2 * SECOND);
        assert_eq!(early.requeued.len(), 1);
    }
}
