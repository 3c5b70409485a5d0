//! How long to wait before asking again for a queue that was refused.

use std::time::Duration;

use crate::{ErrorKind, doubling_pause::DoublingPause};

/// Who asks for queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DeclareBackoff {
    /// Asks for each copy, again and again, until the queue can be used.
    Consumer,
    /// Asks for each message published with a delay. The publisher gets the error, changes something, and publishes again.
    Publisher,
}

impl DeclareBackoff {
    /// The pause after the refusal number `times`.
    pub(super) fn pause(self, why: ErrorKind, times: u32) -> Duration {
        let (first, longest): (u64, u64) = match (self, why) {
            (Self::Publisher, ErrorKind::QueueNotFound) => (0, 0),
            (Self::Publisher, _) => (100, 1_000),
            (Self::Consumer, why) if why.is_transient() => (100, 5_000),
            (Self::Consumer, ErrorKind::QueueNotFound) => (250, 5_000),
            // A missing permission, or other arguments: somebody has to change something first.
            (Self::Consumer, _) => (1_000, 60_000),
        };
        let [first, longest] = [first, longest].map(Duration::from_millis);
        DoublingPause::new(first, longest).after(times)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_and_are_bounded() {
        let pauses = |backoff: DeclareBackoff, why| {
            [1, 2, 3, 10, u32::MAX].map(|times| backoff.pause(why, times).as_millis())
        };
        let (ours, theirs) = (DeclareBackoff::Consumer, DeclareBackoff::Publisher);
        assert_eq!(
            pauses(ours, ErrorKind::Timeout),
            [100, 200, 400, 5_000, 5_000]
        );
        assert_eq!(
            pauses(ours, ErrorKind::AccessRefused),
            [1_000, 2_000, 4_000, 60_000, 60_000]
        );
        assert_eq!(
            pauses(theirs, ErrorKind::Mismatch),
            [100, 200, 400, 1_000, 1_000]
        );
        assert_eq!(pauses(theirs, ErrorKind::QueueNotFound), [0; 5]);
    }
}
