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
    pub(super) fn was_in_vain(&mut self) {
        self.0 = (self.0 * 2).min(LONGEST);
    }

    /// A wave was confirmed after this time.
    pub(super) fn was_rewarded(&mut self, took: Duration) {
        self.0 = (took * 2).clamp(ANSWER, LONGEST);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_broker_is_waited_for_long_enough_at_last() {
        let needs = Duration::from_secs(130);
        let mut patience = ConfirmTimeout::default();
        let mut in_vain = 0;
        while patience.now() < needs {
            patience.was_in_vain();
            in_vain += 1;
        }
        assert_eq!(in_vain, 3, "as many copies too many");
        patience.was_rewarded(needs);
        assert!(patience.now() > needs, "and none for the next message");
        patience.was_rewarded(Duration::from_millis(3));
        assert_eq!(patience.now(), ANSWER);
        for _ in 0..100 {
            patience.was_in_vain();
        }
        assert_eq!(patience.now(), LONGEST);
    }
}
