//! How long a message is kept without progress. The broker allows only so much (`consumer_timeout`), and tells how much when it takes a
//! message back.

use std::time::Duration;

use crate::mutants::{self, Mutant};

/// As long as nothing else is known. RabbitMQ allows an unsettled delivery for 30 minutes by default, and then closes the whole channel.
pub(crate) const LONGEST_KEPT: Duration = Duration::from_secs(600);

/// Which part of the broker's timeout a message may be kept for: it is returned in time even if it was kept once before, and a broker looks
/// late rather than early.
const PART: u32 = 3;

/// A shorter time would only keep the broker busy.
const SHORTEST: Duration = Duration::from_millis(100);

/// No broker's timeout is shorter: it looks for held messages only now and then. Who is cancelled earlier has lost the queue.
const SHORTEST_TIMEOUT: Duration = Duration::from_secs(1);

/// What is known of the broker's timeout. It holds for all later channels.
#[derive(Debug)]
pub(super) struct ConsumerTimeout {
    longest: Duration,
    /// A consumer was cancelled after a message was held for so long. If the queue's first message comes again, this was the timeout: a
    /// queue that was deleted has only new ones.
    suspected: Option<Duration>,
}

impl Default for ConsumerTimeout {
    fn default() -> Self {
        Self {
            longest: LONGEST_KEPT,
            suspected: None,
        }
    }
}

impl ConsumerTimeout {
    /// How long a message may be kept.
    pub(super) fn longest(&self) -> Duration {
        self.longest
    }

    /// How long a copy may be unconfirmed before it counts as held up.
    pub(super) fn way(&self, usual: Duration) -> Duration {
        usual.min(self.longest / 2)
    }

    /// The broker took messages back after `timeout`. Returns whether that is news.
    pub(super) fn learn(&mut self, timeout: Duration) -> bool {
        if mutants::has(Mutant::ForgetsTheTimeout) {
            return false;
        }
        let longest = (timeout / PART).max(SHORTEST);
        let is_news = longest < self.longest;
        self.longest = self.longest.min(longest);
        is_news
    }

    /// The broker cancelled a consumer without a reason, and the oldest message was held for `age`.
    pub(super) fn suspect(&mut self, age: Duration) {
        self.suspected = (age >= SHORTEST_TIMEOUT).then_some(age);
    }

    /// A message comes, for the first time or again. Returns the timeout, if that is news.
    pub(super) fn arrived(&mut self, redelivered: bool) -> Option<Duration> {
        let age = self.suspected.take()?;
        (redelivered && self.learn(age)).then_some(age)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_returned_long_before_the_shortest_timeout_seen() {
        let mut timeout = ConsumerTimeout::default();
        assert_eq!(timeout.longest(), LONGEST_KEPT);
        assert!(
            !timeout.learn(Duration::from_secs(3 * 3600)),
            "it is longer"
        );
        assert_eq!(timeout.longest(), LONGEST_KEPT);
        assert!(timeout.learn(Duration::from_secs(30)));
        assert!(!timeout.learn(Duration::from_secs(30)), "it is known");
        assert_eq!(timeout.longest(), Duration::from_secs(10));
        assert!(!timeout.learn(Duration::from_secs(1_800)), "another node's");
        assert_eq!(timeout.longest(), Duration::from_secs(10));
        timeout.learn(Duration::ZERO);
        assert_eq!(timeout.longest(), SHORTEST);
    }

    #[test]
    fn a_cancellation_tells_the_timeout_if_the_message_comes_again() {
        let mut timeout = ConsumerTimeout::default();
        assert_eq!(timeout.arrived(true), None);
        timeout.suspect(Duration::from_secs(9));
        assert_eq!(timeout.longest(), LONGEST_KEPT);
        assert_eq!(timeout.arrived(true), Some(Duration::from_secs(9)));
        assert_eq!(timeout.longest(), Duration::from_secs(3));
        assert_eq!(timeout.arrived(true), None);
    }

    #[test]
    fn a_cancellation_by_a_deleted_queue_tells_nothing() {
        let mut timeout = ConsumerTimeout::default();
        timeout.suspect(Duration::from_millis(20));
        assert_eq!(timeout.arrived(true), None, "too early for a timeout");
        timeout.suspect(Duration::from_secs(9));
        assert_eq!(timeout.arrived(false), None, "the queue was created again");
        assert_eq!(
            timeout.arrived(true),
            None,
            "nor does a message that comes later"
        );
        assert_eq!(timeout.longest(), LONGEST_KEPT);
    }
}
