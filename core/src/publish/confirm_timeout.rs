//! How long a lane waits for the confirms of a wave.

use std::time::Duration;

use crate::connection::ANSWER;

/// The longest wait. Messages that share a lane with one that is never confirmed wait as long.
const LONGEST: Duration = Duration::from_secs(300);

/// Doubles after each wave that was not confirmed in time. Such messages are published again, so a broker that needs half a minute per
/// confirm would otherwise get copies without end.
#[derive(Debug)]
pub(super) struct ConfirmTimeout(Duration);

impl Default for ConfirmTimeout {
    fn default() -> Self {
        Self(ANSWER)
    }
}

impl ConfirmTimeout {
    pub(super) fn now(&self) -> Duration {
        self.0
    }

    /// A wave was not confirmed in time.
    pub(super) fn note_timeout(&mut self) {
        self.0 = (self.0 * 2).min(LONGEST);
    }

    /// A wave was confirmed after this time.
    pub(super) fn note_confirmed(&mut self, took: Duration) {
        self.0 = (took * 2).clamp(ANSWER, LONGEST);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_broker_is_waited_for_long_enough_at_last() {
        let needs = Duration::from_secs(130);
        let mut timeout = ConfirmTimeout::default();
        let mut timeouts = 0;
        while timeout.now() < needs {
            timeout.note_timeout();
            timeouts += 1;
        }
        assert_eq!(timeouts, 3, "as many copies too many");
        timeout.note_confirmed(needs);
        assert!(timeout.now() > needs, "and none for the next message");
        timeout.note_confirmed(Duration::from_millis(3));
        assert_eq!(timeout.now(), ANSWER);
        for _ in 0..100 {
            timeout.note_timeout();
        }
        assert_eq!(timeout.now(), LONGEST);
    }
}
