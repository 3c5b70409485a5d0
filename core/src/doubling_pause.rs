//! The pause before something that failed is tried again.

use std::time::Duration;

/// Twice as long after each failure in a row, up to a limit.
#[derive(Clone, Copy, Debug)]
pub struct DoublingPause {
    first: Duration,
    longest: Duration,
    failures: u32,
}

impl DoublingPause {
    /// Begins with `first`, and never exceeds `longest`.
    #[must_use]
    pub const fn new(first: Duration, longest: Duration) -> Self {
        Self {
            first,
            longest,
            failures: 0,
        }
    }

    /// Counts a failure, and returns the pause after it.
    pub fn next_pause(&mut self) -> Duration {
        self.failures = self.failures.saturating_add(1);
        self.after(self.failures)
    }

    /// For a success: the pause after the next failure is the first one again.
    pub fn reset(&mut self) {
        self.failures = 0;
    }

    /// The pause after this many failures in a row, for callers that count themselves.
    #[must_use]
    pub fn after(self, failures: u32) -> Duration {
        let Some(doublings) = failures.checked_sub(1) else {
            return Duration::ZERO;
        };
        let factor = 2u32.saturating_pow(doublings);
        self.first.saturating_mul(factor).min(self.longest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAUSE: DoublingPause =
        DoublingPause::new(Duration::from_millis(100), Duration::from_secs(5));

    #[test]
    fn a_pause_doubles_up_to_its_limit_and_starts_again_after_a_success() {
        let mut pause = PAUSE;
        let pauses: Vec<_> = (0..8).map(|_| pause.next_pause().as_millis()).collect();
        assert_eq!(pauses, [100, 200, 400, 800, 1_600, 3_200, 5_000, 5_000]);
        pause.reset();
        assert_eq!(pause.next_pause(), Duration::from_millis(100));
    }

    #[test]
    fn any_number_of_failures_has_a_pause() {
        assert_eq!(PAUSE.after(0), Duration::ZERO);
        assert_eq!(PAUSE.after(1), Duration::from_millis(100));
        assert_eq!(PAUSE.after(2), Duration::from_millis(200));
        for failures in [7, 33, 34, u32::MAX] {
            assert_eq!(PAUSE.after(failures), Duration::from_secs(5), "{failures}");
        }
    }

    #[test]
    fn the_limit_also_holds_for_the_first_pause() {
        let pause = DoublingPause::new(Duration::from_secs(9), Duration::from_secs(5));
        assert_eq!(pause.after(1), Duration::from_secs(5));
        let longest = DoublingPause::new(Duration::MAX, Duration::MAX);
        assert_eq!(longest.after(u32::MAX), Duration::MAX);
    }
}
