//! How fast messages are sent back: `--rate 50/s`.

use std::{str::FromStr, time::Duration};

use tokio::time::{Instant, sleep_until};

use crate::rate;

/// Messages that are on their way at a time, and may come twice if we or the broker are killed.
pub(super) const WAVE: usize = 64;
/// A wave is at most what may go within that time, so that a slow rate is even.
const BREATH: Duration = Duration::from_millis(100);
/// The longest pause between two messages.
const SLOWEST: f64 = 86_400.0;

/// Messages in a time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Rate {
    every: Duration,
}

impl FromStr for Rate {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let per_second = rate::per_second(text)
            .ok_or("write a rate as 50/s, 300/m or 1000/h, and above zero")?;
        let every = 1.0 / per_second;
        if every > SLOWEST {
            return Err("a rate is at least one message a day".to_owned());
        }
        Ok(Self {
            every: Duration::from_secs_f64(every),
        })
    }
}

/// When the next wave may go.
#[derive(Debug)]
pub(super) struct RateLimiter {
    rate: Option<Rate>,
    next: Instant,
}

impl RateLimiter {
    pub(super) fn of(rate: Option<Rate>) -> Self {
        Self {
            rate,
            next: Instant::now(),
        }
    }

    /// How many go at a time.
    pub(super) fn batch(&self) -> usize {
        let Some(Rate { every }) = self.rate else {
            return WAVE;
        };
        let most = BREATH.as_nanos() / every.as_nanos().max(1);
        usize::try_from(most).unwrap_or(WAVE).clamp(1, WAVE)
    }

    /// Waits until so many may go.
    pub(super) async fn wait(&mut self, count: usize) {
        let Some(Rate { every }) = self.rate else {
            return;
        };
        sleep_until(self.next).await;
        let count = u32::try_from(count).unwrap_or(u32::MAX);
        // What was lost while a person thought, or a broker had an alarm, is not made up for.
        self.next = Instant::now() + every * count;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_read_and_says_how_many_go_at_a_time() {
        for (text, micros, batch) in [
            ("50/s", 20_000, 5),
            ("50", 20_000, 5),
            ("1/s", 1_000_000, 1),
            ("0.5/s", 2_000_000, 1),
            ("300/m", 200_000, 1),
            ("3600/h", 1_000_000, 1),
            ("100000/s", 10, WAVE),
        ] {
            let rate: Rate = text.parse().unwrap();
            assert_eq!(rate.every, Duration::from_micros(micros), "{text}");
            assert_eq!(RateLimiter::of(Some(rate)).batch(), batch, "{text}");
        }
        for text in [
            "", "/s", "0", "-1/s", "x/s", "5/d", "nan", "inf/s", "0.5/h0", "1e-9",
        ] {
            assert!(text.parse::<Rate>().is_err(), "{text}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_batch_waits_for_what_went_before_it() {
        let mut rate_limiter = RateLimiter::of(Some("50/s".parse().unwrap()));
        assert_eq!(rate_limiter.batch(), 5);
        let start = Instant::now();
        for _ in 0..10 {
            rate_limiter.wait(5).await;
        }
        assert_eq!(start.elapsed(), Duration::from_millis(900));
        let mut free = RateLimiter::of(None);
        free.wait(1_000).await;
        assert_eq!(
            (start.elapsed(), free.batch()),
            (Duration::from_millis(900), WAVE)
        );
    }
}
