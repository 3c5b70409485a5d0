//! A retry policy: how long to wait, how often, and up to which age.

use std::{collections::BTreeSet, time::Duration};

use super::{
    Backoff,
    duration::{MAX_DELAY, MILLISECOND, MINUTE, SECOND, format_duration},
};
use crate::{Error, ErrorKind, Result};

/// From when a message's age is counted, for [`Policy::max_age`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum AgeFrom {
    /// From its first failure (`x-retry-first-failed-at`). The default.
    #[default]
    FirstFailure,
    /// From its publication: the AMQP `timestamp` property, if the publisher set it. Otherwise from the first failure.
    Published,
}

/// When a failed message is retried, and when it is parked instead.
///
/// The constructors of [`Backoff`] make one. It can also be parsed from text, which is the same in every language:
///
/// ```
/// use retryrmq::{Backoff, Policy, SECOND};
///
/// let policy: Policy = "fixed(5s, retries=3)".parse()?;
/// assert_eq!(policy, Backoff::fixed(5 * SECOND).retries(3));
/// # Ok::<(), retryrmq::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Policy {
    pub(super) backoff: Backoff,
    pub(super) retries: u32,
    pub(super) jitter: f64,
    pub(super) max_age: Option<Duration>,
    pub(super) age_from: AgeFrom,
    /// An option that the shape does not have. [`validate`](Self::validate) reports it.
    pub(super) misplaced: Option<&'static str>,
}

/// A policy that needs more waiting queues is a mistake.
const MOST_DELAYS: usize = 64;

/// A larger count on a message is not believed, so a policy with more retries would never end.
const MOST_RETRIES: u32 = 1_000_000;

/// A smaller factor needs thousands of retries until the delay grows by a millisecond.
const SLOWEST_GROWTH: f64 = 1.001;

impl Policy {
    pub(super) fn new(backoff: Backoff) -> Self {
        Self {
            backoff,
            retries: 5,
            jitter: 0.0,
            max_age: None,
            age_from: AgeFrom::default(),
            misplaced: None,
        }
    }

    /// Sets how many retries a message gets before it is parked: 0 to 1 000 000. Attempts are one more. 0 parks at the first failure.
    #[must_use]
    pub fn retries(mut self, retries: u32) -> Self {
        self.retries = retries;
        self
    }

    /// Sets the longest delay of the linear and exponential shapes. [`validate`](Self::validate) refuses it for other shapes.
    #[must_use]
    pub fn max(mut self, longest: Duration) -> Self {
        match &mut self.backoff {
            Backoff::Linear { max, .. } | Backoff::Exponential { max, .. } => *max = longest,
            Backoff::Fixed { .. } | Backoff::List { .. } => self.misplaced = Some("max"),
        }
        self
    }

    /// Sets by what each further delay is multiplied, for the exponential shape: 1, or at least 1.001. [`validate`](Self::validate) refuses
    /// it for other shapes.
    #[must_use]
    pub fn factor(mut self, times: f64) -> Self {
        match &mut self.backoff {
            Backoff::Exponential { factor, .. } => *factor = times,
            _ => self.misplaced = Some("factor"),
        }
        self
    }

    /// Sets what is added to each further delay, for the linear shape. [`validate`](Self::validate) refuses it for other shapes.
    #[must_use]
    pub fn step(mut self, longer: Duration) -> Self {
        match &mut self.backoff {
            Backoff::Linear { step, .. } => *step = longer,
            _ => self.misplaced = Some("step"),
        }
        self
    }

    /// Sets how far delays are spread: 0 to 0.9; 0 by default. Each delay is multiplied by `1 - jitter`, `1 - jitter / 2` or 1, at random.
    ///
    /// This takes three waiting queues per delay. Random expirations in one queue would not work: RabbitMQ releases a queue in order, so
    /// all messages would wait for the longest delay.
    #[must_use]
    pub fn jitter(mut self, share: f64) -> Self {
        self.jitter = share;
        self
    }

    /// Sets the greatest age. A message is parked as `too-old` if its next attempt would be later than `age` after its first failure.
    #[must_use]
    pub fn max_age(mut self, age: Duration) -> Self {
        self.max_age = Some(age);
        self
    }

    /// Sets from when the age of [`max_age`](Self::max_age) is counted.
    #[must_use]
    pub fn age_from(mut self, from: AgeFrom) -> Self {
        self.age_from = from;
        self
    }

    /// The shape of the delays.
    #[must_use]
    pub fn backoff(&self) -> &Backoff {
        &self.backoff
    }

    /// How many retries a message gets before it is parked.
    #[must_use]
    pub fn max_retries(&self) -> u32 {
        self.retries
    }

    /// The delay before retry number `retry`; 1 is the first. `draw` is any random number; it chooses the jitter.
    #[must_use]
    pub fn delay(&self, retry: u32, draw: u64) -> Duration {
        let spread = self.spread(self.backoff.delay(retry));
        spread[usize::try_from(draw % spread.len() as u64).unwrap_or(0)]
    }

    /// Every delay of this policy, in ascending order. Each needs its own waiting queue. If there are too many, so that
    /// [`validate`](Self::validate) refuses the policy, only the first of them are returned.
    #[must_use]
    pub fn delays(&self) -> BTreeSet<Duration> {
        let last = match &self.backoff {
            Backoff::List { delays } => u32::try_from(delays.len()).unwrap_or(u32::MAX),
            _ => MOST_RETRIES,
        }
        .min(self.retries);
        let mut delays = BTreeSet::new();
        let mut retry = 1;
        while retry <= last && delays.len() <= MOST_DELAYS {
            let delay = self.backoff.delay(retry);
            delays.extend(self.spread(delay));
            retry = match self.backoff {
                Backoff::List { .. } => retry + 1,
                _ => self.first_longer(delay, retry, last),
            };
        }
        delays
    }

    /// The first retry after `retry` whose delay is longer than `delay`, or `last + 1`. It is a binary search: delays that grow slowly
    /// repeat when they are rounded to milliseconds.
    fn first_longer(&self, delay: Duration, retry: u32, last: u32) -> u32 {
        let (mut not_yet, mut found) = (retry, last + 1);
        while found - not_yet > 1 {
            let middle = not_yet + (found - not_yet) / 2;
            if self.backoff.delay(middle) > delay {
                found = middle;
            } else {
                not_yet = middle;
            }
        }
        found
    }

    fn spread(&self, delay: Duration) -> [Duration; 3] {
        if self.jitter == 0.0 {
            return [delay; 3];
        }
        let share = |of: f64| {
            Duration::from_millis(((delay.as_millis() as f64 * of).round() as u64).max(1))
        };
        [
            share(1.0 - self.jitter),
            share(1.0 - self.jitter / 2.0),
            delay,
        ]
    }

    /// Checks what a constructor cannot. It is called when a consumer subscribes, and when text is parsed.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidPolicy`]. The error message names what to change.
    pub fn validate(&self) -> Result<()> {
        let bad = |why: String| {
            Err(Error::new(
                ErrorKind::InvalidPolicy,
                format!("the retry policy {self} {why}"),
            ))
        };
        if let Some(option) = self.misplaced {
            let shape = match option {
                "factor" => "exponential",
                "step" => "linear",
                _ => "linear or exponential",
            };
            return bad(format!(
                "cannot work: only {shape} policies have `{option}`; remove it"
            ));
        }
        let named: Vec<(&str, Duration)> = match &self.backoff {
            Backoff::Fixed { delay } => vec![("its delay", *delay)],
            Backoff::Linear { initial, max, .. } | Backoff::Exponential { initial, max, .. } => {
                vec![("its first delay", *initial), ("`max`", *max)]
            }
            Backoff::List { delays } if delays.is_empty() => {
                return bad("lists no delay; write list(1s, 10s)".into());
            }
            Backoff::List { delays } => delays.iter().map(|delay| ("a delay", *delay)).collect(),
        };
        for (name, delay) in named {
            if delay < MILLISECOND {
                return bad(format!("cannot work: {name} must be at least 1ms"));
            }
            if delay > MAX_DELAY {
                return bad(format!(
                    "cannot work: {name} is longer than {}",
                    format_duration(MAX_DELAY)
                ));
            }
        }
        if let Backoff::Linear { initial, max, .. } | Backoff::Exponential { initial, max, .. } =
            &self.backoff
            && initial > max
        {
            return bad(
                "cannot work: its first delay is longer than `max`; raise `max` (default 5m) or lower the first delay"
                    .into(),
            );
        }
        if let Backoff::Exponential { factor, .. } = &self.backoff
            && !(factor.is_finite() && (*factor == 1.0 || *factor >= SLOWEST_GROWTH))
        {
            return bad(format!(
                "cannot work: `factor` must be 1, or a number of at least {SLOWEST_GROWTH}"
            ));
        }
        if self.retries > MOST_RETRIES {
            return bad(format!(
                "cannot work: `retries` must be at most {MOST_RETRIES}"
            ));
        }
        if !(0.0..=0.9).contains(&self.jitter) {
            return bad("cannot work: `jitter` must be between 0 and 0.9".into());
        }
        if self.max_age == Some(Duration::ZERO) {
            return bad("cannot work: `max_age` must be longer than 0".into());
        }
        if self.delays().len() > MOST_DELAYS {
            return bad(format!(
                "needs more than {MOST_DELAYS} waiting queues; raise `factor` or `step`, or lower `max`"
            ));
        }
        Ok(())
    }
}

impl Default for Policy {
    /// `exponential(1s, factor=4, max=5m, retries=5)`: 1, 4, 16, 64 and 256 seconds.
    fn default() -> Self {
        Backoff::exponential(SECOND).max(5 * MINUTE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_option_that_the_shape_does_not_have_is_refused() {
        for (policy, option) in [
            (Backoff::fixed(SECOND).factor(2.0), "`factor`"),
            (Backoff::linear(SECOND).factor(2.0), "`factor`"),
            (Backoff::exponential(SECOND).step(SECOND), "`step`"),
            (Backoff::list([SECOND]).max(MINUTE), "`max`"),
        ] {
            let refused = policy.validate().unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::InvalidPolicy);
            assert!(refused.to_string().contains(option), "{refused}");
        }
        Backoff::exponential(SECOND)
            .factor(2.0)
            .max(MINUTE)
            .validate()
            .unwrap();
        Backoff::linear(SECOND)
            .step(SECOND)
            .max(MINUTE)
            .validate()
            .unwrap();
    }
}
