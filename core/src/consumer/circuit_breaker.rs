//! The retry budget. When most attempts fail, the cause is not the messages: a database may be down. A pause keeps them from using up all
//! their retries meanwhile.

use std::{collections::VecDeque, time::Duration};

use crate::{Error, ErrorKind, MAX_DELAY, Result};

/// When a consumer stops taking messages for a while, and for how long.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Pause {
    /// The share of failed attempts above which the consumer pauses: at least 0 and below 1; 0.5 by default.
    pub failures: f64,
    /// How many of the last attempts are counted.
    pub window: usize,
    /// How long a pause lasts. After it, the consumer takes one message as a probe: if it succeeds, the consumer resumes; if it fails, the
    /// next pause begins.
    pub pause: Duration,
}

impl Default for Pause {
    /// Pauses for 30 seconds when more than half of the last 20 attempts failed.
    fn default() -> Self {
        Self {
            failures: 0.5,
            window: 20,
            pause: Duration::from_secs(30),
        }
    }
}

impl Pause {
    /// Sets [`failures`](field@Self::failures), at least 0 and below 1; 0.5 by default.
    #[must_use]
    pub fn failures(mut self, share: f64) -> Self {
        self.failures = share;
        self
    }

    /// Sets [`window`](field@Self::window), 1 to 10000; 20 by default.
    #[must_use]
    pub fn window(mut self, attempts: usize) -> Self {
        self.window = attempts;
        self
    }

    /// Sets [`pause`](field@Self::pause), at most 365 days; 30 seconds by default.
    #[must_use]
    pub fn pause(mut self, pause: Duration) -> Self {
        self.pause = pause;
        self
    }

    pub(super) fn validate(&self) -> Result<()> {
        let bad = |why| {
            Err(Error::new(
                ErrorKind::InvalidOption,
                format!("`pause` cannot work: {why}"),
            ))
        };
        if !(0.0..1.0).contains(&self.failures) {
            bad("`failures` is a share of at least 0 and below 1")
        } else if self.window == 0 || self.window > 10_000 {
            bad("`window` is a number of attempts between 1 and 10000")
        } else if self.pause.is_zero() || self.pause > MAX_DELAY {
            bad("`pause` must be longer than 0 and at most 365d")
        } else {
            Ok(())
        }
    }
}

/// The results of the last attempts.
#[derive(Debug)]
pub(super) struct FailureWindow {
    rule: Pause,
    last: VecDeque<bool>,
    failures: usize,
}

impl FailureWindow {
    pub(super) fn new(rule: Pause) -> Self {
        Self {
            rule,
            last: VecDeque::with_capacity(rule.window),
            failures: 0,
        }
    }

    pub(super) fn pause(&self) -> Duration {
        self.rule.pause
    }

    /// Records an attempt. Returns whether to pause now.
    pub(super) fn note(&mut self, failed: bool) -> bool {
        if self.last.len() == self.rule.window {
            self.failures -= usize::from(self.last.pop_front() == Some(true));
        }
        self.last.push_back(failed);
        self.failures += usize::from(failed);
        self.last.len() == self.rule.window
            && self.failures as f64 > self.rule.failures * self.rule.window as f64
    }

    /// Clears the record, when a pause begins or ends.
    pub(super) fn reset(&mut self) {
        self.last.clear();
        self.failures = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_above_the_share_of_a_full_window() {
        let mut budget = FailureWindow::new(Pause {
            failures: 0.5,
            window: 4,
            pause: Duration::from_secs(1),
        });
        assert_eq!(
            [true, true, true].map(|failed| budget.note(failed)),
            [false; 3],
            "the window is not full"
        );
        assert!(budget.note(false), "three of four");
        budget.reset();
        let notes =
            [true, false, true, false, true, false, true, true].map(|failed| budget.note(failed));
        assert_eq!(
            notes,
            [false, false, false, false, false, false, false, true]
        );
    }

    #[test]
    fn nonsense_is_refused() {
        for pause in [
            Pause {
                failures: 1.0,
                ..Pause::default()
            },
            Pause {
                failures: f64::NAN,
                ..Pause::default()
            },
            Pause {
                window: 0,
                ..Pause::default()
            },
            Pause {
                pause: Duration::ZERO,
                ..Pause::default()
            },
        ] {
            assert_eq!(
                pause.validate().unwrap_err().kind(),
                ErrorKind::InvalidOption
            );
        }
        assert!(Pause::default().validate().is_ok());
    }
}
